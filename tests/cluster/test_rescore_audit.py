"""`rescore.share`: a sample is scored again in another process. What comes of it: tests/runs/test_rescored.py."""

from __future__ import annotations

import os

import pytest

from nightjar.inference.engine import RAY
from nightjar.inference.errors import RunFailed
from rescoring import FIRST_TIME, in_two_steps, model, rescored
from support import Lake

pytestmark = pytest.mark.usefixtures("ray_local")


def test_a_sample_is_scored_again_in_another_process(lake: Lake) -> None:
    """As many shards as asked for; the manifest and the gates say what was compared."""
    lake.write_model(model())
    ran = lake.ready(rescore={"share": 0.25}).run()
    gate = next(gate for gate in ran.verdict.gates if gate.name == "rescore")
    assert (gate.passed, gate.observed) == (True, "0 of 2,000 rows of 2 shards differ")
    assert rescored(lake) == {
        "shards": 2,
        "rows": 2000,
        "differing": 0,
        "greatest": 0.0,
        "first": "",
        "changed": 0,
    }
    calls = [line.split() for line in (lake.folder / "calls").read_text().splitlines()]
    sizes = {pid: sum(int(rows) for p, _, rows in calls if p == pid) for pid, *_ in calls}
    # Preflight's sample, which is scored again beside other rows, and three rows alone; the second time, in another
    # order; the run.
    assert sorted(sizes.values()) == [32 + 32 + 3, 2000, 8000]
    assert str(os.getpid()) not in sizes


@pytest.mark.long
def test_a_row_that_ended_its_process_is_not_tried_again(lake: Lake) -> None:
    """It would end the one that scores the sample."""
    lake.write_model("import os\n" + model("if 4600 in batch['x']: os._exit(1)"))
    ran = lake.ready(rescore={"share": 1}).run()
    assert lake.quarantined()["_row"].tolist() == [600]
    assert next(gate for gate in ran.verdict.gates if gate.name == "rescore").passed
    assert rescored(lake)["rows"] == 7999


def test_a_process_that_is_lost_over_it_ends_the_run(lake: Lake) -> None:
    lake.write_model(model(FIRST_TIME + "\n    if not first: os._exit(1)"))
    lake.ready(rescore={"share": 0.1})
    with pytest.raises(RunFailed, match=r"the cluster lost a process that scored shards of .* again"):
        in_two_steps(lake, (lake.folder / "again").touch, RAY)
