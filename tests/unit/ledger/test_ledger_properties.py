"""Promises 3 and 5 under any interleaving: drivers of one run that stall, vanish and lose answers, call by call.

And under any clock: whether a writer lives is judged by watching, never by the time of day.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

import drivers
from drivers import LEASE_S, RUN, SCRATCH, Driver, Fate, Kind, Night, Play, planned, set_wall_clock
from nightjar.inference.errors import Fenced, Held
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.ledger.ledger import Ledger, Segment, State, replay
from nightjar.inference.ledger.lines import Opened, PublishedAs, Revoked
from nightjar.inference.records import Failed, Receipt
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import join

OTHER_RUN = 3
"""The place at which no driver stands, but another run of the job that publishes at once."""

KINDS = st.builds(
    Kind,
    flow_run=st.sampled_from(["", "one", "two"]),
    seems_dead=st.booleans(),
    clock=st.sampled_from([0.0, 3600.0, -3600.0, 1e9]),
    releases=st.booleans(),
    splits=st.booleans(),
    revokes=st.booleans(),
    at_once=st.integers(1, 2),
)
HARMLESS = {Fate.PASSES, Fate.FAILS, Fate.LOST, Fate.TWICE}
"""What a driver overcomes by itself."""

FATES = st.sampled_from([Fate.PASSES] * 6 + list(Fate))
BURSTS = st.lists(st.tuples(st.integers(0, OTHER_RUN), st.integers(1, 8), FATES), min_size=6, max_size=40)
"""Who makes how many calls, and what becomes of the last one. Six at least: without, half of the lists have fewer."""


def state_after(segments: list[Segment], number: int) -> State:
    """What a replay of the first `number` segments knows."""
    state = State()
    for segment in segments[:number]:
        state.apply(segment)
    return state


def check_epochs(segments: list[Segment]) -> None:
    """No number is left out, each epoch has one writer, and nobody writes once a successor has opened."""
    assert [segment.number for segment in segments] == list(range(1, len(segments) + 1))
    tenures = [(epoch, list(found)) for epoch, found in itertools.groupby(segments, lambda segment: segment.epoch)]
    assert [epoch for epoch, _ in tenures] == list(range(1, len(tenures) + 1))
    for _, leased in tenures:
        assert len({segment.nonce for segment in leased}) == 1
        opened = [line for segment in leased for line in segment.lines if isinstance(line, Opened)]
        assert opened == list(leased[0].lines)
        assert [line.writer.nonce for line in opened] == [leased[0].nonce]


def check_driver(driver: Driver, segments: list[Segment]) -> None:
    """What it was told is so, and what it was refused is not."""
    known = driver.writer.state.number if driver.writer else 0
    if driver.writer:
        assert driver.writer.state == state_after(segments, known)
    unknown = [segment for segment in segments[known:] if segment.nonce == driver.name]
    assert len(unknown) <= driver.uncertain, "only an append whose answer was lost can be there unknown to it"
    if isinstance(driver.error, Held):
        assert not unknown, "it was told that nothing was written"
    if isinstance(driver.error, Fenced):
        assert driver.writer is not None
        assert segments[known].epoch > driver.writer.epoch, "it was told to stop by whom it was replaced"
    written = [(r.shard, r.worker) for s in segments for r in s.lines if isinstance(r, Receipt)]
    assert set(driver.told) <= set(written), "what it was told is committed is committed"


def check_done(play: Play) -> None:
    """Each planned shard is committed once, and the run is published once, with what its ledger says."""
    segments, snapshots = play.night.segments(), play.night.snapshots()
    check_epochs(segments)
    for driver in play.drivers:
        check_driver(driver, segments)
    state = state_after(segments, len(segments))
    lines = [line for segment in segments for line in segment.lines]
    written = Counter(line.shard for line in lines if isinstance(line, Receipt))
    revoked = Counter(line.shard for line in lines if isinstance(line, Revoked))
    assert written - revoked == Counter(planned(state)), "committed once, and once more when that was taken back"
    counting = list(Ledger(LakeStorage(), play.night.revision).receipts(state))
    assert sorted(receipt.shard for receipt in counting) == sorted(state.committed) == sorted(planned(state))
    assert all(receipt.attempt == 1 + revoked[receipt.shard] for receipt in counting)
    ours = [snapshot for snapshot in snapshots if snapshot.note == f"run {RUN} revision 1"]
    assert [snapshot.number for snapshot in ours] == [state.published and state.published.number]
    assert state.intent is not None
    shown = ours[0].runs[RUN]
    assert (ours[0].number, shown.checksum) == (state.intent.number, state.intent.published.checksum)
    assert all(snapshot.runs[RUN] == shown for snapshot in snapshots[ours[0].number :])
    assert sum(isinstance(line, PublishedAs) for line in lines) == 1
    assert {driver.number for driver in play.drivers} <= {None, ours[0].number}


@pytest.mark.parametrize("succeeded_first", [False, True], ids=["then-goes-on", "then-is-succeeded"])
@pytest.mark.parametrize("fate", Fate)
def test_a_driver_hit_at_any_of_its_calls_loses_and_doubles_nothing(fate: Fate, succeeded_first: bool) -> None:
    """Each call in turn. What is left of the driver goes on before a successor comes, or wakes after it has ended."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        for call in range(1, calls_of_a_run(join(folder, "undisturbed")) + 1):
            with closing(Play(Night(join(folder, str(call))), (Kind(),))) as play:
                play.night.publish_another_run()
                play.burst(0, call, fate)
                (hit,) = play.drivers
                if not succeeded_first:
                    hit.finish()
                    assert fate not in HARMLESS or (hit.error is None and hit.number)
                play.enter(Kind()).finish()
                check_done(play)
                hit.finish()
                check_done(play)


def calls_of_a_run(output: str) -> int:
    """How many of a lone driver's calls something can befall."""
    play = Play(Night(output), ())
    driver = play.enter(Kind())
    driver.finish()
    check_done(play)
    return driver.calls


def check_play(kinds: tuple[Kind, ...], bursts: list[tuple[int, int, Fate]], sleepers_wake_last: bool) -> None:
    """Up to three drivers at a time suffer what the bursts say; a last one is undisturbed, and all is well then."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder, closing(Play(Night(folder), kinds)) as play:
        for place, calls, fate in bursts:
            if place == OTHER_RUN:
                play.night.publish_another_run()
            else:
                play.burst(place, calls, fate)
        for wake in (not sleepers_wake_last, sleepers_wake_last):
            for driver in play.asleep() if wake else ():
                driver.finish()
            last = play.enter(Kind())
            last.finish()
            assert last.error is None, "nobody is left that could hold the run"
            check_done(play)
        event(f"{min(len(play.drivers), 8)} drivers or more")
        for driver in play.drivers:
            event(f"a driver ended with {type(driver.error).__name__}, published {bool(driver.number)}")


PLAYS = given(st.tuples(KINDS, KINDS, KINDS), BURSTS, st.booleans())


@pytest.mark.system
@settings(max_examples=60, print_blob=True)
@PLAYS
def test_whatever_drivers_suffer_each_shard_is_committed_once_and_the_run_published_once(
    kinds: tuple[Kind, ...], bursts: list[tuple[int, int, Fate]], sleepers_wake_last: bool
) -> None:
    """Up to three at a time stall, vanish or lose answers before and after any call; a last one is undisturbed.

    Whoever still stands somewhere wakes up before the last one or after it: it makes no difference.
    """
    check_play(kinds, bursts, sleepers_wake_last)


@pytest.mark.long
@settings(max_examples=1000, print_blob=True)
@PLAYS
def test_whatever_drivers_suffer_in_a_thousand_plays(
    kinds: tuple[Kind, ...], bursts: list[tuple[int, int, Fate]], sleepers_wake_last: bool
) -> None:
    """The same as above, with more to suffer."""
    check_play(kinds, bursts, sleepers_wake_last)


@settings(max_examples=50, print_blob=True)
@given(st.text(st.characters()))
@example("no number: 1\u20282")
@example("no number: 1\x852")
@example("no such file: a\udcff.parquet")
def test_whatever_an_error_says_the_ledger_can_be_replayed(text: str) -> None:
    """Messages hold what was in the data, and names what was on the disk: any character there is, paired or not."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        failed = Failed("a", 1, "ValueError", text, uri=f"/in/{text}")
        writer = open_epoch(LakeStorage(), folder, this_holder("score"), lease_s=LEASE_S)
        try:
            writer.append([failed])
        finally:
            writer.stop(release=True)
        assert replay(Ledger(LakeStorage(), folder)).failures == {"a": [failed]}


HOUR_S = 3600.0
HOSTS = {"this-host": "", "another-host": "elsewhere/0"}
CLOCKS = {
    "both-right": (0.0, 0.0),
    "observer-ahead": (0.0, HOUR_S),
    "observer-behind": (0.0, -HOUR_S),
    "holder-ahead": (HOUR_S, 0.0),
    "holder-behind": (-HOUR_S, 0.0),
}
"""How far the wall clocks of the holder and of who would succeed it are ahead."""

HOLD = "import sys, drivers; drivers.hold(*sys.argv[1:])"


def opens(revision: str, sleep: Callable[[float], None], clock: Callable[[], float] = time.monotonic) -> bool:
    """Whether the run can be had, from a process of its own as far as the ledger knows."""
    try:
        writer = open_epoch(LakeStorage(), revision, this_holder("other"), lease_s=30, sleep=sleep, clock=clock)
    except Held:
        return False
    writer.stop(release=False)
    return True


def never(_: float) -> None:
    raise AssertionError("nobody has to wait here")


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="sets the clock as Linux shows it")
@pytest.mark.parametrize(
    ("host", "holders", "observers"),
    [
        pytest.param(HOSTS[host], *CLOCKS[clock], id=f"{host}-{clock}")
        for host, clock in itertools.product(HOSTS, CLOCKS)
    ],
)
def test_a_clock_an_hour_off_replaces_nobody_who_lives_and_keeps_nobody_who_died(
    host: str, holders: float, observers: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another host's clock is just wrong; that of one host was set while the holder ran."""
    revision = str(tmp_path / "r1")
    path = os.pathsep.join([str(Path(drivers.__file__).parent), os.environ.get("PYTHONPATH", "")])
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, revision, host, str(holders), str(tmp_path / "holder")],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holds\n"
        set_wall_clock(observers, tmp_path / "observer", monkeypatch)
        assert not opens(revision, time.sleep), "it shows that it lives"
    finally:
        holder.kill()
        holder.communicate()
    if host:
        assert opens(revision, lambda _: None, itertools.count(step=60).__next__), "silent for a whole lease"
    else:
        assert opens(revision, never), "dead for all to see"
