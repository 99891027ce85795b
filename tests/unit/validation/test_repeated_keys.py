"""Rows with the same key are found: of parts as they were written, without a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.metrics import keyhash
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.output import parts
from nightjar.inference.output.outcomes import OUTCOMES
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.validation import sorted_runs, unique
from nightjar.inference.validation.gates import Offender, Repeated
from nightjar.inference.validation.unique import KeyNotes, Spill, repeated, unique_checks

KEY = "checks[0].unique"


def job_of(*on: Any, **changes: Any) -> Job:
    content = {
        "name": "keys",
        "input": {"uri": "in/"},
        "model": {"uses": "mine:Model", "outputs": {"score": "float32"}},
        "carry": ["id", "name"],
        "output": {"uri": "out/"},
        "checks": [{"unique": each} for each in on],
    }
    return parse_job({**content, **changes}, Path("/jobs/job.yaml"))


@dataclass
class Night:
    """Parts of shards of 10 rows of one file, in blocks; and an engine that works here, with two ticks each time."""

    revision: str
    job: Job = field(default_factory=lambda: job_of("id"))
    storage: LakeStorage = field(default_factory=LakeStorage)
    lines: list[dict[str, Any]] = field(default_factory=list)
    spills: list[Spill] = field(default_factory=list)
    given: list[tuple[str, list[Any]]] = field(default_factory=list)
    rows_found: int = 0

    def block(self, *shards: Sequence[Any], names: Sequence[Any] | None = None, **more: Any) -> None:
        """Write the parts of some shards, by their ids, and note their keys."""
        notes = KeyNotes(self.job)
        for ids in shards:
            line = self._write(ids, names or ["same"] * len(ids), **more)
            notes.look(line, unique.read_data(self.storage, self.revision, line["data"], line["shard"]))
            self.lines.append(line)
        self.spills += notes.written(self.storage, self.revision)

    def _write(self, ids: Sequence[Any], names: Sequence[Any], **more: Any) -> dict[str, Any]:
        first, shard = len(self.lines) * 10, f"s{len(self.lines)}"
        columns = {"id": pa.array(ids, pa.int64()), "name": pa.array(names, pa.string())}
        columns |= {"_file": pa.array(["f"] * len(ids)), "_row": pa.array(range(first, first + len(ids)))}
        name = f"data/{shard}.parquet"
        written = parts.write_data(
            self.storage, self.revision, name, pa.table(columns), shard, Metrics.for_job(self.job)
        )
        piece = {"uri": "f", "size": 9, "version": "1", "first_row": first, "rows": len(ids)}
        return {"shard": shard, "pieces": [piece], "data": asdict(written), "rows_left_out": 0, **more}

    def each(self, work: Callable[[Any], Any], given: Sequence[Any], job: Job, called: str) -> Iterator[Any]:
        assert job is self.job
        self.given.append((called, list(given)))
        for one in given:
            yield from (None, None)
            result = work(one)
            self.rows_found += len(result) if isinstance(result, list) else 0
            yield result

    def repeated(self) -> dict[str, Repeated]:
        table = pa.Table.from_pylist(self.lines, schema=OUTCOMES)
        *ticks, found = repeated(self.each, self.storage, self.revision, self.job, table, self.spills)
        assert ticks == [None] * 2 * sum(len(given) for _, given in self.given), "whoever waits is told of each tick"
        assert found is not None
        return found

    def shards_read(self) -> list[list[str]]:
        """The shards that each search for rows has read."""
        return [[line["shard"] for _, lines in given for line in lines] for given in self.searches()]

    def searches(self) -> list[list[Any]]:
        """What was given each time that rows were read; before it hashes were looked at, range by range."""
        return [given for _, given in self.given if not isinstance(given[0][0], int)]


@pytest.fixture
def night(tmp_path: Path) -> Night:
    return Night(str(tmp_path / "r1"))


def hashes(*columns: Sequence[Any]) -> np.ndarray:
    found = [keyhash.comparable(pa.chunked_array([pa.array(each)])) for each in columns]
    return keyhash.hashes(found, len(columns[0]))


def twice(key: int, shard: int, row: int, other: int) -> Offender:
    return Offender(f"s{shard}", "f", row, f"id = {key}, as row {other} of f does")


def test_the_checks_on_keys_are_found_by_their_place() -> None:
    checks = [{"column": "score", "min": 0}, {"unique": "id"}, {"unique": ["name", "id"]}]
    job = job_of(checks=checks)
    assert unique_checks(job) == {"checks[1].unique": ("id",), "checks[2].unique": ("name", "id")}
    assert unique_checks(job.model_copy(update={"judged": False})) == {}


def test_a_block_is_one_file_of_sorted_hashes_for_each_check(night: Night) -> None:
    night.job = job_of("id", ["id", "name"])
    night.block([3, 1], [2, 3], names=["a", "b"])
    night.block([4])
    assert [(each.check, each.first, each.shards) for each in night.spills] == [
        ("checks[0].unique", "s0", 2),
        ("checks[1].unique", "s0", 2),
        ("checks[0].unique", "s2", 1),
        ("checks[1].unique", "s2", 1),
    ]
    ids, names = [3, 1, 2, 3], ["a", "b", "a", "b"]
    expected = [hashes(ids), hashes(ids, names), hashes([4]), hashes([4], ["same"])]
    for spill, found in zip(night.spills, expected, strict=True):
        raw = Path(night.revision, spill.name).read_bytes()
        assert np.frombuffer(raw, np.uint64).tolist() == sorted(found.tolist())
        edges = spill.edges.tolist()
        assert len(edges) == 257
        for bucket, (low, high) in enumerate(pairwise(edges)):
            assert sorted(each for each in found.tolist() if each >> 56 == bucket) == sorted(found.tolist())[low:high]
    assert len({spill.name for spill in night.spills}) == 4
    assert all(spill.name.startswith("keys/") for spill in night.spills)


def test_a_block_that_is_audited_again_writes_the_same_file(night: Night, tmp_path: Path) -> None:
    """And other parts, or other columns, are another file."""
    night.block([1, 2])
    again = Night(night.revision)
    again.block([1, 2])
    assert again.spills == night.spills
    assert len(list(Path(night.revision, "keys").iterdir())) == 1
    other = Night(night.revision, job_of("name"))
    other.block([1, 2])
    more = Night(str(tmp_path / "r2"))
    more.block([1, 2], [3])
    assert len({night.spills[0].name, other.spills[0].name, more.spills[0].name}) == 3


def test_a_block_without_a_shard_writes_nothing(night: Night) -> None:
    night.block()
    assert night.spills == []
    assert not Path(night.revision).exists()
    assert night.repeated() == {KEY: Repeated()}
    assert night.given == [("check on keys", [])]


def test_a_night_without_duplicates_reads_no_part_again(night: Night) -> None:
    night.block([1, 2, 3], [4])
    night.block([5, 6])
    assert night.repeated() == {KEY: Repeated()}
    assert night.given == [("check on keys", [(0, 256)])]
    left = sorted(path.name for path in Path(night.revision).rglob("*.*"))
    assert left == ["s0.parquet", "s1.parquet", "s2.parquet"], "the files of hashes are gone, and no others"
    assert list(Path(night.revision, "keys").iterdir()) == []


def test_rows_with_the_same_key_are_counted_and_named_wherever_they_lie(night: Night) -> None:
    """In one shard, in two shards of a block, and in two blocks."""
    night.block([1, 2, 1], [3, 4, 5, 3])
    night.block([2, 6, 7])
    found = night.repeated()[KEY]
    assert found.rows == 3
    assert set(found.where) == {twice(1, 0, 2, 0), twice(3, 1, 13, 10), twice(2, 2, 20, 1)}
    assert [called for called, _ in night.given] == ["check on keys"] * 2


def test_rows_that_are_there_often_are_all_counted_and_the_second_is_named(night: Night) -> None:
    night.block([7, 7, 7], [7, 7])
    night.block([7])
    assert night.repeated()[KEY] == Repeated(5, (twice(7, 0, 1, 0),))
    assert night.rows_found == 5, "two of a shard are enough"


def test_a_key_that_all_rows_have_costs_a_block_two_hashes(night: Night) -> None:
    """What is looked through later is as small as the blocks are few."""
    night.block([None] * 4000, [1, 2], [None] * 4000)
    night.block([None] * 4000)
    assert [len(Path(night.revision, spill.name).read_bytes()) // 8 for spill in night.spills] == [4, 2]
    found = night.repeated()[KEY]
    assert found.rows == 11_999
    assert [offender.value for offender in found.where] == ["id = null, as row 0 of f does"]
    assert night.rows_found == 6


def test_few_keys_are_named(night: Night) -> None:
    night.block(range(8), range(8))
    found = night.repeated()[KEY]
    assert found.rows == 8
    assert len(found.where) == 3
    assert len({each.value for each in found.where}) == 3
    assert len(night.searches()) == 1


def test_only_two_blocks_are_read_for_a_key(night: Night) -> None:
    """Although all have it; and of a block no shards but its own."""
    for _ in range(4):
        night.block([1], [1])
    assert night.repeated()[KEY] == Repeated(7, (twice(1, 1, 10, 0),))
    assert night.shards_read() == [["s0", "s1", "s2", "s3"]]


def test_each_check_has_its_own_rows(night: Night) -> None:
    night.job = job_of("id", ["id", "name"], "name")
    night.block([1, 1, 2], names=["a", "b", "a"])
    found = night.repeated()
    assert found == {
        "checks[0].unique": Repeated(1, (twice(1, 0, 1, 0),)),
        "checks[1].unique": Repeated(),
        "checks[2].unique": Repeated(1, (Offender("s0", "f", 2, "name = a, as row 0 of f does"),)),
    }


def test_a_key_of_several_columns_is_shown_whole_and_clipped(night: Night) -> None:
    """A null is a value, too."""
    night.job = job_of(["name", "id"])
    long = "long" * 1000
    night.block([1, None], names=[long, None])
    night.block([None, 1], names=[None, long])
    found = {each.row: each.value for each in night.repeated()[KEY].where}
    assert found[10] == "name = null, id = null, as row 1 of f does"
    assert found[11].startswith("name = longlong") and found[11].endswith("…, id = 1, as row 0 of f does")
    assert len(found[11]) < 700


def test_ranges_of_hashes_find_what_one_range_finds(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    """A range has at most so many hashes, if they are spread evenly, and none is left out."""
    monkeypatch.setattr(sorted_runs, "RANGE_ROWS", 10)
    night.block(range(100))
    night.block([*range(100, 200), 7, 150])
    found = night.repeated()[KEY]
    assert (found.rows, set(found.where)) == (2, {twice(7, 1, 110, 7), twice(150, 1, 111, 60)})
    (_, ranges), *_ = night.given
    assert ranges == [(low, min(low + 12, 256)) for low in range(0, 256, 12)]


@pytest.mark.parametrize(("rows", "ranges"), [(1, 1), (2, 2), (100, 128), (256, 256), (300, 256)])
def test_the_more_rows_the_more_ranges(night: Night, monkeypatch: pytest.MonkeyPatch, rows: int, ranges: int) -> None:
    monkeypatch.setattr(sorted_runs, "RANGE_ROWS", 1)
    night.block(range(rows))
    assert night.repeated() == {KEY: Repeated()}
    ((_, given),) = night.given
    assert len(given) == ranges
    assert [low for low, _ in given] == [0, *(high for _, high in given[:-1])]
    assert given[-1][1] == 256


def test_blocks_without_a_hash_in_a_range_add_none(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_runs, "RANGE_ROWS", 1)
    night.block([*range(20), 3])
    for other in range(20, 23):
        night.block([other])
    assert night.repeated()[KEY] == Repeated(1, (twice(3, 0, 20, 3),))


def in_bucket(columns: Sequence[pa.Array], rows: int) -> np.ndarray:
    """A hash that is no good: its first eight bits are the thousands of the key."""
    ids = columns[0].to_numpy().astype(np.uint64)
    return ids // np.uint64(1000) << np.uint64(56) | ids


def test_keys_of_a_later_range_are_named_up_to_the_limit(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the first range, and of the last one as many as may be named besides."""
    monkeypatch.setattr(sorted_runs, "RANGE_ROWS", 1)
    monkeypatch.setattr(unique, "hashes", in_bucket)
    ids = [1, 255_001, 255_002, 255_003, 255_004]
    night.block(ids, ids)
    named = (twice(1, 1, 10, 0), twice(255_001, 1, 11, 1), twice(255_002, 1, 12, 2))
    assert night.repeated()[KEY] == Repeated(5, named)


def test_a_hash_of_the_last_bucket_is_looked_at(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unique, "hashes", in_bucket)
    night.block([255_001], [255_001])
    assert night.repeated()[KEY] == Repeated(1, (twice(255_001, 1, 10, 0),))


def test_rows_of_a_few_keys_of_all_ranges_are_read_together(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are counted, but no more rows are read."""
    monkeypatch.setattr(sorted_runs, "RANGE_ROWS", 1)
    night.block(range(40), range(40))
    found = night.repeated()[KEY]
    assert (found.rows, len(found.where)) == (40, 3)
    assert len(night.given[0][1]) == 86
    assert len(night.searches()) == 1


def of_id(divisor: int) -> Callable[..., Any]:
    """A hash that is no good: that of a key is its number, divided."""
    return lambda columns, rows: columns[0].to_numpy().astype(np.uint64) // np.uint64(divisor)


def test_different_keys_with_one_hash_are_not_the_same(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is counted by hashes is not said then."""
    monkeypatch.setattr(unique, "hashes", of_id(2))
    night.block([0, 2], [4])
    night.block([1, 6])
    night.block([8])
    assert night.repeated()[KEY] == Repeated(0, ())
    assert night.shards_read() == [["s0", "s1", "s2"]]


def test_no_more_hashes_are_looked_for_once_enough_keys_are_found(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unique, "_CANDIDATES", 3)
    night.block(range(9), range(9))
    found = night.repeated()[KEY]
    assert (found.rows, len(found.where), len(night.searches())) == (9, 3, 1)
