"""Hive folders: how `output.partition_by` divides the rows of a part, and how they are put together again.

    country=de/day=2026-11-19

A folder is named as Spark and pyarrow name it: text as it is, but characters that mean something in a path or a URL are
percent-encoded; numbers in decimal, bools as `true` and `false`, dates as in ISO 8601. Two values never have one name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.arrow_types import is_text
from nightjar.inference.errors import FoldersInvalid, JobError
from nightjar.inference.input.listing import folders as folders_in
from nightjar.inference.input.sources.rows import selected, taken
from nightjar.inference.job.outputtypes import type_name
from nightjar.inference.messages import nearest

MAX_FOLDERS = 1000
"""The most folders of a night. Each shard has a file in each of its folders, so a column with more values than this
makes files of a few rows, which nobody can read fast."""

MAX_NAME = 255
"""The longest name of a folder, in bytes; file systems have no longer ones."""

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The name of a null, as Hive and Spark have it."""

_TAKEN_BYTES = 2**31 - 1
"""Larger tables are not taken at once: `take` joins the chunks of a column, and no array holds more text than this."""

_ESCAPED = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{}\[\]^]""")
"""The characters that Spark escapes. It would not read others back: it takes each escaped byte for a character."""


@dataclass(frozen=True)
class Division:
    """The rows of a table by folder. by: the columns. folders: sorted; of each the indices of its rows, ascending."""

    by: tuple[str, ...]
    folders: Mapping[str, np.ndarray]

    def split(self, table: pa.Table) -> Iterable[tuple[str, pa.Table]]:
        """The rows of each folder, in their order, without the columns that the folder's name tells."""
        rest = table.select([name for name in table.column_names if name not in self.by])
        if rest.nbytes > _TAKEN_BYTES:
            for folder, rows in self.folders.items():
                yield folder, selected(rest, rows)
        elif self.folders:
            # Many times as fast as to look for each folder's rows among all.
            ordered, first = taken(rest, np.concatenate(list(self.folders.values()))), 0
            for folder, rows in self.folders.items():
                yield folder, ordered.slice(first, len(rows))
                first += len(rows)

    def joined(self, tables: Sequence[pa.Table]) -> pa.Table:
        """The inverse of `split`, without these columns. tables: of each folder."""
        places = np.argsort(np.concatenate(list(self.folders.values())), kind="stable")
        return taken(pa.concat_tables(tables).unify_dictionaries(), places)


def divide(table: pa.Table, by: Sequence[str]) -> Division:
    """Divide the rows of a table by the values of these columns.

    Raises:
        FoldersInvalid: There are too many folders, or a value cannot name one.
    """
    names, codes, counts = [""], np.zeros(table.num_rows, np.int64), dict[str, int]()
    for name in by:
        indices, values = _distinct(table[name])
        counts[name] = len(values)
        found, codes = np.unique(codes * len(values) + indices, return_inverse=True)
        if max(len(values), len(found)) > MAX_FOLDERS:
            raise FoldersInvalid(_too_many(len(found), counts))
        above, folders = names, [_folder(name, value) for value in values.to_pylist()]
        names = ["/".join(filter(None, (above[code // len(values)], folders[code % len(values)]))) for code in found]
    order = np.argsort(codes, kind="stable")
    edges = np.searchsorted(codes[order], np.arange(len(names) + 1))
    rows = {name: order[edges[index] : edges[index + 1]] for index, name in enumerate(names)}
    return Division(tuple(by), {name: rows[name] for name in sorted(rows) if len(rows[name])})


def unfit(name: str, column: pa.ChunkedArray) -> dict[int, str]:
    """The rows whose values in this column cannot name a folder, each with a sentence that says why."""
    if reader_type(column.type) != pa.string():
        return {}
    texts = column.cast(pa.large_string())
    lengths = np.asarray(pc.fill_null(pc.binary_length(texts), 0))
    # An escaped byte takes three.
    suspects = (lengths * 3 + len(name.encode()) + 1 > MAX_NAME) | (lengths == len(NULL))
    found = {int(row): _why_unfit(name, texts[int(row)].as_py()) for row in np.flatnonzero(suspects)}
    return {row: why for row, why in found.items() if why}


def check(by: Sequence[str], columns: pa.Schema, inputs: Sequence[str], output: str) -> None:
    """Check that the columns of a part can be divided by these. inputs: all columns of the input. output: its URI.

    Readers such as DuckDB and Spark ignore case in names, and take each folder of a path for a column.

    Raises:
        JobError: They cannot. Names the key and the column.
    """
    above = {key.casefold(): key for key in folders_in(f"{output}/")} if by else {}
    for name in by:
        if name not in columns.names:
            other = "; add it to carry" if name in inputs else nearest(name, columns.names)
            what = "a column of the input that is not carried" if name in inputs else "not a column of the output"
            raise JobError(f"output.partition_by: {name!r} is {what}{other}")
        kind = columns.field(name).type
        if reader_type(kind) is None:
            raise JobError(
                f"output.partition_by: {name!r} is {type_name(kind)}; folders are named by texts, integers, bools and "
                "dates"
            )
        if name.startswith(("_", ".")):
            raise JobError(
                f"output.partition_by: {name!r} begins with {name[0]!r}, and pandas, pyarrow and Hive skip folders of "
                "such names: they would read no rows; give the column another name"
            )
        if _ESCAPED.search(name):
            raise JobError(
                f"output.partition_by: the name {name!r} has a character that no folder's name can have as it is, and "
                "not every reader decodes it; give the column another name"
            )
    for name in columns.names:
        if key := above.get(name.casefold()):
            raise JobError(
                f"output.partition_by: output.uri has a folder {key}=… already, and readers could not tell it from the "
                f"column {name!r}; choose another output.uri"
            )
    if by and set(columns.names) <= set(by):
        raise JobError(
            "output.partition_by: these are all columns of the output, and none is left for the files; leave one out"
        )


def check_number(folders: Iterable[str]) -> None:
    """Check that a night has no more folders than it may have. folders: each may be there several times.

    Raises:
        FoldersInvalid: It has more. Names the column with the most values, and their number.
    """
    distinct = set(folders)
    if len(distinct) > MAX_FOLDERS:
        values = Counter(_key(part) for part in {part for folder in distinct for part in folder.split("/")})
        raise FoldersInvalid(_too_many(len(distinct), values))


def _too_many(folders: int, values: Mapping[str, int]) -> str:
    name, most = max(values.items(), key=lambda item: item[1])
    return (
        f"output.partition_by: this would make {folders:,} folders or more, and a night may have {MAX_FOLDERS:,}: "
        f"{name!r} has {most:,} distinct values here; leave it out, or carry a coarser column"
    )


def reader_type(kind: pa.DataType) -> pa.DataType | None:
    """The type that readers should give to a column of this type; None if it cannot name folders."""
    is_ = pa.types
    if is_.is_dictionary(kind):
        return reader_type(kind.value_type)
    if is_text(kind):
        return pa.string()
    if is_.is_date(kind):
        return pa.date32()
    return kind if is_.is_integer(kind) or is_.is_boolean(kind) else None


def types_of(by: Sequence[str], columns: pa.Schema) -> dict[str, str]:
    """The columns that name the folders, outermost first, each with the type that readers should give to it."""
    return {name: type_name(reader_type(columns.field(name).type)) for name in by}


def texts_of(folder: str) -> dict[str, str | None]:
    """The values in a folder's name as texts, by column."""
    pairs = (part.partition("=")[::2] for part in folder.split("/"))
    return {name: None if value == NULL else unquote(value, errors="strict") for name, value in pairs}


def as_read(folder: str, schema: pa.Schema) -> dict[str, Any]:
    """The values that pyarrow reads from a folder's name. schema: of the columns that name it."""
    import pyarrow.dataset as ds

    found = ds.partitioning(schema, flavor="hive").parse(f"{folder}/part.parquet")
    return dict(ds.get_partition_keys(found))


def folder_of(file: str) -> str:
    """The folder of a data file, by its name relative to its revision: `data/country=de/part.parquet`."""
    return "/".join(file.split("/")[1:-1])


def _key(part: str) -> str:
    return part.partition("=")[0] if "=" in part else ""


def _folder(name: str, value: Any) -> str:
    if isinstance(value, str) and (why := _why_unfit(name, value)):
        raise FoldersInvalid(why)
    return f"{name}={_written(value)}"


def _why_unfit(name: str, value: str) -> str:
    """Why a text cannot name a folder; empty if it can."""
    if value == NULL:
        return f"output.partition_by: {name!r} is the text {NULL}, by which readers know a null"
    if len(f"{name}={_written(value)}".encode()) > MAX_NAME:
        return (
            f"output.partition_by: {name!r} is too long for the name of a folder (at most {MAX_NAME} bytes): "
            f"{value[:60]} …"
        )
    return ""


def _written(value: Any) -> str:
    if value is None:
        return NULL
    if isinstance(value, bool):
        return str(value).lower()
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", str(value))


def _distinct(column: pa.ChunkedArray) -> tuple[np.ndarray, pa.Array]:
    """Of each row of a column the index of its value, and the distinct values, a null among them."""
    kind = reader_type(column.type)
    plain = column.cast(pa.large_string() if kind == pa.string() else kind)
    encoded = plain.dictionary_encode().unify_dictionaries()
    if not encoded.num_chunks:
        return np.zeros(0, np.int64), pa.array([], kind)
    values = encoded.chunk(0).dictionary
    # Arrow cannot unify dictionaries with a null, so the null gets its index here.
    indices = [np.asarray(pc.fill_null(chunk.indices.cast(pa.int64()), len(values))) for chunk in encoded.chunks]
    if plain.null_count:
        values = pa.concat_arrays([values, pa.nulls(1, values.type)])
    return np.concatenate(indices), values
