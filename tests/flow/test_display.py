"""What a person sees at a terminal while a run goes on."""

from __future__ import annotations

import dataclasses
import io
import re
import time

import pytest
from rich.console import Console
from rich.progress import Progress as Bar

from commands import DATE, Partial, Watched
from faults import FaultyStorage, fail
from nightjar.flows.pages.display import POLL_S, _Clock, _Watch, following
from nightjar.flows.pages.wording import describe, duration
from nightjar.inference.errors import Transient
from nightjar.inference.ledger.epochs import LedgerWriter, open_epoch
from nightjar.inference.ledger.holders import RETIRE, this_holder
from nightjar.inference.ledger.lines import Doing, Opened, Planned
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.records import Counts, Receipt
from nightjar.inference.run.request import RunRequest
from nightjar.inference.storage.lake import LakeStorage
from support import Lake


@pytest.mark.parametrize("which", ["eventful", "eventful_on_ray"])
def test_a_run_at_a_terminal_shows_where_it_is(which: str, request: pytest.FixtureRequest) -> None:
    """From the first second on a word for what is being done, up to the end. On a busy machine the display may look
    twice while such a small night is validated, or not once; without Ray also while its input is looked for.
    """
    eventful: Watched = request.getfixturevalue(which)
    assert eventful.exit_code == 0, eventful.written[-500:]
    steps = (
        "and Prefect" if which == "eventful_on_ray" else "starting Prefect",
        "looking for input",
        "loading the model",
        "scoring",
        "validating",
        "publishing",
    )
    seen = {step: [i for i, frame in enumerate(eventful.frames) if f" {step} " in frame] for step in steps}
    brief = {"validating"} if which == "eventful_on_ray" else {"starting Prefect", "looking for input", "validating"}
    assert {step for step in steps if not seen[step]} <= brief
    first = [frames[0] for frames in seen.values() if frames]
    assert first == sorted(first)


def test_a_run_at_a_terminal_shows_its_figures(eventful: Watched) -> None:
    """Shards done of all, rows a second, time left, failed attempts and quarantined rows, as they change."""
    shown = " ".join(eventful.frames)
    done = {int(number) for number in re.findall(r"(\d)/8 shards", shown)}
    assert {0, 8} < done
    assert re.search(r"[1-9][\d,]* rows/s", shown)
    assert re.search(r"about \d+ s left", shown)
    assert eventful.failed_attempts in shown
    assert "1 quarantined" in shown


def test_the_display_stays_within_the_terminal(eventful: Watched) -> None:
    """No line is longer than the terminal is wide: it would wrap, and the display would creep down the screen."""
    live = [line for frame in eventful.frames for line in frame.split("\n") if "shards" in line or "rows/s" in line]
    assert live
    assert max(map(len, live)) <= 100


def test_the_display_makes_room_for_the_summary(eventful: Watched) -> None:
    """At the end the bar is erased and the cursor shown again; what stays is the summary."""
    last = eventful.written.rpartition("\x1b[?25h")[2]
    assert "━" not in last
    assert f"eventful {DATE} r1: published as #1" in last
    assert "8,000 in = 7,999 out + 1 quarantined, over 8 shards" in last
    assert re.search(rf"{eventful.failed_attempts} \(\d by a lost process\)", last)
    assert f"{eventful.lake.revision()}/quarantine" in last


def test_a_failed_run_says_what_and_what_next(partial: Partial) -> None:
    """Exit 1; the sentence, how far it got without promising an end, and the commands to look and to repeat."""
    assert partial.ended.returncode == 1
    said = partial.ended.stderr
    assert said.startswith("nightjar: 1 of 8 shards has no result; the first is part-02.parquet")
    assert "7/8 shards" in said
    assert " left" not in said
    assert f"nightjar show {partial.lake.job_path} {DATE}" in said
    assert f"nightjar run {partial.lake.job_path} --run-id {DATE}" in said
    assert "Traceback" not in said


def test_a_first_look_that_fails_is_not_the_last(lake: Lake) -> None:
    """As of a storage that is away for a moment: the display's thread goes on, and shows the run later."""
    lake.ready()
    away = FaultyStorage(LakeStorage(), [fail("subfolders", error=Transient("away"))])
    watch = _Watch(lake.request(storage=away))
    watch.tell()
    steps = watch.steps()
    assert [next(steps), next(steps)] == [("looking for input", None)] * 2


def test_the_time_left_is_an_estimate_only_while_it_can_be_one() -> None:
    """While running and before it is used up; a stopped run, or one that stands still, promises nothing."""
    half = Progress(
        shards=4,
        rows=4000,
        done_shards=2,
        counts=Counts(rows_in=2000, rows_out=2000),
        first_start=100.0,
        last_end=120.0,
    )
    assert half.remaining_s(now=120.0) == pytest.approx(20.0)
    assert half.remaining_s(now=125.0) == pytest.approx(15.0)
    assert describe(half) == "2/4 shards, 100 rows/s"
    for ago, said in ((5, ", about 1[0-5] s left"), (60, ""), (300, ", no shard done for 5 min")):
        at = time.time() - ago
        going = dataclasses.replace(half, first_start=at - 20, last_end=at)
        assert re.fullmatch(re.escape(describe(half)) + said, describe(going, running=True))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(None, ""), (0.44, "0.4 s"), (12.3, "12 s"), (119, "119 s"), (190, "3 min"), (7500, "2 h 05 min")],
)
def test_durations_are_for_people(seconds: float | None, said: str) -> None:
    """One unit where one is enough."""
    assert duration(seconds) == said


def writing(request: RunRequest, number: int, step: str = "score") -> LedgerWriter:
    """A command that writes the run."""
    return open_epoch(request.storage, f"{request.run_uri}/r{number}", this_holder(step))


def planned(shards: int, done: int) -> Planned:
    return Planned(
        file="p",
        fingerprint="f",
        date=DATE,
        shards=shards,
        rows=shards * 10,
        done_shards=done,
        counts=Counts(rows_in=done * 10, rows_out=done * 10),
    )


def receipt(shard: str, started_at: float, epoch: int = 1) -> Receipt:
    return Receipt(shard, 1, epoch, "w", None, None, seconds=5.0, started_at=started_at, rows_in=10, rows_out=10)


@pytest.mark.parametrize("revision", [1, 2])
def test_only_this_command_is_shown(lake: Lake, revision: int) -> None:
    """A repeated run, or one from the start: what an earlier command left is not what is going on."""
    request = lake.ready().request()
    with_one_of_two = writing(request, 1)
    with_one_of_two.append([planned(2, 0), receipt("a", 1000.0)])
    with_one_of_two.stop(release=True)
    watch = _Watch(request)
    steps = watch.steps()
    assert next(steps) == ("starting Ray and Prefect", None)
    watch.tell()
    assert next(steps) == ("looking for input", None)
    writer = writing(request, revision)
    if revision == 2:
        writer.append([planned(2, 0)])
    doing, progress = next(steps)
    assert progress is not None
    assert (doing, progress.done_shards, progress.reused_shards) == ("planning", 2 - revision, 2 - revision)
    assert (progress.rows_per_s, progress.first_start) == (0.0, 0.0), (
        "the speed of an earlier command is not this one's"
    )
    writer.append([Doing("load")])
    assert next(steps)[0] == "loading the model"
    writer.append([Doing("score"), receipt("b", 2000.0, writer.epoch)])
    doing, progress = next(steps)
    assert progress is not None
    assert (doing, progress.first_start, progress.last_end, progress.scored_rows) == ("scoring", 2000.0, 2005.0, 10)
    writer.stop(release=True)
    watch.done.set()
    assert len(list(steps)) <= 2
    assert POLL_S <= 1


def test_a_revision_that_is_left_is_shown_until_the_next_one_begins(lake: Lake) -> None:
    """With --fresh, of a run that was stopped: a look at the ledger may come between the two."""
    request = lake.ready().request()
    stopped = writing(request, 1)
    stopped.append([planned(2, 0)])
    stopped.stop(release=True)
    watch = _Watch(request)
    steps = watch.steps()
    assert next(steps)[1] is None
    watch.tell()
    assert next(steps) == ("looking for input", None)
    writing(request, 1, RETIRE).stop(release=True)
    doing, progress = next(steps)
    assert (doing, progress is not None) == ("looking for input", True)


def test_a_ledger_of_before_begins_to_score_with_its_first_receipt() -> None:
    """Versions before this one did not say so."""
    progress = Progress()
    progress.fold(Opened(this_holder("score")))
    progress.fold(planned(2, 0))
    assert progress.step == "plan"
    progress.fold(receipt("a", 1000.0))
    assert progress.step == "score"


@pytest.mark.parametrize("terminal", [True, False])
def test_what_a_run_waits_for_is_shown_as_it_is(lake: Lake, terminal: bool) -> None:
    """A pattern or a name may look like markup of the display, or hold what a terminal obeys."""
    console = Console(file=io.StringIO(), width=200, force_terminal=terminal)
    with following(lake.ready().request(), console) as tell:
        tell("waiting for _SUCCESS in /lake/[a-z]*/ and [/x] and \x1b]0;gone\x07\r[red]")
        time.sleep(3 * POLL_S)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert r"waiting for _SUCCESS in /lake/[a-z]*/ and [/x] and \x1b]0;gone\x07\r[red]" in shown


def test_the_clock_goes_on_when_all_shards_are_done() -> None:
    """The run is not over then: it is validated and published."""
    now = 0.0
    console = Console(file=io.StringIO(), width=80)
    bar = Bar(_Clock(), console=console, get_time=lambda: now)
    task = bar.add_task("scoring", total=2)
    now = 7.0
    bar.update(task, completed=2)
    now = 65.0
    console.print(bar.get_renderable())
    assert console.file.getvalue().strip() == "0:01:05"  # type: ignore[attr-defined]
