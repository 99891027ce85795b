"""Old nights are deleted when a night is published; whatever becomes of that, the night stays published."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import faults
from faults import FaultyStorage
from nightjar.flows import outcome
from nightjar.flows.cli.main import app
from nightjar.flows.finished_run import FinishedRun, Launched
from nightjar.flows.pages.ending import closing_text, run_result, summary
from nightjar.inference.errors import StorageError, Unanswered
from nightjar.inference.storage.lake import LakeStorage
from outputs import aged
from support import Lake

NIGHTS = ("2026-10-01", "2026-10-02", "2026-10-03")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Two nights of long ago."""
    made = Lake(tmp_path_factory.mktemp("lake")).ready(output__keep={"nights": 1})
    for night in NIGHTS[:2]:
        made.run(engine="local", date=night)
    aged(made.out, 40)
    return made


def finished(lake: Lake, night: str) -> FinishedRun:
    ran = lake.run(engine="local", date=night)
    return FinishedRun(lake.request(date=night), ran.scored, ran.verdict, ran.publication)


def test_a_prune_that_fails_is_a_note_of_a_published_night(lake: Lake) -> None:
    """The next night does it. It is said on the page, in the terminal and in the record, in a line."""
    first = finished(lake, NIGHTS[2])
    away = FaultyStorage(LakeStorage(), [faults.fail("list", "*/publications", None, StorageError("it is away"))])
    failed = outcome.pruned(replace(first, request=replace(first.request, storage=away)))
    failed = replace(failed, request=first.request)
    command = f"nightjar prune {lake.job_path}"
    note = f"old nights: not all could be deleted (it is away); the next night does it, or `{command}`"
    for text in (closing_text(Launched(failed)), summary(failed, "")[1].replace("\\", "")):
        assert note in text.replace("&#96;", "`")
    assert set(runs(lake)) == set(NIGHTS)

    done = outcome.pruned(first)
    text = closing_text(Launched(done))
    assert "\n  deleted    readers see 2 nights less, 2 revisions of 2 runs, 2 publications, " in text
    assert "old nights" not in text
    assert "readers see 2 nights less" in summary(done, "")[1]
    made = run_result(Launched(done)).pruned
    assert made is not None
    assert made.runs == NIGHTS[:2]
    assert runs(lake) == [NIGHTS[2]]
    again = outcome.pruned(done)
    assert "deleted" not in closing_text(Launched(again))


def test_nothing_is_deleted_of_a_job_that_keeps_all_nor_after_a_run_that_is_not_published(lake: Lake) -> None:
    first = finished(lake, NIGHTS[2])
    unseen = replace(first, publication=replace(first.publication, number=0))
    assert outcome.pruned(unseen).pruned is None
    lake.write_job()
    every = replace(first, request=lake.request(date=NIGHTS[2]))
    assert outcome.pruned(every) == every


def test_a_night_that_a_person_approves_deletes_old_ones_too(tmp_path: Path) -> None:
    made = Lake(tmp_path).ready(output__keep={"nights": 1})
    for night in NIGHTS[:2]:
        made.run(engine="local", date=night)
    aged(made.out, 40)
    made.write_job(output__keep={"nights": 1}, checks=[{"column": "score", "max": 5, "on_fail": "ask"}])
    with pytest.raises(Unanswered):
        made.run(engine="local", date=NIGHTS[2])
    assert runs(made) == [*NIGHTS]
    app(["approve", str(made.job_path), NIGHTS[2]], standalone_mode=False)
    assert runs(made) == [NIGHTS[2]]


def runs(lake: Lake) -> list[str]:
    return sorted(path.name for path in Path(lake.out, "runs").iterdir())
