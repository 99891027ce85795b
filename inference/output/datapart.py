"""A data part that was read back: the bytes that its receipt vouches for, and the shard's table in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nightjar.inference.errors import AuditFailed
from nightjar.inference.output.hive import Division, divide
from nightjar.inference.output.parts import (
    SHARD_KEY,
    InFolder,
    at_once,
    checksum,
    file_in,
    files_in,
    is_divided,
    read_part,
    schema_in,
)
from nightjar.inference.records import Part
from nightjar.inference.storage.protocol import Storage, join


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
