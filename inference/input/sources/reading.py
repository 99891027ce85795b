"""What all formats share: choosing the format of a file, checking that it did not change, and converting errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module

import pyarrow as pa

from nightjar.inference.errors import InputChanged, InputCorrupt, Missing
from nightjar.inference.input.sources.declared import asked, with_declared
from nightjar.inference.input.sources.protocol import Description, Source
from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.job.model import Job
from nightjar.inference.job.seams import SOURCES
from nightjar.inference.records import UNKNOWN, UNREADABLE, Piece
from nightjar.inference.storage.local import storage_error
from nightjar.inference.storage.protocol import Entry, Storage, is_local
from nightjar.inference.storage.versions import untouched


@cache
def source_named(name: str) -> Source:
    """The source for a value of `input.format`."""
    source: Source = import_module(SOURCES[name]).SOURCE
    return source


def format_of(uri: str) -> str | None:
    """The format that the end of a file's name tells; None if it tells none."""
    lower = uri.lower()
    return next((name for name in SOURCES if lower.endswith(source_named(name).suffixes)), None)


def source_of(job: Job, uri: str) -> Source:
    """The source that reads a file. If the job names a single file, and its name tells no format, the first is used.

    Raises:
        JobError: It does not have the options of `input.options`.
    """
    source = source_named(job.input.format or format_of(uri) or next(iter(SOURCES)))
    return source.with_options(job.input.options) if job.input.options else source


def describe(storage: Storage, job: Job, entry: Entry) -> Description:
    """Describe a file, with the columns that the job declares.

    Raises:
        InputCorrupt: The file is not of the format.
        SchemaMismatch: Its path does not give a column that the job declares.
        StorageError: The file does not exist, may not be read, or the storage failed.
    """
    source = source_of(job, entry.uri)
    with _decoding(source, entry.uri):
        return with_declared(job.input, entry.uri, source.describe(storage, entry))


def read_piece(storage: Storage, job: Job, piece: Piece, schema: pa.Schema, most: int | None = None) -> RowsRead:
    """Read the piece's rows in file order, with the columns of `schema` in its order.

    most: the most rows that may be unreadable; None if the run has no budget.

    Raises:
        InputChanged: The file is not the planned one, changed while it was read, or was unreadable for the plan.
        InputCorrupt: Its bytes cannot be decoded, or have another number of rows.
        SchemaMismatch: A column is missing or has values of another type.
        OverBudget: More rows than may cannot be read.
        StorageError: The file may not be read, or the storage failed.
    """
    _check_unchanged(storage, piece)
    if piece.rows == UNREADABLE:
        # This raises what is wrong with the file, if it is still wrong.
        describe(storage, job, Entry(piece.uri, piece.size, piece.version))
        raise InputChanged(f"{piece.uri}: could not be read when it was planned, and can be now; run again to plan it")
    source = source_of(job, piece.uri)
    with _decoding(source, piece.uri):
        columns = asked(storage, source, job.input, Entry(piece.uri, piece.size, piece.version), schema)
        found = _rows_read(source.read(storage, piece, columns.schema, most))
    _check_unchanged(storage, piece)
    rows = found.table.num_rows
    if piece.rows not in (UNKNOWN, rows):
        raise InputCorrupt(f"{piece.uri}: the file promised {piece.rows} rows, {rows} could be read")
    return columns.made(found)


def read_sample(
    storage: Storage, job: Job, piece: Piece, schema: pa.Schema, rows: int, *, last: bool = False
) -> tuple[RowsRead, int]:
    """Read the first rows of a piece, or with `last` its last rows: at most `rows`.

    Returns the rows, of which perhaps none can be read, and the index in the file of the first one.

    Raises:
        InputCorrupt, SchemaMismatch, OverBudget, StorageError: As in `read_piece`.
    """
    source = source_of(job, piece.uri)
    with _decoding(source, piece.uri):
        columns = asked(storage, source, job.input, Entry(piece.uri, piece.size, piece.version), schema)
        sampled, before = source.sample(storage, piece, columns.schema, rows, last=last)
    return columns.made(_rows_read(sampled)), piece.first_row + before


def _rows_read(found: pa.Table | RowsRead) -> RowsRead:
    return found if isinstance(found, RowsRead) else RowsRead(found)


@contextmanager
def _decoding(source: Source, uri: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowMemoryError, pa.ArrowCancelled):
        raise
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InputCorrupt(f"{uri}: not a readable {source.name} file: {error}") from error
    except OSError as error:
        # Arrow reports undecodable bytes as OSError without an errno; a real I/O error has one.
        if error.errno is not None:
            raise storage_error(error, uri) from error
        raise InputCorrupt(f"{uri}: not a readable {source.name} file: {error}") from error


def _check_unchanged(storage: Storage, piece: Piece) -> None:
    try:
        now = storage.stat(piece.uri)
    except Missing:
        raise InputChanged(f"{piece.uri}: deleted since it was planned; run again to plan without it") from None
    if now.size != piece.size or not untouched(now.version, piece.version):
        how = f"size {piece.size} → {now.size}"
        if now.size == piece.size:
            how = "its size is the same"
            how += "; each machine must read the same file, not a copy of its own" if is_local(piece.uri) else ""
        raise InputChanged(f"{piece.uri}: changed since it was planned ({how}); run again to score what it has now")
