"""Python's objects as outputs: what a value becomes is a matter of the value and the declared type alone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lazily import lazily
from modeljobs import model_job
from nightjar.inference.arrow_types import arrow_type
from nightjar.inference.errors import OutputInvalid
from nightjar.inference.job.file import parse_job
from nightjar.inference.predictors import conversion, load_scorer
from nightjar.inference.predictors.arrays import to_array
from nightjar.inference.predictors.conversion import to_arrow
from nightjar.inference.scoring.assignment import BatchSize
from nightjar.inference.scoring.microbatches import drained
from predicting import score_table

torch = lazily("torch")


def objects(values: list[Any]) -> Any:
    held = np.empty(len(values), object)
    held[:] = values
    return held


FORMS: dict[str, tuple[str, Callable[[list[Any]], Any], Callable[[Any], Any]]] = {
    "list": ("{}", list, lambda found: found),
    "objects": ("{}", objects, lambda found: found),
    "column": ("{}", lambda values: objects(values).reshape(-1, 1), lambda found: found),
    "Series": ("{}", lambda values: pd.Series(values, dtype=object), lambda found: found),
    "lists": ("list<{}>", lambda values: [[each] for each in values], lambda found: found[0]),
    "arrays": ("list<{}>", lambda values: [objects([each]) for each in values], lambda found: found[0]),
    "structs": ("struct<v: {}>", lambda values: [{"v": each} for each in values], lambda found: found["v"]),
    "lists of structs": (
        "list<struct<v: {}>>",
        lambda values: [[{"v": each}] for each in values],
        lambda found: found[0]["v"],
    ),
}
"""How an output may hold values: the type, the predictor's values, and the value in what readers see."""


def converted(values: list[Any], declared: str, form: str = "list") -> list[Any]:
    kind, make, value = FORMS[form]
    found = to_arrow("o", make(values), arrow_type(kind.format(declared)), len(values))
    return [value(each) for each in found.to_pylist()]


# ---- dates, times and spans -----------------------------------------------------------------------------------

BERLIN = ZoneInfo("Europe/Berlin")
DAY, FIVE = dt.date(2026, 1, 1), dt.datetime(2026, 1, 1, 5)
MIDNIGHT, FIVE_UTC = dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, 5, tzinfo=dt.UTC)
EXACT = pd.Timestamp("2026-01-01T05:00:00.000000001")
SCALARS = [pa.scalar(EXACT, pa.timestamp("ns")), pa.scalar(FIVE, pa.timestamp("s"))]
SECOND, NANOSECOND = dt.timedelta(seconds=1), pd.Timedelta(1, "ns")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("values", "declared", "expected"),
    [
        ([DAY, FIVE, None], "timestamp[us]", [MIDNIGHT, FIVE, None]),
        ([FIVE, DAY], "timestamp[us]", [FIVE, MIDNIGHT]),
        ([FIVE, EXACT, pd.NaT, DAY], "timestamp[ns]", [FIVE, EXACT, None, MIDNIGHT]),
        ([np.datetime64(DAY), EXACT.to_datetime64(), np.datetime64("NaT")], "timestamp[ns]", [MIDNIGHT, EXACT, None]),
        ([FIVE, *SCALARS], "timestamp[ns]", [FIVE, EXACT, FIVE]),
        ([FIVE, FIVE.replace(tzinfo=BERLIN)], "timestamp[us]", [FIVE, dt.datetime(2026, 1, 1, 4)]),
        ([EXACT, EXACT.tz_localize(BERLIN)], "timestamp[ns]", [EXACT, EXACT - pd.Timedelta(hours=1)]),
        ([FIVE_UTC, FIVE, DAY], "timestamp[s, UTC]", [FIVE_UTC, FIVE_UTC, MIDNIGHT.replace(tzinfo=dt.UTC)]),
        ([DAY, MIDNIGHT, np.nan], "date32", [DAY, DAY, None]),
        ([MIDNIGHT.replace(tzinfo=BERLIN), MIDNIGHT.replace(tzinfo=dt.UTC)], "date32", [DAY, DAY]),
        ([FIVE, EXACT.floor("s"), FIVE.replace(tzinfo=BERLIN)], "time32[s]", [FIVE.time()] * 3),
        ([FIVE.time(), None], "time64[us]", [FIVE.time(), None]),
        ([SECOND, NANOSECOND, pd.NaT], "duration[ns]", [SECOND, NANOSECOND, None]),
        ([np.timedelta64(1, "s"), np.timedelta64(1, "ns")], "duration[ns]", [SECOND, NANOSECOND]),
    ],
)
def test_a_time_is_exactly_itself_alone_as_among_others(
    values: list[Any], declared: str, expected: list[Any], form: str
) -> None:
    """A day among moments is its midnight; pandas' times have nanoseconds."""
    assert converted(values, declared, form) == expected
    assert [converted([value], declared, form)[0] for value in values] == expected


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("values", "declared", "why"),
    [
        ([DAY, FIVE], "date32", "it holds times of day, which a date drops"),
        ([MIDNIGHT, dt.datetime(2026, 1, 1, 0, 30, tzinfo=BERLIN)], "date32", "it holds times of day"),
        ([DAY, EXACT], "date64", "it holds times of day"),
        ([FIVE, EXACT], "timestamp[us]", "would lose data"),
        ([SECOND, NANOSECOND], "duration[us]", "would lose data"),
        ([FIVE, DAY], "time32[s]", "it holds dates, which have no time of day|time"),
        ([FIVE, 5], "timestamp[us]", "several types: datetime, int|returned .*int64"),
        ([DAY, 5], "date32", "several types: date, int|returned .*int64"),
        ([SECOND, 5], "duration[us]", "several types: int, timedelta|returned .*int64"),
        ([FIVE.time(), 5], "time64[us]", "several types: int, time|returned .*int64"),
    ],
)
def test_a_time_that_does_not_fit_is_refused_alone_as_among_others(
    values: list[Any], declared: str, why: str, form: str
) -> None:
    """The last of them; those before it fit."""
    for refused in (values, values[::-1], values[-1:]):
        with pytest.raises(OutputInvalid, match=why):
            converted(refused, declared, form)
    converted(values[:-1], declared, form)


@pytest.mark.parametrize("kind", ["array", "Series", "lists"])
def test_a_moment_is_a_date_only_if_it_is_midnight_in_its_own_time_zone(kind: str) -> None:
    def found(hour: int) -> list[Any]:
        moments = pd.Series([dt.datetime(2026, 1, 1, hour)]).dt.tz_localize(BERLIN)
        array = pa.array(moments)
        value = {"array": array, "Series": moments, "lists": pa.FixedSizeListArray.from_arrays(array, 1)}[kind]
        return to_arrow("o", value, arrow_type("list<date32>" if kind == "lists" else "date32"), 1).to_pylist()

    assert found(0) == ([[DAY]] if kind == "lists" else [DAY])
    with pytest.raises(OutputInvalid, match="it holds times of day, which a date drops"):
        found(1)


def test_arrays_of_times_in_several_units_are_not_taken_for_one() -> None:
    """As rows of an output of lists; Arrow took a nanosecond for a second."""
    rows = [np.array([1], "m8[s]"), np.array([1], "m8[ns]"), None]
    found = to_arrow("o", rows, arrow_type("list<duration[ns]>"), 3).to_pylist()
    assert found == [[SECOND], [NANOSECOND], None]


@pytest.mark.parametrize("form", ["list", "objects", "Series"])
@pytest.mark.parametrize(
    ("rows", "declared", "expected"),
    [
        ([np.array([]), np.array([0.5], "f4"), None], "list<float32>", [[], [0.5], None]),
        ([np.ones((1, 2), "f4"), np.ones((2, 2), "f4")], "list<list<float32>>", [[[1, 1]], [[1, 1], [1, 1]]]),
        ([np.ones((1, 2)), None, []], "list<list<float32>>", [[[1.0, 1.0]], None, []]),
        ([np.int64(2), np.float16(1.5), True], "float32", [2.0, 1.5, 1.0]),
        ([{"a": np.array([])}, {"a": np.array([0.5], "f4")}], "struct<a: list<float32>>", [{"a": []}, {"a": [0.5]}]),
    ],
)
def test_arrays_of_several_types_and_lengths_fit_together_as_each_alone(
    rows: list[Any], declared: str, expected: list[Any], form: str
) -> None:
    """numpy and Arrow refuse them together."""
    for some, those in ((rows, expected), (rows[::-1], expected[::-1])):
        assert converted(some, declared, form) == those
    assert [converted([row], declared, form)[0] for row in rows] == expected
    with pytest.raises(OutputInvalid, match=r"'o'.*(returned|does not fit)"):
        converted([*rows, "no"], declared, form)


@pytest.mark.parametrize("make", [np.array, np.ma.array])
def test_the_type_of_one_rows_array_does_not_change_the_values_of_others(make: Any) -> None:
    """Together, integers beside a float are floats, which round them, and numbers beside a text are texts."""
    great = 2**53 + 1
    rows = [make([great]), make([np.nan]), np.ma.array([great + 2], mask=[make is np.ma.array])]
    last = None if make is np.ma.array else great + 2
    assert to_arrow("o", rows, pa.int64(), 3).to_pylist() == [great, None, last]
    with pytest.raises(OutputInvalid):
        to_arrow("o", [make(["a"]), make([5])], pa.string(), 2)


def test_one_value_that_does_not_fit_is_found_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Value by value, a batch took a hundred times as long as one in which all values fit."""
    calls: list[int | None] = []
    convert = conversion._converted

    def counted(name: str, value: Any, declared: pa.DataType, rows: int | None) -> pa.Array:
        calls.append(rows)
        return convert(name, value, declared, rows)

    monkeypatch.setattr(conversion, "_converted", counted)
    with pytest.raises(OutputInvalid, match="list<string>"):
        to_arrow("o", [*[[0.5]] * 1000, ["no"], *[[0.5]] * 1000], pa.list_(pa.float32()), 2001)
    assert len(calls) < 30


# ---- numbers, and rows without a result -----------------------------------------------------------------------

MOST = 2**63 + 1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("values", "declared"),
    [
        ([MOST, 5, None], "uint64"),
        ([5, 2**64 - 1, np.uint64(MOST)], "uint64"),
        ([2**60 + 1, 5, None], "int64"),
        ([-(2**63), 2**63 - 1], "int64"),
        ([MOST, 5, None], "decimal128(20, 0)"),
    ],
)
def test_an_integer_is_exactly_itself_alone_as_among_others(values: list[Any], declared: str, form: str) -> None:
    """All of uint64, which is more than Arrow infers, and than a float holds."""
    kind, make, value = FORMS[form]
    to = pa.decimal128(20, 0) if declared.startswith("decimal") else arrow_type(declared)
    for some in (values, values[::-1], *([each] for each in values)):
        wrapped = {"{}": to, "list<{}>": pa.list_(to), "struct<v: {}>": pa.struct([("v", to)])}
        wrapped["list<struct<v: {}>>"] = pa.list_(wrapped["struct<v: {}>"])
        found = to_arrow("o", make(some), wrapped[kind], len(some)).to_pylist()
        assert [value(each) for each in found] == some


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("declared", "large", "held"),
    [
        ("float16", 70_000, float("inf")),
        ("float32", 2**24 + 1, 2.0**24),
        ("float32", MOST, 2.0**63),
        ("float64", 2**53 + 1, 2.0**53),
        ("float64", MOST, 2.0**63),
    ],
)
def test_a_float_may_lose_digits_of_an_integer_alone_as_among_others(
    declared: str, large: int, held: float, form: str
) -> None:
    for others in ([], [None], [1.5], [5]):
        assert converted([large, *others], declared, form) == [held, *others]
    assert to_arrow("o", np.array([large]), arrow_type(declared), 1).to_pylist() == [held]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("values", "declared", "why"),
    [
        ([5, 2**64], "uint64", "too large to convert to C unsigned long"),
        ([5, -1], "uint64", "Integer value -1 not in range"),
        ([5, MOST], "int64", "Integer value 9223372036854775809 not in range: 0 to 9223372036854775807"),
        ([5, 2.5], "int64", "was truncated"),
        ([5, "5"], "int64", "type str|returned .*string|Expected bytes"),
    ],
)
def test_a_number_that_does_not_fit_is_refused_alone_as_among_others(
    values: list[Any], declared: str, why: str, form: str
) -> None:
    for refused in (values, values[::-1], values[-1:]):
        with pytest.raises(OutputInvalid, match=why):
            converted(refused, declared, form)


RESULTS: dict[str, Any] = {
    "int64": 2**60 + 1,
    "uint64": MOST,
    "int8": 1.0,
    "bool": True,
    "string": "a",
    "binary": b"a",
    "date32": DAY,
    "timestamp[us]": FIVE,
    "duration[us]": SECOND,
    "list<float32>": [0.5, None],
    "list<int64>": [5],
    "float32[2]": [0.5, 1.5],
    "struct<a: int64>": {"a": 5},
}


@pytest.mark.parametrize("declared", RESULTS)
@pytest.mark.parametrize("missing", [None, np.nan, pd.NA], ids=str)
def test_none_or_nan_is_a_row_without_a_result(declared: str, missing: Any) -> None:
    """Of any type but floats, whose NaN is a value: as the message about a wrong number of values says."""
    result = RESULTS[declared]
    for form in ("list", "objects", "Series"):
        assert converted([result, missing], declared, form) == [result, None]
        assert converted([missing, result], declared, form) == [None, result]
        assert converted([missing], declared, form) == [None]


@pytest.mark.parametrize("declared", RESULTS)
def test_floats_that_are_all_nan_are_rows_without_a_result(declared: str) -> None:
    """As pandas infers them, whatever the results of other batches are."""
    for values in (pd.Series([np.nan]), pd.Series([np.nan, np.nan])):
        assert to_arrow("o", values, arrow_type(declared), len(values)).to_pylist() == [None] * len(values)
    if not declared.startswith(("list", "float32")):  # of which one number may be a row without its list
        assert to_arrow("o", np.array([np.nan]), arrow_type(declared), 1).to_pylist() == [None]


FLOATS: dict[str, Callable[[list[float]], Any]] = {
    "array": np.array,
    "column": lambda values: np.array(values).reshape(-1, 1),
    "float32": lambda values: np.array(values, "f4"),
    "tensor": lambda values: torch.tensor(values),
    "Series": pd.Series,
    "Arrow": pa.array,
    "chunks": lambda values: pa.chunked_array([pa.array([value]) for value in values]),
}


@pytest.mark.parametrize("form", FLOATS)
@pytest.mark.parametrize(("declared", "one"), [("int64", 1), ("uint8", 1), ("bool", True), ("decimal128(5, 2)", 1)])
def test_nan_among_floats_is_null_where_no_number_is_nan(form: str, declared: str, one: Any) -> None:
    kind = pa.decimal128(5, 2) if declared.startswith("decimal") else arrow_type(declared)
    for values, expected in ([[1.0, np.nan], [one, None]], [[np.nan], [None]]):
        assert to_arrow("o", FLOATS[form](values), kind, len(values)).to_pylist() == expected


@pytest.mark.parametrize("value", [np.array([[1.0, np.nan]]), [[1.0, np.nan]], pa.array([[1.0, np.nan]])])
def test_nan_in_a_list_of_integers_is_refused(value: Any) -> None:
    """No check of a column finds a null within a list."""
    with pytest.raises(OutputInvalid, match="nan was truncated"):
        to_arrow("o", value, arrow_type("list<int64>"), 1)


@pytest.mark.parametrize("size", [3, 1], ids=["together", "alone"])
@pytest.mark.parametrize("form", ["numpy", "pandas", "pyarrow"])
@pytest.mark.parametrize(
    ("kind", "values"), [("uint64", [MOST, 5, None]), ("int64", [2**60 + 1, 5, None]), ("int64", [1, 5, None])]
)
def test_a_null_integer_comes_through_a_predictor(
    tmp_path: Path, kind: str, values: list[Any], form: str, size: int
) -> None:
    """A batch has it as None beside large integers, and else as NaN."""
    (tmp_path / "ident.py").write_text('def same(batch):\n    return {"y": batch["h"]}\n')
    content = {
        "name": "t",
        "input": {"uri": "in/"},
        "model": {"uses": "ident:same", "outputs": {"y": kind}, "options": {"batch_format": form}},
        "output": {"uri": "out"},
    }
    job = parse_job(content, tmp_path / "job.yaml")
    table = pa.table({"h": pa.array(values, kind)})
    done = drained(score_table(table, load_scorer(model_job(job), None), BatchSize(size), job.models[0].output_types()))
    assert (done.outputs["y"].to_pylist(), done.failures) == (values, ())


def test_a_list_keeps_its_items_as_they_are() -> None:
    """numpy alone would write a missing value as a text, cut zeros off bytes, and refuse items of several shapes."""
    missing, turns = float("nan"), [[{"role": "user"}], [{"role": "user"}, {"role": "assistant"}]]
    for given in (["a", missing], ["a", 1], [b"a\0", b"b"], turns, [np.zeros(2), np.zeros(3)]):
        found = to_array(given)
        assert (found.dtype, found.shape) == (object, (2,))
        assert all(one is other for one, other in zip(found, given, strict=True))
    for numbers in ([1, 2], [1.0, missing], [[1.0, 2.0], [3.0, 4.0]], [True, False]):
        np.testing.assert_array_equal(to_array(numbers), np.array(numbers))
