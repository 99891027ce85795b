"""Values of rows as short texts that people read beside each other."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from nightjar.inference.arrow_types import is_text

NULL = "null"
_ITEMS = 16
"""The number of items of a list that are shown; a vector's first numbers tell as much as all of them."""


def shown(value: Any, most: int, *, quoted: bool = False) -> str:
    """An Arrow scalar as text of at most `most` characters.

    quoted: write texts as Python does, so that '' differs from nothing and '1' from a number.
    """
    try:
        text = _text(value, most, quoted)
    except (OverflowError, ValueError, LookupError, pa.ArrowException):
        # For example a date after the year 9999, an unknown time zone, or text that is not UTF-8.
        text = f"({value.type} that cannot be shown)"
    return text if len(text) <= most else f"{text[: most - 1]}…"


def row_values(table: pa.Table, row: int, most: int) -> tuple[tuple[str, str], ...]:
    """Name and quoted value of each column of one row."""
    return tuple((name, shown(table[name][row], most, quoted=True)) for name in table.column_names)


def _text(value: Any, most: int, quoted: bool) -> str:
    if not value.is_valid:
        return NULL
    if isinstance(value, pa.ExtensionScalar | pa.DictionaryScalar):
        return _text(value.value, most, quoted)
    if isinstance(value, pa.MapScalar | pa.StructScalar):
        pairs = value.as_py().items() if isinstance(value, pa.StructScalar) else value.as_py()
        return "{" + ", ".join(f"{key!r}: {item!r}" for key, item in pairs) + "}"
    if isinstance(value, pa.ListScalar):
        items = [_text(item, most, True) for item in value.values[:_ITEMS]]
        return f"[{', '.join([*items, *(['…'] if len(value.values) > _ITEMS else [])])}]"
    kind = value.type
    if is_text(kind):
        text: str = value.as_py()[: most + 1]
        return repr(text) if quoted else text
    plain = value.as_py()
    if isinstance(plain, bytes):
        return repr(plain[: most + 1])
    # Arrow writes a float32 in the shortest form that gives the same float32: 0.1, not 0.10000000149011612.
    return str(value.cast(pa.string()).as_py()) if isinstance(plain, float) else str(plain)
