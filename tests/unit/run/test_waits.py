"""What a run waits for is said to whoever asks, as long as its process waits."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nightjar.flows.pages.standing import status, status_text
from nightjar.inference.errors import Denied
from nightjar.inference.history.run_status import list_runs
from nightjar.inference.jsonform import to_json
from nightjar.inference.ledger.endings import utc
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.run.waiting import Waits, keeping, waits
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import ANYBODY
from support import NIGHT, Lake

INPUT = "waiting for _SUCCESS in data/ (2 files there), at most 2h"


def state_of(lake: Lake) -> str:
    (line,) = list_runs(lake.request())
    return line.standing.state


def test_a_run_that_waits_before_it_begins_says_for_what_and_since_when(lake: Lake) -> None:
    """The last that was told; when it is over, or its process was killed, there is no such run."""
    request = lake.ready().request()
    with keeping(request) as keep:
        assert status(request).state == "unknown"
        keep("waiting for data/ (0 files there)")
        keep(INPUT)
        found = status(request)
        assert (found.state, found.standing, found.commands) == ("waiting", "waiting", {})
        assert status_text(found).splitlines()[:2] == [
            f"lake {NIGHT}: waiting, nothing of it was begun",
            f"  why        {found.cause}",
        ]
        said = rf"{re.escape(INPUT)} \(waits of .*process {os.getpid()} on .*, since {utc()[:10]}T.*\)"
        assert re.fullmatch(said, found.cause)
        assert state_of(lake) == "waiting"
        file = lake.out / "runs" / NIGHT / "waits.json"
        kept = file.read_bytes()
    assert status(request).state == "unknown"
    told = json.loads(kept)
    told["holder"]["process_started"] -= 1000
    file.write_text(json.dumps(told))
    assert status(request).state == "unknown"
    file.write_bytes(b"{}")
    assert status(request).state == "unknown"


def test_a_process_elsewhere_that_gives_no_sign_of_life_is_silent_and_does_not_wait_for_ever(lake: Lake) -> None:
    """Clocks may differ, so minutes of silence are none. The file is that of the last process that said so."""
    request = lake.ready().request()
    elsewhere = replace(this_holder("waits"), host="elsewhere", at="2026-11-19T00:00:00+00:00")
    file = lake.out / "runs" / NIGHT / "waits.json"
    file.parent.mkdir(parents=True)

    def left(hours: float, **given: Any) -> None:
        file.write_text(json.dumps(to_json(Waits("lake", INPUT, replace(elsewhere, **given), utc(-hours)))))

    left(0.25)
    assert (status(request).state, state_of(lake)) == ("waiting", "waiting")
    left(1)
    found = status(request)
    assert (found.state, state_of(lake)) == ("silent", "silent")
    assert found.cause.startswith(f"{INPUT} (waits of ")
    assert f"; no sign of life of it since {utc(-1)[:13]}" in found.cause
    assert set(found.commands) == {"look", "repeat"}
    assert waits(replace(request, job=request.job.model_copy(update={"name": "other"}))) is None
    assert waits(request, after="2026-11-20T00:00:00+00:00") is None, "the run was tried again since"
    with keeping(request) as keep:
        keep(INPUT)
        assert status(request).state == "waiting"
    assert not file.exists()


class Away(LakeStorage):
    """Takes nothing."""

    def write(self, uri: str, data: bytes) -> None:
        raise Denied(uri)

    def create(self, uri: str, data: bytes, mode: int = ANYBODY) -> None:
        raise Denied(uri)


@pytest.mark.parametrize("given", [{"storage": Away()}, {}])
def test_nothing_is_kept_where_that_cannot_be_or_in_the_output_of_another_job(lake: Lake, given: Any) -> None:
    request = lake.ready().request(**given)
    if not given:
        lake.out.mkdir()
        Path(lake.out, "job.json").write_text('{"job": "other"}')
    with keeping(request) as keep:
        keep(INPUT)
        assert not (lake.out / "runs").exists()
