"""What a shard's failures say about its next attempt: killers are found in three deaths, and no chain is endless."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from nightjar.inference.records import Failed, RowFailure
from nightjar.inference.scoring.suspects import MAX_CULPRITS, Attempt, GivenUp, Rows, deaths_allowed, next_attempt

URI = "/lake/a.parquet"


def died(row: int = -1, rows: int = 0) -> Failed:
    return Failed("s", 1, "ProcessDied", "lost", died=True, uri=URI, row=row, rows=rows)


def failed(terminal: bool = False) -> Failed:
    return Failed("s", 1, "Transient", "no answer", terminal=terminal)


events = st.one_of(
    st.builds(died),
    st.builds(died, st.integers(0, 999), st.integers(0, 300)),
    st.builds(failed, st.booleans()),
)


def ride(killers: set[int], rows: int, batch: int, attempt: Attempt) -> Failed | None:
    """A real ride of a shard as `ShardWorker` does it, up to the first death. None: it came home."""
    skip = {skipped.row for skipped in attempt.skip}
    alone = range(attempt.singly.row, attempt.singly.row + attempt.singly.rows) if attempt.singly else range(0)
    row = 0
    while row < rows:
        stop = row + 1 if row in alone else min(rows, (row // batch + 1) * batch)
        stop = min(stop, alone.start) if row < alone.start < stop else stop
        if killers & set(range(row, stop)) - skip:
            return died(row, stop - row) if attempt.crumbs else died()
        row = stop
    return None


def rides(fate: Callable[[Attempt], Failed | None], attempts: int = 3) -> tuple[Attempt | GivenUp, list[Failed]]:
    """Attempts until the shard comes home or is given up: the last one, and every failure."""
    failures: list[Failed] = []
    while True:
        following = next_attempt(failures, attempts)
        if isinstance(following, GivenUp):
            return following, failures
        failure = fate(following)
        if failure is None:
            return following, failures
        failures.append(failure)
        assert len(failures) < 10_000, "endless"


@given(st.integers(1, 2000), st.integers(1, 600), st.data())
def test_one_killer_is_found_in_three_deaths(rows: int, batch: int, data: st.DataObject) -> None:
    """Whatever the shard's size and the batch's; that row and no other is left out."""
    killer = data.draw(st.integers(0, rows - 1))
    home, failures = rides(lambda attempt: ride({killer}, rows, batch, attempt))
    assert isinstance(home, Attempt)
    assert [(skipped.row, skipped.rows) for skipped in home.skip] == [(killer, 1)]
    assert len(failures) <= 3


@given(st.sets(st.integers(0, 499), max_size=MAX_CULPRITS), st.integers(1, 500))
def test_each_further_killer_costs_two_deaths(killers: set[int], batch: int) -> None:
    home, failures = rides(lambda attempt: ride(killers, 500, batch, attempt))
    assert isinstance(home, Attempt)
    assert {skipped.row for skipped in home.skip} == killers
    assert len(failures) <= 1 + 2 * len(killers)


def test_too_many_killers_give_the_shard_up() -> None:
    """A model that dies on every row is not fed a whole shard one by one."""
    end, failures = rides(lambda attempt: ride(set(range(500)), 500, 100, attempt))
    assert end == GivenUp(failures[-1], f"more than {MAX_CULPRITS} of its rows kill their process")
    assert len(failures) <= 2 * (MAX_CULPRITS + 1) + 1


def test_a_shard_that_was_given_up_for_its_killers_is_tried_again_by_the_next_command() -> None:
    """What it knows of those rows is kept; as many others may be found."""
    _, earlier = rides(lambda attempt: ride(set(range(500)), 500, 100, attempt))
    found = next_attempt([], 3, earlier)
    assert isinstance(found, Attempt)
    assert {each.row for each in found.skip} == set(range(MAX_CULPRITS + 1))


@given(st.lists(events, min_size=1, max_size=400), st.integers(1, 20))
def test_no_chain_of_failures_is_endless(chain: list[Failed], attempts: int) -> None:
    """Whatever happens, in whatever order, the end is bounded by what the job allows and `MAX_CULPRITS`."""
    most = attempts + deaths_allowed(attempts) * (MAX_CULPRITS + 2)
    fates = iter((chain * (most // len(chain) + 1))[: most + 1])
    end, failures = rides(lambda _: next(fates), attempts)
    assert isinstance(end, GivenUp)
    assert len(failures) <= most


@given(st.integers(1, 20))
def test_failures_without_a_death_are_bounded_by_the_attempts(attempts: int) -> None:
    end, failures = rides(lambda _: failed(), attempts)
    assert end == GivenUp(failed(), f"failed {attempts} times: no answer")
    assert len(failures) == attempts


def test_a_shard_without_a_death_is_tried_again_as_before() -> None:
    assert next_attempt([], 3) == Attempt()
    assert next_attempt([failed()], 3) == Attempt(2)


def test_a_terminal_failure_is_not_tried_again() -> None:
    end, failures = rides(lambda _: failed(terminal=True))
    assert end == GivenUp(failed(terminal=True), "no answer")
    assert len(failures) == 1


@given(st.integers(1, 20))
def test_a_death_while_no_row_is_scored_blames_none(attempts: int) -> None:
    """Reading and writing may kill, too: such a shard is given up, and no innocent row is left out."""
    end, failures = rides(lambda attempt: died(0, 0) if attempt.crumbs else died(), attempts)
    deaths = max(3, attempts) + 2
    assert end == GivenUp(died(0, 0), f"its process died {deaths} times and no single row is to blame: lost")
    assert len(failures) == deaths_allowed(attempts) == deaths


def test_a_first_death_makes_a_suspect() -> None:
    """It rides again with crumbs, and nothing is left out yet."""
    assert next_attempt([died()], 3) == Attempt(2, crumbs=True)
    assert next_attempt([died(), died(256, 256)], 3) == Attempt(3, crumbs=True, singly=Rows(URI, 256, 256))
    assert next_attempt([died(), died(256, 256), died(300, 1)], 3) == Attempt(4, crumbs=True, skip=(Rows(URI, 300, 1),))


def test_one_death_over_a_single_row_is_not_held_against_it() -> None:
    """Where micro-batches are one row each, the first death names a row, too: it may be an accident."""
    assert next_attempt([died(5, 1)], 3) == Attempt(2, crumbs=True, singly=Rows(URI, 5, 1))
    elsewhere = next_attempt([died(5, 1), died(6, 1)], 3)
    assert elsewhere == Attempt(3, crumbs=True, singly=Rows(URI, 6, 1))
    assert next_attempt([died(5, 1), died(5, 1)], 3) == Attempt(3, crumbs=True, skip=(Rows(URI, 5, 1),))


def test_a_row_that_is_found_gives_the_shard_all_its_deaths_again() -> None:
    found = [died(), died(0, 256), died(7, 1)]
    assert isinstance(next_attempt([*found, *[died()] * (deaths_allowed(3) - 1)], 3), Attempt)
    assert isinstance(next_attempt([*found, *[died()] * deaths_allowed(3)], 3), GivenUp)


def test_a_row_that_hung_goes_to_the_quarantine_with_what_was_said_of_it() -> None:
    """Of one that ended its process nobody could say anything."""
    hung = replace(died(7, 1), cause="Stalled", message="no progress for 600 s")
    home = next_attempt([died(), died(0, 256), hung], 3)
    assert home == Attempt(4, crumbs=True, skip=(Rows(URI, 7, 1, "no progress for 600 s"),))
    assert Rows(URI, 7, 1, "no progress for 600 s").as_failure() == RowFailure(
        7, "ProcessDied", "no progress for 600 s", ""
    )
    assert Rows(URI, 7, 1).as_failure() == RowFailure(
        7, "ProcessDied", "scoring this row ended its process without an exception (exit, signal or out of memory)", ""
    )


def test_a_repeated_command_knows_the_killers_and_has_all_its_attempts() -> None:
    """What was learnt is kept; deaths that used up an earlier command do not end this one before it began."""
    earlier = [died(), died(0, 256), died(7, 1), *[died()] * deaths_allowed(3)]
    assert isinstance(next_attempt(earlier, 3), GivenUp)
    again = next_attempt([], 3, earlier)
    assert isinstance(again, Attempt)
    assert again.skip == (Rows(URI, 7, 1),)
    assert again.crumbs
    assert isinstance(next_attempt([died()] * deaths_allowed(3), 3, earlier), GivenUp)
