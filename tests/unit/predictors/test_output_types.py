"""Outputs of several values a row: vectors, tensors, structs, and lists of these."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazily import lazily
from nightjar.inference.arrow_types import arrow_type, type_name
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import OutputInvalid
from nightjar.inference.predictors.conversion import to_arrow
from nightjar.inference.predictors.scorer import normalise
from nightjar.inference.scoring.neighbours import differences
from support import Lake

torch = lazily("torch")

BOX = pa.struct([("label", pa.string()), ("box", pa.list_(pa.float32(), 4))])
TYPES = {
    "struct<label: string, score: float32>": pa.struct([("label", pa.string()), ("score", pa.float32())]),
    "list<struct<label: string, box: float32[4]>>": pa.list_(BOX),
    "struct<at: timestamp[us, UTC], inner: struct<a: int8, b: list<string>>>": pa.struct(
        [
            ("at", pa.timestamp("us", tz="UTC")),
            ("inner", pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))])),
        ]
    ),
    "uint8[32, 32, 3]": pa.fixed_shape_tensor(pa.uint8(), [32, 32, 3]),
    "float32[384]": pa.list_(pa.float32(), 384),
    "list<list<float64>>": pa.list_(pa.list_(pa.float64())),
}


@pytest.mark.parametrize("text", TYPES)
def test_a_type_is_read_and_written_as_in_the_job_file(text: str) -> None:
    assert arrow_type(text) == TYPES[text]
    assert type_name(TYPES[text]) == text


def test_a_time_zone_may_be_written_as_arrow_shows_it() -> None:
    assert arrow_type("timestamp[us, tz=Europe/Berlin]") == pa.timestamp("us", tz="Europe/Berlin")
    assert arrow_type("timestamp[ms, +05:30]") == pa.timestamp("ms", tz="+05:30")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("timestamp[us, Mars]", "'Mars' is no time zone"),
        ("timestamp[us, Europe]", "'Europe' is no time zone"),
        ("timestamp[us, +1]", r"'\+1' is no time zone"),
        ("struct<label>", "'label' is no field of a struct; write a name and a type"),
        ("struct<a: int8, a: int8>", "two are named 'a'"),
        ("struct<a: flot>", "'flot' is not an Arrow type"),
        ("string[3, 4]", "a tensor holds integers or floats, not string"),
        ("float32[3, 0]", "lengths are at least 1"),
        ("struct<>", "is not an Arrow type"),
    ],
)
def test_a_text_that_names_no_type_says_why(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        arrow_type(text)


SCORED = arrow_type("struct<label: string, score: float32>")
DICTS = [{"label": "cat", "score": 0.5, "more": 1}, None, {"score": np.float32("nan")}]
AS_SCORED = [{"label": "cat", "score": 0.5}, None, {"label": None, "score": np.nan}]


@pytest.mark.parametrize(
    "value",
    [
        DICTS,
        pd.Series(DICTS),
        np.array(DICTS, dtype=object),
        pa.array([{"score": 0.5, "label": "cat"}, None, {"score": np.nan, "label": None}]).slice(0),
        pa.chunked_array([pa.array(AS_SCORED[:1], SCORED), pa.array(AS_SCORED[1:], SCORED)]),
    ],
    ids=["dicts", "series", "objects", "arrow", "chunks"],
)
def test_a_struct_is_a_dict_of_its_declared_keys(value: Any) -> None:
    """NaN stays a number; a missing key is null, and so is None."""
    found = to_arrow("best", value, SCORED, 3)
    assert found.type == SCORED
    assert repr(found.to_pylist()) == repr(AS_SCORED)


def test_lists_of_structs_keep_their_lengths_and_nulls() -> None:
    """Also where the keys come in another order, and a part of the array is meant."""
    declared = arrow_type("list<struct<label: string, box: float32[4]>>")
    rows = [[{"box": [1.0, 2, 3, 4], "label": "a"}], None, [], [{"box": [0.0] * 4, "label": "b"}, None]]
    expected = [[{"label": "a", "box": [1.0, 2, 3, 4]}], None, [], [{"label": "b", "box": [0.0] * 4}, None]]
    assert to_arrow("found", rows, declared, 4).to_pylist() == expected
    assert to_arrow("found", pa.array(rows).slice(1), declared, 3).to_pylist() == expected[1:]
    assert to_arrow("found", [None, None], declared, 2).to_pylist() == [None, None]


def test_a_struct_of_other_keys_or_types_is_refused_with_both() -> None:
    with pytest.raises(OutputInvalid, match=r"'best' is declared struct<label: .*, but the predictor returned struct<"):
        to_arrow("best", pa.array([{"label": "cat"}]), SCORED, 1)
    with pytest.raises(OutputInvalid, match="'best' is declared struct"):
        to_arrow("best", [{"label": 3, "score": 0.5}], SCORED, 1)


def test_a_key_that_a_dict_lacks_is_null_alone_as_among_others() -> None:
    """Also inside lists; but a dict with a misspelled key is refused, and no row beside it changes that."""
    for rows in (DICTS[2:], [*DICTS[:1], *DICTS[2:]]):
        assert repr(to_arrow("best", rows, SCORED).to_pylist()[-1]) == repr(AS_SCORED[2])
    assert to_arrow("best", [{}], SCORED).to_pylist() == [{"label": None, "score": None}]
    declared = arrow_type("list<struct<label: string, box: struct<x: int32>>>")
    assert to_arrow("found", [[{"label": "a", "box": {}}, {}]], declared).to_pylist() == [
        [{"label": "a", "box": {"x": None}}, {"label": None, "box": None}]
    ]
    for others in ([], [{"label": "a", "score": 1.0}]):
        with pytest.raises(OutputInvalid, match="a dict has 'scroe', which is not declared, and no 'score'"):
            to_arrow("best", [*others, {"label": "cat", "scroe": 0.5}], SCORED)


@pytest.mark.parametrize(
    ("value", "declared", "said"),
    [
        ([[0, 2]], "list<bool>", "numbers other than 0 and 1"),
        (np.array([[0.3, 1.0]]), "bool[2]", "numbers other than 0 and 1"),
        (np.array(["2024-01-01T13:00"], "M8[us]"), "date32", "times of day"),
        (np.array(["2024-01-01T13:00"], "M8[ns]"), "date32", "times of day"),
        (pa.array([0, 2]).dictionary_encode(), "bool", "numbers other than 0 and 1"),
    ],
)
def test_a_value_that_arrow_would_change_is_refused(value: Any, declared: str, said: str) -> None:
    with pytest.raises(OutputInvalid, match=f"does not fit .*: it holds {said}"):
        to_arrow("score", value, arrow_type(declared))


def test_what_fits_exactly_is_taken() -> None:
    def arrow(value: Any, declared: str) -> list[Any]:
        return list(to_arrow("score", value, arrow_type(declared)).to_pylist())

    assert arrow([[0, 1], None, []], "list<bool>") == [[False, True], None, []]
    assert arrow(np.array(["2024-01-01", "NaT"], "M8[s]"), "date32") == [dt.date(2024, 1, 1), None]


@pytest.mark.parametrize("inner", [pa.list_view(pa.int64()), pa.large_list_view(pa.int64())], ids=str)
def test_list_views_are_refused(inner: pa.DataType) -> None:
    """Arrow makes lists of other values of them, or ends the process."""
    for kind, declared in ((inner, "list<int32>"), (pa.list_(inner), "list<list<int64>>")):
        with pytest.raises(OutputInvalid, match=r"does not fit .*: Arrow cannot convert .*; return a list"):
            to_arrow("score", pa.array([None], kind), arrow_type(declared))


TENSOR = arrow_type("float32[2, 3]")
VALUES = np.arange(12, dtype=np.float32).reshape(2, 2, 3)


@pytest.mark.parametrize(
    "value",
    [
        VALUES,
        VALUES.astype(np.float64),
        lambda: torch.from_numpy(VALUES),
        list(VALUES),
        VALUES.tolist(),
        np.asfortranarray(VALUES),
        pa.FixedShapeTensorArray.from_numpy_ndarray(VALUES),
        pa.chunked_array([pa.FixedShapeTensorArray.from_numpy_ndarray(VALUES[at : at + 1]) for at in (0, 1)]),
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.concatenate([VALUES, VALUES])).slice(2),
    ],
    ids=["array", "float64", "torch", "arrays", "lists", "fortran", "arrow", "chunks", "slice"],
)
def test_a_tensor_keeps_its_shape(value: Any) -> None:
    found = to_arrow("map", value() if callable(value) else value, TENSOR, 2)
    assert found.type == TENSOR
    np.testing.assert_array_equal(found.to_numpy_ndarray(), VALUES)


def test_a_bare_array_is_the_only_tensor() -> None:
    (found,) = normalise(VALUES, {"map": TENSOR}, 2).values()
    np.testing.assert_array_equal(found.to_numpy_ndarray(), VALUES)
    assert len(normalise(VALUES[:0], {"map": TENSOR}, 0)["map"]) == 0


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (np.zeros((2, 3, 2)), "does not fit"),
        (np.zeros((2, 6)), "does not fit|is declared"),
        ([[[0, 1, 2]] * 2, None], "which has no nulls"),
        ([[[0, 1, 2]] * 2, [[0, None, 2]] * 2], "which has no nulls"),
    ],
)
def test_a_tensor_of_another_shape_or_with_nulls_is_refused(value: Any, why: str) -> None:
    with pytest.raises(OutputInvalid, match=why):
        to_arrow("map", value, TENSOR, 2)


def test_floats_are_compared_within_the_tolerance_wherever_they_are() -> None:
    """In structs, in lists of structs, in tensors; texts in lists must be equal."""

    def differing(kind: pa.DataType, before: Any, after: Any) -> list[bool]:
        columns = (pa.chunked_array([pa.array(values, kind)]) for values in (before, after))
        found: list[bool] = differences(*columns, 1e-3)[0].tolist()
        return found

    near, far = {"label": "a", "score": 1.0001}, {"label": "a", "score": 1.1}
    base = {"label": "a", "score": 1.0}
    assert differing(SCORED, [base] * 4, [near, far, None, {**near, "label": "b"}]) == [False, True, True, True]
    assert differing(pa.list_(SCORED), [[base], [base], [], None], [[near], [far], [], []]) == [
        False,
        True,
        False,
        True,
    ]
    assert differing(pa.list_(pa.string()), [["a"], ["a"], None], [["a"], ["b"], None]) == [False, True, False]
    tensors = [pa.ExtensionArray.from_storage(TENSOR, pa.array([[x] * 6], TENSOR.storage_type)) for x in (1, 1.0001, 2)]
    one, close, other = (pa.chunked_array([each]) for each in tensors)
    assert [differences(one, each, 1e-3)[0].tolist() for each in (close, other)] == [[False], [True]]


MAKES = """
import numpy as np

def score(batch):
    x = np.asarray(batch["x"])
    best = [{"label": "odd" if n % 2 else "even", "score": float(n) / 10, "unused": 1} for n in x]
    return {"best": best, "all": [[each] * int(n % 3) for n, each in zip(x, best)], "map": maps(x)}

def maps(x):
    return np.stack([x] * 6, 1).reshape(-1, 2, 3)
"""


def test_they_are_published_checked_and_scored_again(lake: Lake) -> None:
    """Readers of Parquet see structs, lists and Arrow's own tensors; the second score of each shard agrees."""
    lake.write_file("a.parquet", 0, 100)
    lake.write_model(MAKES)
    outputs = {"best": "struct<label: string, score: float32>", "map": "float32[2, 3]"}
    outputs["all"] = "list<struct<label: string, score: float32>>"
    lake.write_job(model__outputs=outputs, carry=["id"], rescore={"share": 1.0, "tolerance": 0.0})
    lake.run(engine=LOCAL)
    (part,) = (lake.revision() / "data").glob("*.parquet")
    table = pq.read_table(part)
    assert table.schema.field("map").type == TENSOR
    assert table["best"][41].as_py() == {"label": "odd", "score": pytest.approx(4.1)}
    assert [len(each) for each in table["all"].to_pylist()] == [n % 3 for n in range(100)]
    np.testing.assert_array_equal(table["map"].chunk(0).to_numpy_ndarray()[7], np.full((2, 3), 7.0))
