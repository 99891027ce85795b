"""What the next pass takes, what a pass left dead, and when failures end the run: without an engine."""

from __future__ import annotations

import pytest

from nightjar.inference.errors import ShardsFailed
from nightjar.inference.input.plan import Plan
from nightjar.inference.records import UNREADABLE, Crumb, Failed, Piece, Receipt, Shard, Started
from nightjar.inference.run.failures import ALIKE, Failures, Underway
from nightjar.inference.scoring.suspects import Attempt, Rows

TRIES = 3


def plan(*rows: int, files: int = 1) -> Plan:
    """Shards s0, s1 …, each with so many rows in each of its files."""
    return Plan.of(
        Shard(f"s{index}", tuple(Piece(f"/lake/{index}-{file}", 9, "v", 0, count, (0, 1)) for file in range(files)))
        for index, count in enumerate(rows)
    )


def died(shard: str, row: int = -1) -> Failed:
    return Failed(shard, 1, "ProcessDied", "lost", died=True, uri=f"/lake/{shard[1:]}-0", row=row, rows=int(row >= 0))


def failed(shard: str, cause: str = "ValueError") -> Failed:
    return Failed(shard, 1, cause, "no")


def failures(of: Plan, *said: Failed) -> Failures:
    found = Failures(of, {}, TRIES)
    for each in said:
        found.add(each)
    return found


def receipt(shard: str) -> Receipt:
    return Receipt(shard, 1, 1, "w", None, None, 0.0, 0.0, rows_in=1, rows_out=1)


# ---- what a pass left dead ----------------------------------------------------------------------------------


def test_only_what_was_started_and_did_not_come_home_is_charged() -> None:
    underway = Underway()
    for event in (Started("s0", 1, "w"), receipt("s0"), Started("s1", 2, "w"), Started("s2", 1, "w"), failed("s2")):
        underway.take(event)
    assert underway.started == 3
    (death,) = underway.deaths("")
    assert (death.shard, death.attempt, death.cause, death.died, death.row) == ("s1", 2, "ProcessDied", True, -1)
    assert "the worker w was lost" in death.message


def test_the_last_crumb_names_the_rows() -> None:
    underway = Underway()
    for event in (Started("s0", 2, "w"), Crumb("s0", "/lake/0-0", 0, 8), Crumb("s0", "/lake/0-0", 8, 4, attempt=2)):
        underway.take(event)
    (death,) = underway.deaths("the cluster was lost")
    assert (death.attempt, death.row, death.rows) == (2, 8, 4)
    assert death.message == "the cluster was lost, at rows 8 to 11 of /lake/0-0"
    underway.take(Crumb("s0", "/lake/0-0", 0, 0))
    assert underway.deaths("")[0].row == -1


# ---- what the next pass takes -------------------------------------------------------------------------------


def test_suspects_ride_when_nothing_else_is_left() -> None:
    of = plan(5, 5, 5)
    found = failures(of, died("s1"), died("s2"), died("s2", 3))
    pending = found.pending(of, set())
    assert pending.riding(succeeded=True).shards == ["s0"]
    pending = found.pending(of, {"s0"}).riding(succeeded=True)
    assert (pending.shards, pending.attempts) == (["s1"], [Attempt(2, crumbs=True)])
    pending = found.pending(of, {"s0", "s1"}).riding(succeeded=True)
    assert (pending.shards, pending.attempts) == (["s2"], [Attempt(3, crumbs=True, singly=Rows("/lake/2-0", 3, 1))])


def test_a_few_suspects_are_judged_while_nothing_has_succeeded() -> None:
    of = plan(*[5] * (ALIKE + 2))
    pending = failures(of, *(died(f"s{index}") for index in range(ALIKE + 1))).pending(of, set())
    assert pending.riding(succeeded=False).shards == [f"s{index}" for index in range(ALIKE)]
    assert len(pending.riding(succeeded=True).shards) == 1


def test_a_packed_shard_that_failed_or_died_twice_is_split_and_one_that_died_once_rides_again() -> None:
    """Whichever command saw it die."""
    of = plan(5, 5, 5, files=2)
    pending = failures(of, failed("s0"), died("s1"), died("s2"), died("s2")).pending(of, set())
    assert (pending.packed, pending.shards) == (["s0", "s2"], ["s1"])
    found = Failures(of, {"s1": [died("s1")]}, TRIES)
    found.add(died("s1"))
    assert found.pending(of, set()).packed == ["s1"]


def test_repeating_the_command_grants_new_attempts_but_keeps_what_kills() -> None:
    of = plan(5, 5)
    before = {"s0": [failed("s0")] * TRIES, "s1": [died("s1")]}
    pending = Failures(of, before, TRIES).pending(of, set())
    assert pending.attempts == [Attempt(), Attempt(2, crumbs=True)]


def test_what_has_had_its_attempts_is_given_up() -> None:
    of = plan(5, 5)
    found = failures(of, *[failed("s0")] * TRIES)
    assert found.pending(of, set()).shards == ["s1"]
    assert list(found.given_up) == ["s0"]
    assert [each.shard for each in found.finals()] == ["s0"]


# ---- when failures end the run ------------------------------------------------------------------------------


def test_first_failures_that_are_all_alike_end_the_run() -> None:
    of = plan(*[5] * 20)
    found = failures(of, *(failed(f"s{index}") for index in range(ALIKE - 1)))
    found.check_alike(found.firsts(), ALIKE)
    found.add(failed("s19"))
    with pytest.raises(ShardsFailed, match=r"the first 8 shards all failed alike, so the run stopped: ValueError: no"):
        found.check_alike(found.firsts(), ALIKE)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (5, [failed(f"s{index}", f"Error{index % 2}") for index in range(ALIKE)]),
        (5, [failed(f"s{index}", "InputCorrupt") for index in range(ALIKE)]),
        (5, [died(f"s{index}") for index in range(ALIKE)]),
        (UNREADABLE, [failed(f"s{index}") for index in range(ALIKE)]),
    ],
    ids=["of two causes", "a file's own fault", "deaths", "files that were not read"],
)
def test_what_says_nothing_of_the_other_shards_ends_no_run(rows: int, said: list[Failed]) -> None:
    of = plan(*[rows] * ALIKE)
    found = failures(of, *said)
    found.check_alike(found.firsts(), ALIKE)
