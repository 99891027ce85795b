"""What a person sees at a terminal while a run goes on."""

from __future__ import annotations

import dataclasses
import re
import time

import pytest

from commands import DATE, Partial, Watched
from nightjar.flows.display import describe, duration
from nightjar.inference.progress import Progress


@pytest.mark.flow
def test_a_run_at_a_terminal_shows_where_it_is(eventful: Watched) -> None:
    """From the first second on a word for what is being done, up to the end; no step is left out."""
    assert eventful.exit_code == 0, eventful.written[-500:]
    steps = ("starting Ray and Prefect", "looking for input", "scoring", "validating", "publishing")
    first = [next(i for i, frame in enumerate(eventful.frames) if f" {step} " in frame) for step in steps]
    assert first == sorted(first)


@pytest.mark.flow
def test_a_run_at_a_terminal_shows_its_figures(eventful: Watched) -> None:
    """Shards done of all, rows a second, time left, failed attempts and quarantined rows, as they change."""
    shown = " ".join(eventful.frames)
    done = {int(number) for number in re.findall(r"(\d)/8 shards", shown)}
    assert {0, 8} < done
    assert re.search(r"[1-9][\d,]* rows/s", shown)
    assert re.search(r"about \d+ s left", shown)
    assert "1 failed attempt" in shown
    assert "1 quarantined" in shown


@pytest.mark.flow
def test_the_display_stays_within_the_terminal(eventful: Watched) -> None:
    """No line is longer than the terminal is wide: it would wrap, and the display would creep down the screen."""
    live = [line for frame in eventful.frames for line in frame.split("\n") if "shards" in line or "rows/s" in line]
    assert live
    assert max(map(len, live)) <= 100


@pytest.mark.flow
def test_the_display_makes_room_for_the_summary(eventful: Watched) -> None:
    """At the end the bar is erased and the cursor shown again; what stays is the summary."""
    last = eventful.written.rpartition("\x1b[?25h")[2]
    assert "━" not in last
    assert f"eventful {DATE} r1: published as #1" in last
    assert "8,000 in = 7,999 out + 1 quarantined, over 8 shards" in last
    assert "1 failed attempt (1 by a lost process)" in last
    assert f"{eventful.lake.revision()}/quarantine" in last


@pytest.mark.flow
def test_a_failed_run_says_what_and_what_next(partial: Partial) -> None:
    """Exit 1; the sentence, how far it got without promising an end, and the commands to look and to repeat."""
    assert partial.ended.returncode == 1
    said = partial.ended.stderr
    assert said.startswith("nightjar: 1 of 8 shards have no result; the first is part-02.parquet")
    assert "7/8 shards" in said
    assert " left" not in said
    assert f"nightjar show {partial.lake.job_path} {DATE}" in said
    assert f"nightjar run {partial.lake.job_path} --run-id {DATE}" in said
    assert "Traceback" not in said


def test_the_time_left_is_an_estimate_only_while_it_can_be_one() -> None:
    """While running and before it is used up; a stopped run, or one that stands still, promises nothing."""
    half = Progress(shards=4, rows=4000, done_shards=2, rows_out=2000, first_start=100.0, last_end=120.0)
    assert half.remaining_s(now=120.0) == pytest.approx(20.0)
    assert half.remaining_s(now=125.0) == pytest.approx(15.0)
    assert describe(half) == "2/4 shards, 100 rows/s"
    for ago, said in ((5, ", about 1[0-5] s left"), (60, ""), (300, ", no shard done for 5 min")):
        at = time.time() - ago
        going = dataclasses.replace(half, first_start=at - 20, last_end=at)
        assert re.fullmatch(re.escape(describe(half)) + said, describe(going, running=True))


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.44, "0.4 s"), (12.3, "12 s"), (119, "119 s"), (190, "3 min"), (7500, "2 h 05 min")]
)
def test_durations_are_for_people(seconds: float, said: str) -> None:
    """One unit where one is enough."""
    assert duration(seconds) == said
