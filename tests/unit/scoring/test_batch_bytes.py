"""Micro-batches in bytes: where they end, what lack of memory makes of them, and that a run shows and keeps them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar.inference.errors import JobError
from nightjar.inference.job.file import load_job
from nightjar.inference.output.outcomes import read
from nightjar.inference.records import Backoffs, Receipt, RowFailure
from nightjar.inference.run.request import identity_of
from nightjar.inference.scoring.assignment import Assignment, batch_size
from nightjar.inference.scoring.batchsize import BatchSize, row_sizes
from nightjar.inference.scoring.microbatches import ScoredRows, drained, micro_batches, score_table
from nightjar.inference.scoring.prepared_batches import unpacked
from nightjar.inference.scoring.staged import AcceptingWorker, PreparingWorker
from nightjar.inference.tensors import VariableShapedTensor
from nightjar.inference.validation.manifest import read_manifest
from support import Lake

TYPES = {"score": pa.int64()}

# ---- what a row weighs --------------------------------------------------------------------------------------------

LISTS = [[1, 2], [], None, [3]]
STRUCTS = [{"a": 1, "b": "xy"}, {"a": None, "b": "x"}, None, {"a": 1, "b": None}]
SHAPED = VariableShapedTensor(pa.uint8())


@pytest.mark.parametrize(
    ("column", "sizes"),
    [
        (pa.array([1.0, None], pa.float32()), [4, 4]),
        (pa.array([True, False]), [1, 1]),
        (pa.array(["é", "", None, "abc"]), [2, 0, 0, 3]),
        (pa.array([b"abc", None], pa.large_binary()), [3, 0]),
        (pa.array(["é", None, "a" * 40]).cast(pa.string_view()), [2, 0, 40]),
        (pa.array([b"abc", b"abd"], pa.binary(3)), [3, 3]),
        (pa.array(LISTS, pa.list_(pa.int32())), [8, 0, 0, 4]),
        (pa.array(LISTS, pa.list_view(pa.int32())), [8, 0, 0, 4]),
        (pa.array([["a", "bc"], ["d"]], pa.large_list(pa.string())), [3, 1]),
        (pa.array([[[1, 2], [3]], [[]]], pa.list_(pa.list_(pa.int16()))), [6, 0]),
        (pa.array([[1, 2], None], pa.list_(pa.float64(), 2)), [16, 0]),
        (pa.array([["a", "bc"], None, ["d", "efg"]], pa.list_(pa.string(), 2)), [3, 0, 4]),
        (pa.array([[["a", "bc"], ["d"]], None], pa.list_(pa.list_(pa.string()), 2)), [4, 0]),
        (pa.array(STRUCTS), [10, 9, 0, 8]),
        (pa.array([{"a": 1, "b": 2}, None], pa.struct([("a", pa.int32()), ("b", pa.int8())])), [5, 0]),
        (pa.array([["a"], ["bc", "d"], None, ["efg"], ["h"]], pa.list_(pa.string())), [1, 3, 0, 3, 1]),
        (pa.array([[("k", 1)], [], [("ab", 2), ("c", 3)], None], pa.map_(pa.string(), pa.int32())), [5, 0, 11, 0]),
        (pa.array([[(1, True)], None], pa.map_(pa.int16(), pa.bool_())), [3, 0]),
        (pa.array(["abc", "d", None, "abc"]).dictionary_encode(), [3, 1, 0, 3]),
        (pa.nulls(2), [0, 0]),
        (pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["abc", "d"])]), [8, 8]),
        (pa.RunEndEncodedArray.from_arrays([2, 3], ["abc", None]), [8, 8, 8]),
        (pa.array([None, 1], pa.decimal128(5)), [16, 16]),
        (
            pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((2, 3, 5), np.uint8)),
            [15, 15],
        ),
        (
            pa.ExtensionArray.from_storage(
                SHAPED, pa.array([{"data": [1, 2, 3], "shape": [1, 3]}, None], SHAPED.storage_type)
            ),
            [19, 0],
        ),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_a_row_weighs_what_its_values_take(column: Any, sizes: list[int]) -> None:
    """However the column lies in memory: whole, as a slice, or in chunks."""
    wanted = [max(1, size) for size in sizes]
    assert row_sizes(pa.table({"x": column})).tolist() == wanted
    assert row_sizes(pa.table({"x": column.slice(1)})).tolist() == wanted[1:]
    chunked = pa.chunked_array([column.slice(1), column.slice(0, 1), column.slice(0, 0)])
    assert row_sizes(pa.table({"x": chunked})).tolist() == [*wanted[1:], wanted[0]]
    singly = pa.chunked_array([column.slice(row, 1) for row in range(len(column))])
    assert row_sizes(pa.table({"x": singly})).tolist() == wanted
    beside = row_sizes(pa.table({"x": column, "flag": pa.array([True] * len(column))}))
    assert beside.tolist() == [1 + size for size in sizes]
    assert beside.dtype == row_sizes(pa.table({"x": column.slice(0, 0)})).dtype == np.int64


def test_the_columns_of_a_row_are_added_up() -> None:
    table = pa.table({"x": pa.array([1, 2], pa.int16()), "text": ["ab", "abcd"]})
    assert row_sizes(table).tolist() == [4, 6]
    assert row_sizes(pa.table({"x": pa.array([], pa.int16())})).tolist() == []


# ---- where a micro-batch ends -------------------------------------------------------------------------------------


def texts(sizes: list[int]) -> pa.Table:
    """Rows whose texts take so many bytes; the model gives back these numbers."""
    return pa.table({"x": pa.array(["a" * size for size in sizes], pa.string())})


class Lengths:
    """A real scorer: the length of each text. It remembers its batches, and raises where it is told to."""

    def __init__(self, raises: Callable[[list[int]], BaseException | None] = lambda _: None) -> None:
        self.raises = raises
        self.batches: list[list[int]] = []

    def __call__(self, batch: pa.Table) -> dict[str, pa.Array]:
        seen = [len(text) for text in batch["x"].to_pylist()]
        self.batches.append(seen)
        if error := self.raises(seen):
            raise error
        return {"score": pa.array(seen, pa.int64())}


def scored(table: pa.Table, scorer: Lengths, size: BatchSize, **options: Any) -> ScoredRows:
    return drained(score_table(table, scorer, size, TYPES, **options))


def test_a_micro_batch_ends_before_the_row_that_would_be_too_much() -> None:
    scorer = Lengths()
    assert scored(texts([3, 3, 4, 1, 50, 2, 8, 10, 1]), scorer, BatchSize(10, "bytes")).kept is None
    assert scorer.batches == [[3, 3, 4], [1], [50], [2, 8], [10], [1]], "a larger row is a micro-batch by itself"


@given(sizes=st.lists(st.integers(1, 40), max_size=60), most=st.integers(1, 90), data=st.data())
def test_micro_batches_depend_on_the_rows_alone(sizes: list[int], most: int, data: st.DataObject) -> None:
    """Not on how the table was cut, and the CPU stage makes the same ones. Each holds as many rows as it may."""
    table, plain = texts(sizes), Lengths()
    assert scored(table, plain, BatchSize(most, "bytes")).outputs["score"].to_pylist() == sizes
    assert [size for batch in plain.batches for size in batch] == sizes
    assert all(len(batch) == 1 or sum(batch) <= most for batch in plain.batches)
    assert all(sum(batch) + following[0] > most for batch, following in itertools.pairwise(plain.batches))
    at = data.draw(st.integers(0, len(sizes)))
    cut, chunked = pa.concat_tables([table.slice(0, at), table.slice(at)]), Lengths()
    scored(cut, chunked, BatchSize(most, "bytes"))
    assert chunked.batches == plain.batches
    staged = [piece.table["x"].to_pylist() for piece in micro_batches(table, BatchSize(most, "bytes"), [])]
    assert [[len(text) for text in batch] for batch in staged] == plain.batches


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=60),
    most=st.integers(1, 400),
    capacity=st.integers(40, 120),
    data=st.data(),
)
def test_every_row_ends_once_whatever_memory_skips_and_singles_do(
    sizes: list[int], most: int, capacity: int, data: st.DataObject
) -> None:
    count = len(sizes)
    skipped = data.draw(st.sets(st.integers(0, count - 1)))
    first = data.draw(st.integers(0, count))
    singly = range(first, data.draw(st.integers(first, count)))
    scorer = Lengths(lambda seen: MemoryError() if sum(seen) > capacity else None)
    skip = {row: RowFailure(row, "Died", "killed its process", "") for row in skipped}
    size = BatchSize(most, "bytes")
    found = scored(texts(sizes), scorer, size, skip=skip, singly=singly)
    kept = [row for row in range(count) if row not in skipped]
    assert found.outputs["score"].to_pylist() == [sizes[row] for row in kept]
    assert {failure.row for failure in found.failures} == skipped
    assert size.forced == 0 or (size.forced == size.most < most)


def test_out_of_memory_halves_the_bytes_and_is_remembered() -> None:
    """The rows are cut where half of the bytes are, not where half of the rows are."""
    scorer = Lengths(lambda seen: MemoryError("no room") if sum(seen) > 12 else None)
    size = BatchSize(30, "bytes")
    table = texts([1, 1, 1, 1, 1, 1, 12, 12])
    assert scored(table, scorer, size).failures == ()
    assert scorer.batches == [[*[1] * 6, 12, 12], [1] * 6, [12], [12]]
    assert (size.most, size.forced) == (15, 15)
    scorer.batches.clear()
    scored(table, scorer, size)
    assert scorer.batches == [[1] * 6, [12], [12]]


def test_what_memory_allows_is_counted_off_from_the_tables_first_row_again() -> None:
    """So that the next attempt, which begins with the smaller size, makes the same micro-batches."""
    scorer = Lengths(lambda seen: MemoryError() if sum(seen) > 20 else None)
    size, table = BatchSize(40, "bytes"), texts([8] * 8)
    scored(table, scorer, size)
    assert size.most == 20
    assert scorer.batches == [[8] * 5, [8, 8], [8, 8], [8], [8], [8, 8]]
    scorer.batches.clear()
    scored(table, scorer, size)
    assert scorer.batches == [[8, 8]] * 4


def test_one_row_too_large_for_memory_is_quarantined_and_the_others_keep_their_batches() -> None:
    scorer = Lengths(lambda seen: MemoryError() if 20 in seen else None)
    size = BatchSize(30, "bytes")
    found = scored(texts([5, 20, 5, 10, 10, 10]), scorer, size)
    assert [(failure.row, failure.error) for failure in found.failures] == [(1, "MemoryError")]
    assert (size.most, size.forced) == (30, 0)
    assert scorer.batches[-1] == [10, 10, 10]


def test_a_micro_batch_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one row, not 0 bytes"):
        BatchSize(0, "bytes")


# ---- the job ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["auto", 256])
def test_rows_and_bytes_together_are_refused(lake: Lake, size: object) -> None:
    lake.ready(model__batch_size=size, model__batch_bytes=1000)
    with pytest.raises(JobError, match="model: batch_size and batch_bytes both say how large a micro-batch is"):
        load_job(lake.job_path)


@pytest.mark.parametrize("given", ["64 MiB", 0, 1.5, True])
def test_what_is_no_number_of_bytes_is_refused(lake: Lake, given: object) -> None:
    lake.ready(model__batch_size=None, model__batch_bytes=given)
    with pytest.raises(JobError, match=r"model\.batch_bytes: must be a number of bytes, 1 or more, as 67108864 for 64"):
        load_job(lake.job_path)


def test_it_is_part_of_the_identity(lake: Lake) -> None:
    def fingerprint(**changes: Any) -> str:
        request = lake.ready(model__batch_size=None, **changes).request()
        return identity_of(request, lake.worker_spec().schema).fingerprint

    found = [fingerprint(), fingerprint(model__batch_bytes=1000), fingerprint(model__batch_bytes=1001)]
    assert len(set(found)) == 3


def test_a_number_of_bytes_is_taken_as_it_is(lake: Lake) -> None:
    """Ceilings are of `batch_size: auto` alone: a fixed size stays exactly fixed."""
    spec = lake.ready(model__batch_size=None, model__batch_bytes=77).worker_spec()
    for each in (spec, replace(spec, ceilings=(5,))):
        assert (batch_size(each).most, batch_size(each).unit, batch_size(each).forced) == (77, "bytes", 0)


# ---- a night ------------------------------------------------------------------------------------------------------

MODEL = '''
import os

def score(batch):
    """The length of each text, where memory suffices for 3000 bytes of them."""
    sizes = [len(text) for text in batch["name"]]
    with open(os.path.join(__LIVE__, "calls"), "a") as calls:
        calls.write(f"{sum(sizes)} ")
    if sum(sizes) > MOST:
        raise MemoryError
    return {"score": sizes}

def prep(batch):
    return batch
'''


def night(lake: Lake, most: int, fits: int = 10**9, **changes: Any) -> Lake:
    """Two files of 300 rows, with texts of 1 to 100 bytes, one of 900 and none."""
    for name in ("a", "b"):
        texts = ["x" * (1 + row * 37 % 100) for row in range(300)]
        texts[150], texts[151] = "x" * 900, ""
        path = lake.folder / "data" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": pa.array(range(300)), "name": texts}), path)
    lake.write_model(MODEL.replace("MOST", str(fits)))
    model = {"model__features": ["name"], "model__batch_size": None, "model__batch_bytes": most}
    lake.write_job(**model, carry=["id"], **changes)
    lake.engine = "local"
    return lake


def calls(lake: Lake) -> list[int]:
    path = Path(lake.folder / "calls")
    found = [int(size) for size in path.read_text().split()]
    path.unlink()
    return found


def test_a_night_keeps_to_it_and_publishes_the_same_rows(lake: Lake) -> None:
    ran = night(lake, 800).run()
    assert ran.scored.progress.counts.rows_out == 600
    sizes = calls(lake)
    assert [size for size in sizes if size > 800] == [900, 900], "the two rows that are larger by themselves"
    assert len([size for size in sizes if size > 700]) > 10
    frame = lake.published()
    assert (frame["score"] == [float(size) for size in lengths()] * 2).all()
    assert not any("memory" in note for note in ran.scored.warnings)


def lengths() -> list[int]:
    sizes = [1 + row * 37 % 100 for row in range(300)]
    sizes[150], sizes[151] = 900, 0
    return sizes


def test_what_memory_forces_is_shown_and_the_next_night_begins_with_the_jobs_size(lake: Lake) -> None:
    night(lake, 6000, fits=3000)
    ran = lake.run(date="2026-11-18")
    assert ran.scored.progress.counts.rows_out == 600
    assert any("micro-batches of more than 3,000 bytes" in note for note in ran.scored.warnings)
    assert max(calls(lake)) > 5800
    request = lake.request(date="2026-11-18")
    published = lake.snapshot().runs["2026-11-18"]
    totals = read_manifest(request.storage, request.output, published).totals
    assert totals.backoffs == Backoffs(bytes=3000)
    receipts = [line for line in lake.records(run_id="2026-11-18") if line["t"] == "receipt"]
    assert all(line["backoffs"]["bytes"] == 3000 for line in receipts)
    (shards,) = lake.revision(run_id="2026-11-18").glob("shards-*.parquet")
    assert all(each["bytes"] == 3000 for each in read(shards.read_bytes())["backoffs"].to_pylist())
    lake.run(date="2026-11-19")
    assert max(calls(lake)) > 5800


def test_a_shard_of_the_cpu_stage_is_cut_as_one_of_an_actor(lake: Lake) -> None:
    """The batches that come prepared are those that the actor would make, so none is prepared twice."""
    spec = night(lake, 800, preprocess={"uses": "model:prep", "placement": "staged"}).worker_spec()
    stage, actor = PreparingWorker(spec), AcceptingWorker(spec)
    receipts = []
    for _ in stage.process([Assignment(shard) for shard in lake.planned().shards()]):
        if stage.handed:
            assignment, packed = stage.handed
            parcel = unpacked(packed[0])
            (batches,) = parcel.batches.values()
            wanted = [len(piece.rows) for piece in micro_batches(rows_of(parcel.reads), BatchSize(800, "bytes"), [])]
            assert [len(batch.rows) for batch in batches] == wanted
            events = actor.accept(assignment, packed[0])
            receipts += [event for event in events if isinstance(event, Receipt)]
    assert sum(receipt.rows_out for receipt in receipts) == 600
    assert sorted(calls(lake))[-3] <= 800, "but for the two rows that are larger by themselves"


def rows_of(reads: Any) -> pa.Table:
    return pa.concat_tables([each.table for each in reads]).select(["name"])


def test_each_of_several_models_has_its_own(lake: Lake) -> None:
    """One in bytes, which memory halves, and one in rows, which it does not: each says its own."""
    small = {"uses": "model:score", "features": ["name"], "outputs": {"score": "int64"}}
    models = [{**small, "name": "bytes", "batch_bytes": 6000}, {**small, "name": "rows", "batch_size": 10}]
    night(lake, 1, fits=3000)
    lake.write_job(model=None, models=models, carry=["id"])
    ran = lake.run()
    frame = lake.published()
    assert frame["bytes_score"].tolist() == frame["rows_score"].tolist() == lengths() * 2
    backoffs = ran.scored.progress.backoffs
    assert 2900 <= backoffs.bytes <= 3000
    assert (backoffs.rows, backoffs.tokens) == (0, 0)
