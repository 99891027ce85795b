"""`rescore.share`: a sample is scored again elsewhere, and what comes out different is not published."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest

from nightjar.inference.engine import LOCAL, RAY
from nightjar.inference.errors import GateFailed, RunFailed
from nightjar.inference.run import steps as run
from support import Lake

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_local")]

NOTES = '''
import os
from pathlib import Path

import numpy as np

def score(batch):
    """Twice x; notes the process and the rows. WHAT"""
    with (Path(__LIVE__) / "calls").open("a") as calls:
        calls.write(f"{os.getpid()} {int(batch['x'][0])} {len(batch['x'])}\\n")
    out = batch["x"] * 2
    HOW
    return {"score": out}
'''

FIRST_TIME = "first = not (Path(__LIVE__) / 'again').exists()\n    "
"""Whether a row is scored for the first time: the test says when that is over."""


def model(how: str = "pass") -> str:
    return NOTES.replace("HOW", how)


def rescored(lake: Lake) -> dict[str, float]:
    manifest = json.loads((lake.out / lake.snapshot().runs["2026-11-19"].manifest).read_text())
    found: dict[str, float] = manifest["audit"]["rescored"]
    return found


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
    assert sorted(sizes.values()) == [32, 2000, 8000]  # preflight's sample, the second time, the run
    assert str(os.getpid()) not in sizes


@pytest.mark.parametrize(
    "how",
    [
        "out = out + np.random.default_rng().random(len(out))",  # another answer each time
        FIRST_TIME + "out = np.roll(out, 1) if first and len(out) > 32 else out",  # outputs of other rows
    ],
)
def test_what_comes_out_different_is_not_published(lake: Lake, how: str) -> None:
    """The sentence has one value and who wrote it, and what to do."""
    lake.write_model(model(how))
    lake.ready(rescore={"share": 0.2})
    with pytest.raises(GateFailed, match=r"[\d,]+ of 2,000 rows of 2 shards came out different") as failed:
        in_two_steps(lake, (lake.folder / "again").touch)
    said = str(failed.value)
    assert "'score' was" in said
    assert ", written by " in said
    assert "--fresh" in said
    assert not (lake.out / "publications").exists()


def in_two_steps(lake: Lake, between: Callable[[], object], then: str = LOCAL) -> run.Verdict:
    """Score in this process, do something, validate with this engine."""
    request = lake.request(engine=LOCAL)
    found = run.discover(request)
    scored = run.score(request, found)
    between()
    return run.validate(lake.request(engine=then), scored, found)


def test_rows_in_quarantine_are_not_tried_again(lake: Lake) -> None:
    """The others of the shard are compared."""
    refuses = "if first: raise ValueError('not this one')\n        (Path(__LIVE__) / 'tried').touch()"
    lake.write_model(model(FIRST_TIME + f"if 4600 in batch['x']:\n        {refuses}"))
    lake.ready(rescore={"share": 1})
    verdict = in_two_steps(lake, (lake.folder / "again").touch)
    assert lake.quarantined()["_row"].tolist() == [600]
    gate = next(gate for gate in verdict.gates if gate.name == "rescore")
    assert (gate.passed, gate.observed) == (True, "0 of 7,999 rows of 8 shards differ")
    assert not (lake.folder / "tried").exists()


@pytest.mark.long
def test_a_row_that_ended_its_process_is_not_tried_again(lake: Lake) -> None:
    """It would end the one that scores the sample."""
    lake.write_model("import os\n" + model("if 4600 in batch['x']: os._exit(1)"))
    ran = lake.ready(rescore={"share": 1}).run()
    assert lake.quarantined()["_row"].tolist() == [600]
    assert next(gate for gate in ran.verdict.gates if gate.name == "rescore").passed
    assert rescored(lake)["rows"] == 7999


def test_a_row_that_fails_only_the_second_time_is_a_difference(lake: Lake) -> None:
    lake.write_model(model(FIRST_TIME + "\n    if not first and 4600 in batch['x']: raise ValueError('not again')"))
    lake.ready(rescore={"share": 1})
    with pytest.raises(GateFailed, match=r"1 rows of shard .* could be scored at first, but not again"):
        in_two_steps(lake, (lake.folder / "again").touch)


def test_a_process_that_is_lost_over_it_ends_the_run(lake: Lake) -> None:
    lake.write_model(model(FIRST_TIME + "\n    if not first: os._exit(1)"))
    lake.ready(rescore={"share": 0.1})
    with pytest.raises(RunFailed, match=r"the cluster lost a process that scored shards of .* again"):
        in_two_steps(lake, (lake.folder / "again").touch, RAY)


def test_what_is_no_longer_there_cannot_be_compared_and_is_said(lake: Lake) -> None:
    """Input overwritten after it was scored: the parts hold the rows of the file that was planned."""
    lake.write_model(model())
    lake.ready(rescore={"share": 1})

    verdict = in_two_steps(lake, lambda: lake.write_file("part-00.parquet", 100_000, 3000))
    gate = next(gate for gate in verdict.gates if gate.name == "rescore")
    assert gate.observed == "0 of 6,000 rows of 6 shards differ (2 left out: their input has changed since)"
