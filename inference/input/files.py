"""Finds tonight's input files: those that the uris, or the lines of a list, name, all of one format."""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fnmatch import fnmatch
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path

import pyarrow as pa

from nightjar.inference.errors import InputChanged, JobError, Missing, NightjarError, SchemaMismatch, StorageError
from nightjar.inference.input import listing
from nightjar.inference.input.sources import lines
from nightjar.inference.input.sources.protocol import Source
from nightjar.inference.input.sources.reading import format_of, source_named, source_of
from nightjar.inference.job.input import Input
from nightjar.inference.job.locations import absolute, check_place, is_database, unescaped
from nightjar.inference.job.model import Job
from nightjar.inference.job.seams import SOURCES
from nightjar.inference.job.where import on_some
from nightjar.inference.messages import counted, listed
from nightjar.inference.storage.locations import Reach, host_of
from nightjar.inference.storage.protocol import Entry, Storage, file_name, is_local, is_web

_FEW, _LISTERS = 4, 32
"""Fewer places than these are listed one after the other; of more, so many are asked at the same time."""


def input_files(storage: Storage, job: Job) -> Iterator[Entry]:
    """The input's files, sorted by uri; at least one.

    Raises:
        JobError: Nothing matches; the message says what was found instead. Or as in `matching_files`. Names
        `input.uri`, or `input.list` and the line.
    """
    job = with_list(storage, job)
    taken = Counter[str]()
    yield from matching_files(storage, job, taken)
    wanted = source_of(job, job.input.uri) if job.input.format and not taken else None
    if wanted and wanted.mark:
        raise JobError(f"input.uri: there is no {wanted.name} table at {job.input.uri}, or one without files")
    if taken or job.input.lines:
        for at, uri in enumerate(job.input.uris):
            if not taken[uri]:
                raise JobError(_nothing_at(uri, at, job.input, _others(storage, uri)))
    if not taken:
        there = next(filter(None, (_others(storage, uri) for uri in job.input.uris)), "")
        if there and job.input.format:
            there += f", whose names do not end as those of input.format: {job.input.format}"
        elif there:
            there += f"; input.format says what they hold: {listed(SOURCES, 'or')}"
        there = there or (_vacant(job.input.uri) if len(job.input.uris) == 1 else "")
        raise JobError(f"{job.input.key}: no input files at {job.input.shown}{there}")


def possible_files(storage: Storage, job: Job, left_out: Counter[str]) -> Iterator[Entry]:
    """The input's files without those that cannot match `input.where`, by what their paths say, and of a table what it
    says of each: these are not even opened. left_out: counts them, as "files".

    Raises:
        JobError: As in `input_files`. Or none is left, or the condition does not fit the types of these columns. Names
        `input.where`.
    """
    kinds, on = job.input.partition_types(), cache(partial(on_some, job.input.where or ""))
    is_left = False
    for entry in input_files(storage, job):
        known = _known(storage, job, entry, kinds) if job.input.where else {}
        condition = on(pa.schema([(name, value.type) for name, value in known.items()])) if known else None
        if condition is not None and condition.excludes(known):
            left_out["files"] += 1
        else:
            is_left = True
            yield entry
    if not is_left:
        none = f"none of {counted(left_out.total(), 'file')} at {job.input.shown} can match {job.input.where!r}"
        raise JobError(f"input.where: {none}, by what their paths or their table say")


def _known(storage: Storage, job: Job, entry: Entry, kinds: Mapping[str, pa.DataType]) -> dict[str, pa.Scalar]:
    """The values that a file's columns have in all of its rows. kinds: of the columns of its path."""
    known = dict[str, pa.Scalar]()
    # A wrong path, and a table that is another one now, are told when the file is described.
    with suppress(InputChanged):
        known |= source_of(job, entry.uri).known(storage, entry)
    for name in known.keys() & job.input.declared.keys():
        del known[name]  # which is compared in another type
    with suppress(SchemaMismatch):
        known |= listing.values_of(entry.uri, kinds)
    return known


def _others(storage: Storage, uri: str) -> str:
    """Names a file at a place without input; empty if there is none."""
    with suppress(StorageError):  # only the user's own source knows what lies there
        if other := next(listing.matching(storage, uri), None):
            return f", only other files, as {other.uri.rpartition('/')[2]}"
    return ""


def _vacant(uri: str) -> str:
    """Whether a place on this machine does not exist, or is an empty folder. Buckets have no folders."""
    place = Path(listing.input_folder(uri))
    if is_local(uri) and not place.exists():
        return f": {place} does not exist"
    return ": the folder is empty" if is_local(uri) and place.is_dir() and not any(place.iterdir()) else ""


def _nothing_at(uri: str, at: int, given: Input, there: str) -> str:
    """What is said where one of several places has no input files. at: its index. there: which others it has."""
    files = f"no {'input ' if there else ''}files at {uri}"
    if given.lines:
        return f"input.list: {given.list_}, line {given.lines[at]}: {files}{there}; take the line out, or mend it"
    return f"input.uri: {files}, one of {len(given.uris)} inputs{there}; take it out, or mend it"


def matching_files(storage: Storage, job: Job, taken: Counter[str] | None = None) -> Iterator[Entry]:
    """The input's files, sorted by uri, each once; possibly none. taken: counts those of each place.

    With `input.format` these are all files except those whose names tell another known format. Without it, these are
    the files whose names tell a format. A single file that the uri names is input whatever its name. A list may name a
    folder and a file in it.

    Raises:
        JobError: The files are of several formats, a name is not text, or the list of inputs is wrong. Names the key.
    """
    job, taken = with_list(storage, job), Counter[str]() if taken is None else taken
    given, wanted = job.input, job.input.format
    if given.list_ and not given.lines:
        raise JobError(f"input.list: there is no list {given.list_}")
    source = source_of(job, given.uri) if wanted else None
    if source and source.mark and (len(given.uris) > 1 or given.list_):
        raise JobError(f"{given.key}: a list of {source.name} tables is not read; write one job for each table")
    # The user's own source, and a database that the job names, say themselves where rows are.
    reach = Reach(own_places(given)) if wanted is None or (wanted in SOURCES and wanted != "sql") else None
    first, last = None, ""
    for place, entry in _merged(given, partial(_files_at, storage, source, given.own)):
        exact = entry.uri in (listing.input_folder(place), place)
        if not exact and not (_is_of(source, given, entry.uri) if source else format_of(entry.uri)):
            continue
        first = first or entry
        if source is None and format_of(entry.uri) != format_of(first.uri):
            raise _mixed(job, first, entry)
        if reach:
            check_within(reach, given, entry.uri, given.key)
        taken[place] += 1
        if entry.uri != last:
            yield entry
        last = entry.uri


def _files_at(storage: Storage, source: Source | None, own: str, place: str) -> Iterator[Entry]:
    """What lies at a place. source: of the format that the job names. own: the user's own source.

    Raises:
        JobError: The user's own source raised an error that is none of ours, or lists something else than entries.
    """
    try:
        no_table = partial(_check_no_table, place)
        for entry in source.files(storage, place) if source else listing.matching(storage, place, no_table):
            if not isinstance(entry, Entry):
                raise TypeError(f"files gave a {type(entry).__name__}, not an Entry")
            yield entry
    except Exception as error:
        if isinstance(error, NightjarError) or not own:
            raise
        raise JobError(
            f"input.format: {own} failed with {type(error).__name__}: {error}, when it listed {place}"
        ) from error


def _is_of(source: Source, given: Input, uri: str) -> bool:
    """Whether a file may be of the format that the job names."""
    ends = file_name(uri).lower().endswith
    return not source.suffixes or ends(source.suffixes) or ends(source.plain) or not (given.own or format_of(uri))


def _merged(given: Input, files: Callable[[str], Iterator[Entry]]) -> Iterator[tuple[str, Entry]]:
    """The files at all of the input's uris, each with its uri, sorted by their own."""

    def of(uri: str) -> Iterator[tuple[str, Entry]]:
        for entry in files(uri):
            yield uri, entry

    return heapq.merge(*_started(list(map(of, given.uris))), key=lambda each: each[1].uri)


def _started(listings: list[Iterator[tuple[str, Entry]]]) -> list[Iterator[tuple[str, Entry]]]:
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


def _mixed(job: Job, one: Entry, other: Entry) -> JobError:
    found = {format_of(entry.uri): entry for entry in (one, other)}
    told = (f"{entry.uri} ({source_named(name or '').name})" for name, entry in found.items())
    formats = listed((name for name in SOURCES if name in found), "or")
    return JobError(
        f"input.uri: {job.input.shown} holds files of several formats: {' and '.join(told)}. Set input.format to "
        f"{formats}; files of the other format are then left out"
    )


# ---- a list of inputs, which `input.list` names: a text file with a file, a folder or a pattern on each line -
# It is read whenever the input is looked for, so a list that was changed is input that was changed.


def with_list(storage: Storage, job: Job) -> Job:
    """The job with the inputs of its list, each once; the job itself if it has no list, if the list was read already,
    or if it is not there: a run may wait for it.

    Relative paths are looked up beside the job file, as those in it are.

    Raises:
        JobError: Nothing is listed, or a line is no place, or a place that the job does not allow.
            Names `input.list` and the line.
        StorageError: The list cannot be read.
    """
    uri = job.input.list_
    if uri is None or job.input.lines:
        return job
    try:
        content = storage.read(uri)
    except Missing:
        return job
    found, reach = dict[str, int](), Reach(own_places(job.input))
    for number, line in enumerate(content.removeprefix(lines.BOM).splitlines(), 1):
        where = f"input.list: {uri}, line {number}"
        if (place := _place(line, where, Path(job.folder))) and place not in found:
            check_within(reach, job.input, listing.input_folder(place), where)
            found[place] = number
    if not found:
        raise JobError(f"input.list: {uri} names no files: each of its lines is blank or a comment")
    return job.model_copy(update={"input": job.input.listing(found)})


def own_places(given: Input) -> tuple[str, ...]:
    """The places where all input lies: the folder or the web server of the list, or the uris; and `input.within`."""
    listed = given.list_ and (given.list_.rpartition("/")[0] or "/")
    return (*map(host_of, [listed] if listed else map(listing.input_folder, given.uris)), *given.within)


def check_within(reach: Reach, given: Input, uri: str, where: str) -> None:
    """Check that a location which data names lies in one of `own_places`. where: the key, and who names it.

    Raises:
        JobError: It does not.
    """
    if reach.has(uri):
        return
    uri = file_name(uri)
    real = reach.real(uri) if is_local(uri) else uri
    leads = f"{uri} leads to {real}, which" if real != uri else uri
    more = "" if len(own := own_places(given)) == 1 else f" and {len(own) - 1} more"
    raise JobError(
        f"{where}: {leads} is not below {own[0]}{more}; if it is input, add its place to the job: "
        f"input: {{within: [{json.dumps(host_of(real) if is_web(real) else real.rpartition('/')[0] or '/')}]}}"
    )


def _place(line: bytes, where: str, folder: Path) -> str:
    """What a line names; empty if it names nothing."""
    try:
        text = line.decode().strip()
    except UnicodeDecodeError as error:
        raise JobError(f"{where}: it is not UTF-8") from error
    if not text or text.startswith("#"):
        return ""
    if is_database(text):
        raise JobError(f"{where}: a database is the only input of a job; name it in input.uri")
    # Such names are often made by programs: a brace is a brace, and no date.
    place = absolute(text.replace("{", "{{").replace("}", "}}"), folder, pattern=True)
    check_place(place, where, web=True)
    return unescaped(place)
