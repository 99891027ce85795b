"""A published night as files for readers: a record, a list of links, and a view for DuckDB."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from nightjar.inference.input.listing import folders
from nightjar.inference.job.outputtypes import arrow_type
from nightjar.inference.jsonform import SELDOM, to_json
from nightjar.inference.output.nights import Files
from nightjar.inference.storage.protocol import is_local

_DUCKDB = {
    pa.string(): "VARCHAR",
    pa.bool_(): "BOOLEAN",
    pa.date32(): "DATE",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
}
"""DuckDB's names for the types of columns that name folders."""


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """One Parquet file of a night, which is never rewritten. bytes: its size."""

    uri: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFiles:
    """`files.json`: the exact files of a published night, in input order, with the totals of their rows and bytes.

    If there is no night that can be read, run, date, revision and manifest are null, and `problem` says why; else
    `problem` is left out. data: the folder with these files and no others; null until it has been swept. exports: of
    each form in `output.exports` the exact files, in the same order; left out if there are none. partitioned_by: with
    `output.partition_by` the columns that the files lack and their folders name, outermost first, each with its type;
    left out if there are none. dates_since: in `latest/`, if not all of `dates/` could be written, the publication
    since which dates may be lacking; else left out.
    """

    publication: int
    run: str | None
    date: str | None
    revision: int | None
    manifest: str | None
    data: str | None
    rows: int
    bytes: int
    problem: str | None = field(default=None, metadata=SELDOM)
    exports: Mapping[str, tuple[str, ...]] | None = field(default=None, metadata=SELDOM)
    partitioned_by: Mapping[str, str] | None = field(default=None, metadata=SELDOM)
    dates_since: int | None = field(default=None, metadata=SELDOM)
    files: tuple[PublishedFile, ...]


def as_json(night: Files, dates_since: int | None = None) -> str:
    """`files.json`: a line for each file. dates_since: as in `PublishedFiles`."""
    about = PublishedFiles(
        publication=night.publication,
        run=night.run_id or None,
        date=night.date or None,
        revision=night.revision or None,
        manifest=night.manifest or None,
        data=night.data,
        rows=night.rows,
        bytes=night.bytes,
        problem=night.problem or None,
        exports=night.exports or None,
        partitioned_by=night.partitioned_by or None,
        dates_since=dates_since,
        files=(),
    )
    each = (PublishedFile(uri, *sizes) for uri, *sizes in night.sized())
    files = ",\n".join(f"  {json.dumps(to_json(file))}" for file in each)
    head = json.dumps(to_json(about), indent=1).removesuffix("[]\n}")
    return head + (f"[\n{files}\n ]" if files else "[]") + "\n}\n"


def as_links(night: Files) -> str:
    """The URIs, one per line, as in Hive's symlink text files."""
    return "".join(f"file://{uri}\n" if is_local(uri) else f"{uri}\n" for uri in night.uris)


def as_view(night: Files, name: str) -> str:
    """SQL that creates a view for DuckDB. One of no files raises an error that says why, because DuckDB has none."""
    create = f'create or replace view "{name}" as\n'
    if not night.uris:
        return f"{create}select error({_quoted(night.problem or 'this night has no files')});\n"
    files = ",\n".join(f"  {_quoted(_literal(uri))}" for uri in night.uris)
    if not night.partitioned_by:
        # DuckDB would turn a folder named date=2026-11-19 into a column.
        return f"{create}select * from read_parquet([\n{files}\n], hive_partitioning = false);\n"
    types = ", ".join(f"{_name(name)}: {_DUCKDB[arrow_type(kind)]}" for name, kind in night.partitioned_by.items())
    # DuckDB knows one column by names that differ in case only.
    above = {key.casefold(): _name(key) for key in folders(night.folder + "/")}.values()
    only = f"* exclude ({', '.join(above)})" if above else "*"
    how = f"hive_partitioning = true, hive_types = {{{types}}}"
    return f"{create}select {only} from read_parquet([\n{files}\n], {how});\n"


def _literal(uri: str) -> str:
    """A path with its wildcards escaped, because DuckDB reads every path as a glob."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in uri)


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
