"""Scoring without a cluster: what became of a row scored again, and of whatever else went wrong on the way."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import steps as run
from faults import Fault, FaultyStorage, fail, pause
from nightjar.flows.pages import estimate
from nightjar.inference.engine.local import LocalEngine
from nightjar.inference.errors import Damaged, JobError, NightjarError, RunFailed, Transient
from nightjar.inference.history.replay import Replayed, replay_row
from nightjar.inference.identity import snapshots
from nightjar.inference.identity.snapshots import keep
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.output import revisions as revs
from nightjar.inference.records import Receipt
from nightjar.inference.run.request import identity_of
from nightjar.inference.run.resume import plan_in
from nightjar.inference.scoring.preflight import Loaded
from nightjar.inference.scoring.suspects import Attempt
from nightjar.inference.storage.lake import LakeStorage
from support import Lake, wait_until

MODEL = """
import os, sys

class Model:
    def __init__(self):
        {made}

    def __call__(self, batch):
        if 5 in batch["x"]:
            {called}
        return {{"score": batch["x"] * 2}}
"""


WEIGHED = """
class Model:
    def __init__(self, path):
        with open(path) as file:
            self.weight = float(file.read())

    def __call__(self, batch):
        return {"score": batch["x"] * self.weight}
"""


def lake_of(lake: Lake, made: str = "pass", called: str = "pass") -> Lake:
    """A planned run of one shard of 1000 rows; `made` is what the model's constructor does, `called` its row 5."""
    lake.write_model(MODEL.format(made=made, called=called))
    return planned(lake, model__uses="model:Model")


def planned(lake: Lake, **job: Any) -> Lake:
    """The same of any job."""
    lake.write_file("part-00.parquet", 0, 1000)
    lake.write_job(**job)
    request = lake.request()
    found = run.discover(request)
    made_plan = run.plan(request, found).plan
    for snapshot in request.scoring.snapshots:
        keep(LakeStorage(), request.output, snapshot)
    writer = open_epoch(LakeStorage(), str(lake.revision()), this_holder("score"))
    assert (
        plan_in(request, writer, str(lake.revision()), found, identity_of(request, found.schema), None).ids()
        == made_plan.ids()
    )
    writer.stop(release=True)
    return lake


def replay(lake: Lake, *faults: Fault, live: bool = False) -> Replayed:
    plan = revs.read_revision(LakeStorage(), str(lake.revision().parent), 1).plan()
    assert plan is not None
    (shard,) = plan.ids()
    return replay_row(lake.request(storage=FaultyStorage(LakeStorage(), faults)), shard, 5, None, pdb=False, live=live)


def die(_: str) -> None:
    os._exit(9)


INPUTS = (("id", "5"), ("x", "5"), ("name", "'row 5'"))
"""What the row holds: what the model is given and what is carried, in the order of the file."""


def test_a_row_that_can_be_scored_shows_its_outputs(lake: Lake) -> None:
    replayed = replay(lake_of(lake))
    assert replayed.scored
    assert replayed.text == f"row 5 of {lake.folder}/data/part-00.parquet is scored"
    assert (replayed.inputs, replayed.outputs) == (INPUTS, (("score", "10"),))


def test_a_row_that_raises_shows_where(lake: Lake) -> None:
    replayed = replay(lake_of(lake, called='raise ValueError("not this one")'))
    assert not replayed.scored
    assert re.search(r"model\.py.*in __call__.*ValueError: not this one$", replayed.text, re.DOTALL)
    assert (replayed.inputs, replayed.outputs) == (INPUTS, ())


def test_a_row_that_ends_its_process_is_seen_to_do_so(lake: Lake) -> None:
    replayed = replay(lake_of(lake, called="os._exit(7)"))
    assert replayed == Replayed(False, "row 5 ended its process (exit code 7), without an exception", INPUTS)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ('raise OSError("no such weights")', r"loading model:Model failed with OSError: no such weights"),
        ('raise ValueError("bad \\ud83d")', "loading model:Model failed with ValueError: bad \ud83d"),
        ("sys.exit(3)", r"loading model:Model ended its process \(exit code 3\), without an exception; load it once"),
        (
            "os.abort()",
            r"loading model:Model ended its process \(signal 6, Aborted\), without an exception; load it once",
        ),
    ],
)
def test_a_model_that_cannot_be_loaded_is_not_the_rows_fault(lake: Lake, made: str, said: str) -> None:
    """As in preflight: the job's key, what was raised, and what it said."""
    with pytest.raises(JobError, match=rf"^model\.uses: {said}") as caught:
        replay(lake_of(lake, made))
    assert "row" not in str(caught.value)


def test_a_process_that_died_while_nothing_was_asked_is_replaced(lake: Lake) -> None:
    """As by the system, where memory runs short; also in the passes after that."""

    def steps(*_: object) -> Iterator[Loaded]:
        yield Loaded(str(os.getpid()))

    def gone() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    plan, engine = lake.ready().planned(), LocalEngine()
    try:
        for _ in range(2):
            pid = int(engine.preflight(lake.worker_spec(), [], steps).device)
            os.kill(pid, signal.SIGKILL)
            wait_until(gone, 60, "the process has ended")
        events = engine.run_pass(lake.worker_spec(), plan.table, [Attempt()] * len(plan))
        receipts = {event.shard for batch in events for event in batch if isinstance(event, Receipt)}
    finally:
        engine.close()
    assert receipts == set(plan.ids())


def test_a_large_model_is_replayed_from_where_it_lies_now(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run kept its hash, and no copy. Where another one lies there, it says what helps."""
    monkeypatch.setattr(snapshots, "COPIED_BYTES", 1000)
    lake.write_model(WEIGHED)
    (lake.folder / "m1").write_text("3" + " " * 2000)
    planned(lake, model__uses="model:Model", model__path="m1")
    (lake.folder / "m1").rename(lake.folder / "m2")
    lake.write_job(model__uses="model:Model", model__path="m2")
    assert replay(lake).outputs == (("score", "15"),)
    (lake.folder / "m2").write_text("4" + " " * 2000)
    with pytest.raises(JobError, match=r"^model\.path: the job's model is not the one .*`--live` scores with what is"):
        replay(lake)
    assert replay(lake, live=True).outputs == (("score", "20"),)


def test_an_installed_predictor_that_was_upgraded_is_replayed_live(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path.with_name("site-replayed") / "nightjar_replayed.py"
    package.parent.mkdir()
    package.write_text("def score(batch):\n    return {'score': batch['x'] * 2}\n")
    monkeypatch.syspath_prepend(str(package.parent))
    planned(lake, model__uses="nightjar_replayed:score")
    assert replay(lake).outputs == (("score", "10"),)
    # Another size, because Python takes a file of the same second and size for the one that it has compiled.
    package.write_text("def score(batch):\n    return {'score': batch['x'] * 30}\n")
    with pytest.raises(JobError, match=r"^model\.uses: the installed package 'nightjar_replayed' is not .*`--live`"):
        replay(lake)
    assert replay(lake, live=True).outputs == (("score", "150"),)


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (
            fail("open", "*/part-00.parquet", None, OSError(errno.EIO, "bad disk")),
            Transient,
            "part-00.parquet: bad disk$",
        ),
        (fail("open", "*/part-00.parquet", 2, MemoryError()), RunFailed, "^reading the rows failed with MemoryError:"),
        (
            pause("open", "*/part-00.parquet", 2, before=die),
            RunFailed,
            r"^reading the rows ended its process \(exit code 9",
        ),
        (
            pause("open", "*/part-00.parquet", 1, before=die),
            RunFailed,
            r"^finding the row ended its process \(exit code 9\)",
        ),
    ],
)
def test_what_goes_wrong_before_the_row_is_scored_is_told_as_such(
    lake: Lake, fault: Fault, kind: type[NightjarError], said: str
) -> None:
    with pytest.raises(kind, match=said) as caught:
        replay(lake_of(lake), fault)
    assert type(caught.value) is kind
    assert kind is Transient or str(caught.value).endswith("; row 5 was not scored")


def test_a_plan_says_what_is_read_and_what_scores(lake: Lake) -> None:
    request = lake_of(lake).request()
    found = run.discover(request)
    first, reads, identity = estimate.plan_text(estimate.planned(request, found, run.plan(request, found))).splitlines()
    assert reads.startswith("  reads      id int64")
    assert identity == "  identity   code: model.py (model.uses)"
    assert first.endswith("1 of 1 shards to score, 1,000 rows in 1 file, 1,000 rows a shard")


def test_a_ledger_that_somebody_removed_is_missed_before_anything_is_scored(lake: Lake) -> None:
    """Of a published run, of which a row can be replayed before that."""
    lake.engine = "local"
    lake.ready().run()
    shard = next(iter(lake.planned().ids()))
    with pytest.raises(JobError, match=rf"--file no\.parquet: shard {shard} is of /.*\.parquet$"):
        replay_row(lake.request(), shard, 0, "no.parquet", pdb=True)
    shutil.rmtree(lake.revision() / "ledger")
    with pytest.raises(Damaged, match=r"/ledger: the ledger that named plan-000001\.parquet is gone; .* --fresh"):
        lake.run()
    assert lake.run(fresh=True).publication.number == 2


def test_a_row_of_an_earlier_revision_is_replayed_as_it_was_scored(tmp_path: Path) -> None:
    """What was printed of it stays true: readers may still see that revision."""
    lake = Lake(tmp_path / "my lake", engine="local")
    lake.folder.mkdir()
    lake.ready().run()
    shard = next(iter(lake.planned().ids()))
    lake.write_model("def score(batch):\n    return {'score': batch['x'] * 5}\n")
    assert lake.run(publish=False).scored.revision == 2
    assert shard not in lake.planned().ids()
    found = replay_row(lake.request(), shard, 3, None, pdb=False)
    assert (found.scored, found.outputs) == (True, (("score", "6"),))
    show = re.escape(shlex.join(["nightjar", "show", str(lake.job_path), "2026-11-19"]))
    with pytest.raises(JobError, match=rf"no such shard; `{show}` lists its shards"):
        replay_row(lake.request(), "TYPO", 3, None, pdb=False)
