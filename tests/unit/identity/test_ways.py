"""Every way we know to change what scores a row is scored again, refused or said: none is silent (promise 4)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ways
from support import ROOT
from ways import AGAIN, ROWS_AS_BEFORE, SILENT, UNSEEN, WAYS


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What became of each way."""
    root = tmp_path_factory.mktemp("ways")
    done = subprocess.run(
        [sys.executable, "-c", "import sys, trying; trying.try_all(sys.argv[1])", str(root)],
        env={**os.environ, "PYTHONPATH": str(Path(ways.__file__).parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, str] = json.loads((root / "outcomes").read_text())
    return found


@pytest.mark.parametrize("way", WAYS)
def test_no_way_to_change_what_scores_is_silent(outcomes: dict[str, str], way: str) -> None:
    assert outcomes[way].partition(":")[0] == WAYS[way].expected, outcomes[way]


@pytest.mark.parametrize("way", [name for name, way in WAYS.items() if way.expected == AGAIN])
def test_no_row_is_reused_whose_scorer_changed(outcomes: dict[str, str], way: str) -> None:
    """Carried columns are tonight's, and values that changed have another key: for both the rest may be reused."""
    of_values = way in {"the carried columns", "input rewritten with its size and time kept"}
    assert outcomes[way] == (ROWS_AS_BEFORE if of_values else AGAIN)


@pytest.mark.parametrize("way", SILENT)
def test_a_row_of_the_table_that_changes_nothing_is_silent(outcomes: dict[str, str], way: str) -> None:
    """The table can tell silence; what counts in identity needs no word, and its bytecode neither."""
    assert outcomes[way] == "silent"


@pytest.mark.parametrize("way", UNSEEN)
def test_what_nothing_can_tell_is_documented(outcomes: dict[str, str], way: str) -> None:
    """One that is noticed after all leaves the table and the docs."""
    assert outcomes[way] == "silent"
    documented = " ".join((ROOT / "docs" / "identity.md").read_text().split())
    assert "a file that C code reads at a path that it computes, or that your code does" in documented
    assert "A package that was edited in place under the same version is not noticed" in documented
    assert "variables that a library or C code reads" in documented
