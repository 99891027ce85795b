"""Arrow to what a predictor is given, and what it returns to Arrow: every row and every value accounted for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lazily import lazily
from nightjar.inference.arrow_types import arrow_type
from nightjar.inference.errors import OutputInvalid
from nightjar.inference.predictors.arrays import to_numpy
from nightjar.inference.predictors.batches import to_batch
from nightjar.inference.predictors.conversion import to_arrow
from nightjar.inference.predictors.scorer import RowsRaised, normalise
from nightjar.inference.scoring.prepared_batches import Pickled

duckdb = lazily("duckdb")
polars = lazily("polars")
torch = lazily("torch")

F32 = pa.float32()


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


@pytest.mark.parametrize("form", ["numpy", "pandas"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()])
def test_integers_that_a_float_cannot_hold_stay_what_they_are_beside_a_null(form: str, kind: pa.DataType) -> None:
    """Ids of 64 bits, say. Others become floats, as in Ray Data."""
    ids = [2**53 + 1, None, 2**53 + 3]
    table = pa.table({"id": pa.array(ids, kind), "n": pa.array([1, None, 2**53], kind)})
    held = to_batch(table, form)
    assert list(held["id"]) == ids
    assert held["n"].dtype == np.float64
    assert list(held["n"])[::2] == [1.0, 2.0**53]
    assert to_batch(table.slice(2), form)["id"].dtype == kind.to_pandas_dtype()


@pytest.mark.parametrize("form", ["numpy", "pandas", "torch"])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [2**53 + 1, None]),
        (pa.list_(pa.int64()), [[2**53 + 1, None], None, [3]]),
        (pa.list_(pa.int64(), 2), [[2**53 + 1, None], [2, 3]]),
        (pa.struct([("a", pa.int64())]), [{"a": 2**53 + 1}, {"a": None}, None]),
        (pa.list_(pa.struct([("a", pa.int64())])), [[{"a": 2**53 + 1}, {"a": None}]]),
    ],
)
def test_integers_in_lists_and_structs_do_so_too(form: str, kind: pa.DataType, values: list[Any]) -> None:
    held = to_batch(pa.table({"id": pa.array(values, kind)}), form)["id"]
    assert [each.tolist() if isinstance(each, np.ndarray) else each for each in held] == values


def test_a_null_inside_a_tensor_is_no_number() -> None:
    """Arrow gives whatever lies there."""
    storage = pa.array([[1, 2], [3, None]], pa.list_(pa.int64(), 2))
    column = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int64(), [2]), storage)
    assert to_numpy(column.slice(0, 1)).tolist() == [[1, 2]]
    with pytest.raises(ValueError, match="has a null inside"):
        to_numpy(column)


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


def test_what_a_batch_weighs_is_what_its_objects_hold() -> None:
    """Within a quarter. A batch is handed over whole, and the bytes that are handed over are bounded."""
    images = np.empty(3, object)
    images[:] = [np.zeros((100, 100 + row, 3), np.uint8) for row in range(3)]
    texts = np.array(["x" * 30_000, None, b"y" * 60_000], object)
    lists = np.empty(3, object)
    lists[:] = [[0.5] * 3750, [["z" * 15_000, "y" * 15_000]], ({"k": np.zeros(30_000, np.uint8)},)]
    for column in (images, texts, lists, np.zeros((3, 30_000), np.uint8), [*texts], torch.zeros(3, 7500)):
        assert 90_000 <= Pickled({"x": column}).size < 112_000
    for column in (images, texts, lists, pd.array([each * 30_000 for each in "xyz"], "string")):
        assert 90_000 <= Pickled(pd.DataFrame({"n": 1, "x": pd.Series(column)})).size < 112_000
    assert Pickled(pa.table({"x": texts[:2]})).size > 30_000


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
    with pytest.raises(OutputInvalid, match="output 'score' has 2 values for a batch of 3 rows"):
        normalise({"score": [1, 2]}, {"score": F32}, 3)
    with pytest.raises(OutputInvalid, match="output 'score' has 1 value for a batch of 3 rows"):
        normalise(np.float32(1), {"score": F32}, 3)


BAD, WORSE = ValueError("bad"), KeyError("worse")


@pytest.mark.parametrize(
    "beside",
    [
        list,
        tuple,
        np.array,
        lambda values: np.ma.masked_array(values, [False] * 4),
        lambda values: torch.tensor(values),
        pd.Series,
        pa.array,
        lambda values: pa.chunked_array([values[:2], values[2:]]),
    ],
    ids=["list", "tuple", "array", "masked", "tensor", "Series", "Arrow", "chunks"],
)
@pytest.mark.parametrize(
    "answers",
    [["a", BAD, "c", BAD], np.array(["a", BAD, "c", BAD], object), pd.Series(["a", BAD, "c", BAD])],
    ids=lambda column: type(column).__name__,
)
def test_a_value_that_is_an_exception_is_what_its_row_raised(answers: Any, beside: Callable[[list[int]], Any]) -> None:
    """Whatever kind of column is beside it."""
    with pytest.raises(RowsRaised, match=r"the output of 2 rows; row 1 of the batch: ValueError\('bad'\)") as found:
        normalise({"answer": answers, "n": beside([1, 2, 3, 4])}, {"answer": pa.string(), "n": pa.int64()}, 4)
    assert found.value.raised == {1: BAD, 3: BAD}
    assert {name: values.to_pylist() for name, values in found.value.outputs.items()} == {
        "answer": ["a", "c"],
        "n": [1, 3],
    }


def test_exceptions_of_several_outputs_are_those_of_rows() -> None:
    """The first output's comes first. A column that the job does not ask for may hold any."""
    raw = {"p": [1.0, BAD, 3.0], "q": [WORSE, WORSE, 6.0], "unasked": [BAD, BAD, BAD]}
    with pytest.raises(RowsRaised) as found:
        normalise(raw, {"p": F32, "q": F32}, 3)
    assert found.value.raised == {0: WORSE, 1: BAD}
    assert {name: values.to_pylist() for name, values in found.value.outputs.items()} == {"p": [3.0], "q": [6.0]}


def test_exceptions_are_counted_over_the_pieces_of_a_generator() -> None:
    pieces = ({"score": piece} for piece in ([1.0, BAD], np.array([3.0]), [WORSE], [5.0, BAD]))
    with pytest.raises(RowsRaised) as found:
        normalise(pieces, {"score": F32}, 6)
    assert found.value.raised == {1: BAD, 3: WORSE, 5: BAD}
    assert found.value.outputs["score"].to_pylist() == [1.0, 3.0, 5.0]


def test_an_exception_for_each_row_leaves_no_output_and_that_of_a_single_row_is_raised() -> None:
    with pytest.raises(RowsRaised) as found:
        normalise([BAD, WORSE], {"score": F32}, 2)
    assert (found.value.raised, len(found.value.outputs["score"])) == ({0: BAD, 1: WORSE}, 0)
    with pytest.raises(KeyError, match="worse"):
        normalise([WORSE], {"score": F32}, 1)


def test_exceptions_make_no_output_longer() -> None:
    with pytest.raises(OutputInvalid, match="output 'score' has 2 values for a batch of 3 rows"):
        normalise({"score": [1.0, BAD]}, {"score": F32}, 3)
    with pytest.raises(OutputInvalid, match="output 'q' has 1 value for a batch of 3 rows"):
        normalise({"p": [1.0, 2.0, BAD], "q": [1.0]}, {"p": F32, "q": F32}, 3)
    with pytest.raises(OutputInvalid, match="output 'score' is declared float32, but the predictor returned string"):
        normalise({"score": ["one", BAD, "three"]}, {"score": F32}, 3)


IDS = [2**53 + 1, None, 5]


@pytest.mark.parametrize("form", ["a Series in a dict", "a Series", "a frame of polars", "a relation of DuckDB"])
def test_integers_beside_nulls_come_whole_from_other_libraries(form: str) -> None:
    """numpy would make floats of them."""
    series = polars.Series("id", IDS, dtype=polars.Int64)
    if form == "a relation of DuckDB":
        answer = duckdb.connect().from_arrow(pa.table({"id": pa.array(IDS, pa.int64())}))
    else:
        answer = {"a Series": series, "a Series in a dict": {"id": series}}.get(form, polars.DataFrame({"id": series}))
    assert normalise(answer, {"id": pa.int64()}, 3)["id"].to_pylist() == IDS


@pytest.mark.parametrize("make", [lambda table: table, lambda table: table.to_pandas()])
def test_of_two_columns_with_an_outputs_name_neither_is_taken(make: Callable[[pa.Table], Any]) -> None:
    """As where a score is added to a table that has a column of this name."""
    table = pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0]), pa.array([3.0])], ["score", "score", "x"])
    assert normalise(make(table), {"x": F32}, 1)["x"].to_pylist() == [3.0]
    with pytest.raises(OutputInvalid, match="output 'score' has 2 columns of this name; return one"):
        normalise(make(table), {"score": F32}, 1)
