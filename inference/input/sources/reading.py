"""What all formats share: choosing the format of a file, checking that it did not change, and converting errors."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow as pa

from nightjar.inference.errors import InputChanged, InputCorrupt, JobError, NightjarError, SourceFailed
from nightjar.inference.input.schemas import normalised
from nightjar.inference.input.sources.fitting import check_columns, read_as, with_declared
from nightjar.inference.input.sources.protocol import Description, Source
from nightjar.inference.input.sources.rows import RowsRead, as_rows, shifted
from nightjar.inference.job.finding import find, folder_of, modules_in
from nightjar.inference.job.model import Job
from nightjar.inference.job.seams import SOURCES
from nightjar.inference.job.where import Condition, condition
from nightjar.inference.records import UNKNOWN, UNREADABLE, Piece, RowFailure
from nightjar.inference.storage.local import storage_error
from nightjar.inference.storage.protocol import Entry, Storage, file_name


def _read_matching(
    storage: Storage,
    source: Source,
    piece: Piece,
    schema: pa.Schema,
    where: Condition,
    read: Callable[[Piece], RowsRead],
) -> RowsRead:
    """The piece's rows that match, and those that cannot be read."""
    tables, kept, failures, at, seen = [schema.empty_table()], list[np.ndarray](), dict[int, RowFailure](), 0, 0
    for part in source.parts(storage, piece, where):
        each = read(part)
        each = each.matching(where.mask(each.table))
        tables.append(each.table)
        kept.append(np.asarray(each.indices()) + part.first_row - piece.first_row)
        failures |= shifted(each.failures, at)
        at, seen = at + each.table.num_rows, seen + each.rows
    indices = pa.array(np.concatenate([np.empty(0, np.int64), *kept]), pa.int64())
    return RowsRead(pa.concat_tables(tables), failures, indices, (seen if piece.rows == UNKNOWN else piece.rows) - at)


def _condition(job: Job, schema: pa.Schema) -> Condition | None:
    return condition(job.input.where, schema) if job.input.where else None


SAMPLED = 1 << 13
"""The rows that are read of a piece in search of a sample of rows that match `input.where`."""


@cache
def source_named(name: str) -> Source:
    """The source for a value of `input.format`."""
    source: Source = import_module(SOURCES[name]).SOURCE
    return source


def format_of(uri: str) -> str | None:
    """The format that the end of a file's name tells; None if it tells none."""
    lower = file_name(uri).lower()
    return next((name for name in SOURCES if lower.endswith(source_named(name).suffixes)), None)


def source_of(job: Job, uri: str) -> Source:
    """The source that reads a file. If the job names a single file, and its name tells no format, the first is used.

    Raises:
        JobError: It does not have the options of `input.options`.
    """
    if job.input.own:
        source = _own(job.input.own, str(folder_of(job)))
    else:
        source = source_named(job.input.format or format_of(uri) or next(iter(SOURCES)))
    return (source.with_options(job.input.options) if job.input.options else source).at(
        job.input.uri or job.input.list_ or ""
    )


@cache
def _own(spec: str, folder: str) -> Source:
    """The user's own source.

    Raises:
        JobError: It cannot be imported or made, or is no `Source`. Names `input.format`.
    """
    found = find("input.format", spec, Path(folder))
    try:
        source = found() if isinstance(found, type) else found
    except Exception as error:
        raise JobError(f"input.format: making {spec} failed with {type(error).__name__}: {error}") from error
    if not isinstance(source, Source) or not hasattr(source, "name"):
        raise JobError(f"input.format: derive {spec} from nightjar.inference.Source, and give it a name")
    return source


def import_again(job: Job) -> None:
    """Import the user's own source again: a process may run many nights, and each describes its input with the code
    that reads it then.

    Raises:
        JobError: As `source_of`.
    """
    if job.input.own:
        _own.cache_clear()
        for name in modules_in(str(folder_of(job))):
            sys.modules.pop(name, None)
        _own(job.input.own, str(folder_of(job)))


def describe(storage: Storage, job: Job, entry: Entry) -> Description:
    """Describe a file, with the columns that the job declares.

    Raises:
        InputCorrupt: The file is not of the format.
        SchemaMismatch: Its path does not give a column that the job declares.
        SourceFailed: The user's own source raised something else.
        StorageError: The file does not exist, may not be read, or the storage failed.
    """
    source = source_of(job, entry.uri)
    with _decoding(source, entry.uri, job.input.own):
        found = source.describe(storage, entry)
        if not isinstance(found, Description):
            raise TypeError(f"describe returned a {type(found).__name__}, not a Description")
        return with_declared(job.input, entry.uri, replace(found, schema=normalised(found.schema)))


def read_piece(storage: Storage, job: Job, piece: Piece, schema: pa.Schema, most: int | None = None) -> RowsRead:
    """Read the piece's rows in file order, with the columns of `schema` in its order.

    most: the most rows that may be unreadable; None if the run has no budget.

    Raises:
        InputChanged: The file is not the planned one, changed while it was read, or was unreadable for the plan.
        InputCorrupt: Its bytes cannot be decoded, or have another number of rows.
        SchemaMismatch: A column is missing or has values of another type.
        OverBudget: More rows than may cannot be read.
        SourceFailed: The user's own source raised something else.
        StorageError: The file may not be read, or the storage failed.
    """
    source = source_of(job, piece.uri)
    source.check_unchanged(storage, piece)
    if piece.rows == UNREADABLE:
        # This raises what is wrong with the file, if it is still wrong.
        describe(storage, job, Entry(piece.uri, piece.size, piece.version))
        raise InputChanged(f"{piece.uri}: could not be read when it was planned, and can be now; run again to plan it")
    with _decoding(source, piece.uri, job.input.own):
        read, where = partial(_read, storage, job, source, schema, most), _condition(job, schema)
        found = _read_matching(storage, source, piece, schema, where, read) if where else read(piece)
    source.check_unchanged(storage, piece)
    return found


def _read(storage: Storage, job: Job, source: Source, schema: pa.Schema, most: int | None, piece: Piece) -> RowsRead:
    def read(asked: pa.Schema) -> RowsRead:
        found = _checked(job, piece, source.read(storage, piece, asked, most), asked)
        if piece.rows not in (UNKNOWN, rows := found.table.num_rows):
            source.check_unchanged(storage, piece)
            raise InputCorrupt(f"{piece.uri}: the file promised {piece.rows} rows, {rows} could be read")
        return found

    return read_as(storage, source, job.input, piece, schema, read)


def read_sample(storage: Storage, job: Job, piece: Piece, schema: pa.Schema, rows: int) -> RowsRead:
    """Read the first rows of a piece, at most `rows`, of which perhaps none can be read. With `input.where` these are
    rows that match, if there are any among the first `SAMPLED` rows.

    Raises:
        InputCorrupt, SchemaMismatch, OverBudget, SourceFailed, StorageError: As in `read_piece`.
    """
    source = source_of(job, piece.uri)
    with _decoding(source, piece.uri, job.input.own):
        where = _condition(job, schema)

        def read(asked: pa.Schema) -> RowsRead:
            found = source.sample(storage, piece, asked, SAMPLED if where else rows)
            return _checked(job, piece, found, asked)

        found = read_as(storage, source, job.input, piece, schema, read)
    return found if where is None else found.matching(where.mask(found.table)).slice(0, rows)


def _checked(job: Job, piece: Piece, read: object, wanted: pa.Schema) -> RowsRead:
    """The rows that a source read. The user's own must give the columns asked for, and failures of its rows alone."""
    found = as_rows(read)
    if job.input.own:
        check_columns(piece.uri, found.table.schema, wanted)
        for row, failure in found.failures.items():
            if row not in range(found.table.num_rows) or not isinstance(failure, RowFailure):
                raise ValueError(f"its failures have {row!r}: {failure!r:.80}, in a table of {len(found.table)} rows")
    return found


_OF_BYTES = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, csv.Error)
"""What libraries raise of bytes that they cannot decode. Another error may pass, so the file is tried again."""


@contextmanager
def _decoding(source: Source, uri: str, own: str) -> Iterator[None]:
    """Makes the file's fault of what decoding it raises. own: the user's source."""
    try:
        yield
    except (MemoryError, pa.ArrowCancelled, NightjarError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise storage_error(error, uri) from error
        # Arrow reports undecodable bytes as OSError, too, but without an errno.
        is_told = isinstance(error, pa.ArrowException | UnicodeDecodeError | OSError)
        said = str(error) if is_told else f"{type(error).__name__}: {error}"
        if own and not is_told:
            raise SourceFailed(f"{uri}: {own} failed with {said}") from error
        if is_told or isinstance(error, _OF_BYTES):
            raise InputCorrupt(f"{uri}: not a readable {source.name} file: {said}") from error
        raise
