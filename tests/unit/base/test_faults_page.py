"""The page of faults names tests that exist."""

from __future__ import annotations

import re

from support import ROOT

TESTS = ROOT / "tests"
PAGE = (ROOT / "docs" / "faults.md").read_text()


def test_every_row_of_the_tables_names_tests_that_exist() -> None:
    """A fault without a test would be a claim."""
    there = set(re.findall(r"def (test_\w+)\(", "\n".join(path.read_text() for path in TESTS.rglob("test_*.py"))))
    tables = re.findall(r"^\| (?:fault|what) \|.*\n\|---.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    rows = [line for table in tables for line in table.splitlines()]
    assert len(rows) > 50
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row.rsplit(" | ", 1)[-1])
        assert named, row
        assert set(named) <= there, (row, set(named) - there)
    assert set(re.findall(r"`(test_\w+)`", PAGE)) <= there
