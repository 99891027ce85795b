"""Parts that are damaged where they lie: found by the audit, never published, and scored again."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from faults import FaultyStorage, fail, tear
from nightjar.inference.errors import AuditFailed, Denied, NightjarError
from nightjar.inference.storage.lake import LakeStorage
from support import Lake


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


def test_a_revision_whose_source_was_removed_scores_what_it_took_over(lake: Lake) -> None:
    """Somebody deleted the published revision while the next one was not published yet."""
    lake.ready().run()
    lake.write_file("part-04.parquet", 8000, 1000)
    away = FaultyStorage(LakeStorage(), [fail("write", "*/data/*", nth=None, error=Denied("away"))])
    with pytest.raises(NightjarError):
        lake.run(storage=away)
    shutil.rmtree(lake.revision(1))
    ran = lake.run()
    assert ran.scored.revision == 2
    assert lake.published()["id"].tolist() == list(range(9000))
