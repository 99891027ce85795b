"""Files of any kind: each file is one row, with its `bytes` and its `path`, its location."""

from __future__ import annotations

from abc import abstractmethod

import pyarrow as pa

from nightjar.inference.errors import InputCorrupt
from nightjar.inference.input.sources.fitting import check_columns
from nightjar.inference.input.sources.protocol import Description, Source
from nightjar.inference.input.sources.rows import RowsRead, Unreadable, nulls
from nightjar.inference.records import Piece
from nightjar.inference.storage.protocol import Entry, Storage


class OneRowSource(Source):
    """Base of the formats of which each file is one row. What is wrong with a file costs that row."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns, by the options."""

    @abstractmethod
    def decoded(self, uri: str, data: bytes) -> dict[str, pa.Array]:
        """The columns that come from a file's bytes.

        Raises:
            InputCorrupt: They cannot be decoded.
        """

    def named(self, uri: str) -> dict[str, pa.Array]:
        """The columns that come from a file's location."""
        return {"path": pa.array([uri], pa.string())}

    def read(self, storage: Storage, piece: Piece, schema: pa.Schema, most: int | None = None) -> RowsRead:
        """The file's row. The file is read only if more than its location is asked for."""
        check_columns(piece.uri, self.schema(), schema)
        lost, columns = Unreadable(piece, most), self.named(piece.uri)
        if not columns.keys() >= set(schema.names):
            with storage.open(piece.uri) as file:
                data = bytes(file.read())
            try:
                columns |= self.decoded(piece.uri, data)
            except InputCorrupt as error:
                lost.fail(0, error)
                return lost.read(nulls(schema, 1))
        return lost.read(pa.table({name: columns[name] for name in schema.names}))


class Binary(OneRowSource):
    """The source of files of any kind. No name tells it, so the job has to."""

    name = "binary"

    def schema(self) -> pa.Schema:
        return pa.schema([("bytes", pa.binary()), ("path", pa.string())])

    def describe(self, storage: Storage, entry: Entry) -> Description:
        """Nothing is read: every file is one row."""
        return Description(self.schema(), (1,), (max(1, entry.size),))

    def decoded(self, uri: str, data: bytes) -> dict[str, pa.Array]:
        return {"bytes": pa.array([data], pa.binary())}


SOURCE = Binary()
