"""The rows of a published run, for a program: its exact files as an Arrow dataset, read through the job's storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from nightjar.inference.arrow_types import row_bytes
from nightjar.inference.errors import Missing, NightjarError, StorageError
from nightjar.inference.job.outputtypes import arrow_type
from nightjar.inference.output import nights, outcomes
from nightjar.inference.output.parts import DATA
from nightjar.inference.storage.local import storage_error
from nightjar.inference.storage.protocol import Storage, join


@dataclass(frozen=True)
class Files:
    """The data files of one published run, in input order.

    publication: the output's newest one at that moment. manifest: its URI. uris: of the Parquet files, which are never
    rewritten, so that a reader reads one run, whatever is published meanwhile. bytes: their total size. exports: of
    each form in `output.exports` the URIs of its files, in the same order. partitioned_by: with `output.partition_by`
    the columns that the files lack and their folders name, outermost first, each with its type. data: the folder that
    these folders lie in.
    """

    publication: int
    run_id: str
    date: str
    revision: int
    manifest: str
    rows: int
    bytes: int
    uris: tuple[str, ...] = field(repr=False)
    storage: Storage = field(repr=False, compare=False)
    exports: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    partitioned_by: Mapping[str, str] = field(default_factory=dict)
    data: str = field(default="", repr=False)

    def dataset(self) -> ds.Dataset:
        """The rows as a `pyarrow.dataset.Dataset`, which reads them on demand with the job's own credentials.

        If all rows of a run are in the quarantine, it has no files, and its dataset has no rows and no columns.
        """
        if not self.uris:
            return ds.dataset(pa.table({}))
        if not self.partitioned_by:
            return ds.dataset(list(self.uris), filesystem=self.filesystem(), format="parquet")
        named = pa.schema([(name, arrow_type(kind)) for name, kind in self.partitioned_by.items()])
        return ds.dataset(
            list(self.uris),
            filesystem=self.filesystem(),
            format="parquet",
            partitioning=ds.partitioning(named, flavor="hive"),
            partition_base_dir=self.data,
        )

    def blocks(self, rows: ds.Dataset, columns: list[str]) -> Iterator[pa.Table]:
        """Some columns of the rows, a bounded number of rows at a time. rows: the dataset.

        Raises:
            StorageError: A file cannot be read.
        """
        wide = row_bytes(pa.schema([rows.schema.field(name) for name in columns]))
        many = int(max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(wide, 1))))
        try:
            # Not in Arrow's threads: one that releases a Python object while the process is ending aborts the process.
            # And not far ahead, because blocks of wide rows are large.
            batches = rows.to_batches(
                columns=columns, batch_size=many, batch_readahead=1, fragment_readahead=1, use_threads=False
            )
            for batch in batches:
                yield pa.Table.from_batches([batch])
        except NightjarError:
            raise
        except OSError as error:
            raise storage_error(error, self.data) from error
        except pa.ArrowException as error:
            raise StorageError(f"{self.data}: a published file cannot be read: {error}; restore it") from error

    def filesystem(self) -> fs.FileSystem:
        """A read-only pyarrow file system over the job's storage, which opens `uris`."""
        return fs.PyFileSystem(_Reading(self.storage))


_BLOCK_ROWS, _BLOCK_BYTES = 1 << 17, 1 << 26
"""The most rows, and about the most bytes, that are read at a time."""


def files(storage: Storage, output: str, run_id: str | None, date: str | None = None) -> Files:
    """The files of a published run: that of this id, or else of this date, by default of the latest night.

    Raises:
        JobError: it is not published; or its manifest or list of shards is not what was published.
        Missing: one of these was deleted.
    """
    return files_of(storage, nights.published(storage, output, run_id, date))


def files_of(storage: Storage, night: nights.PublishedNight) -> Files:
    """The files of a run."""
    return Files(
        publication=night.publication,
        run_id=night.run or "",
        date=night.date or "",
        revision=night.revision or 0,
        manifest=night.manifest or "",
        rows=outcomes.total(night.parts, "rows"),
        bytes=outcomes.total(night.parts, "size"),
        uris=tuple(file.uri for file in night.files()),
        storage=storage,
        exports=night.exported(),
        partitioned_by=night.partitioned_by,
        data=join(night.folder, DATA),
    )


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
