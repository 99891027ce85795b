"""Parsing the records of CSV: which types text is read as, and what is said of a record that cannot be parsed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
import pyarrow.types as is_

from nightjar.inference.arrow_types import is_text
from nightjar.inference.errors import InputCorrupt, SchemaMismatch
from nightjar.inference.input.sources import lines, normalisation
from nightjar.inference.input.sources.records import Records
from nightjar.inference.messages import clip, counted

_NULLS = ["", "NA", "N/A", "n/a", "#N/A", "NULL", "null", "None", r"\N"]
"""How programs write that a number, a date or a bool is missing. In a column of text these are texts."""

_TRUE, _FALSE = ["true", "True", "TRUE"], ["false", "False", "FALSE"]

_CODES = r"^\s*(\+\d+|[+-]?0[0-9xX][0-9a-fA-F]*)\s*$"
_CODES_OR_LONG = rf"{_CODES}|^\s*[+-]?\d{{19,}}\s*$"
"""Digits that are more a name than a number (01234, +491234, 0x1F), and whole numbers that a double may not hold."""


@dataclass(frozen=True)
class Header:
    """The columns' names, and what separates fields. end, lines: the bytes and lines up to the first record."""

    names: list[str]
    delimiter: bytes
    end: int
    lines: int

    def check(self, uri: str, schema: pa.Schema) -> None:
        """Check that the file has these columns, and that text can be read as their types.

        Raises:
            SchemaMismatch: One is missing, or cannot.
        """
        for field in schema:
            if field.name not in self.names:
                raise SchemaMismatch(f"{uri}: column {field.name!r} is missing: the header has {_listed(self.names)}")
            if not _is_readable(field.type):
                raise SchemaMismatch(
                    f"{uri}: column {field.name!r} is text in a CSV file, in the other files it is {field.type}"
                )


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names[:20])) + (" …" if len(names) > 20 else "")


def header_names(header: bytes, delimiter: bytes) -> list[str]:
    parsed = partial(pv.read_csv, read_options=pv.ReadOptions(autogenerate_column_names=True))
    parsed = partial(parsed, parse_options=pv.ParseOptions(delimiter=delimiter.decode(), newlines_in_values=True))
    generated = parsed(pa.BufferReader(header)).schema.names
    as_text = pv.ConvertOptions(column_types=dict.fromkeys(generated, pa.string()))
    return [column[0].as_py() for column in parsed(pa.BufferReader(header), convert_options=as_text).columns]


def check_quotes(where: str, line: int, block: bytes, found: Records) -> None:
    """Check a block that is the beginning of the text of which `found` is known. where, line: of its first line.

    Raises:
        InputCorrupt: A quote is never closed, or a carriage return outside quotes is no line end.
    """
    for at, wrong in (
        (found.bare, "has a carriage return that no line feed follows: write line ends as \\n or \\r\\n"),
        (found.unclosed, "opens a quote that is never closed"),
    ):
        if 0 <= at < len(block):
            number = line + block.count(b"\n", 0, at)
            raise InputCorrupt(f"{where}: line {number} {wrong}")


def parsed(
    where: str, line: int, block: bytes, header: Header, schema: pa.Schema | None, most: int | None = None
) -> pa.Table:
    """Parse a block of whole records. where, line: of its first line, for messages. schema: None to infer it.

    most: the most records to parse.

    Raises:
        InputCorrupt: A record has not as many fields as the header, or is not UTF-8 text.
        SchemaMismatch: A value is not of its column's type.
    """
    found = Records(block, header.delimiter)
    starts, stops = found.spans()
    if most is not None and len(starts) > most:
        starts, stops = starts[:most], stops[:most]
        block = block[: stops[-1]]
    lines.check_utf8(where, line, block)
    check_quotes(where, line, block, found)
    if not len(starts):
        return (pa.schema([(name, pa.null()) for name in header.names]) if schema is None else schema).empty_table()
    parse = partial(_inferred, header=header) if schema is None else partial(_converted, header=header, schema=schema)
    try:
        table = parse(block)
    except pa.ArrowInvalid as error:
        records = [block[low:high] for low, high in zip([0, *stops[:-1]], stops, strict=True)]
        bad, error = lines.first_fault(records, parse, error)
        number = line + block.count(b"\n", 0, starts[bad])
        raise _fault(f"{where}: line {number}", block[starts[bad] : stops[bad]], header, schema, error) from error
    if table.num_rows != len(starts):
        raise InputCorrupt(f"{where}: {table.num_rows} rows were read from {len(starts)} records")
    return table


def _read(block: bytes, header: Header, kinds: dict[str, pa.DataType | None], *, lenient: bool = False) -> pa.Table:
    """Parse some columns of a block. kinds: their types; None to infer one.

    lenient: a missing value may be written as any of `_NULLS`, and in quotes; else only as an empty field.
    """
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
        ),
    )


def _converted(block: bytes, header: Header, schema: pa.Schema) -> pa.Table:
    """Parse the columns of a schema, with its types as far as text is read as such."""
    kinds: dict[str, pa.DataType | None] = {field.name: normalisation.values(field.type) for field in schema}
    try:
        # Without a column the number of rows is still wanted.
        return _read(block, header, kinds or {header.names[0]: None}).select(schema.names)
    except pa.ArrowInvalid:
        text = {name: kind for name, kind in kinds.items() if kind is not None and _takes_any(kind)}
        rest = {name: kind for name, kind in kinds.items() if name not in text}
        if not rest:
            raise
        table = _read(block, header, rest, lenient=True)
        for name, column in zip(text, _read(block, header, text).columns, strict=True) if text else ():
            table = table.append_column(name, column)
        return table.select(schema.names)


def _takes_any(kind: pa.DataType) -> bool:
    return is_text(kind) or kind == pa.binary()


def _is_readable(kind: pa.DataType) -> bool:
    kind = normalisation.values(kind)
    return not (is_.is_nested(kind) or isinstance(kind, pa.BaseExtensionType))


def _inferred(block: bytes, header: Header) -> pa.Table:
    """Parse all columns, with the types that `Csv` names. A column without values has the type null."""
    table = _read(block, header, dict.fromkeys(header.names))
    if text := [name for name in header.names if is_text(table.schema.field(name).type)]:
        lenient = _read(block, header, dict.fromkeys(text), lenient=True)
        table = _with(table, {name: lenient[name] for name in text if not is_text(lenient[name].type)})
    odd = [field.name for field in table.schema if is_.is_primitive(field.type) and not is_.is_boolean(field.type)]
    as_text = _read(block, header, dict.fromkeys(odd, pa.string())) if odd else table
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
    codes = _CODES if is_.is_integer(kind) else _CODES_OR_LONG
    is_code = is_.is_time(kind) or (not is_.is_date(kind) and pc.any(pc.match_substring_regex(text, codes)).as_py())
    return text if is_code else values


def _fault(
    at: str, record: bytes, header: Header, schema: pa.Schema | None, error: pa.ArrowInvalid
) -> InputCorrupt | SchemaMismatch:
    """Say what is wrong with a record that cannot be parsed. at: its file and line."""
    fields = _fields(record, header)
    if fields != len(header.names):
        said = clip(record.decode().rstrip("\r\n"))
        return InputCorrupt(f"{at} has {counted(fields, 'field')}, the header has {len(header.names)}: {said!r}")
    for field in schema or ():
        try:
            _converted(record, header, pa.schema([field]))
        except pa.ArrowInvalid:
            text = _read(record, header, {field.name: pa.string()})[field.name][0].as_py()
            kind = _inferred(record, header).schema.field(field.name).type
            return SchemaMismatch(
                f"{at}: column {field.name!r} holds {clip(text)!r} ({kind}), in the other files it is {field.type}"
            )
    return InputCorrupt(f"{at}: not readable: {error}")


def _fields(record: bytes, header: Header) -> int:
    """The number of a record's fields."""
    found = [len(header.names)]

    def note(row: pv.InvalidRow) -> str:
        found.append(row.actual_columns)
        return "skip"

    options = pv.ParseOptions(delimiter=header.delimiter.decode(), newlines_in_values=True, invalid_row_handler=note)
    names = pv.ReadOptions(column_names=header.names, block_size=len(record) + 1)
    pv.read_csv(pa.BufferReader(record), names, options)
    return found[-1]
