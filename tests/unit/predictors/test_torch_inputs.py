"""What reaches an exported program: each input the column of its name, and a row that does not fit fails alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lazily import lazily
from modeljobs import model_job
from nightjar.inference.errors import JobError
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import load_scorer
from nightjar.inference.predictors.arrays import to_numpy
from nightjar.inference.predictors.tabular.filling import required_numbers
from nightjar.inference.scoring.assignment import BatchSize
from nightjar.inference.scoring.scored_rows import ScoredRows
from predicting import score_table

torch = lazily("torch")
tree_map = lazily("torch.utils._pytree", "tree_map")
programs = lazily("torchprograms")
load_program = lazily("nightjar.inference.predictors.tabular.modules", "load_program")


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def job(features: list[str] | None = None, output: str = "float64") -> Job:
    model: dict[str, Any] = {"uses": "torch", "path": "m.pt2", "trusted": True, "outputs": {"score": output}}
    if features is not None:
        model["features"] = features
    content = {"name": "t", "input": {"uri": "in/"}, "model": model, "output": {"uri": "out"}}
    return parse_job(content, Path("job.yaml"))


def export(path: Path, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> str:
    """Every input with a first dimension of any size."""
    first = {0: torch.export.Dim.DYNAMIC}
    # Copies: of one tensor given twice torch makes one input.
    args, kwargs = tree_map(torch.clone, (args, kwargs or {}))
    places = tree_map(lambda _: first, args)
    shapes = {
        **dict(zip(inspect.signature(module.forward).parameters, places, strict=False)),
        **dict.fromkeys(kwargs, first),
    }
    torch.export.save(torch.export.export(module, args, kwargs, dynamic_shapes=shapes), path)
    return str(path)


# ---- which column is which input ----------------------------------------------------------------------------

ROWS = {"income": [100.0, 200.0], "age": [1.0, 2.0]}
"""In the order of no program below: age - income is negative."""


def doubles() -> torch.Tensor:
    """An example of an input."""
    return torch.ones(4, dtype=torch.float64)


def scored(path: str, table: dict[str, Any], features: list[str] | None = None) -> list[Any]:
    return list(load_scorer(model_job(job(features)), path)(pa.table(table))["score"].to_pylist())


@pytest.mark.parametrize(
    ("program", "given"),
    [
        ("Positional", lambda e: ((e, e), {})),
        ("Positional", lambda e: ((e,), {"income": e})),
        ("Keyword", lambda e: ((), {"age": e, "income": e})),
        ("Keyword", lambda e: ((), {"income": e, "age": e})),
        ("OfDict", lambda e: (({"age": e, "income": e},), {})),
        ("OfDict", lambda e: (({"income": e, "age": e},), {})),
        ("UpperCase", lambda e: ((e, e), {})),
    ],
    ids=["positional", "mixed", "keyword", "keyword-reversed", "dict", "dict-reversed", "upper-case"],
)
def test_inputs_get_the_columns_of_their_names_whatever_their_order(
    tmp_path: Path, program: str, given: Callable[[torch.Tensor], tuple[tuple[Any, ...], dict[str, Any]]]
) -> None:
    """given: how the program is called as it is exported."""
    path = export(tmp_path / "m.pt2", getattr(programs, program)(), *given(doubles()))
    assert scored(path, ROWS) == [-99.0, -198.0]
    assert scored(path, ROWS, ["age", "income"]) == [-99.0, -198.0]
    assert scored(path, {"Income": ROWS["income"], "AGE": ROWS["age"]}) == [-99.0, -198.0]


def test_inputs_of_other_names_get_the_columns_in_the_jobs_order(tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", programs.Other(), (doubles(), doubles()))
    assert scored(path, ROWS) == [99.0, 198.0]
    assert scored(path, ROWS, ["age", "income"]) == [-99.0, -198.0]
    assert scored(path, {"p": [1.0], "q": [3.0]}) == [-2.0]


@pytest.mark.parametrize("names", [("income", "spend"), ("spend", "age"), ("AGE", "spend"), ("Age", "age")])
def test_inputs_of_which_some_have_the_names_of_columns_are_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    """In the order of the job, one column would be given to the input that has the other's name."""
    path = export(tmp_path / "m.pt2", programs.Positional(), (doubles(), doubles()))
    for features in (names, names[::-1]):
        with pytest.raises(JobError, match=r"^model\.features: the model has an input '(age|income)', which is not "):
            scored(path, {name: [1.0] for name in names}, [*features])


def test_names_that_differ_in_case_only_are_told_apart(tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", programs.ByCase(), ({"T": doubles(), "t": doubles()},))
    assert scored(path, {"t": [1.0], "T": [3.0]}) == [2.0]


def test_one_stacked_input_takes_the_features_in_the_jobs_order(tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", programs.Stacked(), (torch.ones(4, 2, dtype=torch.float64),))
    assert scored(path, ROWS) == [99.0, 198.0]
    assert scored(path, ROWS, ["age", "income"]) == [-99.0, -198.0]


# ---- a row's list that does not fit -------------------------------------------------------------------------


def score(table: pa.Table, path: str, output: str = "int64") -> ScoredRows:
    loaded = job(output=output)
    steps = score_table(table, load_scorer(model_job(loaded), path), BatchSize(64), loaded.models[0].output_types())
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: ScoredRows = stop.value
            return result


ODD: dict[str, list[int | None]] = {"short": [1, 2, 3], "long": [1] * 5, "empty": [], "null": [1, None, 3, 4]}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize("shape", [(4, 4), (4, 2, 2)], ids=["stacked", "reshaped"])
@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, pa.list_view], ids=["list", "large_list", "list_view"])
def test_a_list_that_does_not_fit_costs_its_row_only(
    tmp_path: Path, kind: Callable[..., pa.DataType], shape: tuple[int, ...], odd: list[int | None]
) -> None:
    path = export(tmp_path / "m.pt2", programs.Sum(), (torch.ones(shape, dtype=torch.int64),))
    lists: list[list[int | None]] = [[row, 0, 0, 1] for row in range(64)]
    lists[7] = odd
    result = score(pa.table({"v": pa.array(lists, kind(pa.int64()))}), path)
    assert [failure.row for failure in result.failures] == [7]
    assert result.failures[0].error == "ValueError"
    assert result.outputs["score"].to_pylist() == [row + 1 for row in range(64) if row != 7]


def test_a_null_in_a_list_of_one_costs_its_row_only(tmp_path: Path) -> None:
    """Of one number a row, but still a list: its rows may differ."""
    example = torch.ones(4, 4, dtype=torch.int64), torch.ones(4, dtype=torch.int64)
    path = export(tmp_path / "m.pt2", programs.Add(), example)
    table = pa.table(
        {"x": [[row, 0, 0, 0] for row in range(64)], "y": [[None] if row == 7 else [1] for row in range(64)]}
    )
    result = score(table, path)
    assert [failure.row for failure in result.failures] == [7]
    assert result.outputs["score"].to_pylist() == [row + 1 for row in range(64) if row != 7]


@pytest.mark.parametrize("type_", [pa.list_(pa.int64(), 4), pa.fixed_shape_tensor(pa.int64(), [4])], ids=str)
def test_a_null_inside_rows_of_a_fixed_length_costs_its_row_only(tmp_path: Path, type_: pa.DataType) -> None:
    path = export(tmp_path / "m.pt2", programs.Sum(), (torch.ones((4, 4), dtype=torch.int64),))
    lists: list[list[int | None]] = [[row, 0, 0, 1] for row in range(64)]
    lists[7] = [1, None, 3, 4]
    storage = pa.array(lists, pa.list_(pa.int64(), 4))
    tensor = isinstance(type_, pa.FixedShapeTensorType)
    result = score(pa.table({"v": pa.ExtensionArray.from_storage(type_, storage) if tensor else storage}), path)
    assert [failure.row for failure in result.failures] == [7]
    assert result.outputs["score"].to_pylist() == [row + 1 for row in range(64) if row != 7]


def test_lists_that_fit_nowhere_cost_every_row(tmp_path: Path) -> None:
    """Which preflight refuses."""
    path = export(tmp_path / "m.pt2", programs.Sum(), (torch.ones((4, 4), dtype=torch.int64),))
    failures = score(pa.table({"v": [[1, 2, 3]] * 5}), path).failures
    assert [failure.row for failure in failures] == list(range(5))
    assert "model.features: v makes 3 columns, and input 'x' of the model takes 4" in failures[0].message


def test_scalar_columns_that_do_not_fit_are_the_jobs_fault(tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", programs.Sum(), (torch.ones((4, 4), dtype=torch.int64),))
    with pytest.raises(JobError, match=r"model\.features: a, b make 2 columns, and input .* takes 4"):
        score(pa.table({"a": [1, 2], "b": [3, 4]}), path)
    with pytest.raises(JobError, match=r"model\.features: 'a' is float64, and the model takes int64"):
        score(pa.table({name: [1.5, 2.5] for name in "abcd"}), path)


@pytest.mark.parametrize("type_", [pa.list_view(pa.int64()), pa.large_list_view(pa.int64())], ids=str)
def test_list_views_become_arrays_as_lists_do(type_: pa.DataType) -> None:
    assert to_numpy(pa.array([[9, 9], [1, 2], [3, 4]], type_).slice(1)).tolist() == [[1, 2], [3, 4]]


def test_what_preprocess_masks_is_no_number(tmp_path: Path) -> None:
    """As a null: NaN where the numbers have it, else the row's fault."""
    program = load_program(
        model_job(job()), export(tmp_path / "m.pt2", programs.Sum(), (torch.ones((4, 1), dtype=torch.float64),))
    )
    prepared = program.prepare({"x": np.ma.masked_array([1.0, 2.0], [False, True])})
    given = program.predict(prepared)["score"]
    assert given[0] == 1.0
    assert torch.isnan(given[1])
    with pytest.raises(ValueError, match="feature 'x' has a masked value"):
        program.prepare({"x": np.ma.masked_array([1, 2], [False, True])})


@pytest.mark.parametrize("of", [pa.list_, lambda item: pa.list_(item, 2), lambda item: pa.list_(pa.list_(item, 2))])
@pytest.mark.parametrize("kind", [pa.int64(), pa.uint8(), pa.float32()])
def test_only_floats_in_a_list_have_a_number_for_a_null(
    kind: pa.DataType, of: Callable[[pa.DataType], pa.DataType]
) -> None:
    values: list[Any] = [[1, 0], [1, None]]
    column = pa.array([[each] for each in values] if pa.types.is_nested(of(kind).value_type) else values, of(kind))
    for held in (column, pa.chunked_array([column])):
        if pa.types.is_floating(kind):
            assert np.isnan(required_numbers("x", held, "torch")).sum() == 1
            continue
        with pytest.raises(ValueError, match="has no NaN to stand for it"):
            required_numbers("x", held, "torch")
        assert required_numbers("x", held.slice(0, 1), "torch").ravel().tolist() == [1, 0]
