"""The commands a run offers mean that very run, and what is said of one that failed is what readers see."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nightjar.flows.advice import aftermath, place, repeating
from nightjar.inference import publish, run
from nightjar.inference.errors import StorageError
from nightjar.inference.faults import FaultyStorage, fail
from nightjar.inference.request import RunRequest
from nightjar.inference.storage import LakeStorage
from support import Lake

NIGHT = "2026-11-18"


@pytest.fixture
def published(lake: Lake, ray_local: None) -> RunRequest:
    """A night that readers see."""
    lake.ready().run(date=NIGHT)
    return lake.request(date=NIGHT)


def test_a_night_is_named_by_its_date(lake: Lake) -> None:
    request = lake.ready().request(date=NIGHT)
    assert repeating(request, None) == f"--run-id {NIGHT}"
    assert repeating(request, "head:6379") == f"--run-id {NIGHT} --ray head:6379"
    assert repeating(replace(request, publish=False), None) == f"--run-id {NIGHT} --no-publish"
    assert repeating(lake.request(date=NIGHT, limit=5), None) == f"--run-id {NIGHT}-limit-5 --limit 5"
    assert repeating(lake.request(date=NIGHT, run_id="mine"), None) == f"--run-id mine --date {NIGHT}"


def test_a_rollback_is_of_the_nights_own_place(lake: Lake) -> None:
    """Where each night has publications of its own, today's are not meant."""
    assert place(lake.ready().request(date=NIGHT)) == []
    lake.write_job(output__uri="out/{date}/")
    assert place(lake.request(date=NIGHT)) == ["--date", NIGHT]


def test_what_was_published_is_not_called_unpublished(published: RunRequest) -> None:
    """The cluster may be lost after the publication, before its answer is there."""
    assert aftermath(published).seen == "Readers see r1, the newest of this run, complete."
    assert not aftermath(published).fresh


def test_a_run_that_published_nothing_says_so(lake: Lake) -> None:
    seen = "What was committed is kept and nothing new was published."
    assert aftermath(lake.ready().request(date=NIGHT)).seen == seen


def test_what_cannot_be_looked_up_is_not_claimed(lake: Lake) -> None:
    request = lake.ready().request(date=NIGHT)
    away = FaultyStorage(LakeStorage(), [fail("*", nth=None, error=StorageError("away"))])
    assert "could not be looked up" in aftermath(replace(request, storage=away)).seen


def test_a_fresh_run_that_did_not_begin_is_asked_for_as_fresh_again(published: RunRequest) -> None:
    """Without that the published revision would count as done."""
    fresh = replace(published, fresh=True)
    assert aftermath(fresh).fresh
    assert repeating(fresh, None, fresh=True) == f"--run-id {NIGHT} --fresh"
    assert publish.newest(fresh.storage, fresh.output).runs[NIGHT].revision == 1
    run.score(fresh, run.discover(fresh), lambda _: None)  # now it has a revision of its own
    assert not aftermath(fresh).fresh
