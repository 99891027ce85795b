"""What counts as a difference between two scorings, which shards are scored twice, and what is found of them."""

from __future__ import annotations

import math
import socket
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from test_audit import Line, Scored

import faults
from faults import FaultyStorage
from nightjar.inference.errors import RunFailed, Transient
from nightjar.inference.records import Receipt
from nightjar.inference.scoring.assignment import Assignment
from nightjar.inference.scoring.neighbours import differences
from nightjar.inference.scoring.worker import ShardWorker
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Storage
from nightjar.inference.validation.rescore import Rescored, rescore, sample
from support import Lake

NAN, INF = math.nan, math.inf


def differing(kind: pa.DataType, before: list[Any], after: list[Any], tolerance: float = 0.0) -> list[int]:
    a, b = (pa.chunked_array([pa.array(values, kind)]) for values in (before, after))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, greatest = differences(a, b, tolerance)
    assert found.dtype == bool
    floats = pa.types.is_floating(getattr(kind, "value_type", kind)) or pa.types.is_struct(kind)
    assert floats or greatest == 0.0, "nothing else has a distance"
    return [int(row) for row in found.nonzero()[0]]


@pytest.mark.parametrize(
    ("kind", "before", "after", "rows"),
    [
        (pa.float32(), [1.0, NAN, INF, None, -INF], [1.0, NAN, INF, None, -INF], []),
        (pa.float32(), [1.0, NAN, INF, None, 0.0], [1.5, 1.0, -INF, 0.0, None], [0, 1, 2, 3, 4]),
        (pa.float32(), [None, NAN, None], [NAN, None, None], [0, 1]),
        (pa.float16(), [1.0, 2.0], [1.0, 3.0], [1]),
        (pa.int64(), [2**60, 5, None], [2**60 + 1, 5, 0], [0, 2]),
        (pa.string(), ["a", "", None], ["a", None, ""], [1, 2]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "b"], ["a", "c"], [1]),
        (pa.string(), ["a", None, "c"], ["b", None, "c"], [0]),
        (pa.uuid(), [b"a" * 16, b"b" * 16], [b"a" * 16, b"c" * 16], [1]),
        (pa.dictionary(pa.int8(), pa.float64()), [1.0, NAN, 2.0], [1.0, NAN, 2.5], [2]),
        (pa.bool_(), [True, False], [True, True], [1]),
        (pa.timestamp("us", "UTC"), [1, 2], [1, 3], [1]),
        (pa.list_(pa.float32()), [[1.0, NAN], [], None, [2.0]], [[1.0, NAN], [], None, [2.5]], [3]),
        (pa.list_(pa.float32()), [[1.0], [1.0], [], None], [[1.0, 1.0], [1.0], None, []], [0, 2, 3]),
        (pa.list_(pa.float32(), 2), [[1.0, 2.0], None, [3.0, 4.0]], [[1.0, 2.0], None, [3.0, 5.0]], [2]),
        (pa.list_(pa.string()), [["a"], ["b"]], [["a"], ["c"]], [1]),
        (pa.struct([("x", pa.float32())]), [{"x": NAN}, {"x": 1.0}], [{"x": NAN}, {"x": 2.0}], [1]),
        (pa.string_view(), ["a", "b"], ["a", "c"], [1]),
        (pa.map_(pa.string(), pa.int8()), [{"a": 1}, {}, None], [{"a": 2}, {}, None], [0]),
        (pa.list_(pa.map_(pa.string(), pa.int8())), [[], None], [[], []], [1]),
        (pa.float32(), [], [], []),
        (pa.struct([("x", pa.float32())]), [], [], []),
    ],
    ids=str,
)
def test_every_type_is_compared_by_value(
    kind: pa.DataType, before: list[Any], after: list[Any], rows: list[int]
) -> None:
    assert differing(kind, before, after) == rows


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (pa.int64(), 1, 2),
        (pa.string(), "a", "b"),
        (pa.list_(pa.string()), ["a"], ["a", "b"]),
        (pa.struct([("label", pa.string())]), {"label": "a"}, {"label": "b"}),
        (pa.list_(pa.struct([("label", pa.string()), ("score", pa.float32())])), [], [{"label": "a", "score": 1.0}]),
    ],
    ids=str,
)
def test_beside_noise_values_without_a_distance_differ_where_most_of_them_do(
    kind: pa.DataType, one: Any, other: Any
) -> None:
    """A tie makes another label of one; a model that depends on the batch makes others of most."""
    before = pa.chunked_array([pa.array([one] * 4, kind)])
    for changed, rows in ((2, []), (3, [0, 1, 2])):
        after = pa.chunked_array([pa.array([other] * changed + [one] * (4 - changed), kind)])
        assert differences(before, after, 0.0, 0.05)[0].nonzero()[0].tolist() == rows


def test_floats_may_differ_by_the_tolerance_and_no_more() -> None:
    """Relative to 1 + size: |a - b| ≤ 0.01 × (1 + |a|)."""
    before, after = [0.0, 0.0, 100.0, 100.0, INF], [0.0099, 0.0101, 101.0, 101.02, 1e30]
    assert differing(pa.float64(), before, after, 0.01) == [1, 3, 4]
    assert differing(pa.list_(pa.float64()), [[0.0, 0.0], [100.0]], [[0.0, 0.0101], [101.0]], 0.01) == [0]
    assert differing(pa.float64(), [1.0], [1.5], 0.25) == []
    assert differing(pa.dictionary(pa.int8(), pa.float64()), [1.0], [1.5], 0.25) == []
    _, greatest = differences(pa.chunked_array([[None, 1.0]]), pa.chunked_array([[7.0, 1.0]]), 0.0)
    assert greatest == 0.0, "from a null to a number there is none"
    with pytest.raises(AssertionError, match="1 values and 2 values are compared"):
        differences(pa.chunked_array([[1]]), pa.chunked_array([[1, 2]]), 0.0)
    _, greatest = differences(pa.chunked_array([[1.0, NAN]]), pa.chunked_array([[1.5, NAN]]), 0.5)
    assert greatest == 0.25
    one, other = (pa.chunked_array([[{"x": x, "y": 1.0}]]) for x in (1.0, 1.5))
    assert differences(one, other, 0.5)[1] == 0.25, "in a struct it is that of the field that differs most"


def outcomes(shards: int) -> pa.Table:
    names = [f"shard-{index:03d}" for index in range(shards)]
    return pa.table({"shard": names, "rows_out": [0 if index % 10 == 0 else 5 for index in range(shards)]})


def test_the_share_is_of_all_shards_and_never_none() -> None:
    assert sample(outcomes(200), 0.05, "night").num_rows == 10
    assert sample(outcomes(200), 1e-9, "night").num_rows == 1
    assert sample(outcomes(200), 1.0, "night").num_rows == 180
    assert sample(outcomes(1), 1.0, "night").num_rows == 0
    assert sample(pa.table({"shard": ["a"], "rows_out": [1]}), 1.0, "night").num_rows == 1


def test_each_night_has_a_sample_of_its_own_and_repeating_it_the_same() -> None:
    one, again, other = (sample(outcomes(200), 0.05, night)["shard"].to_pylist() for night in ("a", "a", "b"))
    assert one == again
    assert one != other
    assert one == sorted(one)


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Scored:
    """Two shards of one file and a packed one; the second has a row in the quarantine."""
    return Scored(tmp_path_factory.mktemp("rescored"))


def found(scored: Scored, *lines: Line, storage: Storage | None = None, **rescore_keys: Any) -> list[Rescored]:
    """What scoring these shards again in this process finds; the model of the job gives twice x. The step that scores
    again allows for no row that fails.
    """
    spec = replace(scored.lake.worker_spec(), budget=0)
    spec = replace(spec, storage=storage or spec.storage)
    keys = spec.job.rescore.model_copy(update=rescore_keys)
    return list(rescore(replace(spec, job=spec.job.model_copy(update={"rescore": keys})), lines))


def test_what_is_scored_alike_again_differs_nowhere(scored: Scored) -> None:
    """The row in the quarantine is not tried again."""
    first, second, third = found(scored, *scored.lines)
    assert (first, second, third) == (Rescored(1, 1000), Rescored(1, 999), Rescored(1, 200))
    for other in (second, third):
        first.merge(other)
    assert first == Rescored(3, 2199)


def test_a_read_that_fails_for_a_moment_is_tried_as_often_as_the_job_says(scored: Scored) -> None:
    """Three times, 0.05 s apart and more."""
    first = scored.lines[0]
    for failures, passes in ((2, True), (3, False)):
        pattern = f"*{first['data']['name']}"
        failing = FaultyStorage(LakeStorage(), [faults.fail("read", pattern, nth) for nth in range(1, failures + 1)])
        if passes:
            assert found(scored, first, storage=failing) == [Rescored(1, 1000)]
            continue
        with pytest.raises(Transient):
            found(scored, first, storage=failing)


def altered(scored: Scored, line: Line, column: str, changes: dict[int, Any]) -> Line:
    """The shard as if other values had been written in some rows of a column."""
    table = scored.table(line)
    values = table[column].to_pylist()
    for index, value in changes.items():
        values[index] = value
    at = table.schema.get_field_index(column)
    return scored.rewritten(line, table.set_column(at, column, pa.array(values, table[column].type)))


def test_what_differs_is_counted_by_row_and_the_first_is_named(scored: Scored) -> None:
    first, second, third = scored.lines
    file, worker, host = first["pieces"][0]["uri"], second["worker"], socket.gethostname()
    wrong = altered(scored, second, "score", {10: 0.0, 500: 0.0})
    (differs,) = found(scored, wrong)
    assert differs.first == f"row 1010 of {file}: 'score' was 0.0, written by {worker}, and is 2020.0 on {host}"
    # Rows 1010 and 1501: the row in the quarantine is in no part.
    assert (differs.shards, differs.rows, differs.differing, differs.greatest) == (1, 999, 2, 3002.0)
    carried = altered(scored, altered(scored, third, "name", {3: "x", 199: "y"}), "score", {3: 4006.5})
    (differs,) = found(scored, carried, tolerance=0.5)
    small = third["pieces"][0]["uri"]
    assert differs.first.startswith(f"row 3 of {small}: 'name' was 'x', written by {third['worker']}, and is ")
    assert (differs.differing, round(differs.greatest * 4007.5, 3)) == (2, 0.5), "a carried column has no tolerance"
    merged = Rescored(1, 10, 1, 0.5, "the first", 2)
    merged.merge(Rescored(2, 20, 3, 0.25, "a later one", 3))
    assert merged == Rescored(3, 30, 4, 0.5, "the first", 5)
    merged.merge(Rescored(greatest=0.75))
    assert merged.greatest == 0.75
    nothing = Rescored()
    nothing.merge(merged)
    assert nothing == merged


def test_the_tolerance_is_for_outputs_and_not_for_carried_columns(tmp_path: Path) -> None:
    """What is carried is a copy, whatever its type."""
    scored = Scored(tmp_path, carry=["id", "x"])
    first = scored.lines[0]
    (output,) = found(scored, altered(scored, first, "score", {10: 20.5}), tolerance=0.5)
    (carried,) = found(scored, altered(scored, first, "x", {10: 10.5}), tolerance=0.5)
    assert (output.differing, carried.differing) == (0, 1)


@pytest.mark.parametrize("row", [1000, 1999])
def test_the_first_and_the_last_row_of_a_shard_may_be_in_the_quarantine(tmp_path: Path, row: int) -> None:
    scored = Scored(tmp_path, bad=row)
    assert found(scored, scored.lines[1]) == [Rescored(1, 999)]


def test_a_model_that_takes_no_row_twice_is_scored_in_the_order_of_the_rows(tmp_path: Path) -> None:
    """A shard of one batch is scored with half of its rows twice; a model that joins by a key cannot do that."""
    scored = Scored(tmp_path)
    scored.lake.write_model(
        "def score(batch):\n    return {'score': [x * 2 for x in dict.fromkeys(batch['x'].tolist())]}\n"
    )
    assert found(scored, scored.lines[0], scored.lines[2]) == [Rescored(1, 1000), Rescored(1, 200)]


def test_what_was_left_out_or_could_not_be_read_is_so_again(tmp_path: Path) -> None:
    """Rows that `input.where` leaves out, a line that is no JSON, and a row that the model refused."""
    lake = Lake(tmp_path)
    lake.write_file("part.parquet", 0, 100)
    lake.to_json_lines()
    (path,) = (tmp_path / "data").iterdir()
    path.write_text(path.read_text().replace('{"id": 50,', '{"id": 50 ', 1))
    lake.write_model("def score(batch):\n    assert 60 not in batch['x']\n    return {'score': batch['x'] * 2}\n")
    lake.write_job(input={"uri": "data/", "format": "jsonl", "where": "id >= 10"}, retry__max_quarantined=0.5)
    plan, spec = lake.planned(), lake.worker_spec()
    events = ShardWorker(spec).process(map(Assignment, plan.shards()))
    (receipt,) = [event for event in events if isinstance(event, Receipt)]
    assert (receipt.rows_out, receipt.rows_quarantined, receipt.rows_left_out) == (88, 2, 10)
    (line,) = plan.table.to_pylist()
    assert list(rescore(spec, [{**line, **asdict(receipt)}])) == [Rescored(1, 88)]


def test_what_can_not_be_compared_is_said(tmp_path: Path) -> None:
    """Rows that fail only now, an input that has changed since, and a process that scoring again has spoilt."""
    scored = Scored(tmp_path)
    first, second, third = scored.lines
    (tmp_path / "worse.py").write_text(
        "from nightjar.inference.errors import ProcessSpoilt\n\n\n"
        "def score(batch):\n"
        "    if {17, 1017} & set(batch['x']):\n"
        "        raise ValueError('not this time')\n"
        "    if 2000 in batch['x']:\n"
        "        raise ProcessSpoilt('device', 'the device is lost')\n"
        "    return {'score': batch['x'] * 2}\n"
    )
    scored.lake.write_job(model__uses="worse:score", checks=[{"column": "score", "min": 3}])
    said = [f"1 row of shard {line['shard']} could be scored at first, but not again" for line in (first, second)]
    assert found(scored, first, second) == [Rescored(1, 1000, 1, 0.0, said[0]), Rescored(1, 999, 1, 0.0, said[1])]
    with pytest.raises(RunFailed) as spoilt:
        found(scored, third)
    assert str(spoilt.value) == (
        f"rescore: shard {third['shard']} could be scored once, but not again: device: the device is lost"
    )
    Path(third["pieces"][0]["uri"]).unlink()
    scored.lake.write_file("part.parquet", 0, 2001)
    assert found(scored, third, first) == [Rescored(changed=1)] * 2


def test_a_row_of_a_later_file_of_a_shard_may_fail_only_now(tmp_path: Path) -> None:
    """The rows of the files before it are all compared."""
    scored = Scored(tmp_path)
    scored.lake.write_model(
        "def score(batch):\n    assert 2150 not in batch['x'], 'not this time'\n    return {'score': batch['x'] * 2}\n"
    )
    packed = scored.lines[2]
    assert len(packed["pieces"]) == 2
    (differs,) = found(scored, packed)
    assert differs.first == f"1 row of shard {packed['shard']} could be scored at first, but not again"
    assert (differs.rows, differs.differing, differs.greatest) == (200, 1, 0.0)
