"""The blocks of a pass on Ray."""

from __future__ import annotations

from itertools import chain

import pyarrow as pa

from nightjar.inference.engine.ray.passes import _largest_first
from nightjar.inference.records import UNKNOWN


def blocks_of(rows: list[int], most: int) -> list[list[int]]:
    return [block["rows"].to_pylist() for block in _largest_first(pa.table({"rows": pa.array(rows, pa.int64())}), most)]


def test_the_largest_shards_are_begun_first_each_by_another_worker() -> None:
    blocks = blocks_of([1] * 1000 + [600] * 8, 64)
    assert blocks[:8] == [[600]] * 8
    assert [*chain.from_iterable(blocks[8:])] == [1] * 1000
    assert len(blocks) <= 64
    assert max(map(len, blocks)) < 100


def test_shards_that_are_about_as_large_stay_in_the_order_of_their_files() -> None:
    assert blocks_of([5, 4, 6, 7], 2) == [[5, 4], [6, 7]]
    assert blocks_of([3] * 4, 64) == [[3]] * 4
    assert blocks_of([1030, 1100, 3000, 1040, 2500], 5) == [[3000], [2500], [1030], [1100, 1040]]


def test_a_shard_whose_rows_nobody_knows_may_be_a_large_one() -> None:
    assert [*chain.from_iterable(blocks_of([1, UNKNOWN, 64, 1], 4))] == [UNKNOWN, 64, 1, 1]
    assert blocks_of([UNKNOWN] * 3, 4) == [[UNKNOWN]] * 3
