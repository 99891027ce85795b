"""The commands a run offers mean that very run, and what is said of one that failed is what readers see."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import steps as run
from faults import FaultyStorage, fail
from nightjar.flows.pages.advice import Commands, as_typed, typed
from nightjar.flows.pages.ending import Ending, failure
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import RunFailed, StorageError, TakenBack
from nightjar.inference.history.night import look
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.output import publications as publish
from nightjar.inference.output.visibility import unpublish
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.waiting import keep_failure
from nightjar.inference.storage.lake import LakeStorage
from support import Lake

NIGHT = "2026-11-18"


def failed(request: RunRequest) -> Ending:
    """What is said of this run once a command has failed."""
    return failure(Commands(request), RunFailed("why"))


def begins_anew(request: RunRequest) -> bool:
    """Whether the command that repeats it says `--fresh`."""
    return "--fresh" in failed(request).commands["repeat"].split()


@pytest.fixture
def published(lake: Lake) -> RunRequest:
    """A night that readers see."""
    lake.ready().run(date=NIGHT, engine=LOCAL)
    return lake.request(date=NIGHT)


def test_a_night_is_named_by_its_date(lake: Lake) -> None:
    request = lake.ready().request(date=NIGHT)

    def repeating(request: RunRequest, ray: str | None = None) -> str:
        return Commands(request, job="job.yaml", ray=ray).repeat().removeprefix("nightjar run job.yaml ")

    assert repeating(request) == f"--run-id {NIGHT}"
    assert repeating(request, "head:6379") == f"--run-id {NIGHT} --ray head:6379"
    assert repeating(replace(request, publish=False)) == f"--run-id {NIGHT} --no-publish"
    assert repeating(lake.request(date=NIGHT, limit=5)) == f"--run-id {NIGHT}-limit-5 --limit 5"
    assert repeating(lake.request(date=NIGHT, run_id="mine")) == f"--run-id mine --date {NIGHT}"


def test_the_cluster_that_was_named_is_tried_and_used_again(lake: Lake) -> None:
    found = Commands(lake.ready().request(date=NIGHT), job="job.yaml", ray="head:6379").of_state("never begun")
    assert found == {
        "try": f"nightjar check job.yaml --date {NIGHT} --ray head:6379",
        "repeat": f"nightjar run job.yaml --run-id {NIGHT} --ray head:6379",
    }


def test_a_command_can_be_pasted_from_an_environment_with_a_space_in_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the environment is not activated; where it is, its name is enough."""
    folder = tmp_path / "my env" / "bin"
    folder.mkdir(parents=True)
    (folder / "nightjar").write_text("#!/bin/sh\necho here\n")
    (folder / "nightjar").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    for place in (Path("/"), tmp_path):
        monkeypatch.chdir(place)
        for command in (typed("nightjar"), as_typed("nightjar replay job.yaml --row 7")):
            assert subprocess.run(command, shell=True, capture_output=True).stdout == b"here\n"
    monkeypatch.setenv("PATH", str(folder))
    assert typed("nightjar") == "nightjar"
    # As the quarantine and the gates keep it: other readers have another program.
    assert as_typed("nightjar replay job.yaml --row 7") == "nightjar replay job.yaml --row 7"
    assert as_typed("") == ""


def test_a_rollback_is_of_the_nights_own_place(lake: Lake) -> None:
    """Where each night has publications of its own, today's are not meant."""
    assert lake.ready().request(date=NIGHT).place == []
    lake.write_job(output__uri="out/{date}/")
    assert lake.request(date=NIGHT).place == ["--date", NIGHT]


def test_what_was_published_is_not_called_unpublished(published: RunRequest) -> None:
    """The cluster may be lost after the publication, before its answer is there."""
    assert failed(published).seen == "Readers see r1, the newest of this run, complete."
    assert not begins_anew(published)


def test_the_run_that_was_taken_back_is_the_one_to_republish(published: RunRequest, lake: Lake) -> None:
    """A later run that took over its results ends so; an earlier end of the later run is no news any more."""
    unpublish(published.storage, published.output, NIGHT)
    later = lake.request(date="2026-11-19")
    error = TakenBack("r1 of the run '2026-11-18' was unpublished since", NIGHT)
    for request in (later, published):
        found = failure(Commands(request, job="job.yaml"), error)
        assert found.commands["republish"] == f"nightjar republish job.yaml {NIGHT}"
        assert found.commands["anew"].split()[-1] == "--fresh"
        keep_failure(request, error, "score")
    assert look(later).line.standing.cause == str(error)
    assert look(published).line.standing.state == "rolled back", "it ended by being published"


def test_a_run_that_published_nothing_says_so(lake: Lake) -> None:
    seen = "Nothing was scored and nothing new was published."
    assert failed(lake.ready().request(date=NIGHT)).seen == seen


def test_what_cannot_be_looked_up_is_not_claimed(lake: Lake) -> None:
    request = lake.ready().request(date=NIGHT)
    away = FaultyStorage(LakeStorage(), [fail("*", nth=None, error=StorageError("away"))])
    assert "could not be looked up" in failed(replace(request, storage=away)).seen


def test_a_fresh_run_that_did_not_begin_is_asked_for_as_fresh_again(published: RunRequest) -> None:
    """Without that the published revision would count as done."""
    fresh = replace(published, fresh=True)
    assert begins_anew(fresh)
    assert publish.newest(fresh.storage, fresh.output).runs[NIGHT].revision == 1
    here = replace(fresh, engine=LOCAL)
    scored = run.score(here, run.discover(here))  # now it has a revision of its own
    assert not begins_anew(fresh)
    verdict = run.validate(here, scored, run.discover(here))
    run.publish_run(here, scored, verdict)  # whose answer may be lost
    assert not begins_anew(fresh)
    assert begins_anew(replace(fresh, flow_run="another"))


def test_a_fresh_run_that_did_not_begin_does_not_continue_what_it_was_to_replace(lake: Lake) -> None:
    """Neither the unfinished results of before, nor, where it has no plan yet, the published ones."""
    before = lake.ready().request(date=NIGHT, engine=LOCAL)
    run.score(before, run.discover(before))
    fresh = replace(before, fresh=True, flow_run="fresh")
    assert begins_anew(fresh)
    open_epoch(fresh.storage, f"{fresh.run_uri}/r2", this_holder("score", "fresh")).stop(release=True)
    assert begins_anew(fresh)
    run.score(fresh, run.discover(fresh))
    assert not begins_anew(fresh)
