"""What a backfill says of the nights that readers do not see."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from nightjar.flows.cli import tables
from nightjar.flows.reports import Night


@pytest.mark.parametrize(
    ("states", "said"),
    [
        (["published", "skipped"], ""),
        (["published", "failed"], "1 of 2 nights not published: 1 failed"),
        (
            ["asks", "rolled back", "failed", "skipped", "failed"],
            "4 of 5 nights not published: 1 asks, 1 rolled back, 2 failed",
        ),
    ],
)
def test_nights_that_are_missing_are_counted_by_their_state(states: list[str], said: str) -> None:
    nights = [Night(f"2026-11-{day:02}", state) for day, state in enumerate(states, 1)]
    assert tables.missing(nights) == said


def test_a_sample_shows_all_columns_whatever_they_are_called() -> None:
    """In a narrow terminal, too; and a value with line breaks takes no more lines than it needs."""
    console = Console(width=30, file=StringIO(), highlight=False)
    names = ["run", "night", "state", "score"]
    console.print(tables.sample_rows(names, [["a" * 20, "b" * 20, "c" * 20, "0.25"], ["x\ny", "", "", ""]]))
    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue()
    for letter, count in (("a", 20), ("b", 20), ("c", 20)):
        # The names of the columns have the letters `a` and `t` and so on only in the first line.
        assert "".join(shown.splitlines()[2:]).count(letter) == count
    assert "0.25" in shown
    assert "x y" in shown
