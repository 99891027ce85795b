"""Nothing goes on for ever: models that hang, actors that cannot be made, shards that are too slow.

A row that hangs the model in mid-run: tests/runs/test_deaths.py.
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import pytest
import ray

from nightjar.inference.engine import LOCAL
from nightjar.inference.engine.ray.capacity import check_cluster
from nightjar.inference.engine.ray.passes import run_pass
from nightjar.inference.engine.ray.preflight import preflight
from nightjar.inference.engine.ray.tasks import audit
from nightjar.inference.errors import (
    ClusterError,
    ClusterLost,
    JobError,
    RunFailed,
    ShardsFailed,
)
from nightjar.inference.scoring.suspects import Attempt
from support import Lake, command, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_local")]

FOUND = '''
import threading
from pathlib import Path

HERE = Path(__LIVE__)

def once(name):
    """Whether this is the first time, over all processes."""
    try:
        (HERE / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
'''

HANGS_AT_A_ROW = (
    FOUND
    + '''
def score(batch):
    """Twice x, but one row is never answered."""
    if 5300 in batch["x"]:
        threading.Event().wait()
    return {"score": batch["x"] * 2}
'''
)

MADE_LATER = (
    FOUND
    + '''
class Model:
    """Twice x. Preflight makes it; the actors of the pool do not, or not at first."""

    def __init__(self):
        if not once("preflight"):
            HERE_IT_FAILS

    def __call__(self, batch):
        return {"score": batch["x"] * 2}
'''
)


def failures(lake: Lake) -> list[dict[str, object]]:
    return [record for record in lake.records() if record["t"] == "failed"]


ONE_ROW_GROUP = [("all.parquet", 0, 2000)]
FILES = [("a.parquet", 0, 1000), ("b.parquet", 1000, 1000)]
A_BAD_ROW_FIRST = [("a.parquet", 0, 1), ("b.parquet", 1, 999), ("c.parquet", 1000, 1000)]


def lake_of(lake: Lake, files: list[tuple[str, int, int]], model: str) -> Lake:
    """Two thousand rows, each file one row group."""
    for name, first, rows in files:
        lake.write_file(name, first, rows, row_group=rows)
    lake.write_model(model)
    lake.write_job(retry__stall_s=5, retry__max_quarantined=0.01)
    return lake


@pytest.mark.parametrize(
    "files", [pytest.param(ONE_ROW_GROUP, id="one-row-group", marks=pytest.mark.long), pytest.param(FILES, id="files")]
)
def test_a_row_that_hangs_the_model_may_be_the_first(lake: Lake, files: list[tuple[str, int, int]]) -> None:
    """Preflight meets it, too, and scores elsewhere: the model is well.

    Then two processes are ended: the first says in which micro-batch, the second at which row; no other row is lost.
    """
    lake_of(lake, files, HANGS_AT_A_ROW.replace("5300", "7")).run()
    assert lake.published()["id"].tolist() == [i for i in range(2000) if i != 7]
    lost = lake.quarantined()
    assert [row["id"] for row in lost["input"]] == [7]
    assert "Stalled: no progress for retry.stall_s = 5 s, in wait" in lost["message"].iloc[0]
    assert [f["rows"] for f in failures(lake) if f["cause"] == "Stalled"] == [256, 1]

    replayed = command(*shlex.split(lost["replay"].iloc[0])[1:])
    assert replayed.returncode == 1
    assert "row 7: Stalled: no progress for retry.stall_s = 5 s, in wait" in replayed.stdout


@pytest.mark.long
def test_a_row_that_hangs_the_model_may_come_after_a_bad_file(lake: Lake) -> None:
    """Where preflight hung is not where it began: it goes on after that place."""
    bad = 'if 0 in batch["x"]:\n        raise ValueError("not this row")\n    if 7 in'
    lake_of(lake, A_BAD_ROW_FIRST, HANGS_AT_A_ROW.replace("if 5300 in", bad)).run()
    assert lake.published()["id"].tolist() == [i for i in range(2000) if i not in {0, 7}]


@pytest.mark.parametrize(
    "files", [ONE_ROW_GROUP, pytest.param(FILES, marks=pytest.mark.long)], ids=["one-row-group", "files"]
)
def test_a_model_that_hangs_everywhere_is_refused(lake: Lake, files: list[tuple[str, int, int]]) -> None:
    """At two places of the input it is the model, and nothing is scored for it."""
    hangs = HANGS_AT_A_ROW.replace('if 5300 in batch["x"]:', 'if len(batch["x"]):')
    with pytest.raises(JobError, match=r"scoring the first rows took longer than retry\.stall_s = 5 s and was ended"):
        lake_of(lake, files, hangs).run()
    assert not failures(lake)


def test_shards_that_are_too_slow_fail_and_say_what_to_change(lake: Lake) -> None:
    lake.write_model("import time\n\ndef score(batch):\n    time.sleep(0.3)\n    return {'score': batch['x'] * 2}\n")
    lake.ready(retry__shard_s=0.5, retry__attempts=1)
    with pytest.raises(ShardsFailed, match=r"retry\.shard_s = 0\.5 s; it came to row .*lower input\.shard_rows"):
        lake.run(engine=LOCAL)
    assert not (lake.out / "publications").exists()


def test_an_actor_that_cannot_be_made_at_first_is_made_again(lake: Lake) -> None:
    """A pass that could not start charges no shard."""
    lake.write_model(MADE_LATER.replace("HERE_IT_FAILS", 'if once("pool"): raise OSError("the weights are locked")'))
    ran = lake.ready(model__uses="model:Model").run()
    assert lake.published()["id"].tolist() == list(range(8000))
    assert ran.scored.progress.failed_attempts == 0


@pytest.mark.parametrize(
    ("what", "stall_s", "passes", "said"),
    [
        # Time to start the actors on a busy machine; an error needs no time limit.
        ("raise OSError('the weights are gone')", 60, 2, "the weights are gone"),
        ("threading.Event().wait()", 3, 1, "no progress"),
    ],
)
def test_actors_that_can_never_be_made_end_the_run(
    lake: Lake, what: str, stall_s: float, passes: int, said: str
) -> None:
    """In bounded time, with what Ray says of it, and with every CPU free again."""
    lake.write_model(MADE_LATER.replace("HERE_IT_FAILS", what))
    lake.ready(model__uses="model:Model", retry__stall_s=stall_s, retry__attempts=passes)
    with pytest.raises(RunFailed, match=rf"(?s){passes} passes in a row started nothing.*{said}"):
        lake.run()
    assert failures(lake) == []
    wait_until(lambda: ray.available_resources().get("CPU") == 2, 30, "every CPU is free again")


def test_what_no_process_is_started_for_is_ended(lake: Lake, tmp_path: Path) -> None:
    """Here because somebody else holds the CPUs: preflight, a pass and an audit end by themselves, and say so."""

    @ray.remote(num_cpus=2)
    def hold(stop: Path) -> None:
        while not stop.exists():
            time.sleep(0.05)

    stop = tmp_path / "stop"
    holder = hold.remote(stop)
    wait_until(lambda: ray.available_resources().get("CPU", 0) == 0, 30, "the CPUs are held")
    try:
        spec = lake.ready(retry__stall_s=1).worker_spec()
        with pytest.raises(ClusterLost, match=r"3 × retry\.stall_s = 1 s: the cluster started no process for it"):
            preflight(spec, [])
        events = run_pass(spec, lake.planned().table, [Attempt()] * 8)
        with pytest.raises(RunFailed, match="no progress"):
            list(events)
        with pytest.raises(ClusterLost, match=r"the audit stood still for 3 × retry\.stall_s = 1 s"):
            list(audit(spec.storage, spec.revision, spec.job, lake.planned().table))
    finally:
        stop.touch()
        ray.get(holder)


def test_more_descriptors_than_the_object_store_holds_are_refused(lake: Lake) -> None:
    """With the numbers, and the key to change."""
    job = lake.ready().request().job
    with pytest.raises(ClusterError, match=r"^input\.shard_rows: .* take 1,048,576 MiB, and .* has [\d,]+ MiB"):
        check_cluster(job, descriptors=1 << 40)
