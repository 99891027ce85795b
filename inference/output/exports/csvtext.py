"""CSV as RFC 4180 has it, but with LF at the end of lines: a header, then a line for each row.

A null is an empty field, and an empty text is `""`. A field is quoted if it must be.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.arrow_types import is_text
from nightjar.inference.output.exports.texts import LARGE, concatenated, is_scalar, joined, text_of

_QUOTED = r'[",\r\n]|^\s|\s$|^$'
"""What a field must be quoted for: separators, line ends, quotes, space that a reader may drop; and an empty text."""


def holds(kind: pa.DataType) -> bool:
    """Whether CSV has a form for values of this type."""
    return is_scalar(kind)


def head(names: Sequence[str]) -> bytes:
    """The header."""
    return (",".join(_quoted(pa.array(names, LARGE)).to_pylist()) + "\n").encode()


def lines(batch: pa.RecordBatch) -> pa.Buffer:
    """A line for each row."""
    # A line that is blank would be no row to a reader.
    null = '""' if batch.num_columns == 1 else ""
    fields = [pc.fill_null(_field(column), pa.scalar(null, LARGE)) for column in batch.columns]
    separated = [each for field in fields for each in (field, ",")][:-1]
    return concatenated(joined(*separated, "\n"))


def _field(column: pa.Array) -> pa.Array:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return _quoted(text_of(column)) if is_text(kind) else text_of(column)


def _quoted(texts: pa.Array) -> pa.Array:
    marked = joined('"', pc.replace_substring(texts, '"', '""'), '"')
    return pc.if_else(pc.match_substring_regex(texts, _QUOTED), marked, texts)
