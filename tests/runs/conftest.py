"""Whole runs whose claims are about the ledger, the plan, the audit or the publication: they need no Ray."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from nightjar.inference.engine import LOCAL
from support import Lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A small lake whose runs are scored in this process."""
    return Lake(tmp_path, LOCAL)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """One lake for all runs of this file, each under a name of its own."""
    return Lake(tmp_path_factory.mktemp("lake"), LOCAL).ready()


@pytest.fixture(scope="module")
def rows(shared: Lake) -> pd.DataFrame:
    """What a run publishes that nobody kills and nobody races."""
    shared.run(run_id="undisturbed")
    return shared.published("undisturbed")
