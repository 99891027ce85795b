"""Labels find their rows by the values of the key, whatever types hold them, in bounded memory."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from nightjar.inference.errors import JobError, StorageError
from nightjar.inference.history import joins
from nightjar.inference.history.joinkeys import check_kinds, keys_of, shown
from nightjar.inference.history.joins import Join
from nightjar.inference.validation.evaluations import LabelsJoined
from support import full_disk

DAY, NOON = dt.date(2026, 11, 19), dt.datetime(2026, 11, 19, 12)
BERLIN = pa.timestamp("s", "Europe/Berlin")

ALIKE: dict[str, list[tuple[Any, pa.DataType]]] = {
    "whole numbers": [
        *((7, kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64())),
        (Decimal(7), pa.decimal128(9, 0)),
        ("7", pa.string()),
        ("7", pa.large_string()),
        ("7", pa.string_view()),
        ("7", pa.dictionary(pa.int32(), pa.string())),
    ],
    "large numbers": [
        (2**64 - 1, pa.uint64()),
        (Decimal(2**64 - 1), pa.decimal128(38, 0)),
        (str(2**64 - 1), pa.string()),
    ],
    "dates": [(DAY, pa.date32()), (DAY, pa.date64())],
    "times": [(NOON, pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")],
    "times in UTC": [(NOON, BERLIN), (NOON, pa.timestamp("us", "UTC"))],
    "bytes": [
        (b"\0a", pa.binary()),
        (b"\0a", pa.large_binary()),
        (b"\0a", pa.binary_view()),
        (b"\0a", pa.binary(2)),
    ],
    "UUIDs": [(UUID(int=7).bytes, pa.uuid()), (UUID(int=7).bytes, pa.binary(16)), (UUID(int=7).bytes, pa.binary())],
}


def column(values: Sequence[Any], kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_dictionary(kind):
        return pa.chunked_array([pa.array(values, kind.value_type).dictionary_encode()])
    return pa.chunked_array([pa.array(values, kind)])


@pytest.mark.parametrize("values", ALIKE)
def test_one_value_is_one_key_in_all_types_that_hold_it(values: str) -> None:
    found = {bytes(keys_of([column([value, None], kind)])[0].as_py()) for value, kind in ALIKE[values]}
    assert len(found) == 1
    schemas = [pa.schema([("id", kind)]) for _, kind in ALIKE[values]]
    for other in schemas:
        check_kinds(["id"], schemas[0], other)


@pytest.mark.parametrize(
    ("mine", "theirs", "said"),
    [
        (
            pa.float64(),
            pa.int64(),
            "'id' is float64 in the published rows, which is no key, because floats are not exact",
        ),
        (pa.int64(), pa.list_(pa.int64()), r"'id' is list<int64> in the labels, which is no key; whole numbers, text"),
        (pa.decimal128(9, 2), pa.int64(), "which is no key"),
        (
            pa.date32(),
            pa.string(),
            "'id' is date32 in the published rows and string in the labels; these are never equal",
        ),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), "never equal"),
        (pa.bool_(), pa.int8(), "never equal"),
        (pa.binary(), pa.string(), "never equal"),
    ],
)
def test_types_that_do_not_join_are_refused(mine: pa.DataType, theirs: pa.DataType, said: str) -> None:
    with pytest.raises(JobError, match=said):
        check_kinds(["id"], pa.schema([("id", mine)]), pa.schema([("id", theirs)]))


def test_a_time_finer_than_a_microsecond_is_refused() -> None:
    with pytest.raises(JobError, match="finer than a microsecond"):
        keys_of([column([1], pa.timestamp("ns"))])


def test_a_key_of_several_columns_keeps_them_apart() -> None:
    keys = keys_of([pa.chunked_array([["a", "ab", "a 1", None]]), pa.chunked_array([["bc", "c", "", "x"]])])
    assert len({key.as_py() for key in keys}) == 4
    assert keys.null_count == 1
    assert [shown(key.as_py(), ["x", "y"]) for key in keys.drop_null()] == [
        "x = a, y = bc",
        "x = ab, y = c",
        "x = a 1, y = ",
    ]
    assert shown(keys_of([pa.chunked_array([["a b"]])])[0].as_py(), ["x"]) == "x = a b"


def night(ids: Sequence[Any], block: int = 1000) -> list[pa.Table]:
    table = pa.table({"id": pa.array(ids), "score": pa.array(range(len(ids)), pa.float32())})
    return [table.slice(at, block) for at in range(0, len(ids), block)]


def joined(
    folder: Path, rows: Iterable[pa.Table], *labels: dict[str, Any], key: Sequence[str] = ("id",)
) -> tuple[dict[float, Any], Join]:
    """Score → label of each row; each of the labels is a file of its own."""
    rows = list(rows)
    match = Join(folder, key, sum(each.num_rows for each in rows))
    said = [(f"file-{index}", pa.table(each)) for index, each in enumerate(labels)]
    found: dict[float, Any] = {}
    for table, labels_ in match.joined(rows, ["score"], said, "late"):
        assert table.column_names == ["score"]
        found |= zip(table["score"].to_pylist(), labels_.to_pylist(), strict=True)
    return found, match


def test_each_row_gets_the_label_of_its_key_and_everything_is_counted(tmp_path: Path) -> None:
    found, match = joined(
        tmp_path,
        night([1, 2, 3, 3, None]),
        {"id": ["2", "3", "9", None], "late": [1, 0, 1, 1]},
        {"id": ["2", "3", "1"], "late": [1, 0, None]},
    )
    assert found == {0: None, 1: 1, 2: 0, 3: 0, 4: None}
    assert match.counts == LabelsJoined(
        rows=5, labelled=3, keyless=1, repeated_rows=1, labels=7, null_labels=1, unmatched_labels=2, repeated_labels=2
    )
    assert match.some_key == ["id = 1", "id = 2"]


def test_a_nan_is_no_label(tmp_path: Path) -> None:
    found, match = joined(tmp_path, night([1, 2]), {"id": [1, 1, 2], "late": [float("nan"), 0.5, float("nan")]})
    assert (found, match.counts.null_labels, match.counts.repeated_labels) == ({0: 0.5, 1: None}, 2, 0)


@pytest.mark.parametrize("labels", [0, 3])
def test_without_a_label_or_a_key_no_row_has_one(tmp_path: Path, labels: int) -> None:
    ids = pa.array([None] * 3, pa.int64())
    found, match = joined(tmp_path, night(ids), {"id": pa.array(range(labels)), "late": pa.array([1] * labels)})
    assert found == {0: None, 1: None, 2: None}
    assert (match.counts.keyless, match.counts.unmatched_labels, match.counts.labelled) == (3, labels, 0)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([{"id": [1, 5, 1], "late": [0, 1, 1]}], "id = 1 has the label 0 and the label 1, both in file-0; leave one"),
        (
            [{"id": [4, 5], "late": [True, True]}, {"id": [4], "late": [False]}],
            "id = 4 has the label True and the label False, in file-0 and file-1",
        ),
    ],
)
def test_labels_that_contradict_each_other_are_refused(tmp_path: Path, labels: list[Any], said: str) -> None:
    with pytest.raises(JobError, match=f"labels: {said}"):
        joined(tmp_path, night(range(10)), *labels)


def test_labels_of_other_nights_may_contradict_each_other(tmp_path: Path) -> None:
    found, match = joined(tmp_path, night([1]), {"id": [1, 7, 7], "late": [1, 0, 1]})
    assert (found, match.counts.unmatched_labels) == ({0: 1}, 2)


@pytest.mark.parametrize("seed", range(3))
def test_many_divisions_find_what_pandas_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Rows and labels at random, some of them twice, in blocks and divisions of odd sizes."""
    random = np.random.default_rng(seed)
    monkeypatch.setattr(joins, "BLOCK_ROWS", int(random.integers(10, 400)))
    ids = random.integers(0, 4000, 3000)
    said = random.integers(0, 6000, 2500)
    files = [
        {"id": pa.array(said[at : at + 700], pa.int32()), "late": pa.array(said[at : at + 700] % 3 == 0)}
        for at in range(0, len(said), 700)
    ]
    found, match = joined(tmp_path, night(ids, 177), *files)
    labels = pd.Series(said % 3 == 0, index=said).groupby(level=0).first()
    assert found == {at: labels.get(each) for at, each in enumerate(ids.tolist())}
    assert match.counts.repeated_rows == len(ids) - len(set(ids))
    assert match.counts.unmatched_labels == sum(each not in set(ids) for each in said)
    matched = [each for each in said if each in set(ids)]
    assert match.counts.repeated_labels == len(matched) - len(set(matched))


def test_a_disk_that_takes_no_more_is_named(tmp_path: Path) -> None:
    said = rf"{tmp_path}/rows: .*; the environment variable TMPDIR names another"
    with full_disk(4096), pytest.raises(StorageError, match=said):
        joined(tmp_path, night(range(10_000)), {"id": [1], "late": [1]})


def test_a_full_disk_is_no_reason_to_choose_another_output(tmp_path: Path) -> None:
    """Its advice is about temporary files."""

    def rows() -> Iterator[pa.Table]:
        (tmp_path / "rows/0").symlink_to("/dev/full")
        yield pa.table({"": pa.array([b"1"], pa.large_binary())})

    with pytest.raises(StorageError) as refused:
        joins.divide(rows(), tmp_path / "rows", 1)
    said = rf"{tmp_path}/rows: .*No space left on device; the environment variable TMPDIR names another place for it"
    assert re.fullmatch(said, str(refused.value))


def test_no_more_than_a_block_of_labels_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A night of few rows, and labels of a year: what is looked up at a time is about as large as a block."""
    monkeypatch.setattr(joins, "BLOCK_ROWS", 100)
    seen: list[int] = []
    real_blocks, real_first = joins.blocks, Join._first_of_each_key

    def noting(folder: Path, division: int) -> Iterator[pa.Table]:
        for block in real_blocks(folder, division):
            seen.append(block.num_rows)
            yield block

    monkeypatch.setattr(joins, "blocks", noting)
    monkeypatch.setattr(
        Join,
        "_first_of_each_key",
        lambda self, labels, names: (seen.append(len(labels)), real_first(self, labels, names))[1],
    )
    found, _ = joined(tmp_path, night(range(50)), *({"id": range(at, at + 60), "late": [1] * 60} for at in range(100)))
    assert max(seen) < 200
    assert len(seen) > 20
    assert set(found.values()) == {1}
