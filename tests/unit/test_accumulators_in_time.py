"""However many accumulators a job has, they share the time that a shard has for them."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa

from nightjar.inference.metrics.accumulators import decoded, unpacked
from nightjar.inference.scoring.accumulating import Accumulating
from support import Lake

SLOW = """
import time

class Slow:
    def __init__(self):
        self.rows = 0

    def update(self, rows):
        time.sleep(1.3)
        self.rows += rows.num_rows

    def merge(self, state):
        self.rows += state

    def state(self):
        return self.rows

    def results(self):
        return {"rows": self.rows}
"""


def test_slow_accumulators_together_have_half_of_a_step_for_a_shard(tmp_path: Path) -> None:
    """Each of the five answers within it. Those that come too late cost their figures; the shard is written in time."""
    lake, stall_s = Lake(tmp_path / "lake"), 6
    lake.ready(accumulators={f"a{each}": "mymetrics:Slow" for each in range(5)}, retry__stall_s=stall_s)
    (lake.folder / "mymetrics.py").write_text(SLOW)
    beside = Accumulating(lake.worker_spec())
    try:
        began = time.monotonic()
        kept = unpacked(beside.states([pa.table({"id": [1, 2]})]))[1]
        assert time.monotonic() - began < stall_s
        in_time = [each for each in kept.values() if each.state]
        assert all(decoded(each.state) == 2 for each in in_time)
        late = list(kept)[len(in_time)]
        said = "gave no answer before half of retry.stall_s = 6 s was over, which all accumulators share for a shard"
        reasons = {each.failed.partition(";")[0] for each in kept.values() if not each.state}
        assert reasons in ({f"accumulators.{late}: mymetrics:Slow {said}"}, {f"accumulators {said}"})

        began = time.monotonic()
        again = unpacked(beside.states([pa.table({"id": [3]})]))[1]
        assert not any(each.state for each in again.values())
        assert time.monotonic() - began < stall_s / 2, "it is not asked again"
    finally:
        beside.close()
