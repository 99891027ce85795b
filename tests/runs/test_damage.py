"""Parts that are damaged where they lie: found by the audit, never published, and scored again."""

from __future__ import annotations

import json

import numpy as np
import pytest

from nightjar.inference.errors import AuditFailed
from nightjar.inference.storage.faults import FaultyStorage, tear
from nightjar.inference.storage.lake import LakeStorage
from support import Lake, command

TEARS = '''
from pathlib import Path

OUT = Path(__LIVE__) / "out"

def score(batch):
    """Twice x; tears one part that was written before, once."""
    marker = OUT.parent / "torn"
    parts = sorted(OUT.glob("runs/*/r*/data/*.parquet"))
    if parts and not marker.exists():
        marker.write_text(parts[0].name)
        with parts[0].open("r+b") as part:
            part.truncate(parts[0].stat().st_size // 2)
    return {"score": batch["x"] * 2}
'''


def assert_whole(lake: Lake) -> None:
    published = lake.published()
    assert published["id"].tolist() == list(range(8000))
    np.testing.assert_array_equal(published["score"], np.arange(8000, dtype=np.float32) * 2)


def test_a_torn_part_is_found_and_its_shard_scored_again(lake: Lake) -> None:
    """The write said that all was well. Repeating the command scores that shard and no other."""
    torn = FaultyStorage(LakeStorage(), [tear("write", "*/data/*", nth=3)])
    with pytest.raises(AuditFailed, match=r"shard [0-9a-f]{20}: bytes of .*Repeat the command: it scores this shard"):
        lake.ready().run(storage=torn)
    assert not (lake.out / "publications").exists()
    ran = lake.run()
    assert (ran.scored.progress.scored_rows, ran.scored.progress.reused_rows) == (1000, 7000)
    assert_whole(lake)
    assert len(list((lake.revision() / "data").iterdir())) == 8


def test_a_part_that_rotted_in_an_earlier_revision_is_not_taken_over_twice(lake: Lake) -> None:
    """The next revision takes over what did not change; what it finds damaged it scores itself."""
    first = lake.ready().run()
    rotten = next((lake.revision(1) / "data").iterdir())
    raw = bytearray(rotten.read_bytes())
    raw[len(raw) // 2] ^= 1
    rotten.write_bytes(raw)
    lake.write_file("part-04.parquet", 8000, 1000)
    with pytest.raises(AuditFailed, match="checksum"):
        lake.run()
    assert lake.snapshot().number == first.publication.number
    ran = lake.run()
    assert (ran.scored.progress.scored_rows, ran.publication.number) == (1000, 2)
    assert lake.published()["id"].tolist() == list(range(9000))


def test_a_part_that_was_removed_from_an_earlier_revision_is_scored_again(lake: Lake) -> None:
    """There is nothing to take over: that shard, and no other, is scored anew, by the first command."""
    lake.ready().run()
    next((lake.revision(1) / "data").iterdir()).unlink()
    lake.write_file("part-04.parquet", 8000, 1000)
    ran = lake.run()
    assert (ran.scored.progress.scored_rows, ran.publication.number) == (2000, 2)
    assert lake.published()["id"].tolist() == list(range(9000))


def test_the_command_mends_it_by_itself_and_says_so(lake: Lake, prefect_api: str) -> None:
    """Nobody is woken for a shard that can be scored again; the account of the night has it."""
    lake.write_model(TEARS)
    lake.ready()
    ended = command(
        "run",
        lake.job_path,
        "--date",
        "2026-11-19",
        "--json",
        "--engine",
        "local",
        env={"PREFECT_API_URL": prefect_api},
    )
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert (said["publication"], said["rows_out"], said["failed_attempts"]) == (1, 8000, 1)
    assert (lake.folder / "torn").exists()
    assert_whole(lake)
    shown = command("show", lake.job_path, "2026-11-19", env={"PREFECT_API_URL": prefect_api})
    assert "PartDamaged" in shown.stdout
