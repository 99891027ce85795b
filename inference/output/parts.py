"""Writes scored tables as parts, and reads parts back: for the audit, the second scoring of a sample, and accumulators.

A part is encoded in memory, and appears whole under its final name or not at all.

With `output.partition_by` a part is an index: it has the columns that name the folders, for each row of the shard in
input order, and its footer names a file in each folder, with rows, size and checksum. The files have the other columns.
A worker writes the index last. So the receipt, which has its checksum, vouches for the files, too: the ledger knows one
part of one shard, whether it is one file or many.

    data/<base>.parquet                        a part

    index/<base>.parquet                       a part with `output.partition_by`
    data/country=de/<base>.parquet             one of its files
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from nightjar.inference.arrow_types import is_text
from nightjar.inference.errors import AuditFailed, StorageError
from nightjar.inference.input.sources.protocol import unbound
from nightjar.inference.job.model import Job
from nightjar.inference.job.sections import LINEAGE
from nightjar.inference.jsonform import of_json, to_json
from nightjar.inference.messages import utf8
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.output import exports
from nightjar.inference.output.hive import Division, divide
from nightjar.inference.records import Part, RowFailure
from nightjar.inference.storage.protocol import Storage, is_local, join
from nightjar.inference.storage.retrying import PART

T = TypeVar("T")

R = TypeVar("R")

DATA = "data"
"""The folder of a revision's data files."""

INDEX = "index"
"""The folder of the parts that are divided into several files."""

MODEL = "model"
"""The column of a quarantine that names the model, if the job has several."""

METRICS_KEY = b"nightjar.metrics"

SHARD_KEY = b"nightjar.shard"

FILES_KEY = b"nightjar.files"

SCHEMA_KEY = b"nightjar.schema"

_ARROW_SCHEMA = b"ARROW:schema"

_SAMPLE = 8192

_SAMPLE_BYTES = 64 << 20

_LOW_CARDINALITY = 0.05

_AT_ONCE = 8
"""The number of files of one part that are written or read at once in a bucket."""

_NAME = re.compile(r"(?:.*/)?[0-9a-f]+-(\d{6,})-[0-9a-f]{8}\.(?:parquet|profile|slices|(?:csv|jsonl)(?:\.gz)?)")
"""The form that `part_name` gives a part's name, which what lies beside it has, too."""


@dataclass(frozen=True, slots=True)
class InFolder:
    """One file of a divided part, as the part's footer names it. The same file may lie in several revisions, so its
    name is not there. folder: as `country=de`. size: in bytes. checksum: as of a part.
    """

    folder: str
    rows: int
    size: int
    checksum: str


def kind_of_data(job: Job) -> str:
    """The folder of the parts of this job that hold data."""
    return INDEX if job.output.partition_by else DATA


def is_divided(part: str) -> bool:
    """Whether the rows of a part lie in other files, by its name."""
    return part.startswith(f"{INDEX}/")


def file_in(part: str, folder: str) -> str:
    """The name of a file of a divided part; both relative to the revision."""
    return f"{DATA}/{folder}/{part.rpartition('/')[2]}"


def files_of(part: str, folders: Iterable[str] = (), companions: Iterable[str] = ()) -> list[str]:
    """The names of all files of a part, in the order in which they are written: the part last.

    folders: of its files, if it is divided; a quarantine never is, and has nothing beside it. companions: as of a
    `Job`.
    """
    files = [file_in(part, folder) for folder in folders] if is_divided(part) else []
    return [*files, *exports.names_of(part, companions), part]


def files_in(footer: Mapping[bytes, bytes]) -> tuple[InFolder, ...]:
    """The files that a part's footer names; none for a part that is not divided."""
    return tuple(of_json(InFolder, found) for found in json.loads(footer.get(FILES_KEY, b"[]")))


def part_name(kind: str, shard: str, epoch: int) -> str:
    """A new name `data/<shard>-<epoch>-<nonce>.parquet`; two attempts never share a name."""
    return f"{kind}/{shard}-{epoch:06d}-{uuid.uuid4().hex[:8]}.parquet"


def epoch_of(uri: str) -> int | None:
    """The epoch in which a part or an export was written, from its name; None for a file that no worker wrote."""
    found = _NAME.fullmatch(uri)
    return int(found[1]) if found else None


def stem_of(uri: str) -> str:
    """What names a part: the name of its file without its end. It is the same for all that was written with it."""
    return uri.rpartition("/")[2].partition(".")[0]


def read_part(storage: Storage, uri: str, size: int) -> bytes:
    """Read a part's bytes. A large part takes several requests, because each request has a time limit."""
    if size <= PART:
        return storage.read(uri)
    with storage.open(uri) as file:
        return bytes(file.read())


def output_schema(job: Job, schema: pa.Schema) -> pa.Schema:
    """Columns of a part: carried (fields untouched, metadata included), outputs, lineage."""
    fields = [unbound(schema.field(name)) for name in job.carried(schema.names)]
    fields += [pa.field(name, kind) for name, kind in job.output_types().items()]
    if job.output.lineage:
        file, row = LINEAGE
        fields += [
            pa.field(file, pa.dictionary(pa.int32(), pa.string())),
            pa.field(row, pa.int64(), nullable=False),
        ]
    return pa.schema(fields)


def lineage(uris: Sequence[str], counts: np.ndarray, rows: np.ndarray) -> tuple[pa.Array, pa.Array]:
    """The lineage columns. uris, counts: the files, and how many rows follow of each. rows: their indices there."""
    files = {uri: code for code, uri in enumerate(dict.fromkeys(uris))}
    codes = np.repeat(np.array([files[uri] for uri in uris], np.int32), counts)
    return pa.DictionaryArray.from_arrays(codes, pa.array(list(files), pa.string())), pa.array(rows, pa.int64())


def write_data(
    storage: Storage,
    revision: str,
    name: str,
    table: pa.Table,
    shard: str,
    metrics: Metrics,
    companions: Sequence[str] = (),
    division: Division | None = None,
) -> Part:
    """Write a shard's predictions, with its metric states. companions: as of a `Job`. division: of the table, for a
    part that is divided. If one of its files cannot be written, the others are deleted.
    """
    footer = {SHARD_KEY: shard.encode(), METRICS_KEY: metrics.footer()}
    footer |= exports.write(storage, revision, name, table, readers_schema(table.schema), companions, metrics.beside())
    if division is None:
        return _write(storage, revision, name, table, footer)

    def write(found: tuple[str, pa.Table]) -> InFolder:
        folder, rows = found
        file = _write(storage, revision, file_in(name, folder), rows, {SHARD_KEY: shard.encode()})
        return InFolder(folder, file.rows, file.size, file.checksum)

    try:
        files = list(at_once(revision, write, division.split(table)))
        footer[FILES_KEY] = json.dumps([to_json(file) for file in files], ensure_ascii=False).encode()
        footer[SCHEMA_KEY] = _footer_schema(table.schema)
        index = _write(storage, revision, name, table.select(division.by), footer)
    except Exception:
        # A successor may have swept the folder already, and nobody would sweep it once more.
        with suppress(StorageError):
            storage.delete([join(revision, file) for file in files_of(name, division.folders, companions)])
        raise
    return Part(name, index.rows, index.size + sum(file.size for file in files), index.checksum)


def at_once(revision: str, call: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Call for each item, in order. In a bucket a request takes longer than what it carries, so several go at once."""
    if is_local(revision):
        yield from map(call, items)
        return
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(call, items)


def write_quarantine(
    storage: Storage,
    revision: str,
    name: str,
    shard: str,
    rows: Sequence[tuple[str, int, RowFailure, str]],
    inputs: pa.Table,
    *,
    several: bool = False,
) -> Part:
    """Write the rows that no attempt could score. rows: (file, row in file, failure, replay command). inputs: the
    rows. several: whether the job has several models; then a row is there once for each that could not score it.
    """
    files, numbers, failures, replays = zip(*rows, strict=True)
    columns = {
        LINEAGE[0]: pa.array(files, pa.string()),
        LINEAGE[1]: pa.array(numbers, pa.int64()),
        # A row that cannot be read has no model to blame, and so null.
        **({MODEL: pa.array([failure.model or None for failure in failures], pa.string())} if several else {}),
        "error": pa.array([failure.error for failure in failures], pa.string()),
        "message": pa.array([failure.message for failure in failures], pa.string()),
        "traceback": pa.array([failure.traceback for failure in failures], pa.string()),
        "raw": pa.array([failure.raw or None for failure in failures], pa.string()),
        # The command names the job file, whose path may not be UTF-8.
        "replay": pa.array(map(utf8, replays), pa.string()),
        "input": pa.StructArray.from_arrays(
            [column.combine_chunks() for column in inputs.columns], fields=list(inputs.schema)
        ),
    }
    return _write(storage, revision, name, pa.table(columns), {SHARD_KEY: shard.encode()})


def checksum(data: pa.Buffer | bytes) -> str:
    """xxh3-128 of a part's bytes, in hex. It protects against damage, not against attackers, and is very fast."""
    return xxhash.xxh3_128_hexdigest(data)


def _write(storage: Storage, revision: str, name: str, table: pa.Table, footer: dict[bytes, bytes]) -> Part:
    sink = pa.BufferOutputStream()
    row_column = LINEAGE[1]
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        use_dictionary=_dictionaries(table),
        column_encoding={row_column: "DELTA_BINARY_PACKED"} if row_column in table.column_names else None,
        store_schema=False,
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({**footer, _ARROW_SCHEMA: _footer_schema(table.schema)})
    data = sink.getvalue()
    storage.write(join(revision, name), data)
    return Part(name, table.num_rows, data.size, checksum(data))


def readers_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a part as readers see them, with lineage as plain strings.

    The writer gets the file column as a dictionary, so that it need not hash a long path for each row. Readers should
    not see a dictionary type for it.
    """
    index = schema.get_field_index(LINEAGE[0])
    if index >= 0 and pa.types.is_dictionary(schema.field(index).type):
        schema = schema.set(index, pa.field(LINEAGE[0], pa.string(), nullable=False))
    return schema


def _footer_schema(schema: pa.Schema) -> bytes:
    return base64.b64encode(readers_schema(schema).serialize().to_pybytes())


def schema_in(footer: Mapping[bytes, bytes]) -> pa.Schema:
    """The columns of a divided part, in their order, from its footer."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(footer[SCHEMA_KEY])))


def _dictionaries(table: pa.Table) -> list[str]:
    """The columns to write with a dictionary: those with few distinct values. Other columns are smaller and faster
    plain.
    """
    chosen = []
    for field in table.schema:
        if pa.types.is_dictionary(field.type):
            chosen.append(field.name)
        elif is_text(field.type) and not pa.types.is_string_view(field.type):  # Arrow cannot count the values of views
            sample = table[field.name].slice(0, _SAMPLE)
            # A dictionary does not pay for longer texts, and more than 2 GiB of text cannot be counted.
            if sample.nbytes > _SAMPLE_BYTES:
                continue
            if len(sample) and pc.count_distinct(sample).as_py() <= max(1, len(sample) * _LOW_CARDINALITY):
                chosen.append(field.name)
    return chosen


def read_quarantine_part(
    storage: Storage, revision: str, part: dict[str, Any], shard: str, columns: tuple[str, ...]
) -> pa.Table:
    """Check a quarantine's bytes. Returns these columns, with the file as a dictionary.

    Raises:
        AuditFailed: It is not the part that was written.
    """
    raw = read_part(storage, join(revision, part["name"]), part["size"])
    expect(f"bytes of {part['name']}", len(raw), part["size"])
    expect(f"checksum of {part['name']}", checksum(raw), part["checksum"])
    with pq.ParquetFile(pa.BufferReader(raw), read_dictionary=columns[:1]) as file:
        footer: dict[bytes, bytes] = file.metadata.metadata or {}
        expect(f"rows of {part['name']}", file.metadata.num_rows, part["rows"])
        expect(f"shard named in {part['name']}", footer.get(SHARD_KEY, b"").decode(), shard)
        return file.read(columns=columns, use_threads=False)


def read_metrics(footer: Mapping[bytes, bytes], beside: Mapping[str, bytes]) -> Metrics:
    """The metric states of a part. beside: the bytes of those beside it, by kind."""
    return Metrics.of_part(footer[METRICS_KEY], beside)


@dataclass(frozen=True)
class DataPart:
    """A data part in memory, as it was written. name: of the part. footer: of the part.

    files: as the footer names them; none for a part that is not divided. division: how its rows are divided; None
    likewise.
    """

    name: str
    footer: Mapping[bytes, bytes]
    files: tuple[InFolder, ...]
    division: Division | None
    _part: bytes
    _files: tuple[bytes, ...]

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in order."""
        if self.division is not None:
            return list(schema_in(self.footer).names)
        return list(pq.read_schema(pa.BufferReader(self._part)).names)

    def files_by_name(self) -> Iterator[Part]:
        """The files of a divided part, each by its name relative to the revision."""
        for file in self.files:
            yield Part(file_in(self.name, file.folder), file.rows, file.size, file.checksum)

    def table(self, columns: Sequence[str] | None = None, *, dictionaries: Sequence[str] = ()) -> pa.Table:
        """The shard's rows in input order. columns: only these; default: all. dictionaries: texts to read as such."""
        if self.division is None:
            return _read(self._part, columns, dictionaries)
        schema = schema_in(self.footer)
        wanted = schema.names if columns is None else list(columns)
        table = _read(self._part, [name for name in wanted if name in self.division.by])
        others = [name for name in wanted if name not in self.division.by]
        if others and self.files:
            joined = self.division.joined([_read(raw, others, dictionaries) for raw in self._files])
            for field, column in zip(joined.schema, joined.columns, strict=True):
                table = table.append_column(field, column)
        elif others:
            empty = pa.schema([_as_dictionary(schema.field(name), dictionaries) for name in others])
            for field in empty:
                table = table.append_column(field, pa.chunked_array([], field.type))
        return table.select(wanted)


def read_data(storage: Storage, revision: str, part: Mapping[str, Any], shard: str) -> DataPart:
    """Read a data part. part: as in its receipt. shard: to which it must belong.

    Raises:
        AuditFailed: It is not what the receipt says, or a file is not what the part says.
    """
    name = part["name"]
    raw = read_part(storage, join(revision, name), part["size"])
    if not is_divided(name):
        expect(f"bytes of {name}", len(raw), part["size"])
    expect(f"checksum of {name}", checksum(raw), part["checksum"])
    footer = _footer(raw, name, part["rows"], shard)
    if not is_divided(name):
        return DataPart(name, footer, (), None, raw, ())
    files = files_in(footer)
    expect(f"bytes of {name} and its files", len(raw) + sum(file.size for file in files), part["size"])

    def read(file: InFolder) -> bytes:
        return _file(storage, revision, file_in(name, file.folder), file, shard)

    index = _read(raw)
    division = divide(index, index.column_names)
    found = [(folder, len(rows)) for folder, rows in division.folders.items()]
    expect(f"folders of {name}, and their rows", [(file.folder, file.rows) for file in files], found)
    return DataPart(name, footer, files, division, raw, tuple(at_once(revision, read, files)))


def expect(what: str, found: Any, expected: Any) -> None:
    """Check a figure.

    Raises:
        AuditFailed: It is another one.
    """
    if found != expected:
        raise AuditFailed(f"{what}: found {found}, the receipt says {expected}")


def _file(storage: Storage, revision: str, name: str, file: InFolder, shard: str) -> bytes:
    raw = read_part(storage, join(revision, name), file.size)
    expect(f"bytes of {name}", len(raw), file.size)
    expect(f"checksum of {name}", checksum(raw), file.checksum)
    _footer(raw, name, file.rows, shard)
    return raw


def _footer(raw: bytes, name: str, rows: int, shard: str) -> dict[bytes, bytes]:
    """The footer of a file, which must have so many rows of this shard."""
    metadata = pq.read_metadata(pa.BufferReader(raw))
    footer: dict[bytes, bytes] = metadata.metadata or {}
    expect(f"rows of {name}", metadata.num_rows, rows)
    expect(f"shard named in {name}", footer.get(SHARD_KEY, b"").decode(), shard)
    return footer


def _read(raw: bytes, columns: Sequence[str] | None = None, dictionaries: Sequence[str] = ()) -> pa.Table:
    """Columns of a file; without any of them a table that has its rows all the same."""
    with pq.ParquetFile(pa.BufferReader(raw), read_dictionary=list(dictionaries)) as file:
        return file.read(columns=columns if columns is None else list(columns), use_threads=False)


def _as_dictionary(field: pa.Field, dictionaries: Sequence[str]) -> pa.Field:
    return field.with_type(pa.dictionary(pa.int32(), pa.string())) if field.name in dictionaries else field
