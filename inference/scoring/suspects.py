"""Decides a shard's next attempt from its failures so far. This is pure.

A worker reports errors that it can catch, and a process that must end reports the rows that it was scoring. If a
process dies without a report, the search narrows: after the first death the shard is tried alone, with a crumb before
each micro-batch. After the second death there is a crumb before each row of the micro-batch that the last crumb named.
After the third death the last crumb names the row, and it goes to the quarantine without being scored, because two
processes have died over it. A death during reading or writing blames no row. Every search ends: the job limits failed
attempts, `deaths_allowed` limits deaths without a new culprit, and `MAX_CULPRITS` limits culprits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from nightjar.inference.records import Failed, RowFailure

MAX_CULPRITS = 16
"""The most rows of one shard that may kill their process under one command; with more the shard is given up."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows [row, row + rows) of a file."""

    uri: str
    """The URI of the file."""

    row: int
    """The index of the first row in the file."""

    rows: int
    """The number of rows."""

    why: str = ""
    """What is known about them, besides that their process died."""

    model: str = ""
    """Of several models the name of the one that had them."""

    def as_failure(self) -> RowFailure:
        """The failure for the quarantine."""
        how = self.why or "scoring this row ended its process without an exception (exit, signal or out of memory)"
        return RowFailure(self.row, "ProcessDied", how, "", model=self.model)


@dataclass(frozen=True, slots=True)
class Attempt:
    """How to try a shard next."""

    number: int = 1
    """The number of the attempt, from 1; deaths under earlier commands count."""

    crumbs: bool = False
    """Whether to leave a crumb before each micro-batch."""

    singly: Rows | None = None
    """Rows to score one at a time."""

    skip: tuple[Rows, ...] = ()
    """Rows that killed their process, which are not scored."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """No further attempt will be made."""

    failed: Failed
    why: str


def next_attempt(failures: Sequence[Failed], attempts: int, earlier: Sequence[Failed] = ()) -> Attempt | GivenUp:
    """Decide from a shard's failures, oldest first, what to do next.

    attempts: the tries that the job allows (`retry.attempts`); deaths that narrow the search do not count. earlier:
    deaths under earlier commands; what they tell about rows is used, but they do not count as tries.
    """
    number, failed_tries, deaths = 1, 0, 0
    crumbs, singly = False, None
    skip: list[Rows] = []
    known = 0
    for index, failed in enumerate(chain(earlier, failures)):
        number += 1
        if failed.terminal:
            return GivenUp(failed, failed.message)
        if not failed.died:
            failed_tries += 1
        else:
            crumbs = True
            deaths += index >= len(earlier)
            if failed.rows == 1 and singly is not None and _holds(singly, failed):
                why = failed.message if failed.cause != "ProcessDied" else ""
                skip.append(Rows(failed.uri, failed.row, 1, why, failed.model))
                singly, deaths, known = None, 0, known + (index < len(earlier))
            elif failed.rows:
                # One death may be an accident, even with a micro-batch of one row.
                singly = Rows(failed.uri, failed.row, failed.rows, model=failed.model)
        if failed_tries >= attempts:
            return GivenUp(failed, f"failed {failed_tries} times: {failed.message}")
        if deaths >= deaths_allowed(attempts):
            return GivenUp(failed, f"its process died {deaths} times and no single row is to blame: {failed.message}")
        if len(skip) - known > MAX_CULPRITS:
            return GivenUp(failed, f"more than {MAX_CULPRITS} of its rows kill their process")
    return Attempt(number, crumbs, singly, tuple(skip))


def _holds(rows: Rows, failed: Failed) -> bool:
    return (rows.uri, rows.model) == (failed.uri, failed.model) and rows.row <= failed.row < rows.row + rows.rows


def deaths_allowed(attempts: int) -> int:
    """The most deaths without a new culprit: three deaths find a row, and kills from outside may interfere."""
    return max(3, attempts) + 2
