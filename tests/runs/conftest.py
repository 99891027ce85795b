"""Whole runs whose claims are about the ledger, the plan, the audit or the publication: they need no Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightjar.inference.engine import LOCAL
from support import Lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A small lake whose runs are scored in this process."""
    return Lake(tmp_path, LOCAL)
