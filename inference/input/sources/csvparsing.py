"""Parsing the records of CSV: which types text is read as."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
import pyarrow.types as is_

from nightjar.inference.arrow_types import is_text
from nightjar.inference.errors import SchemaMismatch
from nightjar.inference.input.schemas import value_type
from nightjar.inference.input.sources.fitting import DigitsLost, expected_type, has_large, is_declared, is_rounded

_NULLS = ["", "NA", "N/A", "n/a", "#N/A", "NULL", "null", "None", r"\N"]
"""How programs write that a number, a date or a bool is missing. In a column of text these are texts."""

_KINDS = (pa.int64(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"))
"""A column has the first of these types as which all of its values can be read; else it is text."""

_CODE = r"[ \t]*(\+[0-9]+|[+-]?0[0-9xX][0-9a-fA-F]*)[ \t]*"
"""Digits that are more a name than a number: 01234, +491234, 0x1F."""

_LONG = r"^\s*[+-]?\d{16,}\s*$"
_NO_NUMBER = 19
"""So many digits, or more, that no int64 holds are taken for a name."""


@dataclass(frozen=True)
class Header:
    """How a file's values are named and written. end, lines: of the header."""

    names: list[str]
    delimiter: bytes
    decimal: str
    end: int
    lines: int
    names_from: str = "the header"
    """What gives the columns their names, for messages."""

    def check(self, uri: str, schema: pa.Schema) -> None:
        """Check that the file has these columns, and that text can be read as their types.

        Raises:
            SchemaMismatch: One is missing, or cannot.
        """
        for field in schema:
            if field.name not in self.names:
                known = ", ".join(map(repr, self.names[:20])) + (" …" if len(self.names) > 20 else "")
                raise SchemaMismatch(f"{uri}: column {field.name!r} is missing: {self.names_from} has {known}")
            kind = value_type(field.type)
            if is_.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
                raise SchemaMismatch(f"{uri}: column {field.name!r} is text in a CSV file, {expected_type(field)}")


def header_names(header: str, delimiter: str) -> list[str]:
    return next(csv.reader(io.StringIO(header, newline=""), delimiter=delimiter))


def read_columns(
    block: bytes, header: Header, schema: pa.Schema, note: Callable[[pv.InvalidRow], str] | None = None
) -> pa.Table:
    """Parse columns of a block, of which an empty field is null. note: told of records with another number of fields.

    Raises:
        ArrowInvalid: A value is not of its column's type, or a record has another number of fields, and `note` is None.
    """
    # Without a column the number of rows is still wanted.
    names = dict(zip(schema.names, schema.types, strict=True)) or {header.names[0]: pa.string()}
    found = pv.read_csv(
        pa.BufferReader(block),
        # Records are numbered in one thread only.
        pv.ReadOptions(use_threads=note is None, column_names=header.names, block_size=len(block) + 1),
        pv.ParseOptions(delimiter=header.delimiter.decode(), newlines_in_values=True, invalid_row_handler=note),
        pv.ConvertOptions(
            check_utf8=False,
            column_types=names,
            include_columns=list(names),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            decimal_point=header.decimal,
        ),
    )
    return found.select(schema.names)


def read_quickly(block: bytes, header: Header, schema: pa.Schema) -> pa.Table:
    """Parse the columns of a schema in one step, if it is certain that `typed` would give the same.

    Raises:
        ArrowInvalid: It is not.
    """
    table = read_columns(block, header, plain_types(schema))
    numbers = [each.name for each in schema if not is_declared(each) and _is_number(table[each.name].type)]
    if numbers and not _may_hold_codes(block, header.delimiter):
        numbers = [name for name in numbers if has_large(table[name])]
    # Of a code in a column of text the numbers beside it lose nothing.
    texts = read_columns(block, header, pa.schema([(name, pa.string()) for name in numbers])) if numbers else table
    if any(_is_lost(table[name], texts[name]) for name in numbers):
        raise DigitsLost
    return table


def plain_types(schema: pa.Schema) -> pa.Schema:
    return pa.schema([(each.name, value_type(each.type)) for each in schema])


def _may_hold_codes(block: bytes, delimiter: bytes) -> bool:
    """Whether a field of a block may match `_CODE`."""
    ends = rf'\x{delimiter[0]:02x}\n"'
    return bool(
        pc.match_substring_regex(pa.scalar(block, pa.large_binary()), rf"(\A|[{ends}]){_CODE}([{ends}\r]|\z)").as_py()
    )


def typed(text: pa.StringArray, kind: pa.DataType, decimal: str, *, exact: bool) -> pa.Array:
    """The values of a column of text as a type. exact: whether a number must keep all digits that are written.

    Raises:
        DigitsLost: It does not.
        ArrowInvalid: A value is not of the type.
    """
    if is_text(kind) or kind == pa.binary():
        return text.cast(kind)
    text = pc.utf8_trim_whitespace(text)
    text = pc.if_else(pc.is_in(text, pa.array(_NULLS)), pa.scalar(None, pa.string()), text)
    if decimal != "." and not is_.is_integer(kind):
        text = pc.replace_substring(pc.replace_substring(text, ".", "?"), decimal, ".")
    if is_.is_time(kind):
        dated = pc.binary_join_element_wise("1970-01-01", text, " ")
        return dated.cast(pa.timestamp(kind.unit)).cast(kind)
    values = text.cast(kind)
    if exact and _is_number(kind) and _is_lost(values, text):
        raise DigitsLost
    return values


def inferred(text: pa.StringArray, decimal: str) -> pa.DataType:
    """The type of a column of text; null if it has no values."""
    if pc.all(pc.is_in(text, pa.array([*_NULLS, None])), min_count=0).as_py():
        return pa.null()
    for kind in _KINDS:
        with suppress(pa.ArrowInvalid):
            typed(text, kind, decimal, exact=True)
            return kind
    return pa.string()


def _is_lost(values: pa.Array | pa.ChunkedArray, text: pa.StringArray | pa.ChunkedArray) -> bool:
    """Whether reading these texts lost a leading zero, a sign, or last digits of a whole number in a float column."""
    if pc.any(pc.match_substring_regex(text, f"^{_CODE}$")).as_py():
        return True
    if not has_large(values):
        return False
    long = (each.strip().lstrip("+-") for each in text.filter(pc.match_substring_regex(text, _LONG)).to_pylist())
    return any(len(each) >= _NO_NUMBER or is_rounded(int(each)) for each in long)


def _is_number(kind: pa.DataType) -> bool:
    return bool(is_.is_integer(kind) or is_.is_floating(kind))
