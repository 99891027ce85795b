"""How a run stands, by its ledger."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import faults
from nightjar.inference.history.run_status import list_runs, standing
from nightjar.inference.ledger import epochs
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.ledger.lines import Intent, Published, PublishedAs
from nightjar.inference.output import revisions as revs
from nightjar.inference.storage.lake import LakeStorage
from support import NIGHT, Lake


def test_a_run_that_is_deleted_while_it_is_watched_hides_no_other(lake: Lake) -> None:
    """Another machine deletes it; whoever held it there is looked at for a lease before."""
    lake.ready()
    lake.run(engine="local", date="2026-11-18")
    storage, folder = LakeStorage(), lake.out / "runs" / NIGHT
    away = replace(this_holder("score"), host="elsewhere/boot/pid")
    open_epoch(storage, revs.revision_uri(str(folder), 1), away).stop(release=False)
    deleted = faults.pause("list", f"*/runs/{NIGHT}/r1/ledger*", nth=2, before=lambda _: shutil.rmtree(folder))
    request = replace(lake.request(storage=faults.FaultyStorage(storage, [deleted])), lease_s=1.0)
    found = {line.run_id: line.standing.state for line in list_runs(request)}
    assert found == {NIGHT: "unreadable", "2026-11-18": "published"}


def test_a_run_that_is_published_elsewhere_while_it_is_watched_was_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is left to write of it may come between two looks, the end of the lease as well."""
    storage, run_uri = LakeStorage(), str(tmp_path / "runs" / "2026-11-19")
    writer = open_epoch(
        storage, revs.revision_uri(run_uri, 1), replace(this_holder("publish"), host="elsewhere/boot/pid"), lease_s=10
    )
    newest = revs.newest_revision(storage, run_uri)
    assert newest is not None

    def finish(*_: object) -> bool:
        writer.append([Intent(1, Published(1, "runs/2026-11-19/r1/manifest.json", "x", "2026-11-19"))])
        writer.append([PublishedAs(1)])
        writer.stop(release=True)
        assert newest is not None
        return epochs.shows_life(newest.ledger, newest.state, 10, sleep=lambda _: None)

    monkeypatch.setattr("nightjar.inference.history.run_status.shows_life", finish)
    assert standing(newest, 0, 10) == "published"
