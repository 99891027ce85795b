"""Parsing the records of CSV: which types text is read as."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
import pyarrow.types as is_

from nightjar.inference.arrow_types import is_text
from nightjar.inference.errors import SchemaMismatch
from nightjar.inference.input.sources import normalisation
from nightjar.inference.input.sources.fitting import DigitsLost, expected_type, has_large, is_declared, is_rounded

_NULLS = ["", "NA", "N/A", "n/a", "#N/A", "NULL", "null", "None", r"\N"]
"""How programs write that a number, a date or a bool is missing. In a column of text these are texts."""

_CODE = r"[ \t]*(\+[0-9]+|[+-]?0[0-9xX][0-9a-fA-F]*)[ \t]*"
"""Digits that are more a name than a number: 01234, +491234, 0x1F."""

_LONG = r"^\s*[+-]?\d{16,}\s*$"
_NO_NUMBER = 19
"""So many digits, or more, that no int64 holds are taken for a name."""

_TRUE, _FALSE = ["true", "True", "TRUE"], ["false", "False", "FALSE"]


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
                raise SchemaMismatch(
                    f"{uri}: column {field.name!r} is missing: {self.names_from} has {_listed(self.names)}"
                )
            if not _is_readable(field.type):
                raise SchemaMismatch(f"{uri}: column {field.name!r} is text in a CSV file, {expected_type(field)}")


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names[:20])) + (" …" if len(names) > 20 else "")


def header_names(header: bytes, delimiter: bytes) -> list[str]:
    parsed = partial(pv.read_csv, read_options=pv.ReadOptions(autogenerate_column_names=True))
    parsed = partial(parsed, parse_options=pv.ParseOptions(delimiter=delimiter.decode(), newlines_in_values=True))
    generated = parsed(pa.BufferReader(header)).schema.names
    as_text = pv.ConvertOptions(column_types=dict.fromkeys(generated, pa.string()))
    return [column[0].as_py() for column in parsed(pa.BufferReader(header), convert_options=as_text).columns]


def read_columns(
    block: bytes, header: Header, kinds: dict[str, pa.DataType | None], *, lenient: bool = False
) -> pa.Table:
    """Parse columns of a block. kinds: types, None to infer one. lenient: take `_NULLS`, in quotes too, as missing."""
    return pv.read_csv(
        pa.BufferReader(block),
        pv.ReadOptions(column_names=header.names, block_size=len(block) + 1),
        pv.ParseOptions(delimiter=header.delimiter.decode(), newlines_in_values=True),
        pv.ConvertOptions(
            check_utf8=False,
            column_types={name: kind for name, kind in kinds.items() if kind is not None},
            include_columns=list(kinds),
            null_values=_NULLS if lenient else [""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=lenient,
            true_values=_TRUE,
            false_values=_FALSE,
            decimal_point=header.decimal,
        ),
    )


def converted(block: bytes, header: Header, schema: pa.Schema) -> pa.Table:
    """Parse the columns of a schema, with its types as far as text is read as such.

    Raises:
        DigitsLost: Of a number of a column whose type was inferred.
        ArrowInvalid: A value is not of its column's type, or a record has another number of fields.
    """
    table = _typed(block, header, schema)
    numbers = [each.name for each in schema if not is_declared(each) and _is_number(table[each.name].type)]
    if numbers and not _may_hold_codes(block, header.delimiter):
        numbers = [name for name in numbers if has_large(table[name])]
    if numbers:
        texts = read_columns(block, header, dict.fromkeys(numbers, pa.string()))
        if any(_is_lost(table[name], texts[name]) for name in numbers):
            raise DigitsLost
    return table


def _may_hold_codes(block: bytes, delimiter: bytes) -> bool:
    """Whether a field of a block may match `_CODE`: one search through the bytes, before columns are read as text."""
    ends = rf'\x{delimiter[0]:02x}\n"'
    return bool(
        pc.match_substring_regex(pa.scalar(block, pa.large_binary()), rf"(\A|[{ends}]){_CODE}([{ends}\r]|\z)").as_py()
    )


def _is_lost(values: pa.ChunkedArray, text: pa.ChunkedArray) -> bool:
    """Whether reading these texts lost a leading zero, a sign, or last digits of a whole number in a float column."""
    if pc.any(pc.match_substring_regex(text, f"^{_CODE}$")).as_py():
        return True
    if not has_large(values):
        return False
    long = (each.strip().lstrip("+-") for each in text.filter(pc.match_substring_regex(text, _LONG)).to_pylist())
    return any(len(each) >= _NO_NUMBER or is_rounded(int(each)) for each in long)


def _typed(block: bytes, header: Header, schema: pa.Schema) -> pa.Table:
    kinds: dict[str, pa.DataType | None] = {field.name: normalisation.value_type(field.type) for field in schema}
    try:
        # Without a column the number of rows is still wanted.
        return read_columns(block, header, kinds or {header.names[0]: None}).select(schema.names)
    except pa.ArrowInvalid:
        text = {name: kind for name, kind in kinds.items() if kind is not None and _takes_any(kind)}
        rest = {name: kind for name, kind in kinds.items() if name not in text}
        if not rest:
            raise
        table = read_columns(block, header, rest, lenient=True)
        for name, column in zip(text, read_columns(block, header, text).columns, strict=True) if text else ():
            table = table.append_column(name, column)
        return table.select(schema.names)


def _is_number(kind: pa.DataType) -> bool:
    return bool(is_.is_integer(kind) or is_.is_floating(kind))


def _takes_any(kind: pa.DataType) -> bool:
    return is_text(kind) or kind == pa.binary()


def _is_readable(kind: pa.DataType) -> bool:
    kind = normalisation.value_type(kind)
    return not (is_.is_nested(kind) or isinstance(kind, pa.BaseExtensionType))


def inferred_together(block: bytes, header: Header) -> pa.Table:
    """Parse all columns, with the types that `Csv` names. A column without values has the type null."""
    table = read_columns(block, header, dict.fromkeys(header.names))
    if text := [name for name in header.names if is_text(table.schema.field(name).type)]:
        lenient = read_columns(block, header, dict.fromkeys(text), lenient=True)
        table = _with(table, {name: lenient[name] for name in text if not is_text(lenient[name].type)})
    odd = [field.name for field in table.schema if is_.is_primitive(field.type) and not is_.is_boolean(field.type)]
    as_text = read_columns(block, header, dict.fromkeys(odd, pa.string())) if odd else table
    return _with(table, {name: _plain(table[name], as_text[name]) for name in odd})


def _with(table: pa.Table, columns: dict[str, pa.ChunkedArray]) -> pa.Table:
    for name, column in columns.items():
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _plain(values: pa.ChunkedArray, text: pa.ChunkedArray) -> pa.ChunkedArray:
    """Numbers, dates and times as `Csv` has them; as text if they would lose something that was written."""
    kind = values.type
    if is_.is_timestamp(kind):
        try:
            return values.cast(pa.timestamp("us", kind.tz))
        except pa.ArrowInvalid:
            return text
    is_code = is_.is_time(kind) or (not is_.is_date(kind) and _is_lost(values, text))
    return text if is_code else values
