"""A published night for readers: its exact files, also as an Arrow dataset that is read through the job's storage."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from nightjar.inference.arrow_types import row_bytes
from nightjar.inference.errors import JobError, Missing, NightjarError, StorageError
from nightjar.inference.jsonform import of_json
from nightjar.inference.ledger.lines import Published
from nightjar.inference.messages import counted
from nightjar.inference.output import outcomes
from nightjar.inference.output import publications as publish
from nightjar.inference.output.parts import DATA, SIDECARS, epoch_of, stem_of
from nightjar.inference.output.revisions import RevisionFile, is_finished, read_verified, revision_in, run_folder
from nightjar.inference.storage.local import storage_error
from nightjar.inference.storage.protocol import Storage, join

if TYPE_CHECKING:
    import pyarrow.dataset as ds


@dataclass(frozen=True)
class Files:
    """The exact files of a published night, in input order. They are never rewritten, so that a reader reads one run,
    whatever is published meanwhile.
    """

    storage: Storage = field(repr=False, compare=False)
    """The job's storage, through which the files are read."""

    publication: int
    """The number of the output's newest publication when the night was read; 0 if the caller did not ask for one."""

    run_id: str = ""
    """The name of the run; empty without a run."""

    date: str = ""
    """The run's logical time, as `2026-11-28` or `2026-11-28T0530` in UTC; empty without a run."""

    revision: int = 0
    """The number of the revision; 0 if nothing can be read."""

    manifest: str = ""
    """The URI of the manifest; empty if nothing can be read."""

    folder: str = field(default="", repr=False)
    """The URI of the revision; empty if nothing can be read."""

    parts: pa.Table = field(default_factory=lambda: outcomes.NO_PARTS, repr=False)
    """Name (relative to `folder`), rows, size and checksum of each data file."""

    data: str | None = field(default=None, repr=False)
    """The folder with the data files and nothing else; None until the folder has been swept."""

    problem: str = ""
    """Why nothing can be read, or why a table cannot show the night; else empty."""

    @property
    def rows(self) -> int:
        """The rows of all files."""
        return outcomes.total(self.parts, "rows")

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return outcomes.total(self.parts, "size")

    @cached_property
    def uris(self) -> tuple[str, ...]:
        """The URIs of the Parquet files."""
        return tuple(uri for uri, _, _ in self.sized())

    @cached_property
    def columns(self) -> pa.Schema | None:
        """The columns of the files, which all have the same; None without any file."""
        if not self.uris:
            return None
        with self.storage.open(self.uris[0]) as file:
            try:
                return pq.read_schema(file)
            except OSError as error:
                raise storage_error(error, self.uris[0]) from error

    def sized(self) -> Iterator[tuple[str, int, int]]:
        """The URI of each Parquet file, its rows and its bytes."""
        for line in outcomes.lines(self.parts):
            yield join(self.folder, line["name"]), line["rows"], line["size"]

    def dataset(self) -> ds.Dataset:
        """The rows as a `pyarrow.dataset.Dataset`, which reads them on demand with the job's own credentials.

        If all rows of a run are in the quarantine, it has no files, and its dataset has no rows and no columns.
        """
        import pyarrow.dataset as ds

        if not self.uris:
            return ds.dataset(pa.table({}))
        return ds.dataset(list(self.uris), filesystem=self.filesystem(), format="parquet")

    def filesystem(self) -> fs.FileSystem:
        """A read-only pyarrow file system over the job's storage, which opens `uris`."""
        return fs.PyFileSystem(_Reading(self.storage))


def published(storage: Storage, output: str, run_id: str | None, date: str | None = None) -> Files:
    """A published run: that of this id, or else of this date, by default of the latest night.

    Raises:
        JobError: it is not published; or its manifest or list of shards is not what was published.
        Missing: one of these was deleted, or the first data file was.
    """
    now = publish.newest(storage, output)
    run, entry = published_run(now, output, run_id, date)
    try:
        return there(storage, output, now.number, run, entry)
    except Missing as error:
        raise Missing(deleted(run, f" ({error})", entry.date)) from error


def published_run(
    now: publish.Snapshot, output: str, run_id: str | None, date: str | None = None
) -> tuple[str, Published]:
    """The run of this id in a snapshot, or else that of this date, by default of the latest night; its id and its
    published revision.

    Raises:
        JobError: It is not published; the message says what is.
    """
    # A night may have been published under a name of its own.
    run = run_id or (now.nights().get(date, date) if date else now.latest())
    if run is None:
        if now.number:
            raise JobError(f"nothing is published in {output} any more; `nightjar publications JOB` lists what was")
        raise JobError(f"nothing is published in {output} yet; `nightjar run JOB` publishes")
    if run not in now.runs:
        last = sorted(now.runs)[-5:]
        known = ", ".join(last) or "none"
        more = f" and {len(now.runs) - len(last)} more" if len(now.runs) > len(last) else ""
        raise JobError(f"the run {run!r} is not published in {output}; published: {known}{more}")
    return run, now.runs[run]


def there(storage: Storage, output: str, number: int, run: str, entry: Published) -> Files:
    """As `night_of`, if the first data file is there, too: files are deleted all together."""
    found = night_of(storage, output, number, run, entry)
    if found.uris:
        storage.stat(found.uris[0])
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


def night_of(storage: Storage, output: str, number: int, run: str, entry: Published) -> Files:
    """A run of a snapshot of this number.

    Raises:
        JobError, Missing: as of `published`.
    """
    manifest = join(output, entry.manifest)
    shards = json.loads(read_verified(storage, manifest, entry.checksum)).get("shards")
    if shards is None:
        raise JobError(f"{manifest}: names no list of shards; restore it")
    listed = of_json(RevisionFile, shards)
    folder = revision_in(output, run, entry.revision)
    raw = read_verified(storage, join(folder, listed.file), listed.checksum)
    data = join(folder, DATA) if is_finished(storage, run_folder(output, run), entry.revision) else None
    return Files(
        storage,
        number,
        run,
        entry.date,
        entry.revision,
        manifest,
        folder,
        outcomes.data_files(raw),
        data,
    )


def sweep_late(storage: Storage, night: Files) -> str:
    """Delete the files in the folders of a night's data and sidecars that a worker wrote and that are of none of its
    parts: one that was cut off may finish a write after the sweep. Returns a sentence if there were any.
    """
    named = set(map(stem_of, night.parts["name"].to_pylist()))
    folders = [night.data, join(night.folder, SIDECARS)] if night.data else []
    files = [file.uri for folder in folders for file in storage.list(folder)]
    late = [uri for uri in files if stem_of(uri) not in named and epoch_of(uri) is not None]
    if not late:
        return ""
    storage.delete(late)
    return f"{counted(len(late), 'late file')} of a worker had to be deleted: {late[0]}"


_BLOCK_ROWS, _BLOCK_BYTES = 1 << 17, 1 << 26
"""The most rows, and about the most bytes, that are read at a time."""


def blocks(night: Files, columns: Iterable[str]) -> Iterator[pa.Table]:
    """Some columns of a night's rows, each once, a bounded number of rows at a time.

    Raises:
        Missing: Its files were deleted.
        StorageError: A file cannot be read.
    """
    names = list(dict.fromkeys(columns))
    try:
        rows = night.dataset()
        wide = row_bytes(pa.schema([rows.schema.field(name) for name in names]))
        many = int(max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(wide, 1))))
        # Not in Arrow's threads: one that releases a Python object while the process is ending aborts the process.
        # And not far ahead, because blocks of wide rows are large.
        batches = rows.to_batches(
            columns=names, batch_size=many, batch_readahead=1, fragment_readahead=1, use_threads=False
        )
        for batch in batches:
            yield pa.Table.from_batches([batch])
    except Missing as error:
        raise Missing(deleted(night.run_id, f" ({error})", night.date)) from error
    except NightjarError:
        raise
    except OSError as error:
        raise storage_error(error, night.folder) from error
    except pa.ArrowException as error:
        raise StorageError(f"{night.folder}: a published file cannot be read: {error}; restore it") from error


class _Reading(fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """A storage as a file system for pyarrow. It only reads."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reading) and other._storage is self._storage

    __hash__ = None  # type: ignore[assignment]

    def get_type_name(self) -> str:
        return "nightjar"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> fs.FileInfo:
        try:
            return fs.FileInfo(path, fs.FileType.File, size=self._storage.stat(path).size)
        except Missing:
            return fs.FileInfo(path, fs.FileType.NotFound)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        found = self._storage.list(selector.base_dir)
        return [fs.FileInfo(entry.uri, fs.FileType.File, size=entry.size) for entry in found]

    def open_input_file(self, path: str) -> pa.NativeFile:
        return self._storage.open(path)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self._storage.open(path)

    def _refuse(self, *_: Any) -> Any:
        raise PermissionError("published files are never rewritten: this file system only reads")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse
    move = copy_file = open_output_stream = open_append_stream = _refuse
