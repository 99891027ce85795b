"""The rows of two runs find each other by their keys, exactly, at any size, in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar.inference.history import joins
from nightjar.inference.history.joinkeys import values_of
from nightjar.inference.history.joins import Pairing

Key = tuple[int | None, str]
KEY = st.tuples(st.one_of(st.none(), st.integers(0, 12)), st.sampled_from("abc"))
KEYS = st.builds(list.__add__, st.lists(KEY, max_size=40, unique=True), st.lists(KEY, max_size=6))
"""Keys in any order, few of them twice."""


def table(keys: list[Key]) -> pa.Table:
    numbers, letters = pa.array([key[0] for key in keys], pa.int32()), pa.array([key[1] for key in keys], pa.string())
    return pa.table({"id": numbers, "part": letters, "score": pa.array(range(len(keys)), pa.float64())})


def in_blocks(rows: pa.Table, block: int) -> list[pa.Table]:
    return [rows.slice(at, block) for at in range(0, rows.num_rows, block)]


def paired(before: list[Key], now: list[Key], block: int) -> tuple[list[Any], Pairing]:
    with TemporaryDirectory() as folder:
        made = Pairing(Path(folder), ["id", "part"], max(len(before), len(now)), 0)
        found = []
        for pairs in made.pairs(in_blocks(table(before), block), in_blocks(table(now), block), ["score"]):
            keys = [tuple(values_of(key, 2)) for key in pairs.keys.to_pylist()]
            scores = (side["score"].to_pylist() for side in (pairs.before, pairs.now))
            found += list(zip(keys, *scores, strict=True))
    return found, made


@settings(deadline=None, max_examples=25)
@given(before=KEYS, now=KEYS, block=st.integers(1, 70))
def test_rows_are_joined_as_pandas_joins_them_whatever_the_blocks(
    before: list[Key], now: list[Key], block: int
) -> None:
    """Without the keys that are there twice, or null; and every row is accounted for."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(joins, "BLOCK_ROWS", block)
        found, made = paired(before, now, block)
    frames = [table(keys).to_pandas().dropna(subset="id") for keys in (before, now)]
    once = [each.drop_duplicates(["id", "part"], keep=False) for each in frames]
    twice = [each[each.duplicated(["id", "part"], keep=False)] for each in frames]
    said = {key for each in twice for key in zip(each["id"], each["part"], strict=True)}
    merged = pd.merge(*once, on=["id", "part"])
    wanted = [
        ((str(int(number)), letter), *scores)
        for number, letter, *scores in merged.itertuples(index=False)
        if (number, letter) not in said
    ]
    assert sorted(found) == sorted(wanted)
    for side, keys, others in ((made.before, before, now), (made.now, now, before)):
        here, there = Counter(keys), Counter(others)
        known = [key for key in keys if key[0] is not None]
        assert side.rows == len(keys) == len(found) + side.keyless + side.repeated + side.only
        assert side.repeated == sum(here[key] > 1 or there[key] > 1 for key in known)
        assert side.only == sum(here[key] == 1 and not there[key] for key in known)


@pytest.mark.parametrize("bound", ["BLOCK_ROWS", "BLOCK_BYTES"])
def test_no_more_than_a_division_is_in_memory(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows or wide ones; and a key that half of all rows have, which no division makes less, is read in blocks."""
    limit = {"BLOCK_ROWS": 100, "BLOCK_BYTES": 2400}[bound]
    monkeypatch.setattr(joins, bound, limit)
    seen: list[int] = []
    real = joins.blocks

    def noting(folder: Path, division: int) -> Iterator[pa.Table]:
        for block in real(folder, division):
            seen.append(block.num_rows)
            yield block

    monkeypatch.setattr(joins, "blocks", noting)
    same = [(7, "a")] * 1200
    keys = [(at, "b") for at in range(1200)]
    rows = table([*keys, *same])
    with TemporaryDirectory() as folder:
        made = Pairing(Path(folder), ["id", "part"], rows.num_rows, rows.nbytes)
        found = [len(pairs.keys) for pairs in made.pairs(in_blocks(rows, 50), in_blocks(rows, 50), ["score"])]
    assert (sum(found), made.now.repeated, made.now.only) == (1200, 1200, 0)
    assert max(found) < 250
    assert max(seen) < 250
