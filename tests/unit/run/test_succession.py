"""A command that another one has replaced ends, even if it never hears what became of its step."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import ray
from prefect_ray.task_runners import PrefectRayFuture

from nightjar.flows.cluster import connection, tasks
from nightjar.inference.errors import ClusterLost, Held
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.run.lease import Succession, leased
from nightjar.inference.storage.lake import LakeStorage
from support import Lake


def opens(run: Path, flow_run: str, task: str = "score", revision: int = 1) -> None:
    """One step of a flow run: it opens an epoch, and leaves."""
    writer = open_epoch(LakeStorage(), str(run / f"r{revision}"), this_holder(task, flow_run))
    writer.stop(release=True)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "2026-11-19"


def test_only_who_opened_after_this_invocation_has_replaced_it(run: Path) -> None:
    succession = Succession(LakeStorage(), str(run), "ours")
    assert succession.successor() is None, "there is no ledger yet"
    opens(run, "before")
    assert succession.successor() is None, "ours has not begun: it may wait for that one's lease"
    opens(run, "ours", "score")
    opens(run, "ours", "validate")
    assert succession.successor() is None
    opens(run, "other")
    found = succession.successor()
    assert found is not None
    assert found.flow_run == "other"
    opens(run, "ours")
    assert succession.successor() is None, "it was continued"


def test_a_replaced_command_that_wakes_up_does_not_end_its_successor(lake: Lake) -> None:
    """It waited for its next step, and so does the one that has replaced it."""
    lake.ready()
    ours, theirs = (replace(lake.request(), flow_run=name, lease_s=0.2) for name in ("ours", "theirs"))
    uri = str(lake.revision())
    with leased(ours, uri, "score", keep=True) as first:
        pass
    with leased(theirs, uri, "score", keep=True) as second:
        pass
    with pytest.raises(Held, match="taken over"), leased(ours, uri, "validate", keep=False, after=first.epoch):
        pytest.fail("it goes on")
    with leased(theirs, uri, "validate", keep=False, after=second.epoch) as last:
        assert [each.flow_run for _, each in last.state.openers] == ["ours", "theirs", "theirs"]


@pytest.mark.parametrize("left", [["another"], []], ids=["with --fresh", "published"])
def test_who_begins_a_newer_revision_than_ours_has_replaced_it(run: Path, left: list[str]) -> None:
    """Also if all of it lay between two looks, and ours was first met in a revision that was left since."""
    opens(run, "before")
    succession = Succession(LakeStorage(), str(run), "ours")
    opens(run, "ours")
    for flow_run in left:
        opens(run, flow_run)
    opens(run, "third", revision=2)
    found = succession.successor()
    assert found is not None
    assert found.flow_run == "third"


def test_a_revision_that_ours_begins_is_no_succession(run: Path) -> None:
    """It retires the last one, as with `--fresh`, or continues after a published one. What was before is not read."""
    opens(run, "other")
    opens(run, "before", revision=2)
    succession = Succession(LakeStorage(), str(run), "ours")
    opens(run, "ours", revision=2)
    opens(run, "ours", revision=3)
    assert succession.successor() is None
    opens(run, "other", revision=3)
    assert succession.successor() is not None


class Submitted:
    """A task of which nothing is heard."""

    def submit(self) -> PrefectRayFuture[Any]:
        return PrefectRayFuture(uuid4(), None)


def test_a_step_of_a_replaced_command_is_not_waited_for_for_ever(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "lifelines", list)
    monkeypatch.setattr(tasks, "_LOOK_S", 0.05)
    monkeypatch.setattr(tasks, "_HEARS_S", 0.1)
    closed = threading.Event()
    closed.set()  # Ray is not asked, and its answer never comes
    monkeypatch.setattr(tasks, "closed", closed)
    opens(run, "ours")
    opens(run, "other")
    with pytest.raises(Held, match=r"taken over by score of flow run other, .* it changes nothing more"):
        tasks.run_task(Succession(LakeStorage(), str(run), "ours"), Submitted())


def test_an_error_of_the_connection_ends_the_wait_and_is_the_tasks_crash(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `ray://` it is no error of Ray's own types."""

    def lost(*_: object, **__: object) -> None:
        raise Exception("Unrecoverable error in data channel")  # noqa: TRY002 - as Ray's client does

    monkeypatch.setattr(tasks, "lifelines", list)
    monkeypatch.setattr(tasks, "closed", threading.Event())
    monkeypatch.setattr(ray, "wait", lost)
    monkeypatch.setattr(ray, "get", lost)
    with pytest.raises(ClusterLost, match="Unrecoverable error in data channel"):
        tasks.run_task(Succession(LakeStorage(), str(run), "ours"), Submitted())


def test_a_later_run_on_somebody_elses_connection_asks_ray_again(monkeypatch: pytest.MonkeyPatch, lake: Lake) -> None:
    """A notebook calls `ray.init()` itself after a run that had a cluster of its own."""
    closed = threading.Event()
    closed.set()
    monkeypatch.setattr(connection, "closed", closed)
    monkeypatch.setattr(connection, "is_connected", lambda: True)
    with connection.cluster(None, lake.ready().request().job, {}, verbose=False):
        assert not closed.is_set()
