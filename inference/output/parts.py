"""Writes scored tables as parts, and reads parts back: for the audit, the second scoring of a sample, and accumulators.

A part is encoded in memory, and appears whole under its final name or not at all.

The footer of a part has the metric states of its rows. States that are too large for a footer (`Job.states_beside`) lie
in a file beside the part. A worker writes that file before the part, whose footer names its size and checksum. So the
receipt, which has the part's checksum, vouches for the file, too: it is committed, audited, published and taken back
together with its part, and neither the ledger nor a snapshot knows it.

    data/<base>.parquet
    sidecars/<base>.metrics
    sidecars/<base>.keys      with `reuse: rows`, see `rowindex`
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from nightjar.inference.arrow_types import is_text
from nightjar.inference.errors import AuditFailed
from nightjar.inference.input.sources.protocol import unbound
from nightjar.inference.job.model import Job
from nightjar.inference.job.sections import LINEAGE
from nightjar.inference.jsonform import of_bytes, to_bytes
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.records import Part
from nightjar.inference.storage.protocol import Storage, join
from nightjar.inference.storage.retrying import PART

DATA = "data"
"""The folder of a revision's data files."""

SIDECARS = "sidecars"
"""The folder of the files that lie beside a revision's data parts: metric states, and keys of rows."""

METRICS_KEY = b"nightjar.metrics"

SHARD_KEY = b"nightjar.shard"

STATES_KEY = b"nightjar.states"

KEYS_KEY = b"nightjar.keys"

_ARROW_SCHEMA = b"ARROW:schema"

_SAMPLE = 8192

_SAMPLE_BYTES = 64 << 20

_LOW_CARDINALITY = 0.05

_NAME = re.compile(r"(?:.*/)?[0-9a-f]+-(\d{6,})-[0-9a-f]{8}\.(?:parquet|metrics|keys)")
"""The form that `part_name` gives a part's name, which what lies beside it has, too."""


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A file beside a part, as the footer of the part names it. size: in bytes. checksum: as of a part."""

    size: int
    checksum: str


def states_name(part: str) -> str:
    """The name of the file of metric states beside a data part; both names are relative to the revision."""
    return f"{SIDECARS}/{stem_of(part)}.metrics"


def keys_name(part: str) -> str:
    """The name of the file with the keys of a data part's rows; both names are relative to the revision."""
    return f"{SIDECARS}/{stem_of(part)}.keys"


def files_of(part: str, *, states_beside: bool, keyed: bool = False) -> list[str]:
    """The names of all files of a part, in the order in which they are written: the part last.

    states_beside: as of a `Job`. keyed: as of a receipt. A quarantine has neither states nor keys.
    """
    if not part.startswith(f"{DATA}/"):
        return [part]
    return [*([states_name(part)] if states_beside else ()), *([keys_name(part)] if keyed else ()), part]


def part_name(kind: str, shard: str, epoch: int) -> str:
    """A new name `data/<shard>-<epoch>-<nonce>.parquet`; two attempts never share a name."""
    return f"{kind}/{shard}-{epoch:06d}-{uuid.uuid4().hex[:8]}.parquet"


def epoch_of(uri: str) -> int | None:
    """The epoch in which a part, or a file beside it, was written, from its name; None for one that no worker wrote."""
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
    file, row = LINEAGE
    of_file = pa.field(file, pa.dictionary(pa.int32(), pa.string()))
    return pa.schema([*fields, of_file, pa.field(row, pa.int64(), nullable=False)])


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
    *,
    states_beside: bool = False,
    keys: pa.Buffer | None = None,
    more: Mapping[bytes, bytes] = {},
) -> Part:
    """Write a shard's predictions, with its metric states. states_beside: as of a `Job`. keys: of its rows, as
    `rowindex.keys_to_bytes` makes them; None without any. more: of the footer.
    """
    footer, states = {SHARD_KEY: shard.encode()}, metrics.to_bytes()
    if states_beside:
        storage.write(join(revision, states_name(name)), states)
        footer[STATES_KEY] = _sidecar(states)
    else:
        # ASCII, because some Parquet readers refuse a footer whose values are not UTF-8.
        footer[METRICS_KEY] = base64.b64encode(states)
    if keys is not None:
        storage.write(join(revision, keys_name(name)), keys)
        footer[KEYS_KEY] = _sidecar(keys)
    return write_part(storage, revision, name, table, {**footer, **more})


def _sidecar(data: pa.Buffer | bytes) -> bytes:
    return to_bytes(Sidecar(len(data), checksum(data)))


def read_sidecar(storage: Storage, revision: str, name: str, named: bytes) -> bytes:
    """A file beside a part. named: the value of the part's footer that names it.

    Raises:
        AuditFailed: It is not the file that was written.
    """
    written = of_bytes(Sidecar, named)
    found = read_part(storage, join(revision, name), written.size)
    expect(f"bytes of {name}", len(found), written.size)
    expect(f"checksum of {name}", checksum(found), written.checksum)
    return found


def checksum(data: pa.Buffer | bytes) -> str:
    """xxh3-128 of a part's bytes, in hex. It protects against damage, not against attackers, and is very fast."""
    return xxhash.xxh3_128_hexdigest(data)


def write_part(storage: Storage, revision: str, name: str, table: pa.Table, footer: dict[bytes, bytes]) -> Part:
    """Write a part under a name that `part_name` made. footer: besides its schema."""
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
        shown = readers_schema(table.schema).serialize().to_pybytes()
        writer.add_key_value_metadata({**footer, _ARROW_SCHEMA: base64.b64encode(shown)})
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


def read_metrics(storage: Storage, revision: str, part: str, footer: Mapping[bytes, bytes]) -> Metrics:
    """The metric states of a part: those of its footer, or of the file beside it that the footer names.

    Raises:
        AuditFailed: The file is not the one that was written, or the states are of another version of Nightjar.
    """
    name = part
    if METRICS_KEY in footer:
        states = base64.b64decode(footer[METRICS_KEY])
    else:
        name = states_name(part)
        states = read_sidecar(storage, revision, name, footer[STATES_KEY])
    try:
        return Metrics.from_bytes(states)
    except ValueError as error:
        raise AuditFailed(f"{name}: {error}") from error


@dataclass(frozen=True)
class DataPart:
    """A part in memory, as it was written. name: relative to the revision."""

    name: str
    footer: Mapping[bytes, bytes]
    _raw: bytes

    def table(self, columns: Sequence[str] | None = None, *, dictionaries: Sequence[str] = ()) -> pa.Table:
        """The shard's rows in input order. columns: only these; default: all. dictionaries: texts to read as such."""
        with pq.ParquetFile(pa.BufferReader(self._raw), read_dictionary=list(dictionaries)) as file:
            return file.read(columns=columns if columns is None else list(columns), use_threads=False)


def read_data(storage: Storage, revision: str, part: Mapping[str, Any], shard: str) -> DataPart:
    """Read a part. part: as in its receipt. shard: to which it must belong.

    Raises:
        AuditFailed: It is not what the receipt says.
    """
    name = part["name"]
    raw = read_part(storage, join(revision, name), part["size"])
    expect(f"bytes of {name}", len(raw), part["size"])
    expect(f"checksum of {name}", checksum(raw), part["checksum"])
    metadata = pq.read_metadata(pa.BufferReader(raw))
    footer: dict[bytes, bytes] = metadata.metadata or {}
    expect(f"rows of {name}", metadata.num_rows, part["rows"])
    expect(f"shard named in {name}", footer.get(SHARD_KEY, b"").decode(), shard)
    return DataPart(name, footer, raw)


def expect(what: str, found: Any, expected: Any) -> None:
    """Check a figure.

    Raises:
        AuditFailed: It is another one.
    """
    if found != expected:
        raise AuditFailed(f"{what}: found {found}, the receipt says {expected}")
