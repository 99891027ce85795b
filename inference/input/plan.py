"""From the input's uri to the shards of a night: the files as they were found, and how they are cut and packed.

A `Discovery` is the lake as it was found tonight. A shard is units of one file, a part of a large unit, or several
small files. A `Plan` is an Arrow table with one line per shard, so that a million shards take little memory;
`Plan.shard` makes a record only when one is needed. A continued run keeps the shards of every file that did not change.
So what was committed stays committed, even if the number of actors, and with it the default shard size, has changed.
"""

from __future__ import annotations

import io
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nightjar.inference.arrow_types import record_schema, table_of
from nightjar.inference.errors import Denied, InputCorrupt, JobError, Missing, SchemaMismatch, SourceFailed
from nightjar.inference.input.files import possible_files
from nightjar.inference.input.schemas import UsualSchema, holds_empty
from nightjar.inference.input.sources.protocol import Description
from nightjar.inference.input.sources.reading import describe, import_again, source_of
from nightjar.inference.job.model import Job
from nightjar.inference.messages import counted
from nightjar.inference.records import UNKNOWN, UNREADABLE, Piece, Shard, as_line, shard_of, split
from nightjar.inference.storage.protocol import Entry, Storage, same_version, snapshot_of

_READERS = 32
"""Files that are looked into at the same time: a look is a request or two, and mostly waiting."""

WINDOW = 512
"""The most files whose descriptions are in memory at a time: each has its own schema."""

BEGINNING = 8
"""The files that are enough for a look before a night."""

DECODED_BYTES = 128 * 1024 * 1024
SHARDS_PER_ACTOR = 8
LARGE = 4
"""How many times as large as a shard a unit must be to be cut. Each part costs reading the unit from its beginning, so
that a unit that is a little too large is better left whole."""

LEAST_BYTES = 2 * 1024 * 1024
"""The least decoded size of a part of a unit: a smaller one is not worth the requests of a shard."""

PACKED_FILES = 1000
"""The most small files in one shard: each file costs a few requests, and the audit searches all rows for each."""

STRETCH = 1.5
"""How many times its size a shard may have so that it is whole batches."""

_BATCH = 8192

_UNREAD = InputCorrupt, SchemaMismatch, SourceFailed, Denied, Missing
"""Why a file has no description. It may have been deleted after it was listed."""

FILES = pa.schema(
    [
        ("uri", pa.string()),
        ("size", pa.int64()),
        ("version", pa.string()),
        ("rows", pa.list_(pa.int64())),
        ("sizes", pa.list_(pa.int64())),
        ("error", pa.string()),
    ]
)
"""One line per file. `rows` and `sizes`: as in `Description`. `error`: why the file cannot be read, else null."""


@dataclass(frozen=True)
class Discovery:
    """The lake as it was found. files: schema `FILES`, sorted by uri. schema: the columns that most files have.
    left_out: the number of other files, which cannot match `input.where`, by what their paths or the table say.

    Only files with rows count for the schema, if there are any. In a tie the columns of the first files win.
    """

    files: pa.Table
    schema: pa.Schema
    left_out: int = 0

    @property
    def rows(self) -> int:
        """Number of rows in the files whose rows are known."""
        return sum(max(rows, 0) for chunk in self.files["rows"].chunks for rows in chunk.flatten().to_pylist())

    @property
    def uncounted(self) -> int:
        """Number of files whose rows are not known before they are read."""
        return sum(chunk.flatten().to_pylist().count(UNKNOWN) for chunk in self.files["rows"].chunks)

    @property
    def snapshot(self) -> str:
        """The snapshot of the table whose files these are; empty if the input is no table."""
        return snapshot_of(self.files["version"][0].as_py()).partition(" ")[0] if self.files.num_rows else ""

    def pieces(self, count: int) -> Iterator[Piece]:
        """The first unit with rows of each of the first `count` files; fewer if one has none, or cannot be read."""
        for line in self.files.slice(0, count).to_pylist():
            unit = next((index for index, rows in enumerate(line["rows"]) if rows), None)
            if unit is not None:
                yield Piece(line["uri"], line["size"], line["version"], 0, line["rows"][unit], (unit, unit + 1))

    @property
    def unreadable(self) -> int:
        """Number of files that could not be read."""
        return int(self.files.num_rows - self.files["error"].null_count)

    @property
    def unread(self) -> str:
        """A message about the files that cannot be read, which names the first; empty if there are none."""
        if not self.unreadable:
            return ""
        first = self.files["error"].drop_null()[0].as_py()
        return f"{counted(self.unreadable, 'file')} cannot be read, and will fail; the first: {first}"


def discover(storage: Storage, job: Job, first: int | None = None) -> Discovery:
    """List the input and look into every file.

    first: look into about so many of the first files only; into more while none has rows, or none a value in some
    column.

    Raises:
        JobError: There is nothing to score, or no file is readable. Names `input.uri`. Or the user's own source cannot
            be imported. Names `input.format`.
        StorageError: Any other fault of the storage. It says nothing about the file, and may pass.
    """
    if first is None:
        import_again(job)
    left_out = Counter[str]()
    entries = possible_files(storage, job, left_out)
    usual, empty, bad, settled = UsualSchema(), UsualSchema(), "", False
    batches: list[pa.RecordBatch] = []
    with ThreadPoolExecutor(_READERS) as pool:
        while window := list(itertools.islice(entries, first or WINDOW)):
            lines = list[dict[str, Any]]()
            for entry, found in zip(window, pool.map(partial(_described, storage, job), window), strict=True):
                line = {"uri": entry.uri, "size": entry.size, "version": entry.version, "rows": [], "sizes": []}
                if isinstance(found, Description):
                    # The types of an empty file may be a guess (pandas writes null), so files that have columns, and
                    # have or may have rows, have priority.
                    unseen, has_priority = source_of(job, entry.uri).unseen, any(found.rows) and found.schema.names
                    (usual if has_priority else empty).add(found.schema, unseen)
                    settled = settled or unseen is not None or not any(map(holds_empty, found.schema.types))
                    line |= {"rows": found.rows, "sizes": found.sizes}
                else:
                    line["error"] = str(found)
                    bad = bad or str(found)
                lines.append(line)
            batches.append(pa.RecordBatch.from_pylist(lines, schema=FILES))
            if first and usual.schema() and (settled or len(batches) * first >= WINDOW):
                break
    files = pa.Table.from_batches(batches, schema=FILES)
    if (schema := usual.schema()) is None and (schema := empty.schema()) is None:
        raise JobError(f"{job.input.key}: no file can be read; the first: {bad}")
    discovery = Discovery(files, schema, left_out.total())
    if not discovery.rows and not discovery.uncounted and not discovery.unreadable:
        raise JobError(f"{job.input.key}: no rows in {counted(files.num_rows, 'file')} at {job.input.shown}")
    return discovery


def _described(storage: Storage, job: Job, entry: Entry) -> Description | Exception:
    try:
        return describe(storage, job, entry)
    except _UNREAD as error:
        return error.with_traceback(None)


SHARDS = pa.schema(
    [("shard", pa.string()), ("rows", pa.int64()), ("pieces", pa.list_(pa.struct(list(record_schema(Piece)))))]
)
"""One line per shard. `rows` is `UNREADABLE` (-1) or `UNKNOWN` (-2) if that of one of its files is."""


@dataclass(frozen=True)
class Plan:
    """The shards of a revision, sorted by first file and row."""

    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def rows(self) -> int:
        """Number of input rows in the shards whose rows are known."""
        rows = pc.struct_field(pc.list_flatten(self.table["pieces"]), "rows")
        return int(pc.sum(pc.filter(rows, pc.greater_equal(rows, 0))).as_py() or 0)

    @property
    def uncounted(self) -> int:
        """Number of shards whose rows are not known before they are read."""
        return int(pc.sum(pc.equal(self.table["rows"], UNKNOWN)).as_py() or 0)

    def ids(self) -> list[str]:
        """Shard ids in order."""
        ids: list[str] = self.table["shard"].to_pylist()
        return ids

    def shards(self) -> Iterator[Shard]:
        """Shards in order, with a bounded number of them in memory."""
        for batch in self.table.to_batches(max_chunksize=4096):
            yield from map(shard_of_line, batch.to_pylist())

    def named(self, ids: Iterable[str]) -> dict[str, Shard]:
        """The shards with these ids, by id: found together, because a plan may have a million."""
        chosen = pc.is_in(self.table["shard"], value_set=pa.array(list(ids), pa.string()))
        return {shard.id: shard for shard in Plan(self.table.filter(chosen)).shards()}

    def shard(self, shard_id: str) -> Shard | None:
        """One shard by id."""
        return self.named([shard_id]).get(shard_id)

    def to_bytes(self) -> bytes:
        """The plan as Parquet."""
        buffer = io.BytesIO()
        pq.write_table(self.table, buffer, compression="zstd")
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """The inverse of `to_bytes`."""
        # Not in Arrow's threads: one that releases a Python object while the process is ending aborts the process.
        return cls(pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False).cast(SHARDS))

    @classmethod
    def of(cls, shards: Iterable[Shard]) -> Plan:
        """A plan of these shards, sorted."""
        lines = ({"shard": each.id, "rows": each.rows, "pieces": [as_line(p) for p in each.pieces]} for each in shards)
        return cls(_sorted(table_of(lines, SHARDS)))

    def limited(self, rows: int | None) -> Plan:
        """The first shards with at least `rows` rows together; without a limit all. One whose rows are unknown is the
        last.
        """
        if not rows:
            return self
        held = 0
        for index, count in enumerate(self.table["rows"].to_pylist()):
            held += max(count, 0)
            if held >= rows or count == UNKNOWN:
                return Plan(self.table.slice(0, index + 1))
        return self

    def with_splits(self, packed: Iterable[str], fingerprint: str) -> tuple[Plan, dict[str, tuple[Shard, ...]]]:
        """One shard per file in place of these packed shards. Returns the plan, and the new shards by replaced id."""
        parts = {name: split(shard, fingerprint) for name, shard in self.named(packed).items()}
        if not parts:
            return self, parts
        others = pc.invert(pc.is_in(self.table["shard"], value_set=pa.array(list(parts), pa.string())))
        new = Plan.of(itertools.chain.from_iterable(parts.values()))
        return Plan(_sorted(pa.concat_tables([self.table.filter(others), new.table]))), parts


def _sorted(table: pa.Table) -> pa.Table:
    first = pc.list_element(table["pieces"], 0)
    keys = pa.table({"uri": pc.struct_field(first, "uri"), "row": pc.struct_field(first, "first_row")})
    return table.take(pc.sort_indices(keys, sort_keys=[("uri", "ascending"), ("row", "ascending")]))


def shard_of_line(line: dict[str, Any]) -> Shard:
    """Make a shard from a plan's line."""
    pieces = (Piece(**{**piece, "row_groups": tuple(piece["row_groups"])}) for piece in line["pieces"])
    return Shard(line["shard"], tuple(pieces))


def make_plan(discovery: Discovery, job: Job, fingerprint: str, previous: Plan | None = None) -> Plan:
    """Make tonight's shards. Files that are unchanged since `previous` keep their shards, and these their ids; the
    inodes of the files, which are part of an id, may have changed.

    previous: an earlier plan with this fingerprint, so that a file that did not change has the same units.
    """
    kept, covered = _kept(discovery, previous)
    fresh = (line for line in _lines(discovery) if line["uri"] not in covered)
    packed = _pack(fresh, *_target(discovery, job), job)
    return Plan.of(itertools.chain(kept, (shard_of(pieces, fingerprint) for pieces in packed)))


def _lines(discovery: Discovery) -> Iterator[dict[str, Any]]:
    """The files one by one, with a bounded number of them in memory."""
    for batch in discovery.files.to_batches(max_chunksize=_BATCH):
        yield from batch.to_pylist()


def _kept(discovery: Discovery, previous: Plan | None) -> tuple[list[Shard], set[str]]:
    """Shards of an earlier plan whose files are all unchanged, with what is known about these now; and these files."""
    if previous is None:
        return [], set()
    # A file that could not be read is planned again, because it may be readable now.
    now = {line["uri"]: (line["size"], line["version"]) for line in _lines(discovery) if line["error"] is None}

    def stands(piece: Piece) -> bool:
        if piece.uri not in now:
            return False
        size, version = now[piece.uri]
        return size == piece.size and same_version(version, piece.version) and piece.rows != UNREADABLE

    same = [shard for shard in previous.shards() if all(map(stands, shard.pieces))]
    # An earlier plan may have only the beginning of a file (--limit): such a file is planned again, too.
    held: Counter[str] = Counter()
    for piece in itertools.chain.from_iterable(shard.pieces for shard in same):
        held[piece.uri] += piece.rows
    covered = {line["uri"] for line in _lines(discovery) if held.get(line["uri"]) == sum(line["rows"])}
    kept = [
        Shard(shard.id, tuple(replace(piece, version=now[piece.uri][1]) for piece in shard.pieces))
        for shard in same
        if all(piece.uri in covered for piece in shard.pieces)
    ]
    return kept, {piece.uri for shard in kept for piece in shard.pieces}


def _target(discovery: Discovery, job: Job) -> tuple[str, int]:
    """The unit that limits a shard, `rows` or decoded `sizes` in bytes, and the limit."""
    if job.input.shard_rows:
        return "rows", job.input.shard_rows
    total = pc.sum(pc.list_flatten(discovery.files["sizes"])).as_py() or 0
    step = job.stage
    # The model waits for the first prepared shard, and a worker that prepares has a shard to itself.
    staged = (step.max_workers or 0) if step else 0
    return "sizes", max(1, min(DECODED_BYTES, total // (SHARDS_PER_ACTOR * max(job.resources.max_actors, staged))))


def _pack(lines: Iterable[dict[str, Any]], unit: str, target: int, job: Job) -> Iterator[tuple[Piece, ...]]:
    """Cut large files, and pack files of at most half a shard together, whole and in order.

    Files of one row each, as images are, are packed in whole micro-batches, if they are more than one: of 100 images in
    batches of 64, the other 36 would take a GPU about as long as 64.

    If rows limit the shards, a file with an unknown number of rows is a shard of its own.
    """
    batch = max((each.batch_size for each in job.models if isinstance(each.batch_size, int)), default=1)
    packed: list[Piece] = []
    held, rows = 0, 0
    for line in lines:
        weight = target if UNKNOWN in line[unit] else sum(line[unit])
        if line["error"] is not None:
            yield (Piece(line["uri"], line["size"], line["version"], 0, UNREADABLE, (0, 0)),)
            continue
        if not any(line["rows"]):
            continue
        if weight * 2 > target:
            yield from ((piece,) for piece in _cut(line, unit, target, source_of(job, line["uri"]).divisible))
            continue
        begun = unit == "sizes" and sum(line["rows"]) == 1 and rows > batch and rows % batch
        limit = target * STRETCH if begun else target
        if packed and (held + weight > limit or len(packed) == PACKED_FILES):
            yield tuple(packed)
            packed, held, rows = [], 0, 0
        packed.append(_piece(line, 0, len(line["rows"])))
        held += weight
        rows += packed[-1].rows
    if packed:
        yield tuple(packed)


def _cut(line: dict[str, Any], unit: str, target: int, divisible: bool) -> Iterator[Piece]:
    """Cut a file into pieces of at most `target`: of whole units, or of equal parts of one large unit.

    If units cannot be divided, no piece but the first begins with an empty unit.
    """
    first, held = 0, 0
    for index, weight in enumerate(line[unit]):
        parts = _parts(unit, weight, target) if divisible and line["rows"][index] else 1
        if index > first and line["rows"][index] and held + weight > target:
            yield _piece(line, first, index)
            first, held = index, 0
        if parts == 1:
            held += weight
            continue
        whole = _piece(line, index, index + 1)
        for low, high in itertools.pairwise(whole.rows * part // parts for part in range(parts + 1)):
            if high > low:
                yield replace(whole, first_row=whole.first_row + low, rows=high - low)
        first = index + 1
    if first < len(line[unit]):
        yield _piece(line, first, len(line[unit]))


def _parts(unit: str, weight: int, target: int) -> int:
    """The number of parts of a divisible unit of this weight. A number of rows that the user asked for is kept to."""
    if unit == "rows":
        return max(1, -(-weight // target))
    part = max(target, LEAST_BYTES)
    return -(-weight // part) if weight > LARGE * part else 1


def _piece(line: dict[str, Any], low: int, high: int) -> Piece:
    rows = line["rows"]
    return Piece(line["uri"], line["size"], line["version"], sum(rows[:low]), sum(rows[low:high]), (low, high))
