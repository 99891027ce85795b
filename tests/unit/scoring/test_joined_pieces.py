"""Small files share micro-batches, and what comes of each row is that row's, in its own file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from nightjar.inference.engine import LOCAL
from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.records import UNKNOWN, Piece, RowFailure
from nightjar.inference.scoring.assignment import BatchSize
from nightjar.inference.scoring.attempts import JoinedPieces
from nightjar.inference.scoring.microbatches import drained
from nightjar.inference.scoring.scored_rows import ScoredRows
from predicting import score_table
from support import Lake

TYPES = {"score": pa.int64()}


def read(first: int, rows: int, unread: set[int]) -> tuple[Piece, RowsRead]:
    """A file whose rows have the numbers from `first` on; these rows of it cannot be read."""
    values = [None if row in unread else first + row for row in range(rows)]
    failures = {row: RowFailure(row, "InputCorrupt", f"row {first + row}", "") for row in unread if row < rows}
    return Piece(f"f{first}", 1, "v", 100, rows, (0, 1)), RowsRead(
        pa.table({"x": pa.array(values, pa.int64())}), failures
    )


def score(table: pa.Table) -> dict[str, pa.Array]:
    if any(x % 7 == 3 for x in table["x"].to_pylist()):
        raise ValueError("x % 7 is 3")
    return {"score": pa.array(np.asarray(table["x"]) * 2)}


@given(
    files=st.lists(st.tuples(st.integers(0, 9), st.sets(st.integers(0, 9), max_size=3)), min_size=1, max_size=6),
    size=st.integers(1, 20),
)
def test_each_row_ends_in_its_own_file(files: list[tuple[int, set[int]]], size: int) -> None:
    found = [read(100 * index, rows, unread) for index, (rows, unread) in enumerate(files)]
    joined = JoinedPieces([piece for piece, _ in found], [each for _, each in found])
    scored: ScoredRows = drained(score_table(joined.table, score, BatchSize(size), TYPES, skip=joined.failures))
    kept = list(range(joined.table.num_rows)) if scored.kept is None else scored.kept.tolist()
    outputs = dict(zip(map(joined.place, kept), scored.outputs["score"].to_pylist(), strict=True))
    failures = {joined.place(failure.row): failure.error for failure in scored.failures}
    for piece, each in found:
        for row, x in enumerate(each.table["x"].to_pylist()):
            place = piece.uri, piece.first_row + row, 1
            if x is None or x % 7 == 3:
                assert failures.pop(place) == ("InputCorrupt" if x is None else "ValueError")
            else:
                assert outputs.pop(place) == 2 * x
    assert not outputs
    assert not failures


@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any),
    data=st.data(),
)
def test_a_place_in_the_table_is_a_place_in_a_file(sizes: list[int], data: st.DataObject) -> None:
    found = [read(100 * index, rows, set()) for index, rows in enumerate(sizes)]
    joined = JoinedPieces([piece for piece, _ in found], [each for _, each in found])
    first = data.draw(st.integers(0, sum(sizes) - 1))
    rows = data.draw(st.integers(1, sum(sizes) - first))
    uri, row, count = joined.place(first, rows)
    x = joined.table["x"][first].as_py()
    assert (uri, row) == (f"f{x - x % 100}", 100 + x % 100)
    within = joined.table["x"][first + rows - 1].as_py() // 100 == x // 100
    assert count == (rows if within else 0)
    assert joined.within(uri, row) == range(first, first + 1)
    assert joined.within(uri, 0, 1000) == range(first - row + 100, first - row + 100 + sizes[(x - x % 100) // 100])
    assert not joined.within("another", row)
    assert not joined.within(uri, 99)


def test_rows_that_are_left_out_or_cannot_be_read_keep_their_places_in_their_files() -> None:
    """Of one file they are counted from its first row, with those left out; of several, from the table's first row."""
    row = RowFailure(1, "InputCorrupt", "not UTF-8", "")
    one = RowsRead(pa.table({"x": [10, 12, 13]}), {1: row}, pa.array([0, 2, 3]), 1)
    other = RowsRead(pa.table({"x": [20, 21]}), {0: replace(row, row=0)})
    pieces = [Piece("one", 1, "v", 100, UNKNOWN, (0, 1)), Piece("other", 1, "v", 0, 2, (0, 1))]
    single = JoinedPieces(pieces[:1], [one])
    assert (single.left_out, single.failures) == (1, {1: row})
    assert [single.at(row) for row in range(3)] == [100, 102, 103]
    assert (single.within("one", 101, 3), single.within("one", 101)) == (range(1, 3), range(0))
    both = JoinedPieces(pieces, [one, other])
    assert both.failures == {1: row, 3: replace(row, row=3)}
    assert [both.at(row) for row in range(5)] == list(range(5))
    assert (both.within("one", 101, 3), both.within("other", 1, 9)) == (range(1, 3), range(4, 5))
    assert [both.place(row)[:2] for row in range(5)] == [
        ("one", 100),
        ("one", 102),
        ("one", 103),
        ("other", 0),
        ("other", 1),
    ]
    assert (single.left_out, both.left_out) == (1, 1)


NOTES = """
import os

def score(batch):
    with open(os.path.join(__LIVE__, "calls"), "a") as calls:
        calls.write(f"{len(batch['x'])}\\n")
    return {"score": batch["x"] * 2}
"""


def test_files_of_a_few_rows_are_scored_together(lake: Lake) -> None:
    """200 files of 5 rows: a call of the model for each 256 rows, after preflight's."""
    for index in range(200):
        lake.write_file(f"part-{index:03}.parquet", 5 * index, 5)
    lake.write_model(NOTES)
    lake.write_job(input__shard_rows=1000, resources={"actors": 1})
    ran = lake.run(engine=LOCAL)
    assert ran.scored.progress.counts.rows_out == 1000
    published = lake.published()
    assert published["id"].tolist() == list(range(1000))
    assert published["score"].tolist() == [2.0 * x for x in range(1000)]
    assert published["_row"].tolist() == [x % 5 for x in range(1000)]
    calls = [int(line) for line in (lake.folder / "calls").read_text().split()]
    # Of preflight: a file, a batch of several, the batch among other rows, and three rows alone.
    assert sorted(calls) == [1, 1, 1, 5, 35, 35, 232, 256, 256, 256]
