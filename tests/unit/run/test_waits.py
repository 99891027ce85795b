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
from support import NIGHT, Lake, wait_until

SLOT = "waiting for a slot of the concurrency limit gpu"


def state_of(lake: Lake) -> str:
    (line,) = list_runs(lake.request())
    return line.standing.state


def test_a_run_that_waits_before_it_begins_says_for_what_and_since_when(lake: Lake) -> None:
    """The last that was told; when it is over, or its process was killed, there is no such run."""
    request = lake.ready().request()
    with keeping(request) as keep:
        assert status(request).state == "unknown"
        keep("waiting for data/ (0 files there)")
        keep(SLOT)
        found = status(request)
        assert (found.state, found.standing, found.commands) == ("waiting", "waiting", {})
        assert status_text(found).splitlines()[:2] == [
            f"lake {NIGHT}: waiting, nothing of it was begun",
            f"  why        {found.cause}",
        ]
        said = rf"{SLOT} \(waits of .*process {os.getpid()} on .*, since {utc()[:10]}T.*\)"
        assert re.fullmatch(said, found.cause)
        assert state_of(lake) == "waiting"
        (file,) = (lake.out / "runs" / NIGHT / "waits").iterdir()
        kept = file.read_bytes()
    assert status(request).state == "unknown"
    told = json.loads(kept)
    told["holder"]["process_started"] -= 1000
    file.write_text(json.dumps(told))
    assert status(request).state == "unknown"
    file.write_bytes(b"{}")
    assert status(request).state == "unknown"


def test_a_run_that_waits_between_its_steps_says_so_and_what_lay_there_before_counts_no_more(lake: Lake) -> None:
    """A process on another machine that is gone without a word leaves what it waited for."""
    request = lake.ready().request()
    lake.run(engine="local")
    elsewhere = replace(this_holder("waits"), host="elsewhere", at="2026-11-19T00:00:00+00:00")
    left = lake.out / "runs" / NIGHT / "waits" / "left.json"
    left.parent.mkdir()
    left.write_text(json.dumps(to_json(Waits("lake", SLOT, elsewhere))))
    assert status(request).notes == ()
    with keeping(request) as keep:
        keep(SLOT)
        assert status(request).notes[0].startswith(SLOT)
    left.write_text(json.dumps(to_json(Waits("lake", SLOT, replace(elsewhere, at=utc(1))))))
    assert status(request).notes[0].startswith(SLOT)
    assert waits(replace(request, job=request.job.model_copy(update={"name": "other"}))) is None


def test_a_process_elsewhere_that_gives_no_sign_of_life_is_silent_and_does_not_wait_for_ever(lake: Lake) -> None:
    """Before a run begins and between its steps. Clocks may differ, so minutes of silence are none. One that does give
    signs comes first."""
    request = lake.ready().request()
    elsewhere = replace(this_holder("waits"), host="elsewhere", at="2026-11-19T00:00:00+00:00")
    folder = lake.out / "runs" / NIGHT / "waits"
    folder.mkdir(parents=True)

    def left(name: str, hours: float, **given: Any) -> None:
        told = Waits("lake", SLOT, replace(elsewhere, **given), utc(-hours))
        (folder / f"{name}.json").write_text(json.dumps(to_json(told)))

    left("a", 0.05)
    assert (status(request).state, state_of(lake)) == ("waiting", "waiting")
    left("a", 1)
    found = status(request)
    assert (found.state, state_of(lake)) == ("silent", "silent")
    assert found.cause.startswith(f"{SLOT} (waits of ")
    assert f"; no sign of life of it since {utc(-1)[:13]}" in found.cause
    assert set(found.commands) == {"look", "repeat"}
    left("b", 0, at="2026-11-18T00:00:00+00:00")
    assert status(request).state == "waiting"
    (folder / "b.json").unlink()
    lake.run(engine="local")
    left("a", 1, at=utc(1))
    assert "no sign of life of it since" in status(request).notes[0]


def test_a_process_that_waits_gives_signs_of_life_until_it_waits_no_more(lake: Lake) -> None:
    request = lake.ready().request()
    folder = lake.out / "runs" / NIGHT / "waits"
    with keeping(request, sign_s=0.01) as keep:
        keep(SLOT)
        (file,) = folder.iterdir()
        for _ in range(2):
            file.unlink()
            wait_until(file.exists, 10, "a sign of life")
        assert waits(request) is not None
        keep("waiting for data/")
    assert not any(folder.iterdir())


class Away(LakeStorage):
    """Takes nothing."""

    def write(self, uri: str, data: bytes) -> None:
        raise Denied(uri)


@pytest.mark.parametrize("given", [{"storage": Away()}, {}])
def test_nothing_is_kept_where_that_cannot_be_or_in_the_output_of_another_job(lake: Lake, given: Any) -> None:
    request = lake.ready().request(**given)
    if not given:
        lake.out.mkdir()
        Path(lake.out, "job.json").write_text('{"job": "other"}')
    with keeping(request) as keep:
        keep(SLOT)
        assert not (lake.out / "runs").exists()
