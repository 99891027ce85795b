"""Input uri → files, with row counts and fingerprints.

Nothing here decides what a shard is (see `plan`): a `Discovery` is the lake as it was found tonight.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import (
    Denied,
    InputCorrupt,
    JobError,
    Missing,
)
from nightjar.inference.input.sources import forms, parquet, unsupported
from nightjar.inference.job.model import Job
from nightjar.inference.records import Piece
from nightjar.inference.storage.protocol import (
    Entry,
    Storage,
    is_local,
    join,
)

_READERS = 32
_WINDOW = 4096
_LISTINGS = 3
_KINDS = 100
"""So many different schemas are told apart; a lake has few."""

_FOLDERS = 64
"""A pattern's folders are listed one by one up to so many; where there are more, all at once is quicker."""

_GLOB = re.compile(r"[*?\[]")
_ESCAPED = re.compile(r"\[([*?\[])\]")
_ANY = re.compile(".*", re.DOTALL)

FILES = pa.schema(
    [
        ("uri", pa.string()),
        ("size", pa.int64()),
        ("version", pa.string()),
        ("rows", pa.list_(pa.int64())),
        ("sizes", pa.list_(pa.int64())),
        ("error", pa.string()),
    ]
)
"""One line per file; `rows` and `sizes` per row group; `error` when the footer could not, or may not, be read."""


@dataclass(frozen=True)
class Discovery:
    """The lake as it was found: `files` (schema `FILES`, sorted by uri) and the columns that most of them have.

    Of files with rows, if there are any; where as many have others, the first ones' columns.
    """

    files: pa.Table
    schema: pa.Schema

    @property
    def rows(self) -> int:
        """Rows of every file whose footer could be read."""
        return sum(sum(map(int, rows)) for chunk in self.files["rows"].chunks for rows in chunk.to_pylist())

    @property
    def unreadable(self) -> int:
        """Files whose footer could not be read."""
        return int(self.files.num_rows - self.files["error"].null_count)

    @property
    def unread(self) -> str:
        """Which these are, by the first of them, and what becomes of them; empty where there are none."""
        if not self.unreadable:
            return ""
        why = self.files["error"].drop_null()[0].as_py()
        if self.unreadable == 1:
            return f"1 file cannot be read; its shard will fail: {why}. Replace or remove it"
        those = f"{self.unreadable:,} files cannot be read; their shards will fail"
        return f"{those}. The first: {why}. Replace or remove them"


def discover(storage: Storage, job: Job) -> Discovery:
    """List the input and read every footer. If a file was deleted in between, what replaces it may not be listed yet:
    then the input is listed again.

    Raises:
        JobError: there is nothing to score, no file is readable, or files vanish again and again; names `input.uri`.
        Denied: none of the files may be read.
        StorageError: any other fault of the storage: it says nothing of the file, and may pass.
    """
    vanished = ""
    for _ in range(_LISTINGS):
        found = _look(storage, job)
        if isinstance(found, Discovery):
            return found
        vanished = found
    raise JobError(
        f"input.uri: files vanish while they are looked at, {vanished} for one: something rewrites the input; repeat "
        "the command when it is done"
    )


def _look(storage: Storage, job: Job) -> Discovery | str:
    """One listing and its footers; the name of a file that was listed and is not there any more, if there is one."""
    footers = _footers(storage, input_files(storage, job))
    usual, empty, unread = _Usual(), _Usual(), _AllUnread(job)
    batches: list[pa.RecordBatch] = []
    while window := list(islice(footers, _WINDOW)):
        for entry, footer in window:
            if footer is None:
                return entry.uri
            if isinstance(footer, _Unread):
                unread.add(footer)
            else:
                # An empty file's types may be anyone's guess (pandas writes null): files with rows go first.
                (usual if any(footer.rows) else empty).add(footer.schema)
        lines = [_line(entry, footer) for entry, footer in window if footer is not None]
        batches.append(pa.RecordBatch.from_pylist(lines, schema=FILES))
    files = pa.Table.from_batches(batches, schema=FILES)
    schema = usual.schema() or empty.schema()
    if schema is None:
        raise unread.error()
    discovery = Discovery(files, schema)
    if not discovery.rows and not discovery.unreadable:
        raise _no_rows(job, files.num_rows)
    return discovery


class _Usual:
    """The columns that most files have: one odd file, even the first, must not make all the others the odd ones."""

    def __init__(self) -> None:
        self._seen: list[_Alike] = []

    def add(self, schema: pa.Schema) -> None:
        """Count one file."""
        if any(known.add_equal(schema) for known in self._seen):
            return
        columns = forms.columns(schema)
        if any(known.add_alike(schema, columns) for known in self._seen):
            return
        if len(self._seen) < _KINDS:
            self._seen.append(_Alike(schema, columns))

    def schema(self) -> pa.Schema | None:
        """That of most files, as the first of them stores it; a column without nulls only if each of them says so."""
        return max(self._seen, key=lambda each: each.files).schema() if self._seen else None


class _Alike:
    """Files whose columns hold the same, however each writer stored and declared them."""

    def __init__(self, schema: pa.Schema, columns: pa.Schema) -> None:
        self.files = 1
        self._columns = columns
        self._ways = [schema]
        self._required = forms.without_nulls(schema)

    def add_equal(self, schema: pa.Schema) -> bool:
        """Count a file that says what one of these said, if it does; quickly, as most of a million do."""
        known = any(way.equals(schema) for way in self._ways)
        self.files += known
        return known

    def add_alike(self, schema: pa.Schema, columns: pa.Schema) -> bool:
        """Count a file with the same columns, if these are."""
        if not self._columns.equals(columns):
            return False
        self.files += 1
        self._required &= forms.without_nulls(schema)
        if len(self._ways) < _KINDS:
            self._ways.append(schema)
        return True

    def schema(self) -> pa.Schema:
        return forms.admitting(self._ways[0], self._required)


def usual_schema(storage: Storage, job: Job) -> pa.Schema | None:
    """The columns that most of the first few thousand files with rows have; None when none can be read."""
    usual = _Usual()
    for _, footer in _footers(storage, islice(input_files(storage, job), _WINDOW)):
        if isinstance(footer, parquet.Footer) and any(footer.rows):
            usual.add(footer.schema)
    return usual.schema()


def first_pieces(storage: Storage, job: Job, count: int) -> Iterator[Piece]:
    """The first row group with rows of each of the first so many files, read one after the other."""
    for entry, footer in _footers(storage, islice(input_files(storage, job), count), ahead=1):
        if isinstance(footer, parquet.Footer) and any(footer.rows):
            group = next(index for index, rows in enumerate(footer.rows) if rows)
            yield Piece(entry.uri, entry.size, entry.version, 0, footer.rows[group], (group, group + 1))


def first_schema(storage: Storage, job: Job) -> pa.Schema:
    """The columns of the first file with rows: enough to check a job without reading every footer.

    Raises:
        JobError: there is nothing to score; names `input.uri`.
        Denied, StorageError: as `discover`.
    """
    unread, empty, schema = _AllUnread(job), 0, None
    for _, footer in _footers(storage, input_files(storage, job), ahead=1):
        if footer is None:
            continue  # discovery lists anew
        if isinstance(footer, _Unread):
            unread.add(footer)
        elif sum(footer.rows):
            return footer.schema
        else:
            empty, schema = empty + 1, schema or footer.schema
    if schema is None:
        raise unread.error()
    if not unread.files:
        raise _no_rows(job, empty)
    return schema


def _no_rows(job: Job, files: int) -> JobError:
    which = f"the file {job.input.uri} holds" if files == 1 else f"the {files} files at {job.input.uri} hold"
    return JobError(f"input.uri: {which} no rows")


def input_files(storage: Storage, job: Job) -> Iterator[Entry]:
    """The input's files, sorted by uri. Hidden ones (a name starting with `.` or `_`) are no input.

    A linked folder is followed, unless it leads to files that are input under their own names, too: rows count once.

    Raises:
        JobError: nothing matches; names `input.uri`, and what was found there instead.
    """
    others = Counter[str]()
    found = 0
    for entry in matching_files(storage, job, others):
        found += 1
        yield entry
    if not found:
        raise JobError(f"input.uri: no Parquet files at {job.input.uri}{_instead(job.input.uri, others)}")


def matching_files(storage: Storage, job: Job, others: Counter[str] | None = None) -> Iterator[Entry]:
    """The same, and none if there is none. others: counts by their endings the files that are of no known format.

    Raises:
        JobError: a name that is no text; names `input.uri`.
    """
    uri = job.input.uri
    base, pattern = _split_glob(uri)
    exact = _stat(storage, uri)
    if exact is None and pattern is _ANY and base != uri.rstrip("/"):
        exact = _stat(storage, base)  # a file whose name had to be escaped
    if exact is not None:
        yield _named(exact)
        return
    links = _Links(base)
    for entry in _listed(storage, uri, base):
        name = entry.uri[len(base.rstrip("/")) + 1 :]
        if hidden(name) or not pattern.fullmatch(name):
            continue
        own = links.own_name(name)
        if own != name and not hidden(own) and pattern.fullmatch(own):
            continue
        if job.input.format or name.lower().endswith(parquet.SUFFIXES):
            yield _named(entry)
        elif others is not None:
            others[unsupported.suffix(name)] += 1


def hidden(name: str) -> bool:
    """Whether a name below the input is no input: it, or a folder in it, begins with `.` or `_`."""
    return any(part.startswith((".", "_")) for part in name.split("/"))


class _Links:
    """Which files below a folder are reached through a link to another folder below it, and their names there."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._real = os.path.realpath(base) if is_local(base) else ""
        self._folder, self._own = "", ""

    def own_name(self, name: str) -> str:
        """A file's name where it lies, if that is below the folder, else as given. Names come sorted."""
        folder, _, file = name.rpartition("/")
        if not self._real or not folder:
            return name
        if folder != self._folder:
            real = os.path.realpath(join(self._base, folder))
            below = os.path.relpath(real, self._real)
            self._folder, self._own = folder, folder if below.startswith("..") else below
        return file if self._own == "." else join(self._own, file)


def _listed(storage: Storage, uri: str, base: str) -> Iterator[Entry]:
    """All that the pattern can match, and more, sorted: a bucket of all nights is not listed for one of them.

    A local disk is walked anyway, and follows links in its own way.
    """
    folders = [base]
    for step in _folder_steps(uri) if not is_local(uri) else ():
        matches = re.compile(_translate(step), re.DOTALL).fullmatch
        named = (
            join(folder, name)
            for folder in folders
            for name in (filter(matches, storage.subfolders(folder)) if _is_glob(step) else [_unescaped(step)])
        )
        narrowed = list(islice(named, _FOLDERS + 1))
        if len(narrowed) > _FOLDERS:
            break
        folders = narrowed
    for folder in sorted(folders, key=lambda each: each + "/"):
        yield from storage.list(folder)


def _folder_steps(uri: str) -> list[str]:
    """The parts of a pattern that name one folder each, from the first with a wildcard on."""
    parts = uri.partition("://")[2].rstrip("/").split("/")
    steps = parts[_literal(parts) :] if uri.endswith("/") else parts[_literal(parts) : -1]
    return list(takewhile(lambda part: "**" not in part, steps))


def _literal(parts: list[str]) -> int:
    """How many parts of a path stand before the first one with a wildcard."""
    return next((i for i, part in enumerate(parts) if _is_glob(part)), len(parts))


def _is_glob(part: str) -> bool:
    return _GLOB.search(_ESCAPED.sub("", part)) is not None


def _unescaped(path: str) -> str:
    return _ESCAPED.sub(r"\g<1>", path)


def _named(entry: Entry) -> Entry:
    """The entry, if its name is text: only then can outputs and reports name it."""
    try:
        entry.uri.encode()
    except UnicodeEncodeError:
        raise JobError(f"input.uri: the name of {os.fsencode(entry.uri)!r} is not UTF-8; rename the file") from None
    return entry


def _instead(uri: str, others: Counter[str]) -> str:
    """What may be meant when nothing matches. others: the files there that are not named as Parquet is, by suffix."""
    if others:
        return unsupported.found_instead(others)
    return "; in a pattern, write [[] for the bracket [" if "[" in uri else ""


def takes_in(uri: str, file: str) -> bool:
    """Whether an input uri would take in a Parquet file at that place."""
    base, pattern = _split_glob(uri)
    folder = base.rstrip("/") + "/"
    below = file.startswith(folder) and pattern.fullmatch(file.removeprefix(folder)) is not None
    return below or file == uri


def input_folder(uri: str) -> str:
    """The folder (or file) an input uri names, without its pattern."""
    return _split_glob(uri)[0]


def _stat(storage: Storage, uri: str) -> Entry | None:
    if uri.endswith("/"):
        return None
    try:
        return storage.stat(uri)
    except Missing:
        return None


def _split_glob(uri: str) -> tuple[str, re.Pattern[str]]:
    """The folder to list, and the pattern of names below it; a pattern with a slash at its end names folders."""
    scheme, _, path = ("", "", uri) if is_local(uri) else uri.partition("://")
    parts = path.rstrip("/").split("/")
    depth = _literal(parts)
    base = _unescaped("/".join(parts[:depth]))
    base = f"{scheme}://{base}" if scheme else base or "/"
    rest = "/".join(parts[depth:])
    if not rest:
        return base, _ANY
    try:
        # A name may hold a newline.
        return base, re.compile(f"{_translate(rest)}{'/.*' if path.endswith('/') else ''}", re.DOTALL)
    except re.error as error:
        raise JobError(f"input.uri: {uri!r} is no pattern: {error}") from None


def _translate(glob: str) -> str:
    """A glob over whole paths as a regular expression: `*` stays in one folder, `**` crosses them."""
    out = ""
    for token in re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", glob):
        out += {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(token) or (
            _character(token[1:-1]) if token.startswith("[") else re.escape(token)
        )
    return out


def _character(choice: str) -> str:
    """`a-c` or `!a-c`, as between a glob's brackets."""
    negated = choice.startswith("!")
    inside = re.escape(choice[negated:]).replace("\\-", "-")
    return f"[{'^/' if negated else ''}{inside}]"


@dataclass(frozen=True, slots=True)
class _Unread:
    """Why a file has no footer. denied: reading it is not allowed."""

    why: str
    denied: bool


@dataclass
class _AllUnread:
    """Files without a footer, and what to say if there are no others."""

    job: Job
    files: int = 0
    denied: int = 0
    first: str = ""

    def add(self, unread: _Unread) -> None:
        """Count one file."""
        self.files, self.denied, self.first = self.files + 1, self.denied + unread.denied, self.first or unread.why

    def error(self) -> JobError | Denied:
        if not self.files:
            return JobError(f"input.uri: the files at {self.job.input.uri} were deleted after they had been listed")
        if self.denied == self.files:
            # Rather a wrong sign-in than so many files to blame.
            return Denied(self.first)
        advice = unsupported.advice(self.job.input.uri)
        return JobError(f"input.uri: no file can be read; the first: {self.first}" + (f". {advice}" if advice else ""))


def _footers(
    storage: Storage, entries: Iterator[Entry], ahead: int = _WINDOW
) -> Iterator[tuple[Entry, parquet.Footer | _Unread | None]]:
    """The files in order with their footers, None of one that is gone. Reads the first `ahead` at once, then more."""
    kinds = _Kinds()
    with ThreadPoolExecutor(_READERS) as pool:
        while window := list(islice(entries, ahead)):
            found = pool.map(lambda entry: _footer(storage, entry, kinds), window)
            yield from zip(window, found, strict=True)
            ahead = min(2 * ahead, _WINDOW)


class _Kinds:
    """The schemas seen so far: thousands of footers that say the same share one, or wide ones would fill the memory."""

    def __init__(self) -> None:
        self._seen: list[pa.Schema] = []

    def shared(self, schema: pa.Schema) -> pa.Schema:
        """An equal one, metadata included, that is kept already; else this one."""
        for known in self._seen:
            if known.equals(schema, check_metadata=True):
                return known
        if len(self._seen) < _KINDS:
            self._seen.append(schema)
        return schema


def _footer(storage: Storage, entry: Entry, kinds: _Kinds) -> parquet.Footer | _Unread | None:
    """A file's footer, or why there is none; None when the file is not there any more."""
    try:
        footer = parquet.read_footer(storage, entry.uri)
        return replace(footer, schema=kinds.shared(footer.schema))
    except Missing:
        return None
    except (InputCorrupt, Denied) as error:
        return _Unread(str(error), isinstance(error, Denied))


def _line(entry: Entry, footer: parquet.Footer | _Unread) -> dict[str, Any]:
    line: dict[str, Any] = {"uri": entry.uri, "size": entry.size, "version": entry.version}
    if isinstance(footer, _Unread):
        return line | {"rows": [], "sizes": [], "error": footer.why}
    return line | {"rows": footer.rows, "sizes": footer.sizes, "error": None}
