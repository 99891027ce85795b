"""A failed gate names the shards and files that hold the values, with a row to replay."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar.inference.errors import GateFailed
from nightjar.inference.job.checks import ColumnCheck
from nightjar.inference.job.model import Job
from nightjar.inference.jsonform import of_json, to_json
from nightjar.inference.metrics.columns import ColumnState
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.output.outcomes import OUTCOMES
from nightjar.inference.records import Receipt
from nightjar.inference.scoring.assignment import Assignment
from nightjar.inference.scoring.worker import ShardWorker
from nightjar.inference.validation.audit import Audited, audit_block
from nightjar.inference.validation.gates import Evidence, Found, GateResult, Offender, enforce
from nightjar.inference.validation.gates.column import column_gates
from nightjar.inference.validation.gates.rules import column_gates_of
from nightjar.inference.validation.violating_rows import MAX_OFFENDERS, _first, join, with_replays
from support import Lake, OneStep

BAD = {150: math.inf, 1700: 7.5, 1705: math.nan, 2050: None, 2150: 9.5, 3999: math.inf}
"""Input row (its x) → what it scores; every other row scores 0.5. Rows 1700 and 1705 are of one shard."""

REFUSED = 1650
"""A row before those, which cannot be scored."""


class Scorer(OneStep):
    """As `BAD` says."""

    device = "cpu"

    def __call__(self, table: pa.Table) -> dict[str, pa.Array]:
        rows = np.asarray(table["x"]).astype(int).tolist()
        if REFUSED in rows:
            raise ValueError("not this row")
        return {"score": pa.array([BAD.get(row, 0.5) for row in rows], pa.float32())}


@dataclasses.dataclass
class Night:
    """A file of two shards, a packed shard of two files and a file of four: audited line by line."""

    lake: Lake
    lines: list[dict[str, Any]]

    def audited(self, *lines: dict[str, Any]) -> Audited:
        spec = self.lake.worker_spec()
        found = Audited()
        for line in lines or self.lines:
            found.merge(audit_block(spec.storage, spec.revision, spec.job, [line]))
        assert found.damaged == {}
        return found

    def verdicts(self) -> dict[str, GateResult]:
        request, audited = self.lake.request(), self.audited()
        columns = audited.metrics.columns
        table = pa.Table.from_pylist(self.lines, schema=OUTCOMES)
        replayed = with_replays(request.job_path, request.words, table, audited.offenders)
        evidence = Evidence(Found(5, 1), metrics=Metrics(columns), offenders=replayed)
        return {gate.name: gate for gate in (each.judge(evidence) for each in column_gates_of(request.job))}


def scored(folder: Path, **changes: Any) -> Night:
    lake = Lake(folder)
    lake.write_file("a.parquet", 0, 2000)
    lake.write_file("b-1.parquet", 2000, 100)
    lake.write_file("b-2.parquet", 2100, 100)
    lake.write_file("c.parquet", 2200, 4000)
    lake.write_model()
    lake.write_job(checks=[{"column": "score", "min": 0, "max": 1, "nulls": 0, "finite": True}], **changes)
    plan, spec = lake.planned(), lake.worker_spec()
    events = ShardWorker(spec, Scorer()).process([Assignment(shard) for shard in plan.shards()])
    receipts = {event.shard: event for event in events if isinstance(event, Receipt)}
    return Night(lake, [{**line, **asdict(receipts[line["shard"]])} for line in plan.table.to_pylist()])


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Night:
    return scored(tmp_path_factory.mktemp("offenders"))


def rows(gate: GateResult) -> list[tuple[str, int, str]]:
    return [(offender.file.rpartition("/")[2], offender.row, offender.value) for offender in gate.where]


def test_each_failed_gate_names_the_first_rows_of_the_first_shards(night: Night) -> None:
    found = night.verdicts()
    assert rows(found["score.max"]) == [
        ("a.parquet", 150, "inf"),
        ("a.parquet", 1700, "7.5"),
        ("b-2.parquet", 50, "9.5"),
    ]
    assert rows(found["score.min"]) == [("a.parquet", 1705, "nan")]
    assert rows(found["score.nulls"]) == [("a.parquet", 1705, "nan"), ("b-1.parquet", 50, "null")]
    assert rows(found["score.finite"]) == [
        ("a.parquet", 150, "inf"),
        ("a.parquet", 1705, "nan"),
        ("c.parquet", 1799, "inf"),
    ]
    assert [offender.shard for offender in found["score.nulls"].where] == [
        night.lines[1]["shard"],
        night.lines[2]["shard"],
    ]


def test_one_block_names_what_blocks_of_one_shard_name(night: Night) -> None:
    """And no more, though a fourth shard holds a value that is too great."""
    spec = night.lake.worker_spec()
    together = audit_block(spec.storage, spec.revision, spec.job, night.lines).offenders
    assert together == night.audited().offenders
    assert len(together["checks[0].max"]) == MAX_OFFENDERS


def test_each_row_has_the_command_that_scores_it_again(night: Night) -> None:
    """With the file, where its shard has several."""
    first, _, packed = night.verdicts()["score.max"].where
    job, run = night.lake.job_path, "2026-11-19"
    assert first.replay == f"nightjar replay {job} {run} --shard {first.shard} --row 150"
    assert packed.replay == f"nightjar replay {job} {run} --shard {packed.shard} --row 50 --file {packed.file}"
    table = pa.Table.from_pylist(night.lines, schema=OUTCOMES)
    begins = {"key": (dataclasses.replace(first, row=0, replay=""),)}
    (replayed,) = with_replays(str(job), (run,), table, begins)["key"]
    assert replayed.replay == f"nightjar replay {job} {run} --shard {first.shard} --row 0"


def test_the_failure_says_the_first_row_and_keeps_them_all(night: Night) -> None:
    results = tuple(night.verdicts().values())
    with pytest.raises(GateFailed) as failed:
        enforce(results)
    first = results[1].where[0]
    assert f"Row 150 of {first.file} (shard {first.shard}) holds inf: {first.replay}" in str(failed.value)
    assert "9.5" not in str(failed.value)
    assert failed.value.gates == results
    assert [of_json(GateResult, to_json(gate)) for gate in results] == list(results)


def test_a_column_without_such_values_has_no_offenders(night: Night) -> None:
    assert night.audited(night.lines[3], *night.lines[5:]).offenders == {}


def test_offenders_stay_bounded_and_in_order_however_many_blocks_there_are(night: Night) -> None:
    found = {"key": tuple(Offender(str(shard), "f", 0, "inf") for shard in range(MAX_OFFENDERS - 1))}
    more = {
        "key": (Offender("x", "f", 0, "inf"), Offender("y", "f", 0, "inf")),
        "other": (Offender("z", "f", 0, "nan"),),
    }
    assert [offender.shard for offender in join(found, more)["key"]] == ["0", "1", "x"]
    assert join({}, more) == join(more, {}) == more


CHECK = ColumnCheck(column="score", min=0.25, max=0.75, nulls=0, finite=True)
GATES = list(column_gates(CHECK, "checks[0]", Job.model_construct()))
VALUE = st.one_of(st.none(), st.floats(width=32), st.floats(0, 1, width=32))


@given(st.lists(VALUE, min_size=1, max_size=40), st.sampled_from(["min", "max", "nulls", "finite"]))
def test_the_first_row_by_halves_is_the_first_of_all(values: list[float | None], asked: str) -> None:
    gate = next(gate for gate in GATES if gate.key.endswith(asked))
    column = pa.chunked_array([pa.array(values[:7], pa.float32()), pa.array(values[7:], pa.float32())])
    alone = [gate.spares(state_of(column.slice(index, 1))) for index in range(len(values))]
    if not all(alone):
        refused = [index for index, spared in enumerate(alone) if not spared]
        assert _first(gate, column) == refused[0]
    assert gate.spares(state_of(column)) == all(alone)


def state_of(column: pa.ChunkedArray) -> ColumnState:
    state = ColumnState()
    state.update(column)
    return state
