"""Finds tonight's input files: those that the uri names, all of one format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nightjar.inference.errors import JobError
from nightjar.inference.input import listing
from nightjar.inference.input.sources import unsupported
from nightjar.inference.input.sources.reading import format_of, source_named
from nightjar.inference.job.model import Job
from nightjar.inference.job.seams import SOURCES
from nightjar.inference.messages import listed
from nightjar.inference.storage.protocol import Entry, Storage


def input_files(storage: Storage, job: Job) -> Iterator[Entry]:
    """The input's files, sorted by uri; at least one.

    Raises:
        JobError: Nothing matches; the message says what was found instead. Or as in `matching_files`. Names
        `input.uri`.
    """
    others = Counter[str]()
    found = 0
    for entry in matching_files(storage, job, others):
        found += 1
        yield entry
    if not found:
        raise JobError(f"input.uri: no input files at {job.input.uri}{_instead(job.input.uri, others)}")


def matching_files(storage: Storage, job: Job, others: Counter[str] | None = None) -> Iterator[Entry]:
    """The input's files, sorted by uri; possibly none. others: counts files of no known format, by the end of their
    names.

    With `input.format` these are all files except those whose names tell another known format. Without it, these are
    the files whose names tell a format, and files of a format that stands back are left out beside files of another
    format. A single file that the uri names is input whatever its name.

    Raises:
        JobError: The files are of several formats, or a name is not text. Names `input.uri`.
    """
    wanted = job.input.format
    if wanted is not None:
        yield from _of_format(storage, job.input.uri, wanted)
        return
    first: Entry | None = None
    standing_back = 0
    for entry in listing.matching(storage, job.input.uri):
        told = format_of(entry.uri)
        if not _is_exact(entry, job.input.uri):
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
        for entry in listing.matching(storage, job.input.uri):
            if (told := format_of(entry.uri)) is not None and source_named(told).stands_back:
                first = first or entry
                if told != format_of(first.uri):
                    raise _mixed(job, first, entry)
                yield entry


def _of_format(storage: Storage, uri: str, wanted: str) -> Iterator[Entry]:
    source = source_named(wanted)
    for entry in source.files(storage, uri):
        told = None if not source.suffixes or _is_exact(entry, uri) else format_of(entry.uri)
        if told in (None, wanted) or source_named(told).says_text:
            yield entry


def _is_exact(entry: Entry, uri: str) -> bool:
    """Whether the uri names this one file."""
    return entry.uri == listing.input_folder(uri) or entry.uri == uri


def _mixed(job: Job, one: Entry, other: Entry) -> JobError:
    found = {format_of(entry.uri): entry for entry in (one, other)}
    told = (f"{entry.uri} ({source_named(name or '').name})" for name, entry in found.items())
    formats = listed((name for name in SOURCES if name in found), "or")
    return JobError(
        f"input.uri: {job.input.uri} holds files of several formats: {' and '.join(told)}. Set input.format to "
        f"{formats}; files of the other format are then left out"
    )


def _instead(uri: str, others: Counter[str]) -> str:
    """A hint for an input without files. others: counts the files found there of no known format, by suffix."""
    if others:
        return unsupported.found_instead(others)
    return "; in a pattern, write [[] for the bracket [" if "[" in uri else ""
