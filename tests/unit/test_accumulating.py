"""The process beside a worker in which the user's own accumulators run: what it is given, and how it is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from nightjar.inference.errors import JobError
from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.metrics.accumulators import decoded, unpacked
from nightjar.inference.records import Piece, Shard
from nightjar.inference.scoring.accumulating import Accumulating, columns_of
from nightjar.inference.scoring.assembly import Assembly
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.microbatches import ScoredRows
from support import Lake

OWN = """
import os

class Late:
    def __init__(self):
        self.rows = self.late = 0

    def update(self, rows):
        self.rows += rows.num_rows
        self.late += sum(rows["late"].to_pylist())

    def merge(self, state):
        self.rows, self.late = self.rows + state[0], self.late + state[1]

    def state(self):
        return [self.rows, self.late]

    def results(self):
        return {"share": self.late / self.rows}

class Fragile(Late):
    def update(self, rows):
        ids = rows["id"].to_pylist()
        if 77 in ids:
            raise ValueError("id 77")
        if 88 in ids:
            os._exit(3)
        super().update(rows)
"""


@pytest.fixture
def spec(tmp_path: Path) -> WorkerSpec:
    lake = Lake(tmp_path / "lake")
    lake.ready(accumulators={"late": "mymetrics:Late", "fragile": "mymetrics:Fragile"})
    (lake.folder / "mymetrics.py").write_text(OWN)
    return lake.worker_spec()


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "late": [each % 2 for each in ids]})


def states(answered: bytes) -> dict[str, object]:
    """What was kept: a state, or why there is none."""
    return {name: decoded(each.state) if each.state else each.failed for name, each in unpacked(answered)[1].items()}


def test_what_fails_costs_its_own_figures_and_what_ends_the_process_ends_the_asking(spec: WorkerSpec) -> None:
    beside = Accumulating(spec)
    try:
        tried = beside.tried(rows(*range(9)))
        assert {name: each.figures for name, each in tried.items()} == {"late": ("share",), "fragile": ("share",)}
        with pytest.raises(JobError, match=r"accumulators\.late: .*KeyError.*It is given the columns id$"):
            beside.tried(rows(1, 2, 3).select(["id"]))
        place = f"in {Path(spec.job.folder) / 'mymetrics.py'}, line 25"
        failed = f"accumulators.fragile: mymetrics:Fragile failed with ValueError: id 77, {place}"
        assert states(beside.states([rows(1, 2), rows(77)])) == {"late": [3, 2], "fragile": failed}
        assert states(beside.states([])) == {"late": [0, 0], "fragile": [0, 0]}
        lost = "accumulators.fragile: mymetrics:Fragile ended its process (exit code 3), without an exception"
        assert states(beside.states([rows(88)])) == {"late": [1, 0], "fragile": lost}
        assert states(beside.states([rows(1)])) == {"late": lost, "fragile": lost}
    finally:
        beside.close()


@pytest.mark.parametrize("carry", [["id"], ["id", "name"]])
def test_the_label_is_given_once_whether_it_is_carried_or_not(spec: WorkerSpec, carry: list[str]) -> None:
    """Of a piece the rows that are written, with the label of each."""
    job = spec.job.model_copy(update={"label": "name", "carry": tuple(carry)})
    made = Assembly(replace(spec, job=job), Shard("s", (piece := Piece("/f", 1, "v", 0, 3, (0, 1)),)))
    read = pa.table({"id": [0, 1, 2], "name": ["a", "b", "c"], "x": pa.array([0.0, 1, 2], pa.float32())})
    outputs = pa.table({"score": pa.array([0.5, 0.25], pa.float32())})
    made.add(piece, RowsRead(read.select(spec.schema.names)), ScoredRows(outputs, np.array([0, 2]), ()))
    (given,) = made.rows()
    assert given.column_names == columns_of(job, spec.schema.names)
    assert given.to_pydict() == {"id": [0, 2], "name": ["a", "c"], "score": [0.5, 0.25]}
