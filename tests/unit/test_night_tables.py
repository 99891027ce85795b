"""What a backfill says of the nights that readers do not see."""

from __future__ import annotations

import pytest

from nightjar.flows.cli import tables
from nightjar.flows.results import Night

FAILED = "repeat the command to continue them"
ASKS = "a person must answer first, with `nightjar approve` or `nightjar reject`"
TAKEN_BACK = "somebody rolled them back"


@pytest.mark.parametrize(
    ("states", "said"),
    [
        (["published", "skipped"], ""),
        (["published", "failed"], f"1 of 2 nights is not published; {FAILED}"),
        (["asks", "asks", "published"], f"2 of 3 nights are not published; {ASKS}"),
        (["rolled back"], f"1 of 1 night is not published; {TAKEN_BACK}"),
        (
            ["asks", "rolled back", "failed", "skipped", "failed"],
            f"4 of 5 nights are not published; 2 failed: {FAILED}; 1 asks: {ASKS}; 1 rolled back: {TAKEN_BACK}",
        ),
    ],
)
def test_each_reason_is_told_with_what_helps(states: list[str], said: str) -> None:
    """A night that only asks was not rolled back, and to repeat the command would not help it."""
    nights = [Night(f"2026-11-{day:02}", state) for day, state in enumerate(states, 1)]
    assert tables.missing(nights) == said
