"""How many bytes a value of an Arrow type takes in memory, where only the schema is known."""

from __future__ import annotations

import pyarrow as pa


def value_bytes(kind: pa.DataType, *, text: int, items: int, indices: bool = False) -> float:
    """Bytes of one value; a bool takes an eighth.

    text: how long a value of no fixed length is taken to be. items: how many a list of no fixed length holds.
    indices: count a dictionary's indices, not the values they stand for.
    """

    def of(kind: pa.DataType) -> float:
        if isinstance(kind, pa.BaseExtensionType):
            return of(kind.storage_type)
        if isinstance(kind, pa.DictionaryType):
            return of(kind.index_type if indices else kind.value_type)
        if isinstance(kind, pa.FixedSizeListType):
            return int(kind.list_size) * of(kind.value_type)
        if pa.types.is_nested(kind):
            inner = sum(of(kind.field(index).type) for index in range(kind.num_fields))
            return inner if pa.types.is_struct(kind) else items * inner
        try:
            return int(kind.bit_width) / 8
        except ValueError:  # no fixed width: text, binary
            return text

    return of(kind)
