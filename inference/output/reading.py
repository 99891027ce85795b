"""The rows of a published night as an Arrow dataset, read through the job's storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from nightjar.inference.arrow_types import arrow_type, row_bytes
from nightjar.inference.errors import Missing, NightjarError, StorageError
from nightjar.inference.storage.local import storage_error
from nightjar.inference.storage.protocol import Storage

_BLOCK_ROWS, _BLOCK_BYTES = 1 << 17, 1 << 26
"""The most rows, and about the most bytes, that are read at a time."""


def dataset_of(storage: Storage, uris: list[str], partitioned_by: Mapping[str, str], folder: str) -> ds.Dataset:
    """Parquet files as a dataset. partitioned_by: as in `Files`. folder: below which these folders lie."""
    if not uris:
        return ds.dataset(pa.table({}))
    if not partitioned_by:
        return ds.dataset(uris, filesystem=filesystem(storage), format="parquet")
    named = pa.schema([(name, arrow_type(kind)) for name, kind in partitioned_by.items()])
    return ds.dataset(
        uris,
        filesystem=filesystem(storage),
        format="parquet",
        partitioning=ds.partitioning(named, flavor="hive"),
        partition_base_dir=folder,
    )


def blocks(rows: ds.Dataset, columns: list[str], folder: str) -> Iterator[pa.Table]:
    """Some columns of a dataset, a bounded number of rows at a time. folder: where its files lie, for people.

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
        raise storage_error(error, folder) from error
    except pa.ArrowException as error:
        raise StorageError(f"{folder}: a published file cannot be read: {error}; restore it") from error


def filesystem(storage: Storage) -> fs.FileSystem:
    """As `Files.filesystem`."""
    return fs.PyFileSystem(_Reading(storage))


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
