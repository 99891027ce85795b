"""What a shard's failures so far say about its next attempt. Pure.

A worker reports what it can catch, and a process that must end says at which rows. The death of one that says
nothing is narrowed down: the shard rides alone and leaves a crumb before each micro-batch (second death), then
before each row of the batch the last crumb named (third death); that row goes to the quarantine without being
scored: two processes have died over it. A death while no row was with the predictor, in reading or writing,
blames none. No chain is endless: attempts that failed are bounded by the job, deaths without a new culprit by
`deaths_allowed`, and culprits by `MAX_CULPRITS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from nightjar.inference.records import Failed

MAX_CULPRITS = 16
"""Rows of one shard that may kill their process before the shard is given up."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows [row, row + rows) of a file. why: what is known of them beyond that their process died."""

    uri: str
    row: int
    rows: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """How to try a shard next.

    number: 1 for the first. crumbs: say before each micro-batch what is about to be scored. singly: rows to
    score one at a time. skip: rows that killed their process, and how often it was seen.
    """

    number: int = 1
    crumbs: bool = False
    singly: Rows | None = None
    skip: tuple[Rows, ...] = ()


@dataclass(frozen=True, slots=True)
class GivenUp:
    """No further attempt will be made."""

    failed: Failed
    why: str


def next_attempt(failures: Sequence[Failed], attempts: int, earlier: Sequence[Failed] = ()) -> Attempt | GivenUp:
    """Fold a shard's failures, oldest first, into what to do next.

    attempts: tries the job allows (`retry.attempts`). Deaths that narrow the search cost none of them.
    earlier: deaths under earlier commands. What they say of rows is kept; they do not bring the end nearer.
    """
    number, failed_tries, deaths = 1, 0, 0
    crumbs, singly = False, None
    skip: list[Rows] = []
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
                skip.append(Rows(failed.uri, failed.row, 1, failed.message if failed.cause != "ProcessDied" else ""))
                singly, deaths = None, 0
            elif failed.rows:
                # Seen once it may be an accident, also of a micro-batch of one row.
                singly = Rows(failed.uri, failed.row, failed.rows)
        if failed_tries >= attempts:
            return GivenUp(failed, f"failed {failed_tries} times: {failed.message}")
        if deaths >= deaths_allowed(attempts):
            return GivenUp(failed, f"its process died {deaths} times and no single row is to blame: {failed.message}")
        if len(skip) > MAX_CULPRITS:
            return GivenUp(failed, f"more than {MAX_CULPRITS} of its rows kill their process")
    return Attempt(number, crumbs, singly, tuple(skip))


def _holds(rows: Rows, failed: Failed) -> bool:
    return rows.uri == failed.uri and rows.row <= failed.row < rows.row + rows.rows


def deaths_allowed(attempts: int) -> int:
    """Deaths without a new culprit: three find a row, and a kill from outside may interfere."""
    return max(3, attempts) + 2
