"""A published night for readers: its exact files, as a record, as a list of links, and as a view."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from nightjar.inference.errors import Missing
from nightjar.inference.jsonform import SELDOM, to_json
from nightjar.inference.ledger.lines import Published
from nightjar.inference.output import outcomes
from nightjar.inference.output import publications as publish
from nightjar.inference.output.manifests import data_parts
from nightjar.inference.storage.protocol import Storage, is_local, join

FOLDER = "data"
"""The folder of a revision's data files."""


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
    `problem` is left out. data: the folder with these files and no others; null until it has been swept.
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
    files: tuple[PublishedFile, ...]


@dataclass(frozen=True)
class PublishedNight:
    """A published run for readers. If `run` is None, nothing can be read; `problem` says why.

    manifest: its URI. folder: of the revision. data: the folder with the data files and nothing else; None until it has
    been swept. parts: name (relative to `folder`), rows and bytes of each data file, in input order.
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
        # DuckDB would turn a folder named date=2026-11-19 into a column.
        return f"{create}select * from read_parquet([\n{files}\n], hive_partitioning = false);\n"

    def _uris(self) -> Iterator[str]:
        return (file.uri for file in self.files())


def published(storage: Storage, output: str, run_id: str | None) -> PublishedNight:
    """A published run, by default the latest night.

    Raises:
        JobError: it is not published; or its manifest or list of shards is not what was published.
        Missing: one of these was deleted.
    """
    now = publish.newest(storage, output)
    return night_of(storage, output, now.number, *publish.seen(now, output, run_id))


def night_of(storage: Storage, output: str, number: int, run: str, entry: Published) -> PublishedNight:
    """A run of a snapshot of this number.

    Raises:
        JobError, Missing: as of `published`.
    """
    parts = data_parts(storage, output, run, entry)
    folder = join(output, folder_of(run, entry))
    try:
        storage.stat(join(folder, "_SUCCESS"))
        data = join(folder, FOLDER)
    except Missing:
        data = None
    return PublishedNight(number, run, entry.date, entry.revision, join(output, entry.manifest), folder, data, parts)


def folder_of(run: str, entry: Published) -> str:
    """Where a run's published revision lies, relative to the output."""
    return f"runs/{run}/r{entry.revision}"


def _literal(uri: str) -> str:
    """A path with its wildcards escaped, because DuckDB reads every path as a glob."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in uri)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
