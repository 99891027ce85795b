"""Predictors: the user's own code unchanged, exported programs, and every row accounted for on the way back."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from nightjar.inference.errors import JobError, OutputInvalid
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job, arrow_type
from nightjar.inference.predictors import Scorer, input_columns, load_scorer
from nightjar.inference.predictors.archive import inspect_program
from nightjar.inference.predictors.arrays import to_numpy
from nightjar.inference.predictors.batches import to_batch
from nightjar.inference.predictors.outputs import normalise, to_arrow

F32 = pa.float32()


@pytest.fixture(autouse=True)
def _clean_imports() -> Any:
    """Each test's modules are its own."""
    path, modules, threads = list(sys.path), set(sys.modules), torch.get_num_threads()
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and "pytest" in str(sys.modules[name].__file__):
            del sys.modules[name]
    torch.set_num_threads(threads)


MakeJob = Callable[..., Job]


@pytest.fixture
def make_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeJob:
    """A job in `tmp_path` with this code in `mine.py`; keywords change the model section or the job."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file written twice in a second looks unchanged

    def make(code: str = "", *, job: dict[str, Any] | None = None, **model: Any) -> Job:
        if code:
            (tmp_path / "mine.py").write_text(code)
            sys.modules.pop("mine", None)
        content = {
            "name": "t",
            "input": {"uri": "in/"},
            "model": {"uses": "mine:Predictor", "outputs": {"score": "float32"}, **model},
            "output": {"uri": "out"},
            **(job or {}),
        }
        return parse_job(content, tmp_path / "job.yaml")

    return make


def scored(job: Job, table: pa.Table, path: str | None = None) -> dict[str, list[Any]]:
    return {name: values.to_pylist() for name, values in load_scorer(job, path)(table).items()}


TABLE = pa.table({"a": pa.array([1.0, 2.0, 3.0], F32), "b": pa.array([10, 20, 30], pa.int64())})

RAY_DOCS = """
import numpy as np

class Predictor:
    def __init__(self, factor=2):
        self.model = lambda x: x * factor

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        batch["score"] = self.model(batch["a"])
        return batch
"""


# ---- the user's own code ------------------------------------------------------------------------------------


def test_a_ray_data_class_works_unchanged_and_its_other_columns_are_dropped(make_job: MakeJob) -> None:
    job = make_job(RAY_DOCS, options={"factor": 3})
    assert scored(job, TABLE) == {"score": [3.0, 6.0, 9.0]}


def test_a_class_is_built_once_for_all_batches(make_job: MakeJob, tmp_path: Path) -> None:
    note = f"__import__('pathlib').Path({str(tmp_path)!r}, 'built-' + str(id(self))).touch(); self.model ="
    code = RAY_DOCS.replace("self.model =", note)
    scorer = load_scorer(make_job(code), None)
    scorer(TABLE)
    scorer(TABLE)
    assert len(list(tmp_path.glob("built-*"))) == 1


def test_a_plain_function_gets_its_options_as_keywords(make_job: MakeJob) -> None:
    job = make_job(
        "def f(batch, factor):\n return {'score': batch['a'] * factor}", uses="mine:f", options={"factor": 5}
    )
    assert scored(job, TABLE) == {"score": [5.0, 10.0, 15.0]}


@pytest.mark.parametrize(
    ("form", "body"),
    [
        (
            "numpy",
            "assert isinstance(batch, dict) and isinstance(batch['a'], np.ndarray); return {'score': batch['a']}",
        ),
        ("pandas", "assert isinstance(batch, pd.DataFrame); batch['score'] = batch['a']; return batch"),
        ("pyarrow", "assert isinstance(batch, pa.Table); return pa.table({'score': batch['a']})"),
        ("torch", "assert isinstance(batch['a'], torch.Tensor); batch['a'] += 0; return {'score': batch['a']}"),
    ],
)
def test_batch_format_decides_what_the_code_sees_and_is_not_an_option_of_it(
    make_job: MakeJob, form: str, body: str
) -> None:
    code = f"import numpy as np, pandas as pd, pyarrow as pa, torch\ndef f(batch):\n {body}"
    assert scored(make_job(code, uses="mine:f", options={"batch_format": form}), TABLE) == {"score": [1.0, 2.0, 3.0]}


def test_an_unknown_batch_format_names_the_key_and_the_nearest(make_job: MakeJob) -> None:
    job = make_job(RAY_DOCS, options={"batch_format": "numpi"})
    with pytest.raises(JobError, match=r"model\.options\.batch_format: 'numpi'.*did you mean 'numpy'"):
        load_scorer(job, None)


def test_a_generators_yields_are_joined_in_order(make_job: MakeJob) -> None:
    code = "def f(batch):\n for x in batch['a']:\n  yield {'score': [x]}"
    assert scored(make_job(code, uses="mine:f"), TABLE) == {"score": [1.0, 2.0, 3.0]}


def test_a_generator_may_fill_the_same_memory_for_each_piece(make_job: MakeJob) -> None:
    """As runtimes do that bind their outputs once: what was yielded is kept as it was."""
    code = (
        "import numpy as np\nheld = np.zeros(1)\ndef f(batch):\n for i in range(len(batch['a'])):\n"
        "  np.multiply(batch['a'][i : i + 1], 2, out=held)\n  yield {'score': held}"
    )
    assert scored(make_job(code, uses="mine:f", outputs={"score": "float64"}), TABLE) == {"score": [2.0, 4.0, 6.0]}


def test_a_generator_that_yields_too_little_is_an_invalid_output(make_job: MakeJob) -> None:
    with pytest.raises(OutputInvalid, match="'score' has 1 values for 3 rows"):
        scored(make_job("def f(batch):\n yield {'score': [1.0]}", uses="mine:f"), TABLE)
    with pytest.raises(OutputInvalid, match="'score' is missing: the predictor yielded nothing"):
        scored(make_job("def g(batch):\n return\n yield", uses="mine:g"), TABLE)


@pytest.mark.parametrize(
    "code",
    [
        "class Predictor:\n async def __call__(self, batch):\n  return batch",
        "class Predictor:\n async def __call__(self, batch):\n  yield batch",
        "async def Predictor(batch):\n return batch",
    ],
)
def test_async_callables_are_refused(make_job: MakeJob, code: str) -> None:
    with pytest.raises(JobError, match=r"model\.uses: mine:Predictor is async"):
        load_scorer(make_job(code), None)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("Predictor = 3", "mine:Predictor is a int, not a class or function"),
        ("class Predictor: pass", r"class mine:Predictor has no __call__\(batch\)"),
    ],
)
def test_what_cannot_be_called_with_a_batch_is_refused(make_job: MakeJob, code: str, message: str) -> None:
    with pytest.raises(JobError, match=rf"model\.uses: {message}"):
        load_scorer(make_job(code), None)


def test_what_the_users_code_raises_passes_through_unchanged(make_job: MakeJob) -> None:
    code = "class Odd(Exception): pass\ndef f(batch):\n raise Odd('row 7')"
    scorer = load_scorer(make_job(code, uses="mine:f"), None)
    with pytest.raises(Exception, match="row 7") as caught:
        scorer(TABLE)
    assert type(caught.value).__name__ == "Odd"
    with pytest.raises(ZeroDivisionError):
        load_scorer(
            make_job("class C:\n def __init__(self):\n  1/0\n def __call__(self, b): pass", uses="mine:C"), None
        )


def test_the_model_path_goes_to_a_constructor_that_takes_it(make_job: MakeJob) -> None:
    code = "class {0}:\n def __init__(self, {1}): self.p = {2}\n def __call__(self, b): return [self.p == '/m'] * 3"
    for name, parameters, value in [("A", "path", "path"), ("B", "**options", "options['path']")]:
        job = make_job(code.format(name, parameters, value), uses=f"mine:{name}", outputs={"score": "bool"}, path="m")
        assert scored(job, TABLE, "/m") == {"score": [True] * 3}


def test_a_constructor_without_path_makes_model_path_an_error(make_job: MakeJob) -> None:
    with pytest.raises(JobError, match=r"model\.path: mine:Predictor takes no keyword `path`; add it to __init__"):
        load_scorer(make_job(RAY_DOCS, path="m"), "/m")


def test_an_unknown_option_is_named_before_anything_is_called(make_job: MakeJob) -> None:
    with pytest.raises(JobError, match=r"model\.options: mine:Predictor .*'fcator'.*it takes \(factor=2\)"):
        load_scorer(make_job(RAY_DOCS, options={"fcator": 3}), None)


def test_a_missing_module_names_key_module_and_folder(make_job: MakeJob, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=rf"model\.uses: there is no module 'nothere' in {tmp_path}"):
        load_scorer(make_job(uses="nothere:P"), None)
    with pytest.raises(JobError, match=r"preprocess: there is no module 'gone'"):
        load_scorer(make_job(RAY_DOCS, job={"preprocess": "gone:f"}), None)


def test_a_missing_name_names_the_file_and_the_nearest(make_job: MakeJob) -> None:
    with pytest.raises(
        JobError, match=r"model\.uses: module 'mine' \(.*mine\.py\) has no 'Pridictor'; did you mean 'Pred"
    ):
        load_scorer(make_job(RAY_DOCS, uses="mine:Pridictor"), None)


@pytest.mark.parametrize(("code", "cause"), [("1/0", ZeroDivisionError), ("import nothere_at_all", ImportError)])
def test_a_module_that_raises_while_imported_keeps_its_traceback(
    make_job: MakeJob, code: str, cause: type[Exception]
) -> None:
    with pytest.raises(JobError, match=r"model\.uses: importing module 'mine'") as caught:
        load_scorer(make_job(code), None)
    assert isinstance(caught.value.__cause__, cause)
    assert caught.value.__cause__.__traceback__ is not None


def test_another_jobs_modules_of_the_same_name_never_stand_in(make_job: MakeJob, tmp_path: Path) -> None:
    for folder, value in (("one", 1), ("two", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "samename.py").write_text("import samehelper\ndef f(b): return [samehelper.V] * 3")
        (tmp_path / folder / "samehelper.py").write_text(f"V = {value}")
    for folder, value in (("one", 1), ("two", 2), ("one", 1)):
        job = make_job(uses="samename:f").model_copy(update={"folder": str(tmp_path / folder)})
        assert scored(job, TABLE) == {"score": [value] * 3}


def test_device_tells_where_the_users_model_says_it_is(make_job: MakeJob) -> None:
    code = "import torch\nclass Predictor:\n def __init__(self): self.{0}\n def __call__(self, b): return b"
    assert load_scorer(make_job(code.format("m = torch.nn.Linear(1, 1)")), None).device == "cpu"
    job = make_job(code.replace("Predictor", "Other").format("device = torch.device('cuda:3')"), uses="mine:Other")
    assert load_scorer(job, None).device == "cuda:3"


# ---- columns ------------------------------------------------------------------------------------------------

SCHEMA = pa.schema([("id", pa.string()), ("a", F32), ("b", pa.int64()), ("late", pa.bool_())])


def test_the_model_sees_all_columns_but_carried_ones_and_the_label(make_job: MakeJob) -> None:
    assert input_columns(make_job(job={"carry": ["id"], "label": "late"}), SCHEMA) == ("a", "b")


def test_features_are_the_columns_in_their_own_order(make_job: MakeJob) -> None:
    assert input_columns(make_job(features=["b", "id"], job={"carry": ["id"]}), SCHEMA) == ("b", "id")


def test_preprocess_gets_everything_but_carried_ones_and_the_carried_ones_that_are_features(
    make_job: MakeJob,
) -> None:
    aside = {"carry": ["id", "b"], "label": "late", "preprocess": "mine:p"}
    assert input_columns(make_job(job=aside), SCHEMA) == ("a",)
    assert input_columns(make_job(job=aside, features=["made_later", "b"]), SCHEMA) == ("a", "b")


def test_a_feature_that_is_not_a_column_names_the_nearest(make_job: MakeJob) -> None:
    with pytest.raises(JobError, match=r"model\.features: 'lat' is not a column of the input; did you mean 'late'"):
        input_columns(make_job(features=["lat"]), SCHEMA)


def test_a_job_that_leaves_the_model_no_column_is_an_error(make_job: MakeJob) -> None:
    with pytest.raises(JobError, match=r"model\.features"):
        input_columns(make_job(job={"carry": ["a"], "label": "b"}), pa.schema([("a", F32), ("b", F32)]))


def test_features_are_selected_and_ordered_after_preprocess(make_job: MakeJob) -> None:
    code = (
        "def p(batch):\n return {**batch, 'c': batch['a'] + batch['b']}\n"
        "def f(batch):\n assert list(batch) == ['c', 'a']; return batch['c']"
    )
    assert scored(make_job(code, uses="mine:f", features=["c", "a"], job={"preprocess": "mine:p"}), TABLE) == {
        "score": [11.0, 22.0, 33.0]
    }


def test_a_feature_that_preprocess_does_not_return_is_named(make_job: MakeJob) -> None:
    job = make_job(
        "def p(b): return b\ndef f(b): return b", uses="mine:f", features=["x"], job={"preprocess": "mine:p"}
    )
    with pytest.raises(
        JobError, match=r"model\.features: 'x' is not a column that preprocess returned; it returned a, b"
    ):
        scored(job, TABLE)


def test_a_preprocess_class_is_built_once_and_must_keep_the_rows(make_job: MakeJob) -> None:
    code = "class P:\n def __call__(self, b): return {'a': b['a'][:2]}\ndef f(b): return b['a']"
    with pytest.raises(OutputInvalid, match="preprocess returned 2 values of 'a' for 3 rows"):
        scored(make_job(code, uses="mine:f", job={"preprocess": "mine:P"}), TABLE)


# ---- Arrow to batches ---------------------------------------------------------------------------------------


def test_numbers_reach_numpy_without_a_copy() -> None:
    array = pa.array(np.arange(4, dtype="f4"))
    assert np.shares_memory(to_numpy(array), array.to_numpy())


def test_arrow_types_become_the_numpy_types_people_expect() -> None:
    assert np.isnan(to_numpy(pa.array([1, None]))).tolist() == [False, True]
    assert to_numpy(pa.array(["x", None])).tolist() == ["x", None]
    assert to_numpy(pa.array([0], pa.timestamp("us", "UTC"))).dtype == np.dtype("M8[us]")
    assert to_numpy(pa.array(["x", "y"]).dictionary_encode()).tolist() == ["x", "y"]
    assert to_numpy(pa.array([[1.0, 2.0], [3.0, 4.0]])).shape == (2, 2)
    assert to_numpy(pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)).slice(1)).tolist() == [[3, 4]]
    assert to_numpy(pa.array([[[1.0], [2.0]], [[3.0], [4.0]]])).shape == (2, 2, 1)
    ragged = to_numpy(pa.array([[1.0], [2.0, 3.0]]))
    assert ragged.dtype == object
    assert [list(row) for row in ragged] == [[1.0], [2.0, 3.0]]
    assert to_numpy(pa.array([[1.0], None])).tolist()[1] is None
    assert to_numpy(pa.array([], pa.list_(F32, 3))).shape == (0, 3)


def test_tensors_are_copies_so_that_code_may_write_into_them() -> None:
    table = pa.table({"a": pa.array(np.ones(3, "f4")), "t": ["x", "y", "z"]})
    batch = to_batch(table, "torch")
    batch["a"] += 1
    assert table["a"].to_pylist() == [1.0, 1.0, 1.0]
    assert isinstance(batch["t"], np.ndarray)


def test_a_null_inside_a_tensor_is_no_number() -> None:
    """Arrow gives whatever lies there."""
    storage = pa.array([[1, 2], [3, None]], pa.list_(pa.int64(), 2))
    column = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int64(), [2]), storage)
    assert to_numpy(column.slice(0, 1)).tolist() == [[1, 2]]
    with pytest.raises(ValueError, match="has a null inside"):
        to_numpy(column)


# ---- outputs to Arrow ---------------------------------------------------------------------------------------


def arrow(value: Any, declared: str, rows: int | None = None) -> list[Any]:
    array = to_arrow("score", value, arrow_type(declared), rows)
    assert array.type == arrow_type(declared)
    assert isinstance(array, pa.Array)
    return list(array.to_pylist())


def test_every_kind_of_array_becomes_the_declared_type() -> None:
    import pandas as pd

    for value in (
        np.array([1.0, 2.0]),
        np.array([[1.0], [2.0]]),
        np.array([1, 2], ">i8"),
        np.array([1.0, 2.0], object),
        np.array([1, 2], "f2"),
        torch.tensor([1.0, 2.0], requires_grad=True),
        torch.tensor([[1], [2]]),
        torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
        [torch.tensor(1.0), torch.tensor(2.0)],
        [np.array([1.0]), np.array([2.0])],
        [np.float32(1), 2],
        (1, 2),
        pd.Series([1.0, 2.0], index=[9, 7]),
        pd.Series([1, 2], dtype="Int64"),
        pa.array([1, 2]),
        pa.chunked_array([[1.0], [2.0]]),
        pa.array([1, 2]).dictionary_encode(),
    ):
        assert arrow(value, "float32") == [1.0, 2.0]


def test_none_is_null_and_nan_stays_nan_in_floats() -> None:
    import pandas as pd

    assert arrow([1.0, None], "float32") == [1.0, None]
    assert arrow(np.array(["x", None], object), "string") == ["x", None]
    assert arrow(pd.Series(["x", None]), "string") == ["x", None]
    assert arrow([None, None], "float32[2]") == [None, None]
    for value in (np.array([1.0, np.nan]), pd.Series([1.0, np.nan]), torch.tensor([1.0, torch.nan]), [1.0, np.nan]):
        kept = arrow(value, "float32")[1]
        assert kept is not None
        assert np.isnan(kept)


def masked(values: Any, mask: Any) -> Any:
    return np.ma.masked_array(values, mask)


def test_what_numpy_masks_is_null_and_nan_stays_nan() -> None:
    assert arrow(masked([1, 2], [False, True]), "int64") == [1, None]
    assert arrow(masked([1.5, 2.0], [False, True]), "float32") == [1.5, None]
    assert arrow(masked([[1.5], [2.0]], [[False], [True]]), "float32") == [1.5, None]
    assert arrow(masked(["x", "y"], [False, True]), "string") == ["x", None]
    assert arrow(masked([1.5, 2.0], False), "float32") == [1.5, 2.0]
    nan, null = arrow(masked([np.nan, 2.0], [False, True]), "float32")
    assert np.isnan(nan)
    assert null is None
    for alone in (np.ma.masked, [np.ma.masked], [masked([2.0], [True])]):
        assert arrow(alone, "float32", 1) == [None]
    assert arrow([1.5, np.ma.masked], "float32") == [1.5, None]
    assert normalise({"score": masked([1, 2], [True, False])}, {"score": F32}, 2)["score"].to_pylist() == [None, 2.0]
    assert normalise(masked([1, 2], [True, False]), {"score": F32}, 2)["score"].to_pylist() == [None, 2.0]


def test_masked_numbers_inside_a_row_are_refused() -> None:
    two = masked([[1.0, 2.0], [3.0, 4.0]], [[False, True], [False, False]])
    for value in (two, list(two)):
        for declared in ("float32[2]", "list<float32>"):
            with pytest.raises(OutputInvalid, match=r"does not fit .*masks some of the numbers of a row"):
                arrow(value, declared)
    assert arrow(two[1:], "float32[2]") == [[3.0, 4.0]]


def test_lists_come_from_two_dimensions() -> None:
    two = np.arange(4, dtype="f8").reshape(2, 2)
    for value in (two, torch.from_numpy(two), two.T.copy().T, [two[0], two[1]], two.tolist()):
        assert arrow(value, "float32[2]") == [[0.0, 1.0], [2.0, 3.0]]
        assert arrow(value, "list<float32>") == [[0.0, 1.0], [2.0, 3.0]]
    assert arrow(np.zeros((1, 2, 1)), "list<list<float32>>") == [[[0.0], [0.0]]]
    ragged = np.empty(2, object)
    ragged[:] = [np.array([1.0]), np.array([2.0, 3.0])]
    assert arrow(ragged, "list<float32>") == [[1.0], [2.0, 3.0]]


def test_a_batch_of_one_row_may_be_squeezed_too_far() -> None:
    """`model(x).squeeze()` is right for many rows and loses a dimension for one: bisection must not break it."""
    assert arrow(np.array(1.5), "float32", 1) == [1.5]
    assert arrow(torch.tensor(1.5), "float32", 1) == [1.5]
    assert arrow(np.array([1.0, 2.0]), "float32[2]", 1) == [[1.0, 2.0]]


def test_numbers_that_do_not_fit_are_refused() -> None:
    assert arrow([1.0, 2.0], "int64") == [1, 2]
    assert arrow([0, 1], "bool") == [False, True]
    assert arrow([True, False], "int8") == [1, 0]
    assert arrow([1e300], "float32") == [float("inf")]
    for value, declared in [
        ([1.5], "int64"),
        ([np.nan], "int64"),
        (np.array([np.nan]), "int64"),
        ([300], "int8"),
        ([2], "bool"),
        ([0.5], "bool"),
        (["1"], "float32"),
        ([1.0], "string"),
        ([["1"]], "list<float32>"),
        ([b"x"], "string"),
        (np.zeros((2, 3)), "float32"),
        (np.zeros((2, 3)), "float32[2]"),
        (np.zeros(2), "float32[2]"),
        (np.array([1j]), "float32"),
        ([object()], "float32"),
        ([1], "timestamp[us]"),
    ]:
        with pytest.raises(OutputInvalid, match="output 'score'"):
            arrow(value, declared)


def test_times_keep_their_meaning() -> None:
    assert str(arrow(np.array(["2026-01-02"], "M8[ns]"), "timestamp[us, UTC]")[0]) == "2026-01-02 00:00:00+00:00"
    assert arrow(np.array(["NaT"], "M8[us]"), "timestamp[us]") == [None]


def test_a_bare_result_is_the_single_output_and_never_one_of_several() -> None:
    assert normalise(np.ones(2), {"score": F32}, 2)["score"].to_pylist() == [1.0, 1.0]
    with pytest.raises(OutputInvalid, match=r"bare ndarray, but model\.outputs declares 'p', 'q'"):
        normalise(np.ones(2), {"p": F32, "q": F32}, 2)


def test_a_missing_output_names_it_and_what_came_instead() -> None:
    with pytest.raises(OutputInvalid, match="output 'score' is missing; the predictor returned x, y"):
        normalise({"x": [1], "y": [2]}, {"score": F32}, 1)
    with pytest.raises(OutputInvalid, match="output 'score' is missing: the predictor returned None"):
        normalise(None, {"score": F32}, 1)


def test_outputs_of_the_wrong_length_are_refused() -> None:
    with pytest.raises(OutputInvalid, match="output 'score' has 2 values for 3 rows"):
        normalise({"score": [1, 2]}, {"score": F32}, 3)
    with pytest.raises(OutputInvalid, match="output 'score' has 1 values for 3 rows"):
        normalise(np.float32(1), {"score": F32}, 3)


# ---- exported programs --------------------------------------------------------------------------------------

N = torch.export.Dim("n")


def export(
    path: Path, forward: Callable[..., Any], *examples: torch.Tensor, dynamic: bool = True, layer: bool = False
) -> str:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if layer:
                self.layer = torch.nn.Linear(examples[0].shape[1], 2)

        def forward(self, *inputs: torch.Tensor) -> Any:
            return forward(*([self.layer(inputs[0])] if layer else inputs))

    shapes = (tuple({0: N} for _ in examples),) if dynamic else None
    torch.export.save(torch.export.export(Model(), examples, dynamic_shapes=shapes), path)
    return str(path)


@pytest.fixture
def torch_job(make_job: MakeJob) -> MakeJob:
    def make(**model: Any) -> Job:
        return make_job(**{"uses": "torch", "path": "m.pt2", **model})

    return make


def test_one_input_gets_the_features_stacked_in_their_order(torch_job: MakeJob, tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", lambda x: x[:, 0] - x[:, 1], torch.ones(4, 2))
    assert scored(torch_job(features=["b", "a"]), TABLE, path) == {"score": [9.0, 18.0, 27.0]}


@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_a_linear_model_agrees_with_numpy_at_any_batch_size(torch_job: MakeJob, tmp_path: Path, rows: int) -> None:
    path = export(tmp_path / "m.pt2", lambda x: x, torch.ones(4, 3), layer=True)
    state = torch.export.load(path).state_dict
    values = np.random.default_rng(1).random((rows, 3)).astype("f4")
    table = pa.table({name: values[:, i] for i, name in enumerate("abc")})
    scorer = load_scorer(torch_job(outputs={"score": "float32[2]"}), path)
    weight, bias = (state[f"layer.{name}"].detach().numpy() for name in ("weight", "bias"))
    expected = values @ weight.T + bias
    got = np.array(scorer(table)["score"].to_pylist()).reshape(rows, 2)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_a_program_that_views_its_input_gets_a_contiguous_one(torch_job: MakeJob, tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", lambda x: x.view(-1).view(-1, 2).sum(1), torch.ones(4, 2))
    assert scored(torch_job(), TABLE, path) == {"score": [11.0, 22.0, 33.0]}


def test_a_single_two_dimensional_column_is_passed_as_it_is(torch_job: MakeJob, tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", lambda x: x.sum(1, keepdim=True), torch.ones(4, 2))
    table = pa.table({"v": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(F32, 2))})
    assert scored(torch_job(), table, path) == {"score": [3.0, 7.0, 11.0]}


def test_an_input_of_more_dimensions_takes_rows_of_as_many_numbers(torch_job: MakeJob, tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", lambda x: x[:, 1, 0], torch.ones(4, 2, 2))
    table = pa.table({"image": pa.array([[1, 2, 3, 4], [5, 6, 7, 8]], pa.list_(pa.uint8(), 4))})
    assert scored(torch_job(), table, path) == {"score": [3.0, 7.0]}


def test_as_many_inputs_as_features_get_one_tensor_each_of_their_own_dtype(torch_job: MakeJob, tmp_path: Path) -> None:
    path = export(
        tmp_path / "m.pt2", lambda x, i: {"i": i + 1, "x": x * 2}, torch.ones(4, 1), torch.ones(4, dtype=torch.int64)
    )
    assert scored(torch_job(outputs={"x": "float32", "i": "int64"}), TABLE, path) == {
        "x": [2.0, 4.0, 6.0],
        "i": [11, 21, 31],
    }


def test_a_program_may_take_its_inputs_as_a_dict_or_by_keyword(torch_job: MakeJob, tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, columns: dict[str, torch.Tensor], *, scale: torch.Tensor) -> torch.Tensor:
            return columns["x"] * scale

    exported = torch.export.export(
        Model(),
        ({"x": torch.ones(4)},),
        {"scale": torch.ones(4)},
        dynamic_shapes={"columns": {"x": {0: N}}, "scale": {0: N}},
    )
    torch.export.save(exported, tmp_path / "m.pt2")
    assert scored(torch_job(), TABLE, str(tmp_path / "m.pt2")) == {"score": [10.0, 40.0, 90.0]}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool], ids=str)
def test_features_become_the_programs_own_dtype(torch_job: MakeJob, tmp_path: Path, dtype: torch.dtype) -> None:
    path = export(tmp_path / "m.pt2", lambda x: x.double().sum(1), torch.ones(4, 2).to(dtype))
    table = pa.table({"a": [True, False], "b": [True, True]})
    assert scored(torch_job(), table, path) == {"score": [2.0, 1.0]}


def test_a_tuple_is_the_declared_outputs_in_order(torch_job: MakeJob, tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", lambda x: (x[:, 0], x[:, 1:]), torch.ones(4, 2))
    assert scored(torch_job(outputs={"p": "float32", "q": "float64"}), TABLE, path) == {
        "p": [1.0, 2.0, 3.0],
        "q": [10.0, 20.0, 30.0],
    }
    with pytest.raises(OutputInvalid, match=r"returned 2 outputs, but model\.outputs declares 1"):
        scored(torch_job(), TABLE, path)


def test_a_null_becomes_nan_in_floats_and_an_error_in_integers(torch_job: MakeJob, tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", lambda x: x[:, 0], torch.ones(4, 1))
    assert np.isnan(scored(torch_job(), pa.table({"a": pa.array([None, 1.0], F32)}), path)["score"][0])
    with pytest.raises(ValueError, match="feature 'a' has a null"):
        scored(torch_job(), pa.table({"a": pa.array([None, 1])}), path)


@pytest.mark.parametrize("form", ["numpy", "pandas", "pyarrow", "torch"])
def test_preprocess_feeds_a_program_in_any_format(
    make_job: MakeJob, torch_job: MakeJob, tmp_path: Path, form: str
) -> None:
    path = export(tmp_path / "m.pt2", lambda x: x[:, 0] + x[:, 1], torch.ones(4, 2))
    make_job("def p(batch): return batch")
    job = torch_job(options={"batch_format": form}, job={"preprocess": "mine:p"})
    assert scored(job, TABLE, path) == {"score": [11.0, 22.0, 33.0]}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"a": [1.0], "b": [1.0], "c": [1.0]}, "a, b, c make 3 columns, and input .* takes 2"),
        ({"a": ["x"], "b": [1.0]}, "'a' is string, and the torch adapter takes numbers only"),
    ],
)
def test_features_that_do_not_fit_the_program_are_named(
    torch_job: MakeJob, tmp_path: Path, table: dict[str, Any], message: str
) -> None:
    path = export(tmp_path / "m.pt2", lambda x: x[:, 0], torch.ones(4, 2))
    with pytest.raises(JobError, match=rf"model\.features: {message}"):
        scored(torch_job(), pa.table(table), path)


def test_a_fraction_is_never_cut_for_an_integer_input(torch_job: MakeJob, tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", lambda i: i + 1, torch.ones(4, dtype=torch.int32))
    with pytest.raises(JobError, match=r"model\.features: 'a' is float64, and the program takes int32"):
        scored(torch_job(), pa.table({"a": [1.5]}), path)
    with pytest.raises(ValueError, match="outside int32"):
        scored(torch_job(), pa.table({"a": [2**40]}), path)


def test_a_program_of_another_number_of_inputs_is_an_error(torch_job: MakeJob, tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", lambda x, y, z: x + y + z, *(torch.ones(4) for _ in range(3)))
    with pytest.raises(JobError, match=r"model\.features: the program takes 3 inputs .* for 2 columns \(a, b\)"):
        scored(torch_job(), TABLE, path)


def test_a_fixed_batch_size_is_found_when_loading(torch_job: MakeJob, tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", lambda x: x[:, 0], torch.ones(4, 2), dynamic=False)
    with pytest.raises(JobError, match=r"model\.path: the program only takes batches of 4"):
        load_scorer(torch_job(), path)


def test_threads_follow_the_job_and_the_device_tells_the_truth(torch_job: MakeJob, tmp_path: Path) -> None:
    """A logical GPU, as tests use, gives a model on the CPU that says so."""
    path = export(tmp_path / "m.pt2", lambda x: x[:, 0], torch.ones(4, 2))
    scorer: Scorer = load_scorer(torch_job(job={"resources": {"cpus": 2, "gpus": 1}}), path)
    assert torch.get_num_threads() == 2
    assert scorer.device == ("cuda:0" if torch.cuda.is_available() else "cpu")


def test_results_of_earlier_batches_are_not_overwritten_by_later_ones(torch_job: MakeJob, tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", lambda x: x[:, 0], torch.ones(4, 2))
    scorer = load_scorer(torch_job(), path)
    first = scorer(TABLE)["score"]
    scorer(TABLE.set_column(0, "a", pa.array([7.0, 8.0, 9.0], F32)))
    assert first.to_pylist() == [1.0, 2.0, 3.0]


# ---- what an archive may hold -------------------------------------------------------------------------------


class Hostile:
    """Creates a file when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.proof),)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return Path(export(tmp_path / "good.pt2", lambda x: x[:, 0], torch.ones(4, 2), layer=True))


def rebuilt(source: Path, target: Path, change: Callable[[dict[str, bytes]], None], root: str = "good") -> Path:
    """The archive with some members changed, as an attacker would write it."""
    with zipfile.ZipFile(source) as archive:
        members = {info.filename.partition("/")[2]: archive.read(info) for info in archive.infolist()}
    change(members)
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{root}/{name}", content)
    return target


def torch_saved(payload: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(payload, buffer)
    return buffer.getvalue()


def hostile_samples(members: dict[str, bytes], proof: Path) -> None:
    members["data/sample_inputs/model.pt"] = torch_saved(((Hostile(proof),), {}))


def hostile_bare(members: dict[str, bytes], proof: Path) -> None:
    members["data/sample_inputs/model.pt"] = pickle.dumps(Hostile(proof), 2)


def hostile_weights(members: dict[str, bytes], proof: Path) -> None:
    name = "data/weights/model_weights_config.json"
    members[name] = members[name].replace(b'"use_pickle": false', b'"use_pickle": true')
    members["data/weights/weight_0"] = torch_saved(Hostile(proof))


def hostile_old_weights(members: dict[str, bytes], proof: Path) -> None:
    members["data/weights/model.pt"] = torch_saved(Hostile(proof))


def hostile_constant(members: dict[str, bytes], proof: Path) -> None:
    members["data/constants/opaque_obj_0"] = pickle.dumps(Hostile(proof))
    members["data/constants/model_constants_config.json"] = (
        b'{"config": {"c": {"path_name": "opaque_obj_0", "is_param": false, "use_pickle": true, "tensor_meta": null}}}'
    )


HOSTILE = [hostile_samples, hostile_bare, hostile_weights, hostile_old_weights, hostile_constant]


@pytest.mark.parametrize("attack", HOSTILE, ids=lambda attack: attack.__name__)
def test_an_archive_that_would_run_code_is_refused_before_it_is_loaded(
    torch_job: MakeJob, program: Path, tmp_path: Path, attack: Callable[[dict[str, bytes], Path], None]
) -> None:
    """Each of these does run its payload when torch loads it unchecked: the test proves that too."""
    proof = tmp_path / "proof"
    bad = rebuilt(program, tmp_path / "bad.pt2", lambda members: attack(members, proof))
    with pytest.raises(JobError, match=r"model\.path: .*bad\.pt2: it holds .*model\.allow_pickle: true"):
        load_scorer(torch_job(), str(bad))
    assert not proof.exists()
    with contextlib.suppress(JobError):  # the payload runs, and torch then finds no tensor in its place
        load_scorer(torch_job(allow_pickle=True), str(bad))
    assert proof.exists()


def test_native_code_is_refused(program: Path, tmp_path: Path) -> None:
    bad = rebuilt(program, tmp_path / "b.pt2", lambda m: m.update({"data/aotinductor/model/x.so": b"\x7fELF"}))
    with pytest.raises(JobError, match="native code"):
        inspect_program(str(bad))


def test_normal_programs_pass_with_parameters_buffers_and_constants(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
            self.norm = torch.nn.BatchNorm1d(2)
            self.plain = torch.arange(2.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shifted: torch.Tensor = self.norm(self.layer(x.bfloat16()).float()) + self.plain
            return shifted + torch.tensor([1.0, 2.0])

    exported = torch.export.export(Model().eval(), (torch.ones(4, 2),), dynamic_shapes=({0: N},))
    torch.export.save(exported, tmp_path / "m.pt2", extra_files={"note.txt": "mine"})
    inspect_program(str(tmp_path / "m.pt2"))


def test_two_members_of_one_name_are_refused_as_torch_and_python_would_read_different_ones(
    program: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.pt2"
    bad.write_bytes(program.read_bytes())
    rebuilt(program, bad, lambda members: members.update({"data/Sample_inputs/model.pt": b""}))
    with pytest.raises(JobError, match="two of its members have the same name"):
        inspect_program(str(bad))


def test_a_second_zip_directory_is_refused(program: Path, tmp_path: Path) -> None:
    """Python's reader shifts offsets over bytes put in front, torch's does not."""
    bad = tmp_path / "bad.pt2"
    bad.write_bytes(program.read_bytes() * 2)
    with pytest.raises(JobError, match=r"model\.path: .*directory is not where it should be"):
        inspect_program(str(bad))


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04", b"PK\x05\x06" + bytes(18)])
def test_an_unreadable_file_names_the_key(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.pt2").write_bytes(content)
    with pytest.raises(JobError, match=r"model\.path: .*m\.pt2 is not a readable \.pt2"):
        inspect_program(str(tmp_path / "m.pt2"))


def test_every_truncation_of_a_program_names_the_key(program: Path, tmp_path: Path) -> None:
    whole = program.read_bytes()
    for keep in range(0, len(whole), max(1, len(whole) // 50)):
        (tmp_path / "cut.pt2").write_bytes(whole[:keep])
        with pytest.raises(JobError, match=r"model\.path"):
            inspect_program(str(tmp_path / "cut.pt2"))


def test_another_kind_of_file_is_told_how_to_export(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(1, 1).state_dict(), tmp_path / "m.pt")
    with pytest.raises(JobError, match=r"model\.path: .*m\.pt is not a \.pt2 .*torch\.export\.save"):
        inspect_program(str(tmp_path / "m.pt"))
    (tmp_path / "m.pt").rename(tmp_path / "m.pt2")
    with pytest.raises(JobError, match=r"holds no exported program; make one with torch\.export"):
        inspect_program(str(tmp_path / "m.pt2"))
    with pytest.raises(JobError, match=r"model\.path: .*gone\.pt2 .*No such file"):
        inspect_program(str(tmp_path / "gone.pt2"))


def test_inspecting_does_not_import_torch(program: Path) -> None:
    code = (
        "import sys; from nightjar.inference.predictors.archive import inspect_program; "
        f"inspect_program({str(program)!r}); assert not {{'torch', 'pandas', 'ray', 'boto3'}} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_option_the_torch_adapter_does_not_know_is_named(torch_job: MakeJob, program: Path) -> None:
    with pytest.raises(JobError, match=r"model\.options\.half: the torch adapter knows no option but batch_format"):
        load_scorer(torch_job(options={"half": True}), str(program))
