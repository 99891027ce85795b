"""Arrow types: which kind, how a job file writes one, how many bytes per value; the Arrow schema of a record; and
values as texts for people.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from itertools import islice
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.types as is_

_PLAIN = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


def record_schema(record: type[Any]) -> pa.Schema:
    """The schema of a table with one row per frozen record of this class, and one column per field, in order.

    A field that is a record becomes a struct. `X | None` becomes a column of X, because any column may hold nulls.
    `tuple[X, ...]` becomes a list, `tuple[X, X]` a list of two. `Annotated` with the name of an Arrow type becomes that
    type.
    """
    return pa.schema(
        [pa.field(name, _column(kind)) for name, kind in get_type_hints(record, include_extras=True).items()]
    )


def _column(kind: Any) -> pa.DataType:
    arguments = get_args(kind)
    if get_origin(kind) is Annotated:
        return pa.type_for_alias(arguments[1])
    if NoneType in arguments:
        (given,) = (each for each in arguments if each is not NoneType)
        return _column(given)
    if get_origin(kind) is tuple:
        item, *others = arguments
        return pa.list_(_column(item)) if others == [...] else pa.list_(_column(item), len(arguments))
    if is_dataclass(kind):
        assert isinstance(kind, type)
        return pa.struct(list(record_schema(kind)))
    return _PLAIN[kind]


def table_of(lines: Iterable[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """A table of these lines, of which only some thousands are Python's at a time."""
    left, batches = iter(lines), list[pa.RecordBatch]()
    while some := list(islice(left, 8192)):
        batches.append(pa.RecordBatch.from_pylist(some, schema=schema))
    return pa.Table.from_batches(batches, schema=schema)


def alike(fields: Iterable[pa.Field]) -> tuple[str, str] | None:
    """Two columns, or two fields of one struct, that have one name to a reader who ignores case; None if there are
    none.
    """
    seen: dict[str, str] = {}
    for field in fields:
        if (name := field.name.casefold()) in seen:
            return seen[name], field.name
        seen[name] = field.name
        kind = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
        if inner := alike(kind.field(index) for index in range(kind.num_fields)):
            return inner
    return None


def not_told_apart(one: str, other: str) -> str:
    """Why two names that are one to a reader who ignores case cannot be used, as a sentence."""
    if one == other:
        return f"two are named {one!r}"
    return f"{one!r} and {other!r} differ in case only, and DuckDB, Spark and Delta Lake would take them for one column"


_VIEWS = {pa.ListViewType: pa.list_view, pa.LargeListViewType: pa.large_list_view}
_LISTS = {pa.ListType: pa.list_, pa.LargeListType: pa.large_list, **_VIEWS}
"""The list types of any length, and what makes one of them from the type of its values."""


def is_list(kind: pa.DataType) -> bool:
    """Whether the type is one of Arrow's list types."""
    return isinstance(kind, (pa.FixedSizeListType, *_LISTS))


def holds_list_view(kind: pa.DataType) -> bool:
    """Whether the type is a list view, or a list of some: Arrow 26 casts them to lists of other values, or ends the
    process.
    """
    return is_list(kind) and (isinstance(kind, tuple(_VIEWS)) or holds_list_view(kind.value_type))


def list_of(kind: pa.DataType, value: pa.Field) -> pa.DataType:
    """A list type of the same kind, of other values."""
    if isinstance(kind, pa.FixedSizeListType):
        return pa.list_(value, kind.list_size)
    return _LISTS[type(kind)](value)


def is_text(kind: pa.DataType) -> bool:
    """Whether the type is one of Arrow's text types."""
    return bool(is_.is_string(kind) or is_.is_large_string(kind) or is_.is_string_view(kind))


def is_number(kind: pa.DataType) -> bool:
    """Whether the type is a number, decimals included, or a bool."""
    return bool(is_native_number(kind) or is_.is_decimal(kind))


def is_native_number(kind: pa.DataType) -> bool:
    """Whether the type is a bool, or a number for which numpy and the frameworks have a type."""
    return bool(is_.is_boolean(kind) or is_.is_integer(kind) or is_.is_floating(kind))


def holds_floats(kind: pa.DataType) -> bool:
    """Whether the type is a float, a tensor of floats, or a list of floats at any depth."""
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    while is_list(kind):
        kind = kind.value_type
    return bool(is_.is_floating(kind))


_TEXT_BYTES = 16
"""The least number of bytes assumed for a value of no fixed length."""


def row_bytes(schema: pa.Schema) -> float:
    """The fewest bytes that a row is assumed to have in memory."""
    return sum(value_bytes(kind, text=_TEXT_BYTES, items=1, indices=True) for kind in schema.types)


def value_bytes(kind: pa.DataType, *, text: int, items: int, indices: bool = False) -> float:
    """Estimate the bytes of one value; a bool takes an eighth of a byte.

    text: bytes to assume for a value of no fixed length. items: items to assume for a list of no fixed length.
    indices: count a dictionary's indices, not the values that they stand for.
    """

    def of(kind: pa.DataType) -> float:
        if isinstance(kind, pa.BaseExtensionType):
            return of(kind.storage_type)
        if isinstance(kind, pa.DictionaryType):
            return of(kind.index_type if indices else kind.value_type)
        if isinstance(kind, pa.FixedSizeListType):
            return int(kind.list_size) * of(kind.value_type)
        if is_.is_nested(kind):
            inner = sum(of(kind.field(index).type) for index in range(kind.num_fields))
            return inner if is_.is_struct(kind) else items * inner
        try:
            return int(kind.bit_width) / 8
        except ValueError:  # no fixed width: text, binary
            return text

    return of(kind)


# ---- types as texts: as a job file writes them --------------------------------------------------------------


def arrow_type(text: str) -> pa.DataType:
    """An Arrow type from its text.

    `float32`, `string`, `timestamp[us, UTC]`, `list<float32>`, `float32[384]` for lists of this length,
    `uint8[32, 32, 3]` for tensors of this shape, `struct<label: string, score: float32>`.

    Raises:
        ValueError: The text names no type.
    """
    text = text.strip()
    if match := re.fullmatch(r"list<(.+)>", text):
        return pa.list_(arrow_type(match[1]))
    if match := re.fullmatch(r"struct<(.+)>", text):
        if two := alike(fields := [*_fields(match[1])]):
            raise ValueError(f"of the fields of a struct {not_told_apart(*two)}")
        return pa.struct(fields)
    if match := re.fullmatch(r"timestamp\[(s|ms|us|ns),\s*(?:tz=)?(.+)\]", text):
        return pa.timestamp(match[1], tz=_zone(match[2]))
    if match := re.fullmatch(r"(\w+)\[(\d+)\]", text):
        return pa.list_(arrow_type(match[1]), int(match[2]))
    if match := re.fullmatch(r"(\w+)\[(\d+(?:\s*,\s*\d+)+)\]", text):
        return _tensor(arrow_type(match[1]), [int(length) for length in match[2].split(",")])
    with suppress(ValueError):
        if not text.endswith("_view"):  # of which Arrow can take no values
            return pa.type_for_alias(text)
    raise ValueError(
        f"{text!r} is not an Arrow type; write float32, int64, string, bool, timestamp[us], list<float32>, "
        "float32[384], uint8[32, 32, 3] or struct<label: string, score: float32>"
    )


def _zone(name: str) -> str:
    """The name of a time zone, or an offset, that readers of Arrow know, too."""
    try:
        dt.datetime.fromisoformat(f"2000-01-01T00{name}") if name[0] in "+-" else ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # the last: a folder of zones, as Europe
        raise ValueError(f"{name!r} is no time zone; write UTC, Europe/Berlin or +01:00") from None
    return name


def _fields(text: str) -> Iterator[pa.Field]:
    for part in _parts(text):
        name, colon, kind = part.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"{part.strip()!r} is no field of a struct; write a name and a type, as score: float32")
        yield pa.field(name.strip(), arrow_type(kind))


def _parts(text: str) -> Iterator[str]:
    """The text between those commas that are within no brackets."""
    depth, start = 0, 0
    for at, character in enumerate(text):
        depth += (character in "<[") - (character in ">]")
        if character == "," and not depth:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _tensor(kind: pa.DataType, shape: list[int]) -> pa.DataType:
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise ValueError(f"a tensor holds integers or floats, not {type_name(kind)}")
    if 0 in shape:
        raise ValueError("a tensor's lengths are at least 1")
    return pa.fixed_shape_tensor(kind, shape)


_AS_WRITTEN = {"halffloat": "float16", "float": "float32", "double": "float64", "date32[day]": "date32"}


def type_name(kind: pa.DataType) -> str:
    """The name of an Arrow type in a job file; Arrow's own name for float32 is `float`."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return f"{type_name(kind.value_type)}{list(kind.shape)}"
    if isinstance(kind, pa.FixedSizeListType):
        return f"{type_name(kind.value_type)}[{kind.list_size}]"
    if isinstance(kind, pa.ListType):
        return f"list<{type_name(kind.value_type)}>"
    if isinstance(kind, pa.StructType):
        return f"struct<{', '.join(f'{field.name}: {type_name(field.type)}' for field in kind)}>"
    if isinstance(kind, pa.TimestampType) and kind.tz is not None:
        return f"timestamp[{kind.unit}, {kind.tz}]"
    return _AS_WRITTEN.get(str(kind), str(kind))


# ---- values as texts ----------------------------------------------------------------------------------------

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
