"""Files of any kind: each file is one row, with its `bytes` and its `path`, its location."""

from __future__ import annotations

import pyarrow as pa

from nightjar.inference.input.sources.fitting import check_columns
from nightjar.inference.input.sources.protocol import Description, Source
from nightjar.inference.records import Piece
from nightjar.inference.storage.protocol import Entry, Storage

_SCHEMA = pa.schema([("bytes", pa.binary()), ("path", pa.string())])


class Binary(Source):
    """The source of files of any kind. No name tells it, so the job has to."""

    name = "binary"
    suffixes = ()
    columns_apart = True

    def describe(self, storage: Storage, entry: Entry) -> Description:
        """Nothing is read: every file is one row."""
        return Description(_SCHEMA, (1,), (max(1, entry.size),))

    def columns(self, storage: Storage, entry: Entry) -> pa.Schema:
        return _SCHEMA

    def read(self, storage: Storage, piece: Piece, schema: pa.Schema, most: int | None = None) -> pa.Table:
        """The file's row. It is read only if its bytes are asked for."""
        check_columns(piece.uri, _SCHEMA, schema)
        columns: dict[str, pa.Array] = {"path": pa.array([piece.uri], pa.string())}
        if "bytes" in schema.names:
            with storage.open(piece.uri) as file:
                columns["bytes"] = pa.array([bytes(file.read())], pa.binary())
        return pa.table({name: columns[name] for name in schema.names})


SOURCE = Binary()
