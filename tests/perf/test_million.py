"""Promise 7: the driver's memory, the receipts and the artifacts stay bounded as shards grow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SHARDS = 1_000_000
MB_PER_MILLION = 2500
RECEIPT_BYTES = 2048
ARTIFACT_BYTES = 1_500_000


@pytest.mark.perf
def test_a_million_shards_fit_in_the_driver_the_ledger_and_the_artifacts(tmp_path: Path) -> None:
    """A million shards, planned, committed, replayed and reported: at most 2.5 KB each in the driver's memory."""
    program = Path(__file__).with_name("million.py")
    ran = subprocess.run(
        [sys.executable, str(program), str(tmp_path), str(SHARDS)], capture_output=True, text=True, timeout=900
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["shards"] == found["committed"] == SHARDS
    assert found["peak_mb"] < MB_PER_MILLION, found
    assert found["largest_receipt"] <= RECEIPT_BYTES
    assert max(found["tables"]) < ARTIFACT_BYTES
