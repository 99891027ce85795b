"""Files → shards: whole row groups of one file, or several small files.

A plan is an Arrow table, one line per shard, so that a million shards stay small; `Plan.shard` builds the
record only where one is needed. Continuing a run keeps the boundaries of every file that did not change:
what was committed stays committed even if the number of actors, and so the default shard size, changed.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nightjar.inference.discovery import Discovery
from nightjar.inference.job import Job
from nightjar.inference.shards import UNKNOWN, Piece, Shard, shard_of, split

DECODED_BYTES = 128 * 1024 * 1024
SHARDS_PER_ACTOR = 8

_PIECE = pa.struct(
    [
        ("uri", pa.string()),
        ("size", pa.int64()),
        ("version", pa.string()),
        ("first_row", pa.int64()),
        ("rows", pa.int64()),
        ("row_groups", pa.list_(pa.int32(), 2)),
    ]
)
SHARDS = pa.schema([("shard", pa.string()), ("rows", pa.int64()), ("pieces", pa.list_(_PIECE))])
"""One line per shard; `rows` is `UNKNOWN` (-1) when a footer could not be read."""


@dataclass(frozen=True)
class Plan:
    """The shards of a revision, sorted by first file and row."""

    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def rows(self) -> int:
        """Input rows of all shards; unknown ones count as none."""
        known = pc.filter(self.table["rows"], pc.greater_equal(self.table["rows"], 0))
        return int(pc.sum(known).as_py() or 0)

    def ids(self) -> list[str]:
        """Shard ids in order."""
        ids: list[str] = self.table["shard"].to_pylist()
        return ids

    def shards(self) -> Iterator[Shard]:
        """Shards in order, a bounded number in memory."""
        for batch in self.table.to_batches(max_chunksize=4096):
            yield from map(shard_of_line, batch.to_pylist())

    def shard(self, shard_id: str) -> Shard | None:
        """One shard by id."""
        found = self.table.filter(pc.equal(self.table["shard"], shard_id))
        return shard_of_line(found.to_pylist()[0]) if found.num_rows else None

    def to_bytes(self) -> bytes:
        """The plan as Parquet."""
        buffer = io.BytesIO()
        pq.write_table(self.table, buffer, compression="zstd")
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """The inverse of `to_bytes`."""
        return cls(pq.read_table(io.BytesIO(data)).cast(SHARDS))

    @classmethod
    def of(cls, shards: Iterable[Shard]) -> Plan:
        """A plan of these shards, sorted."""
        batches, lines = [], []
        for shard in sorted(shards, key=lambda s: (s.pieces[0].uri, s.pieces[0].first_row)):
            lines.append({"shard": shard.id, "rows": shard.rows, "pieces": [asdict(p) for p in shard.pieces]})
            if len(lines) == 8192:
                batches.append(pa.RecordBatch.from_pylist(lines, schema=SHARDS))
                lines = []
        batches.append(pa.RecordBatch.from_pylist(lines, schema=SHARDS))
        return cls(pa.Table.from_batches(batches, schema=SHARDS))

    def limited(self, rows: int) -> Plan:
        """The first shards that together hold at least `rows` rows."""
        held = 0
        for index, count in enumerate(self.table["rows"].to_pylist()):
            held += max(count, 0)
            if held >= rows:
                return Plan(self.table.slice(0, index + 1))
        return self

    def with_split(self, shard_id: str, fingerprint: str) -> tuple[Plan, tuple[Shard, ...]]:
        """The plan with one packed shard replaced by a shard per file, and those shards."""
        packed = self.shard(shard_id)
        assert packed is not None
        parts = split(packed, fingerprint)
        rest = self.table.filter(pc.not_equal(self.table["shard"], shard_id))
        table = pa.concat_tables([rest, Plan.of(parts).table])
        first = pc.struct_field(pc.list_element(table["pieces"], 0), "uri")
        row = pc.struct_field(pc.list_element(table["pieces"], 0), "first_row")
        order = pc.sort_indices(
            pa.table({"uri": first, "row": row}), sort_keys=[("uri", "ascending"), ("row", "ascending")]
        )
        return Plan(table.take(order)), parts


def shard_of_line(line: dict[str, Any]) -> Shard:
    """A shard from a plan's line."""
    pieces = (Piece(**{**piece, "row_groups": tuple(piece["row_groups"])}) for piece in line["pieces"])
    return Shard(line["shard"], tuple(pieces))


def make_plan(discovery: Discovery, job: Job, fingerprint: str, previous: Plan | None = None) -> Plan:
    """Tonight's shards. Files that stand unchanged in `previous` keep their boundaries."""
    lines = [line for batch in discovery.files.to_batches(max_chunksize=8192) for line in batch.to_pylist()]
    kept, covered = _kept(lines, previous, fingerprint)
    fresh = [line for line in lines if line["uri"] not in covered]
    return Plan.of([*kept, *(shard_of(pieces, fingerprint) for pieces in _pack(fresh, *_target(lines, job)))])


def _kept(lines: list[dict[str, Any]], previous: Plan | None, fingerprint: str) -> tuple[list[Shard], set[str]]:
    """Shards of an earlier plan whose files all stand as they were, and the files they cover."""
    if previous is None:
        return [], set()
    # A file whose footer could not be read is planned anew: another try may find it readable.
    now = {line["uri"]: (line["size"], line["version"]) for line in lines if line["error"] is None}
    same = [
        shard
        for shard in previous.shards()
        if all(now.get(p.uri) == (p.size, p.version) and p.rows != UNKNOWN for p in shard.pieces)
    ]
    # An earlier plan may hold only the beginning of a file (--limit): such a file is planned anew, too.
    held: Counter[str] = Counter()
    for shard in same:
        for piece in shard.pieces:
            held[piece.uri] += piece.rows
    covered = {line["uri"] for line in lines if line["uri"] in held and held[line["uri"]] == sum(line["rows"])}
    kept = [shard for shard in same if all(piece.uri in covered for piece in shard.pieces)]
    return [shard_of(shard.pieces, fingerprint) for shard in kept], {p.uri for s in kept for p in s.pieces}


def _target(lines: list[dict[str, Any]], job: Job) -> tuple[str, int]:
    """What limits a shard, `rows` or decoded `sizes`, and how many of them it holds."""
    if job.input.shard_rows:
        return "rows", job.input.shard_rows
    total = sum(sum(line["sizes"]) for line in lines)
    return "sizes", max(1, min(DECODED_BYTES, total // (SHARDS_PER_ACTOR * job.resources.max_actors)))


def _pack(lines: list[dict[str, Any]], unit: str, target: int) -> Iterator[tuple[Piece, ...]]:
    """Large files cut at row groups; files at most half a shard packed together, whole, in order."""
    packed: list[Piece] = []
    held = 0
    for line in lines:
        weight = sum(line[unit])
        if line["error"] is not None:
            yield (Piece(line["uri"], line["size"], line["version"], 0, UNKNOWN, (0, 0)),)
            continue
        if not sum(line["rows"]):
            continue
        if weight * 2 > target:
            yield from ((piece,) for piece in _cut(line, unit, target))
            continue
        if packed and held + weight > target:
            yield tuple(packed)
            packed, held = [], 0
        packed.append(_piece(line, 0, len(line["rows"])))
        held += weight
    if packed:
        yield tuple(packed)


def _cut(line: dict[str, Any], unit: str, target: int) -> Iterator[Piece]:
    """A file's row groups in runs of at most `target`, at least one row group each."""
    first, held = 0, 0
    for group, weight in enumerate(line[unit]):
        if group > first and held + weight > target:
            yield _piece(line, first, group)
            first, held = group, 0
        held += weight
    yield _piece(line, first, len(line[unit]))


def _piece(line: dict[str, Any], low: int, high: int) -> Piece:
    rows = line["rows"]
    return Piece(line["uri"], line["size"], line["version"], sum(rows[:low]), sum(rows[low:high]), (low, high))
