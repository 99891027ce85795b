"""What is written beside a part: its exports, which are the same rows as CSV or JSON lines for readers who cannot read
Parquet, and metric states that are too large for its footer.

A worker writes them before the part, whose footer names the size and checksum of each. So the receipt, which has the
part's checksum, vouches for them, too: they are committed, audited, published and taken back together with their part,
and neither the ledger nor a snapshot knows them.

    data/<base>.parquet
    exports/csv.gz/<base>.csv.gz
    exports/metrics/<base>.metrics
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import xxhash

from nightjar.inference.arrow_types import is_list, is_text, type_name
from nightjar.inference.errors import JobError
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
    states: Mapping[str, bytes],
) -> dict[bytes, bytes]:
    """Write what lies beside a part, and return what the part's footer must say of it.

    columns: of the table, as readers see them. states: of its rows, by kind, for the kinds that are no text.
    """
    found = {}
    for kind in kinds:
        data = pa.py_buffer(states[kind]) if kind in states else encode(kind, table, columns)
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

_ROWS = 1 << 16
"""The rows that are turned into text at once."""


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
            sink.write("".join(f"{line}\n" for line in _objects(batch.schema.names, batch.columns)).encode())


def _objects(names: Sequence[str], columns: Sequence[pa.Array]) -> Iterator[str]:
    """An object for each row; it has at least one key."""
    keys = (json.dumps(name, ensure_ascii=False) for name in names)
    pairs = [[f"{key}:{value}" for value in _values(column)] for key, column in zip(keys, columns, strict=True)]
    return (f"{{{','.join(row)}}}" for row in zip(*pairs, strict=True))


def _values(array: pa.Array) -> list[str]:
    """Each value as JSON."""
    is_, kind = pa.types, array.type
    if is_.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if is_list(kind):
        items, lengths = iter(_values(pc.list_flatten(array))), pc.list_value_length(array).to_pylist()
        return ["null" if length is None else f"[{','.join(islice(items, length))}]" for length in lengths]
    if is_.is_struct(kind):
        fields = [field.name for field in kind]
        rows = _objects(fields, array.flatten()) if fields else repeat("{}", len(array))
        return [row if there else "null" for row, there in zip(rows, array.is_valid().to_pylist(), strict=True)]
    texts = _text_of(array).to_pylist()
    if is_.is_floating(kind):
        return ["null" if text in {None, "nan", "-nan", "inf", "-inf"} else text for text in texts]
    if is_.is_integer(kind) or is_.is_boolean(kind):
        return ["null" if text is None else text for text in texts]
    return [json.dumps(text, ensure_ascii=False) for text in texts]


def _text_of(array: pa.Array) -> pa.Array:
    """Each value of a scalar type as text; a null stays null."""
    is_, kind = pa.types, array.type
    if is_.is_float16(kind):
        array = array.cast(pa.float32())
    elif is_.is_date64(kind):
        array = array.cast(pa.date32())
    elif is_.is_timestamp(kind) and kind.tz is not None:
        array = array.cast(pa.timestamp(kind.unit, "UTC"))
    # The offsets have 64 bits, because many rows may take over 2 GiB.
    return array.cast(pa.large_string())
