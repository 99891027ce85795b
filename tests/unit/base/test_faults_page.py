"""The page of faults names tests that exist."""

from __future__ import annotations

import re

from support import ROOT

TESTS = ROOT / "tests"
PAGE = (ROOT / "docs" / "faults.md").read_text()

SYSTEM = "pytestmark = [pytest.mark.system,"
"""What the file of such a test says."""


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


def test_a_test_that_make_test_leaves_out_says_which_target_runs_it() -> None:
    """Else `pytest -k NAME` selects nothing."""
    apart, others = set(), set()
    for text in (path.read_text() for path in TESTS.rglob("test_*.py")):
        named = set(re.findall(r"^ *def (test_\w+)\(", text, re.MULTILINE))
        alone = set(re.findall(r"^@pytest\.mark\.system\n(?:@.*\n)*def (test_\w+)\(", text, re.MULTILINE))
        here = named if SYSTEM in text else alone
        apart |= here
        others |= named - here
    told = re.findall(r"`(test_\w+)`(?: \(`make (test-\w+)`\))?", PAGE)
    assert len({name for name, _ in told if name in apart}) > 5
    for name, target in told:
        if name in apart - others:
            assert target, f"{name} is run by `make test-system`"
        if target == "test-system":
            assert name in apart, name
