"""Writes scored tables as parts. A part is encoded in memory, and appears whole under its final name or not at all."""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from nightjar.inference.arrow_types import is_text
from nightjar.inference.job.model import Job
from nightjar.inference.job.sections import LINEAGE
from nightjar.inference.messages import utf8
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.records import Part, RowFailure
from nightjar.inference.storage.objectfile import PART
from nightjar.inference.storage.protocol import Storage, join

METRICS_KEY = b"nightjar.metrics"
SHARD_KEY = b"nightjar.shard"
_ARROW_SCHEMA = b"ARROW:schema"
_SAMPLE = 8192
_SAMPLE_BYTES = 64 << 20
_LOW_CARDINALITY = 0.05


_NAME = re.compile(r"(?:.*/)?[0-9a-f]+-(\d{6,})-[0-9a-f]{8}\.parquet")
"""The form that `part_name` gives a part's name."""


def part_name(kind: str, shard: str, epoch: int) -> str:
    """A new name `data/<shard>-<epoch>-<nonce>.parquet`; two attempts never share a name."""
    return f"{kind}/{shard}-{epoch:06d}-{uuid.uuid4().hex[:8]}.parquet"


def epoch_of(uri: str) -> int | None:
    """The epoch in which a part was written, from its name; None for a file that no worker wrote."""
    found = _NAME.fullmatch(uri)
    return int(found[1]) if found else None


def read_part(storage: Storage, uri: str, size: int) -> bytes:
    """Read a part's bytes. A large part takes several requests, because each request has a time limit."""
    if size <= PART:
        return storage.read(uri)
    with storage.open(uri) as file:
        return bytes(file.read())


def output_schema(job: Job, schema: pa.Schema) -> pa.Schema:
    """Columns of a part: carried (fields untouched, metadata included), outputs, lineage."""
    fields = [schema.field(name) for name in job.carry]
    fields += [pa.field(name, kind) for name, kind in job.model.output_types().items()]
    if job.output.lineage:
        file, row = LINEAGE
        fields += [
            pa.field(file, pa.dictionary(pa.int32(), pa.string())),
            pa.field(row, pa.int64(), nullable=False),
        ]
    return pa.schema(fields)


def lineage(uri: str, rows: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The lineage columns for rows of one file."""
    zeros = pa.repeat(pa.scalar(0, pa.int32()), len(rows))
    return pa.DictionaryArray.from_arrays(zeros, pa.array([uri], pa.string())), rows


def write_data(storage: Storage, revision: str, name: str, table: pa.Table, shard: str, metrics: Metrics) -> Part:
    """Write a shard's predictions, with its metric states in the footer."""
    footer = {SHARD_KEY: shard.encode(), METRICS_KEY: metrics.to_bytes()}
    return _write(storage, revision, name, table, footer)


def write_quarantine(
    storage: Storage,
    revision: str,
    name: str,
    shard: str,
    rows: Sequence[tuple[str, int, RowFailure, str]],
    inputs: pa.Table,
) -> Part:
    """Write the rows that no attempt could score. rows: (file, row in file, failure, replay command). inputs: the
    rows.
    """
    files, numbers, failures, replays = zip(*rows, strict=True)
    columns = {
        LINEAGE[0]: pa.array(files, pa.string()),
        LINEAGE[1]: pa.array(numbers, pa.int64()),
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


def read_metrics(metadata: dict[bytes, bytes] | None) -> Metrics:
    """The metric states in a part's footer."""
    return Metrics.from_bytes((metadata or {})[METRICS_KEY])
