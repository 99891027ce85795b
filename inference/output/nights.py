"""A published night for readers: its exact files, as a record, as a list of links, and as a view."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from nightjar.inference.errors import Missing
from nightjar.inference.input.partitions import folders
from nightjar.inference.job.outputtypes import arrow_type
from nightjar.inference.jsonform import SELDOM, to_json
from nightjar.inference.ledger.lines import Published
from nightjar.inference.messages import counted
from nightjar.inference.output import exports as forms
from nightjar.inference.output import outcomes
from nightjar.inference.output import publications as publish
from nightjar.inference.output.parts import DATA, epoch_of, stem_of
from nightjar.inference.output.revisions import data_parts
from nightjar.inference.storage.protocol import Storage, is_local, join

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
    left out if there are none.
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
    files: tuple[PublishedFile, ...]


@dataclass(frozen=True)
class PublishedNight:
    """A published run for readers. If `run` is None, nothing can be read; `problem` says why.

    manifest: its URI. folder: of the revision. data: the folder with the data files and nothing else; None until it has
    been swept. parts: name (relative to `folder`), rows and bytes of each data file, in input order. exports: the forms
    in which each part was exported. partitioned_by: as in `PublishedFiles`.
    """

    publication: int
    run: str | None = None
    date: str | None = None
    revision: int | None = None
    manifest: str | None = None
    folder: str = ""
    data: str | None = None
    parts: pa.Table = field(default_factory=lambda: outcomes.NO_PARTS)
    problem: str = ""
    exports: tuple[str, ...] = ()
    partitioned_by: Mapping[str, str] = field(default_factory=dict)

    def exported(self) -> dict[str, tuple[str, ...]]:
        """Of each form in which the parts were exported the exact files, in the same order."""
        names = self.parts["name"].to_pylist()
        # The files of a divided part have one name in several folders, and one export.
        return {
            form: tuple(dict.fromkeys(join(self.folder, forms.name_of(name, form)) for name in names))
            for form in self.exports
        }

    def files(self) -> Iterator[PublishedFile]:
        """Each data file."""
        for line in outcomes.lines(self.parts):
            yield PublishedFile(join(self.folder, line["name"]), line["rows"], line["size"])

    def as_json(self) -> str:
        """`files.json`: a line for each file."""
        about = PublishedFiles(
            publication=self.publication,
            run=self.run,
            date=self.date,
            revision=self.revision,
            manifest=self.manifest,
            data=self.data,
            rows=outcomes.total(self.parts, "rows"),
            bytes=outcomes.total(self.parts, "size"),
            problem=self.problem or None,
            exports=self.exported() or None,
            partitioned_by=self.partitioned_by or None,
            files=(),
        )
        files = ",\n".join(f"  {json.dumps(to_json(file))}" for file in self.files())
        head = json.dumps(to_json(about), indent=1).removesuffix("[]\n}")
        return head + (f"[\n{files}\n ]" if files else "[]") + "\n}\n"

    def as_links(self) -> str:
        """The URIs, one per line, as in Hive's symlink text files."""
        return "".join(f"file://{uri}\n" if is_local(uri) else f"{uri}\n" for uri in self._uris())

    def as_view(self, name: str) -> str:
        """SQL that creates a view for DuckDB. DuckDB has no view of no files, so such a view raises an error that says
        why.
        """
        create = f'create or replace view "{name}" as\n'
        if not self.parts.num_rows:
            return f"{create}select error({_quoted(self.problem or 'this night has no files')});\n"
        files = ",\n".join(f"  {_quoted(_literal(uri))}" for uri in self._uris())
        if not self.partitioned_by:
            # DuckDB would turn a folder named date=2026-11-19 into a column.
            return f"{create}select * from read_parquet([\n{files}\n], hive_partitioning = false);\n"
        types = ", ".join(f"{_name(name)}: {_DUCKDB[arrow_type(kind)]}" for name, kind in self.partitioned_by.items())
        # DuckDB knows one column by names that differ in case only.
        above = {key.casefold(): _name(key) for key in folders(self.folder + "/")}.values()
        only = f"* exclude ({', '.join(above)})" if above else "*"
        how = f"hive_partitioning = true, hive_types = {{{types}}}"
        return f"{create}select {only} from read_parquet([\n{files}\n], {how});\n"

    def _uris(self) -> Iterator[str]:
        return (file.uri for file in self.files())


def published(storage: Storage, output: str, run_id: str | None, date: str | None = None) -> PublishedNight:
    """A published run: that of this id, or else of this date, by default of the latest night.

    Raises:
        JobError: it is not published; or its manifest or list of shards is not what was published.
        Missing: one of these was deleted, or the first data file was.
    """
    now = publish.newest(storage, output)
    run, entry = publish.seen(now, output, run_id, date)
    try:
        return there(storage, output, now.number, run, entry)
    except Missing as error:
        raise Missing(deleted(run, f" ({error})", entry.date)) from error


def there(storage: Storage, output: str, number: int, run: str, entry: Published) -> PublishedNight:
    """As `night_of`, if the first data file is there, too: files are deleted all together."""
    found = night_of(storage, output, number, run, entry)
    if first := next(found.files(), None):
        storage.stat(first.uri)
    return found


def deleted(run: str, detail: str = "", date: str = "") -> str:
    """Says of a published run whose files are gone what happened, and what to do. date: of its night, if known."""
    return (
        f"the files of the run {run!r} were deleted after it was published{detail}; `{scoring_anew(run, date)}` scores "
        "it again"
    )


def scoring_anew(run: str, date: str) -> str:
    """The command that scores a published run again. date: of its night.

    The date is said even where it lies in the run's folder, because that may be gone, too.
    """
    night = f" --date {date}" if date not in ("", run) else ""
    return f"nightjar run JOB --run-id {run}{night} --fresh"


def night_of(storage: Storage, output: str, number: int, run: str, entry: Published) -> PublishedNight:
    """A run of a snapshot of this number.

    Raises:
        JobError, Missing: as of `published`.
    """
    parts = data_parts(storage, output, run, entry)
    folder = join(output, folder_of(run, entry))
    try:
        storage.stat(join(folder, "_SUCCESS"))
        data = join(folder, DATA)
    except Missing:
        data = None
    return PublishedNight(
        number,
        run,
        entry.date,
        entry.revision,
        join(output, entry.manifest),
        folder,
        data,
        parts.table,
        exports=parts.exports,
        partitioned_by=parts.partitioned_by,
    )


def late_files(storage: Storage, night: PublishedNight) -> list[str]:
    """The files in the folders of a night's data and exports that are none of its parts: a worker that was cut off may
    finish a write after the sweep.
    """
    if night.data is None:
        return []
    named = set(map(stem_of, night.parts["name"].to_pylist()))
    folders = [night.data, *(join(night.folder, forms.FOLDER, form) for form in night.exports)]
    return [file.uri for folder in folders for file in storage.list(folder) if stem_of(file.uri) not in named]


def sweep_late(storage: Storage, night: PublishedNight) -> str:
    """Delete the `late_files` that a worker wrote: no later command adds to a published revision. Returns a sentence if
    there were any.
    """
    late = [uri for uri in late_files(storage, night) if epoch_of(uri) is not None]
    if not late:
        return ""
    storage.delete(late)
    return f"{counted(len(late), 'late file')} of a worker had to be deleted: {late[0]}"


def folder_of(run: str, entry: Published) -> str:
    """Where a run's published revision lies, relative to the output."""
    return f"runs/{run}/r{entry.revision}"


def _literal(uri: str) -> str:
    """A path with its wildcards escaped, because DuckDB reads every path as a glob."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in uri)


def _name(column: str) -> str:
    """A column's name in SQL."""
    return '"' + column.replace('"', '""') + '"'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
