"""What is kept of a shard's rows beside its part: as its own rows say it, whatever was left out of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.metrics.profile import Profile, drawn
from nightjar.inference.metrics.slices import Slices
from nightjar.inference.records import Piece, Shard
from nightjar.inference.scoring.attempts import JoinedPieces
from nightjar.inference.scoring.scored_rows import ScoredRows
from nightjar.inference.scoring.worker import Assembly
from support import Lake

KEPT = np.array([0, 2, 3, 5, 6, 7])
"""The rows of a piece of eight that are scored."""


def piece(name: str, first_row: int = 0) -> Piece:
    return Piece(f"/{name}", 1, "v", first_row, 8, (0, 1))


def assembled(lake: Lake, *pieces: Piece) -> tuple[Assembly, list[pa.Table]]:
    """A shard of these pieces of eight rows each, and what is written of them with the label of each row."""
    spec = lake.worker_spec()
    read = [lake_rows(each.first_row) for each in pieces]
    scores = [pa.array(KEPT / 10 + at, pa.float32()) for at in range(len(pieces))]
    joined = JoinedPieces(pieces, [RowsRead(each.select(spec.schema.names)) for each in read])
    kept = np.concatenate([8 * at + KEPT for at in range(len(pieces))])
    outputs = pa.table({"score": pa.concat_arrays(scores)})
    written = [
        each.take(pa.array(KEPT)).append_column("score", [score]) for each, score in zip(read, scores, strict=True)
    ]
    return Assembly(spec, Shard("s", pieces), joined, ScoredRows(outputs, kept, ())), written


def lake_rows(first: int) -> pa.Table:
    ids = np.arange(first, first + 8)
    names = [f"row {i % 2}" for i in ids]
    return pa.table({"id": ids, "x": pa.array(ids, pa.float32()), "name": names})


def test_of_a_share_exactly_the_rows_that_are_drawn_are_described(lake: Lake) -> None:
    """By file and number of the row, whatever was left out before it; columns that are only read, too."""
    lake.ready(profile={"columns": ["x", "score"], "share": 0.5}, carry=["id"])
    pieces = piece("a"), piece("b", 800)
    made, written = assembled(lake, *pieces)
    expected, chosen = Profile.empty(["x", "score"]), []
    for each, table in zip(pieces, written, strict=True):
        rows = drawn(each.uri, each.first_row + KEPT, 0.5)
        assert rows is not None
        chosen.append(table.take(pa.array(rows)))
    expected.update(pa.concat_tables(chosen))
    assert 0 < expected.rows < 2 * len(KEPT)
    assert made.metrics().profile == expected


def test_slices_are_those_of_the_rows_with_their_labels(lake: Lake) -> None:
    """Each piece has labels of its own, which need not be written."""
    lake.ready(label="id", carry=["name"], evaluation={"task": "regression", "slices": ["name"]})
    made, written = assembled(lake, piece("a"), piece("b", 800))
    job = lake.request().job
    expected = Slices.for_job(job)
    whole = pa.concat_tables(written)
    expected.update(whole.select(["name", "score"]), whole["id"])
    assert made.metrics().slices == expected != Slices.for_job(job)
