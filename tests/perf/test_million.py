"""Promise 7: the driver's memory, the receipts and the artifacts stay bounded as shards grow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BASE_MB = 150
KB_PER_SHARD = 2.5
RECEIPT_BYTES = 2048
ARTIFACT_BYTES = 1_500_000


@pytest.mark.parametrize("shards", [50_000, pytest.param(250_000, marks=pytest.mark.long)])
def test_what_the_driver_the_ledger_and_the_artifacts_keep_of_a_shard_is_bounded(tmp_path: Path, shards: int) -> None:
    """Many shards, planned, committed, replayed and reported: at most 2.5 KB each in the driver's memory.

    `million.py FOLDER 1000000` does it with a million, in two minutes.
    """
    program = Path(__file__).with_name("million.py")
    ran = subprocess.run(
        [sys.executable, str(program), str(tmp_path), str(shards)], capture_output=True, text=True, timeout=900
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["shards"] == found["committed"] == shards
    assert found["peak_mb"] < BASE_MB + shards * KB_PER_SHARD / 1000, found
    assert found["largest_receipt"] <= RECEIPT_BYTES
    assert max(found["tables"]) < ARTIFACT_BYTES
