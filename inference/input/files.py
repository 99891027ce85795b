"""Finds tonight's input files: those that the uri names, all of one format."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from functools import cache, partial
from itertools import chain, islice

from nightjar.inference.errors import JobError, NightjarError
from nightjar.inference.input import listing
from nightjar.inference.input.lists import with_list
from nightjar.inference.input.sources import unsupported
from nightjar.inference.input.sources.protocol import Source
from nightjar.inference.input.sources.reading import format_of, source_named, source_of
from nightjar.inference.job.input import Input
from nightjar.inference.job.model import Job
from nightjar.inference.job.seams import SOURCES
from nightjar.inference.messages import listed
from nightjar.inference.storage.protocol import Entry, Storage

_FEW, _LISTERS = 4, 32
"""Fewer places than these are listed one after the other; of more, so many are asked at the same time."""


def input_files(storage: Storage, job: Job) -> Iterator[Entry]:
    """The input's files, sorted by uri; at least one.

    Raises:
        JobError: Nothing matches; the message says what was found instead. Or as in `matching_files`. Names
        `input.uri`, or `input.list` and the line.
    """
    job = with_list(storage, job)
    others, matched = Counter[str](), Counter[str]()
    found = 0
    for entry in matching_files(storage, job, others, matched):
        found += 1
        yield entry
    wanted = source_of(job, job.input.uri) if job.input.format and not found else None
    if wanted and wanted.mark:
        raise JobError(f"input.uri: there is no {wanted.name} table at {job.input.uri}, or one without files")
    if found or job.input.lines:
        for at, uri in enumerate(job.input.uris):
            if not matched[uri]:
                raise JobError(_nothing_at(uri, at, job.input))
    if not found:
        raise JobError(f"{job.input.key}: no input files at {job.input.shown}{_instead(job.input.uri, others)}")


def _nothing_at(uri: str, at: int, given: Input) -> str:
    """What is said where one of several places has no files. at: its index."""
    if given.lines:
        return f"input.list: {given.list_}, line {given.lines[at]}: no files at {uri}; take the line out, or mend it"
    return f"input.uri: no files at {uri}, one of {len(given.uris)} inputs; take it out, or mend it"


def matching_files(
    storage: Storage, job: Job, others: Counter[str] | None = None, matched: Counter[str] | None = None
) -> Iterator[Entry]:
    """The input's files, sorted by uri, each once; possibly none. others: counts files of no known format, by the end
    of their names. matched: counts the files at each uri of the job, whatever their format.

    With `input.format` these are all files except those whose names tell another known format. Without it, these are
    the files whose names tell a format, and files of a format that stands back are left out beside files of another
    format. A single file that the uri names is input whatever its name.

    Raises:
        JobError: The files are of several formats, a name is not text, or the list of inputs is wrong. Names the key.
    """
    job = with_list(storage, job)
    wanted = job.input.format
    if wanted is not None:
        source = source_of(job, job.input.uri)
        if source.mark and (job.input.others or job.input.list_):
            raise JobError(f"{job.input.key}: a list of {source.name} tables is not read; write one job for each table")
        yield from _merged(job, lambda uri: _of_format(storage, source, uri, wanted), matched)
        return
    first: Entry | None = None
    exact = listing.Places(job.input.uris).exact
    standing_back = 0
    for entry in _merged(job, lambda uri: listing.matching(storage, uri, partial(_check_no_table, uri)), matched):
        told = format_of(entry.uri)
        if entry.uri not in exact:
            if told is None:
                if others is not None:
                    others[unsupported.suffix(entry.uri.rpartition("/")[2])] += 1
                continue
            if source_named(told).stands_back:
                standing_back += 1
                continue
        first = first or entry
        if told != format_of(first.uri):
            raise _mixed(job, first, entry)
        yield entry
    if first is None and standing_back:
        for entry in _merged(job, partial(listing.matching, storage)):
            if (told := format_of(entry.uri)) is not None and source_named(told).stands_back:
                first = first or entry
                if told != format_of(first.uri):
                    raise _mixed(job, first, entry)
                yield entry


def _merged(job: Job, files: Callable[[str], Iterator[Entry]], matched: Counter[str] | None = None) -> Iterator[Entry]:
    """The files at all of the job's uris, sorted, each once: a list may name a folder, and a file in it."""

    def of(uri: str) -> Iterator[Entry]:
        for entry in files(uri):
            if matched is not None:
                matched[uri] += 1
            yield entry

    last = ""
    for entry in heapq.merge(*_begun(list(map(of, job.input.uris))), key=lambda each: each.uri):
        if entry.uri != last:
            yield entry
        last = entry.uri


def _begun(listings: list[Iterator[Entry]]) -> list[Iterator[Entry]]:
    """The same listings. Of many the first entries are asked for at the same time: each is a request of its own."""
    if len(listings) < _FEW:
        return listings
    with ThreadPoolExecutor(_LISTERS) as pool:
        firsts = list(pool.map(lambda each: list(islice(each, 1)), listings))
    return [chain(first, rest) for first, rest in zip(firsts, listings, strict=True)]


def _check_no_table(uri: str, name: str) -> None:
    """Check that a listed file is no sign of a table, whose other files hold rows that the table has no longer.

    name: of the file, below the folder that the uri names.

    Raises:
        JobError: The uri is the folder of a table.
    """
    for kind, folder, mark in _marks():
        if name.startswith(folder) and fnmatch(name, mark) and listing.input_folder(uri) == uri.rstrip("/"):
            raise JobError(
                f"input.uri: {uri} is a {kind} table; set input.format to {kind}, or to parquet to read all files that "
                "lie there, also those of earlier versions"
            )


@cache
def _marks() -> tuple[tuple[str, str, str], ...]:
    """By what the tables' formats are known: the format, the folder, and the pattern of a file in it."""
    marks = {name: source_named(name).mark for name in SOURCES}
    return tuple((name, mark.partition("/")[0] + "/", mark) for name, mark in marks.items() if mark)


def _of_format(storage: Storage, source: Source, uri: str, wanted: str) -> Iterator[Entry]:
    if wanted not in SOURCES:
        for entry in _own_files(storage, source, uri, wanted):
            if not source.suffixes or _is_exact(entry, uri) or entry.uri.lower().endswith(source.suffixes):
                yield entry
        return
    for entry in source.files(storage, uri):
        told = None if not source.suffixes or _is_exact(entry, uri) else format_of(entry.uri)
        if told in (None, wanted) or source_named(told).says_text:
            yield entry


def _own_files(storage: Storage, source: Source, uri: str, own: str) -> Iterator[Entry]:
    """What the user's own source lists.

    Raises:
        JobError: It raised an error that is none of ours, or lists something else than entries.
    """
    try:
        for entry in source.files(storage, uri):
            if not isinstance(entry, Entry):
                raise TypeError(f"files gave a {type(entry).__name__}, not an Entry")
            yield entry
    except Exception as error:
        if isinstance(error, NightjarError):
            raise
        raise JobError(
            f"input.format: {own} failed with {type(error).__name__}: {error}, when it listed {uri}"
        ) from error


def _is_exact(entry: Entry, uri: str) -> bool:
    """Whether the uri names this one file."""
    return entry.uri == listing.input_folder(uri) or entry.uri == uri


def _mixed(job: Job, one: Entry, other: Entry) -> JobError:
    found = {format_of(entry.uri): entry for entry in (one, other)}
    told = (f"{entry.uri} ({source_named(name or '').name})" for name, entry in found.items())
    formats = listed((name for name in SOURCES if name in found), "or")
    return JobError(
        f"input.uri: {job.input.shown} holds files of several formats: {' and '.join(told)}. Set input.format to "
        f"{formats}; files of the other format are then left out"
    )


def _instead(uri: str, others: Counter[str]) -> str:
    """A hint for an input without files. others: counts the files found there of no known format, by suffix."""
    if others:
        return unsupported.found_instead(others)
    return "; in a pattern, write [[] for the bracket [" if "[" in uri else ""
