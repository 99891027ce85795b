"""Writers that stall or die at a chosen storage call: what the tests of takeovers and of killed runs share."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

import steps as run
from faults import Fault, FaultyStorage, pause
from forked import forked_call
from nightjar.inference.input.plan import Discovery
from nightjar.inference.jsonform import to_json
from nightjar.inference.ledger.ledger import Ledger, replay
from nightjar.inference.output import publications as publish
from nightjar.inference.output import revisions as revs
from nightjar.inference.output.nights import published_run
from nightjar.inference.output.outcomes import parts_of_shards
from nightjar.inference.output.outcomes import read as read_outcomes
from nightjar.inference.run.approving import answer
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.results import Scored, Verdict
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Storage
from nightjar.inference.validation.manifest import read_manifest
from support import Lake, Ran, data_files, wait_until

SHORT_S = 1.0
"""The lease in tests where a silent writer is to be replaced."""

LONG_S = 3600.0
"""A lease under which no keep-alive is due while a test lasts: a step's segments have fixed numbers."""


@dataclass(frozen=True)
class Point:
    """A storage call of one step of a run: the instant before it is where a writer stalls or dies.

    nth: which of those that match; None is the first one after a part was written. scoring: it is a call of the process
    that scores, on the local engine; the whole command dies there.
    """

    name: str
    step: str
    operation: str
    pattern: str
    nth: int | None = 1
    scoring: bool = False

    def __str__(self) -> str:
        return self.name.replace(" ", "-")

    def fault(self, before: Callable[[str], None]) -> Fault:
        """Do that there, and nowhere earlier."""

        def there(uri: str) -> None:
            if self.nth or any(Path(uri).parent.with_name("data").glob("*")):
                before(uri)

        return pause(self.operation, self.pattern, self.nth, before=there)


BEFORE_PLAN = Point("before the plan", "score", "create", "*/plan-*")
BEFORE_RECEIPTS = Point("between parts and receipts", "score", "create", "*/ledger/*", None)
BEFORE_VALIDATE = Point("between score and validate", "validate", "list", "*/ledger")
BEFORE_MANIFEST = Point("before the manifest", "validate", "create", "*/manifest-*")
BEFORE_PUBLISH = Point("between validate and publish", "publish", "list", "*/ledger")
BEFORE_INTENT = Point("before the intent", "publish", "create", "*/ledger/*", 2)
BEFORE_SNAPSHOT = Point("between intent and publication", "publish", "create", "*/publications/*")
BEFORE_PUBLISHED = Point("between publication and the ledgers word", "publish", "create", "*/ledger/*", 3)
BEFORE_SWEEP = Point("before the sweep", "publish", "list", "*/data")
BEFORE_SUCCESS = Point("between publication and _SUCCESS", "publish", "create", "*/_SUCCESS")


class OnDriver(FaultyStorage):
    """Faults of this process alone: workers are sent the storage behind them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return copy.copy, (self.inner,)


class Stall:
    """Freezes a writer as a paused machine would: from `point` on, every call of each of its threads waits."""

    def __init__(self, point: Point) -> None:
        self.reached, self._woken = threading.Event(), threading.Event()
        self.storage = OnDriver(LakeStorage(), [point.fault(self._freeze), pause("*", nth=None, before=self._wait)])

    def wake(self) -> None:
        """Let everything go on."""
        self._woken.set()

    def _freeze(self, uri: str) -> None:
        self.reached.set()
        assert self._woken.wait(120), f"nobody woke the writer at {uri}"

    def _wait(self, uri: str) -> None:
        if self.reached.is_set():
            self._freeze(uri)


class Writer(threading.Thread):
    """A whole run in a thread that freezes at `point`. `error` is what it raised in the end."""

    def __init__(self, request: RunRequest, point: Point) -> None:
        super().__init__(daemon=True)
        self.stall, self.error = Stall(point), None
        self._request, self._point = replace(request, lease_s=LONG_S), point

    def run(self) -> None:
        try:
            run_steps_with(self._request, {self._point.step: self.stall.storage})
        except Exception as error:  # noqa: BLE001 (the test looks at it)
            self.error: Exception | None = error

    def start_and_stall(self) -> None:
        """Return once it stands still."""
        self.start()
        wait_until(lambda: self.stall.reached.is_set() or not self.is_alive(), 90, "the writer reaches its point")
        assert self.stall.reached.is_set(), f"it ended before that: {self.error!r}"

    def wake_and_join(self) -> Exception | None:
        """What it raised after it woke up; None if it went on to the end."""
        self.stall.wake()
        self.join(90)
        assert not self.is_alive(), "the writer still runs"
        return self.error


def run_steps_with(request: RunRequest, storages: Mapping[str, Storage]) -> Ran:
    """The four steps, each with the storage given for it."""

    def at(step: str) -> RunRequest:
        return replace(request, storage=storages.get(step, request.storage))

    found = run.discover(request)
    scored = run.score(at("score"), found)
    verdict = run.validate(at("validate"), scored, found)
    return Ran(scored, verdict, run.publish_run(at("publish"), scored, verdict))


@dataclass(frozen=True)
class Last:
    """The step a process dies in, and what the steps before it left."""

    request: RunRequest
    point: Point
    found: Discovery
    scored: Scored | None = None
    verdict: Verdict | None = None


def die_at(request: RunRequest, point: Point, scratch: Path) -> None:
    """Run up to `point`, whose step is carried out by a process that kills itself there with SIGKILL."""
    request = replace(request, lease_s=LONG_S)
    last = Last(request, point, run.discover(request))
    if point.step != "score":
        last = replace(last, scored=run.score(request, last.found))
    if point.step == "publish":
        assert last.scored is not None
        last = replace(last, verdict=run.validate(request, last.scored, last.found))
    handed = scratch / "last"
    handed.write_bytes(pickle.dumps(last))
    died = forked_call("writers:carry_out", handed)
    assert died.returncode == -signal.SIGKILL, died.stderr


def carry_out(handed: str) -> None:
    """In the process that dies: the last step."""
    last: Last = pickle.loads(Path(handed).read_bytes())
    point = last.point

    command = os.getpid()

    def die(_: str) -> None:
        os.kill(command, signal.SIGKILL)

    faulty = FaultyStorage if point.scoring else OnDriver
    request = replace(last.request, storage=faulty(LakeStorage(), [point.fault(die)]))
    if last.scored is None:
        run.score(request, last.found)
    elif last.verdict is None:
        run.validate(request, last.scored, last.found)
    else:
        run.publish_run(request, last.scored, last.verdict)


def die_answering(request: RunRequest, point: Point, scratch: Path) -> None:
    """Say yes to what a run asks, in a process that kills itself with SIGKILL at `point`."""
    handed = scratch / "last"
    handed.write_bytes(pickle.dumps(Last(replace(request, lease_s=LONG_S), point, run.discover(request))))
    died = forked_call("writers:say_yes", handed)
    assert died.returncode == -signal.SIGKILL, died.stderr


def say_yes(handed: str) -> None:
    """In the process that dies."""
    last: Last = pickle.loads(Path(handed).read_bytes())

    def die(_: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    answer(replace(last.request, storage=OnDriver(LakeStorage(), [last.point.fault(die)])), approved=True, by="anna")


def publications_of(lake: Lake, run_id: str) -> list[int]:
    """Numbers of the snapshots that were made to publish this run."""
    numbers = sorted(int(path.stem) for path in (lake.out / "publications").glob("*.json"))
    snapshots = [publish.snapshot(LakeStorage(), str(lake.out), number) for number in numbers]
    return [snapshot.number for snapshot in snapshots if snapshot.note.startswith(f"run {run_id} ")]


def metrics_of(lake: Lake, run_id: str) -> dict[str, Any]:
    """The metrics in a published run's manifest."""
    request = lake.request()
    _, entry = published_run(publish.newest(request.storage, request.output), request.output, run_id)
    return to_json(read_manifest(request.storage, request.output, entry).metrics)


def assert_published_once(lake: Lake, run_id: str, rows: pd.DataFrame, revision: int = 1) -> None:
    """One publication, exactly these rows, no other part in the folder, each shard committed once, epochs rising."""
    assert len(publications_of(lake, run_id)) == 1
    pd.testing.assert_frame_equal(lake.published(run_id), rows)
    folder = lake.revision(revision, run_id)
    assert (folder / "_SUCCESS").exists()
    request = lake.request()
    named = set(data_files(request.storage, request.output, run_id))
    assert {str(path) for path in (folder / "data").iterdir()} == named
    # What a reader finds who takes the folder as it is.
    assert sum(pq.read_metadata(path).num_rows for path in (folder / "data").iterdir()) == len(rows)
    committed = [record["shard"] for record in lake.records(revision, run_id) if record["t"] == "receipt"]
    assert sorted(committed) == sorted(set(committed))
    ledger = Ledger(request.storage, str(folder))
    epochs = [segment.epoch for segment in ledger.segments()]
    assert epochs == sorted(epochs)
    assert [epoch for epoch, _ in replay(ledger).openers] == sorted(set(epochs))


def published_parts(lake: Lake, run_id: str) -> dict[str, int]:
    """The published parts of a run, and when each was written: a part is never rewritten."""
    request = lake.request()
    _, entry = published_run(publish.newest(request.storage, request.output), request.output, run_id)
    manifest = read_manifest(request.storage, request.output, entry)
    folder = Path(revs.revision_uri(str(lake.out / "runs" / run_id), entry.revision))
    table = read_outcomes((folder / manifest.shards.file).read_bytes())
    return {name: (folder / name).stat().st_mtime_ns for _, name in parts_of_shards(table, "data")}
