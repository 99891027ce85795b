"""What every listener keeps to, and what a run promises to those it tells: being told costs nothing."""

from __future__ import annotations

import importlib
import logging
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import get_args

import pytest

import nightjar.flows.pages
import nightjar.inference.run
import steps as run
from nightjar.flows.pages.artifacts import ProgressArtifact
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.records import Crumb, Event, Failed, Prepared, Preparing, Receipt, Seen, Started
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.results import Listener
from support import Lake, run_steps

EVENTS: list[Event] = [
    Preparing("a", 1, "here:1"),
    Prepared("a", 1, "here:1"),
    Started("a", 1, "here:1"),
    Crumb("a", "part.parquet", 0, 1),
    Seen("file", "rare.json", "model.py"),
    Failed("a", 1, "ProcessDied", "killed", died=True),
    Receipt("a", 2, 1, "here:1", None, None, 0.1, 1.0, rows_in=10, rows_out=10),
]


@dataclass
class Recording(Listener):
    """Keeps all it was told, and how many receipts it knew when it was told how far the run is."""

    told: list[Progress] = field(default_factory=list)
    heard: list[Event] = field(default_factory=list)
    receipts_at: list[int] = field(default_factory=list)

    def progress(self, progress: Progress) -> None:
        self.told.append(replace(progress))
        self.receipts_at.append(sum(isinstance(event, Receipt) for event in self.heard))

    def events(self, events: Sequence[Event]) -> None:
        self.heard += events


class Raising(Listener):
    """Fails at what it is told first of one kind."""

    def __init__(self, at: str) -> None:
        self.at, self.calls = at, 0

    def progress(self, progress: Progress) -> None:
        self._told("progress")

    def events(self, events: Sequence[Event]) -> None:
        self._told("events")

    def _told(self, what: str) -> None:
        if what == self.at:
            self.calls += 1
            raise RuntimeError("the dashboard is away")


LISTENERS: dict[type, Callable[[RunRequest], Listener]] = {ProgressArtifact: ProgressArtifact}
"""How each listener that Nightjar has is made."""


def test_every_listener_is_held_to_the_contract() -> None:
    for package in (nightjar.flows.pages, nightjar.inference.run):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    ours = {each for each in Listener.__subclasses__() if each.__module__.startswith("nightjar.")}
    assert ours == set(LISTENERS)


@pytest.mark.parametrize("make", LISTENERS.values(), ids=[each.__name__ for each in LISTENERS])
def test_a_listener_takes_whatever_it_is_told_and_changes_nothing(
    lake: Lake, make: Callable[[RunRequest], Listener]
) -> None:
    assert {type(event) for event in EVENTS} == set(get_args(Event))
    listener = make(lake.ready().request())
    for progress in (Progress(), Progress(shards=8, rows=80, done_shards=3, step="score")):
        before = asdict(progress)
        listener.progress(progress)
        listener.events(EVENTS)
        assert asdict(progress) == before


@pytest.mark.parametrize("make", LISTENERS.values(), ids=[each.__name__ for each in LISTENERS])
def test_a_run_ends_the_same_whoever_listens(lake: Lake, make: Callable[[RunRequest], Listener]) -> None:
    request = lake.ready().request(engine="local")
    found = run.discover(request)
    scored = run.score(request, found, [make(request)])
    verdict = run.validate(request, scored, found)
    run.publish_run(request, scored, verdict)
    heard = lake.published()
    unheard = run_steps(lake.request(engine="local", run_id="unheard"))
    columns = ["id", "name", "score", "_row"]
    assert lake.published("unheard")[columns].equals(heard[columns])
    assert unheard.scored.progress.counts.rows_out == scored.progress.counts.rows_out


def test_a_listener_hears_every_event_and_how_far_the_run_is(lake: Lake) -> None:
    request = lake.ready().request(engine="local")
    recording = Recording()
    found = run.discover(request)
    scored = run.score(request, found, [recording])
    assert asdict(recording.told[-1]) == asdict(scored.progress)
    kinds = {kind: [each.shard for each in recording.heard if isinstance(each, kind)] for kind in (Started, Receipt)}
    assert kinds[Started] == kinds[Receipt]
    assert len(set(kinds[Receipt])) == len(kinds[Receipt]) == 8
    done = [progress.done_shards for progress in recording.told]
    assert done == sorted(done)
    assert all(far <= heard for far, heard in zip(done, recording.receipts_at, strict=True))


@pytest.mark.parametrize("at", ["progress", "events"])
def test_a_listener_that_raises_costs_nothing_and_is_said_once(
    lake: Lake, at: str, caplog: pytest.LogCaptureFixture
) -> None:
    request = lake.ready().request(engine="local")
    raising, recording = Raising(at), Recording()
    with caplog.at_level(logging.WARNING, "nightjar"):
        scored = run.score(request, run.discover(request), [raising, recording])
    assert scored.progress.done_shards == recording.told[-1].done_shards == 8
    assert sum(isinstance(event, Receipt) for event in recording.heard) == 8
    assert raising.calls == 1
    said = [record.getMessage() for record in caplog.records]
    assert said == ["the listener Raising failed and is not called any more: RuntimeError: the dashboard is away"]
