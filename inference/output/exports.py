"""What is written beside a part: its exports, which are the same rows as CSV or JSON lines for readers who cannot read
Parquet, and the states that `metrics.states.BESIDE` names.

A worker writes them before the part, whose footer names the size and checksum of each. So the receipt, which has the
part's checksum, vouches for them, too: they are committed, audited, published and taken back together with their part,
and neither the ledger nor a snapshot knows them.

    data/<base>.parquet
    exports/csv.gz/<base>.csv.gz
    exports/profile/<base>.profile
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import xxhash

from nightjar.inference.arrow_types import is_list, is_text
from nightjar.inference.errors import JobError
from nightjar.inference.job.outputtypes import type_name
from nightjar.inference.jsonform import of_json, to_json
from nightjar.inference.storage.protocol import Storage, join

FOLDER = "exports"
"""The folder of what lies beside a revision's parts; each kind has a folder of its own in it."""

FOOTER_KEY = b"nightjar.exports"


@dataclass(frozen=True, slots=True)
class Exported:
    """One export of a part. size: in bytes. checksum: as of a part."""

    size: int
    checksum: str


def check(kinds: Iterable[str], columns: pa.Schema) -> None:
    """Check that each kind can hold the columns of a part.

    Raises:
        JobError: It cannot. Names the key, the column and its type.
    """
    for kind in kinds:
        for column in columns:
            holds = _is_scalar if kind.startswith("csv") else _json_holds
            if not holds(column.type):
                other = "write jsonl, or leave" if _json_holds(column.type) else "leave"
                raise JobError(
                    f"output.exports: {kind} cannot hold the column {column.name!r}, which is "
                    f"{type_name(column.type)}; {other} it out of carry or model.outputs, or {kind} out of "
                    "output.exports"
                )


def name_of(part: str, kind: str) -> str:
    """The name of an export, from that of its part; both relative to the revision."""
    base = part.rpartition("/")[2].removesuffix(".parquet")
    return f"{FOLDER}/{kind}/{base}.{kind}"


def names_of(part: str, kinds: Iterable[str]) -> list[str]:
    """The names of a part's exports; a quarantine has none."""
    return [] if part.startswith("quarantine/") else [name_of(part, kind) for kind in kinds]


def write(
    storage: Storage,
    revision: str,
    part: str,
    table: pa.Table,
    columns: pa.Schema,
    kinds: Sequence[str],
    states: Mapping[str, bytes] | None = None,
) -> dict[bytes, bytes]:
    """Write what lies beside a part, and return what the part's footer must say of it.

    columns: of the table, as readers see them. states: of its rows, by kind, for the kinds that are no text.
    """
    found = {}
    for kind in kinds:
        data = pa.py_buffer(states[kind]) if states and kind in states else encode(kind, table, columns)
        storage.write(join(revision, name_of(part, kind)), data)
        found[kind] = to_json(Exported(data.size, xxhash.xxh3_128_hexdigest(data)))
    return {FOOTER_KEY: json.dumps(found).encode("ascii")} if found else {}


def named_in(footer: Mapping[bytes, bytes]) -> dict[str, Exported]:
    """The exports that a part's footer names, by kind."""
    return {kind: of_json(Exported, found) for kind, found in json.loads(footer.get(FOOTER_KEY, b"{}")).items()}


def encode(kind: str, table: pa.Table, columns: pa.Schema) -> pa.Buffer:
    """The rows of a table as text, in their order."""
    sink = pa.BufferOutputStream()
    if kind.startswith("csv"):
        csv.write_csv(_for_csv(table.cast(columns)), sink)
    else:
        _write_json_lines(table.cast(columns), sink)
    text = sink.getvalue()
    # Without a time, so that the same rows give the same bytes.
    return pa.py_buffer(gzip.compress(text, 6, mtime=0)) if kind.endswith(".gz") else text


def _for_csv(table: pa.Table) -> pa.Table:
    """The columns in types that Arrow's CSV writer knows; moments in UTC."""
    for index, field in enumerate(table.schema):
        kind = field.type
        if is_text(kind):
            kind = pa.large_string()
        elif pa.types.is_timestamp(kind) and kind.tz:
            kind = pa.timestamp(kind.unit, "UTC")
        table = table.set_column(index, field.name, table[index].cast(kind))
    if table.num_columns == 1:
        # A null alone would be a blank line, which readers skip.
        (name,) = table.column_names
        return pa.table({name: pc.fill_null(table[name].cast(pa.large_string()), "")})
    return table


# JSON lines: an object for each row, with every column; lists and structs as JSON's own. NaN and infinite numbers are
# null, because JSON has no form for them. Decimals, dates and times are texts.

_LARGE = pa.large_string()
"""The type of all columns of text here. Its offsets have 64 bits, because many rows may take over 2 GiB."""

_ROWS = 1 << 16
"""The rows that are turned into text at once."""

_CONTROL = r"[\x00-\x1f\x7f]"


def _json_holds(kind: pa.DataType) -> bool:
    """Whether JSON has a form for values of this type."""
    if is_list(kind):
        return _json_holds(kind.value_type)
    if pa.types.is_struct(kind):
        return all(_json_holds(field.type) for field in kind)
    return _is_scalar(kind)


def _is_scalar(kind: pa.DataType) -> bool:
    """Whether a value of this type is one text, from which a reader gets the same value again."""
    is_ = pa.types
    if is_.is_dictionary(kind):
        return _is_scalar(kind.value_type)
    plain = (is_.is_null, is_.is_boolean, is_.is_integer, is_.is_floating, is_.is_decimal, is_text)
    return any(test(kind) for test in (*plain, is_.is_date, is_.is_time, is_.is_timestamp))


def _write_json_lines(table: pa.Table, sink: pa.NativeFile) -> None:
    for batch in table.to_batches(max_chunksize=_ROWS):
        if batch.num_rows:
            sink.write(_concatenated(_joined(_object(batch.schema.names, batch.columns), "\n")))


def _object(names: Sequence[str], columns: Sequence[pa.Array]) -> pa.Array:
    """An object for each row; it has at least one key."""
    keys = [f"{json.dumps(name, ensure_ascii=False)}:" for name in names]
    values = [pc.fill_null(_value(column), pa.scalar("null", _LARGE)) for column in columns]
    pairs = [each for key, value in zip(keys, values, strict=True) for each in (",", key, value)][1:]
    return _joined("{", *pairs, "}")


def _value(array: pa.Array) -> pa.Array:
    """Each value as JSON; a null stays null."""
    is_, kind = pa.types, array.type
    if is_list(kind):
        return _list(array)
    if is_.is_struct(kind):
        if not kind.num_fields:
            return pc.if_else(array.is_valid(), pa.scalar("{}", _LARGE), pa.scalar(None, _LARGE))
        return pc.if_else(array.is_valid(), _object([field.name for field in kind], array.flatten()), None)
    if is_.is_dictionary(kind):
        return _value(array.dictionary_decode())
    texts = _text_of(array)
    if is_.is_floating(kind):
        number = pc.is_finite(array.cast(pa.float32()) if is_.is_float16(kind) else array)
        return pc.if_else(number, texts, pa.scalar(None, _LARGE))
    return texts if is_.is_integer(kind) or is_.is_boolean(kind) or is_.is_null(kind) else _quoted(texts)


def _list(array: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_pylist()
    items = pc.fill_null(_value(pc.list_flatten(array)), pa.scalar("null", _LARGE))
    offsets = pa.array(accumulate(lengths, initial=0), pa.int64())
    within = pc.binary_join(pa.LargeListArray.from_arrays(offsets, items), pa.scalar(",", _LARGE))
    return pc.if_else(array.is_valid(), _joined("[", within, "]"), pa.scalar(None, _LARGE))


def _quoted(texts: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(texts, _CONTROL)).as_py():
        each = (None if text is None else json.dumps(text, ensure_ascii=False) for text in texts.to_pylist())
        return pa.array(each, _LARGE)
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    return _joined('"', escaped, '"')


def _text_of(array: pa.Array) -> pa.Array:
    """Each value of a scalar type as text; a null stays null."""
    is_, kind = pa.types, array.type
    if is_.is_null(kind):
        return pa.nulls(len(array), _LARGE)
    if is_.is_float16(kind):
        return array.cast(pa.float32()).cast(_LARGE)
    if is_.is_date64(kind):
        return array.cast(pa.date32()).cast(_LARGE)
    if is_.is_timestamp(kind) and kind.tz is not None:
        return array.cast(pa.timestamp(kind.unit, "UTC")).cast(_LARGE)
    return array.cast(_LARGE)


def _joined(*texts: pa.Array | str) -> pa.Array:
    """The texts of each row one after the other; a row with a null is null."""
    columns = [pa.scalar(each, _LARGE) if isinstance(each, str) else each for each in texts]
    return pc.binary_join_element_wise(*columns, pa.scalar("", _LARGE))


def _concatenated(lines: pa.Array) -> pa.Buffer:
    """The texts of all rows, of which none is null, in one piece of memory."""
    _, offsets, texts = lines.buffers()
    ends = memoryview(offsets).cast("q")
    first, last = ends[lines.offset], ends[lines.offset + len(lines)]
    return texts.slice(first, last - first)
