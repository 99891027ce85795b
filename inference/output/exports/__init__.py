"""What is written beside a part: its exports, which are the same rows as CSV or JSON lines for readers who cannot read
Parquet, and states that are too large for its footer: the profile of its columns, and the slices of its labels.

A worker writes them before the part, whose footer names the size and checksum of each. So the receipt, which has the
part's checksum, vouches for them, too: they are committed, audited, published and taken back together with their part,
and neither the ledger nor a snapshot knows them.

    data/<base>.parquet
    exports/csv.gz/<base>.csv.gz
    exports/profile/<base>.profile
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import pyarrow as pa
import xxhash

from nightjar.inference.errors import JobError
from nightjar.inference.job.outputtypes import type_name
from nightjar.inference.jsonform import of_json, to_json
from nightjar.inference.output.exports import csvtext, jsontext
from nightjar.inference.storage.protocol import Storage, join

FOLDER = "exports"
"""The folder of what lies beside a revision's parts; each kind has a folder of its own in it."""

PROFILE = "profile"
"""The kind that is the profile of a part's columns."""

SLICES = "slices"
"""The kind that is the labels against the outputs for each value of some columns."""

FOOTER_KEY = b"nightjar.exports"

_PARQUET = ".parquet"
_GZIP = 31
"""zlib's number for gzip's own header and trailer. They have no time, so that the same rows give the same bytes."""

_ROWS = 1 << 16
"""The rows that are turned into text at once."""


class _Text(Protocol):
    """A form of text. `holds`: whether it has a form for values of a type. `head`, `lines`: the text itself."""

    def holds(self, kind: pa.DataType) -> bool: ...

    def head(self, names: Sequence[str]) -> bytes: ...

    def lines(self, batch: pa.RecordBatch) -> pa.Buffer: ...


_TEXTS: Mapping[str, _Text] = {"csv": csvtext, "jsonl": jsontext}


@dataclass(frozen=True, slots=True)
class Exported:
    """One export of a part. size: in bytes. checksum: as of a part."""

    size: int
    checksum: str


def check(kinds: Iterable[str], columns: pa.Schema) -> None:
    """Check that each kind can hold the columns of a part.

    Raises:
        JobError: It cannot. Names the key, the column and its type.
    """
    for kind in kinds:
        for column in columns:
            if not _text(kind).holds(column.type):
                other = "write jsonl, or leave" if jsontext.holds(column.type) else "leave"
                raise JobError(
                    f"output.exports: {kind} cannot hold the column {column.name!r}, which is "
                    f"{type_name(column.type)}; {other} it out of carry or model.outputs, or {kind} out of "
                    "output.exports"
                )


def name_of(part: str, kind: str) -> str:
    """The name of an export, from that of its part; both relative to the revision."""
    base = part.rpartition("/")[2].removesuffix(_PARQUET)
    return f"{FOLDER}/{kind}/{base}.{kind}"


def names_of(part: str, kinds: Iterable[str]) -> list[str]:
    """The names of a part's exports; a quarantine has none."""
    return [] if part.startswith("quarantine/") else [name_of(part, kind) for kind in kinds]


def write(
    storage: Storage,
    revision: str,
    part: str,
    table: pa.Table,
    columns: pa.Schema,
    kinds: Sequence[str],
    states: Mapping[str, bytes] | None = None,
) -> dict[bytes, bytes]:
    """Write what lies beside a part, and return what the part's footer must say of it.

    columns: of the table, as readers see them. states: of its rows, by kind, for the kinds that are no text.
    """
    found = {}
    for kind in kinds:
        data = pa.py_buffer(states[kind]) if states and kind in states else encode(kind, table, columns)
        storage.write(join(revision, name_of(part, kind)), data)
        found[kind] = to_json(Exported(data.size, xxhash.xxh3_128_hexdigest(data)))
    return {FOOTER_KEY: json.dumps(found).encode("ascii")} if found else {}


def named_in(footer: Mapping[bytes, bytes]) -> dict[str, Exported]:
    """The exports that a part's footer names, by kind."""
    return {kind: of_json(Exported, found) for kind, found in json.loads(footer.get(FOOTER_KEY, b"{}")).items()}


def encode(kind: str, table: pa.Table, columns: pa.Schema) -> pa.Buffer:
    """The rows of a table as text, in their order."""
    text, sink = _text(kind), pa.BufferOutputStream()
    packing = zlib.compressobj(wbits=_GZIP) if kind.endswith(".gz") else None
    batches = table.cast(columns).to_batches(max_chunksize=_ROWS)
    for piece in chain([text.head(columns.names)], (text.lines(batch) for batch in batches if batch.num_rows)):
        sink.write(packing.compress(piece) if packing else piece)
    if packing:
        sink.write(packing.flush())
    return sink.getvalue()


def _text(kind: str) -> _Text:
    return _TEXTS[kind.partition(".")[0]]
