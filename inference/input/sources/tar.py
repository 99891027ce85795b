"""Tar archives of samples, as WebDataset writes them: files that follow each other and share a name up to its first dot
are one row, with a column for each ending and `__key__`, the shared name. A name that comes back costs all of its rows.

Endings that WebDataset takes for text (`txt`, `text`, `transcript`, `json`, `jsn`) are text, those that it takes for a
class or a number (`cls`, `cls2`, `class`, `count`, `index`, `inx`, `id`) are int64, and all others are bytes. With the
option `decode: false` all are bytes. What is wrong with a sample costs that row.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, islice

import pyarrow as pa

from nightjar.inference.errors import InputCorrupt, SchemaMismatch
from nightjar.inference.input.sources import lines
from nightjar.inference.input.sources.fitting import check_columns
from nightjar.inference.input.sources.lines import BlockSource, Reading, not_utf8
from nightjar.inference.input.sources.protocol import Description
from nightjar.inference.input.sources.rows import Unreadable
from nightjar.inference.job.options import flag
from nightjar.inference.records import UNKNOWN, Piece
from nightjar.inference.storage.protocol import Entry, Storage

KEY = "__key__"

_NO_COLUMN = (KEY, "")
"""Endings of which no column is made."""

_NAMED = re.compile(r"((?:.*/|)[^./]+)[.]([^/]*)")
"""The key and the ending in a file's name, as WebDataset takes it apart. Files of other names are no part of a sample.
"""

_TEXT = {"txt", "text", "transcript", "json", "jsn"}
_NUMBER = {"cls", "cls2", "class", "count", "index", "inx", "id"}

_SEEN_SAMPLES = 32
_SEEN_BYTES = 8 << 20
"""The endings in so many samples, or in the samples of so many bytes, are a file's columns."""

_BLOCK = 512

_Content = bytes | InputCorrupt
"""What a file of a sample holds, or why nobody knows."""


@dataclass(frozen=True)
class Tar(BlockSource):
    """The source of tar archives. decode: whether text and numbers are read as such."""

    decode: bool = True

    name = "tar"
    suffixes = (*lines.suffixes(".tar"), ".tgz")
    options = (flag("decode", "text and numbers by the ending of their names; else every column is bytes", "`true`"),)

    def describe(self, storage: Storage, entry: Entry) -> Description:
        """Only the first samples are read. An archive without a sample has no rows."""
        packed = lines.EXPANDED if lines.compression(entry.uri) else 1
        columns = self.columns(storage, entry)
        return Description(columns, (UNKNOWN if columns.names != [KEY] else 0,), (max(1, entry.size * packed),))

    def columns(self, storage: Storage, entry: Entry) -> pa.Schema:
        """As `Source.columns`, from the first samples."""
        names, held = dict[str, None](), 0
        with _opened(storage, entry.uri) as file:
            for _, members in islice(_samples(entry.uri, file), _SEEN_SAMPLES):
                names |= dict.fromkeys(name for name in members if _shown(name) == name and name not in _NO_COLUMN)
                held += _bytes(members)
                if held > _SEEN_BYTES:
                    break
        return self._schema([KEY, *names])

    def _schema(self, names: list[str]) -> pa.Schema:
        return pa.schema([(name, self._kind(name)) for name in names])

    def _kind(self, ending: str) -> pa.DataType:
        if ending == KEY:
            return pa.string()
        if not self.decode:
            return pa.binary()
        # `seg.json` is JSON, too.
        last = ending.rpartition(".")[2]
        return pa.string() if last in _TEXT else pa.int64() if last in _NUMBER else pa.binary()

    def check_known(self, storage: Storage, piece: Piece, schema: pa.Schema) -> None:
        check_columns(piece.uri, self.columns(storage, Entry(piece.uri, piece.size, piece.version)), schema)

    def tables(
        self, storage: Storage, piece: Piece, schema: pa.Schema, size: int, lost: Unreadable
    ) -> Iterator[pa.Table]:
        """
        Raises:
            SchemaMismatch: There are samples, and none has a column of the schema.
        """
        absent, met = {name for name in schema.names if name != KEY}, dict[str, int]()
        own = self._schema(schema.names)
        check_columns(piece.uri, own, pa.schema([each for each in schema if each.name == KEY]))
        with _opened(storage, piece.uri) as file:
            rows: list[dict[str, object]] = []
            held = 0
            for count, (key, members) in enumerate(_samples(piece.uri, file, set(absent))):
                if new := absent & set(members):
                    check_columns(piece.uri, own, pa.schema([schema.field(name) for name in sorted(new)]))
                    absent -= new
                rows.append(self._row(piece.uri, key, members, own, len(rows), lost))
                # `tar` may write the same name as `./a.jpg`, too.
                if (first := met.setdefault(key.removeprefix("./"), count)) != count:
                    fault = InputCorrupt(
                        f"{piece.uri}: the files of the sample {_shown(key)!r} do not follow each other: write the "
                        "archive sorted by name (tar --sort=name)"
                    )
                    for at in (first, count):
                        lost.fail(at - count + len(rows) - 1, fault)
                held += _bytes(members)
                if held > size:
                    yield pa.Table.from_pylist(rows, schema=own)
                    rows, held = [], 0
            if rows:
                yield pa.Table.from_pylist(rows, schema=own)
        if met and absent:
            raise SchemaMismatch(f"{piece.uri}: column {min(absent)!r} is missing: no sample has it")

    def _row(
        self, uri: str, key: str, members: dict[str, _Content], schema: pa.Schema, row: int, lost: Unreadable
    ) -> dict[str, object]:
        found: dict[str, object] = {KEY: key}
        for name, content in members.items():
            if isinstance(content, InputCorrupt):
                lost.fail(row, content)
                return {}
            try:
                found[name] = _decoded(f"{uri}: {key}.{name}", content, schema.field(name).type)
            except InputCorrupt as fault:
                lost.fail(row, fault, content)
                return {}
        return found


SOURCE = Tar()


def _bytes(members: dict[str, _Content]) -> int:
    return sum(len(each) for each in members.values() if isinstance(each, bytes))


def _shown(name: str) -> str:
    """A name as a message can have it: bytes that are not UTF-8 are written as `\\xff`."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _decoded(at: str, data: bytes, kind: pa.DataType) -> object:
    """The value of one file.

    Raises:
        InputCorrupt: It is not UTF-8, or no whole number.
    """
    if pa.types.is_binary(kind):
        return data
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(at, error) from None
    if pa.types.is_string(kind):
        return text
    if not re.fullmatch(r"\s*[+-]?\d{1,40}\s*", text, re.ASCII) or not -(2**63) <= int(text) < 2**63:
        raise InputCorrupt(f"{at}: {text[:40]!r} is no int64; for bytes write input.options: {{decode: false}}")
    return int(text)


class _Kept:
    """A file for `tarfile` that keeps the last blocks: at a damaged header `tarfile` itself would just end."""

    def __init__(self, file: Reading) -> None:
        self._file = file
        self._at, self._last = 0, b""

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._last = (self._last + data)[-4 * tarfile.RECORDSIZE :]
        self._at += len(data)
        return data

    def ends(self, offset: int) -> bool:
        """Whether the archive really ends where `tarfile` found its end: at least one block follows, and only zeros."""
        behind = self._last[max(0, offset - self._at + len(self._last)) :]
        is_empty = not any(behind)
        while data := self.read(1 << 20):
            is_empty = is_empty and not any(data)
        return is_empty and len(behind) >= _BLOCK and self._at % _BLOCK == 0


@contextmanager
def _opened(storage: Storage, uri: str) -> Iterator[Reading]:
    with lines.opened(storage, uri) as file:
        try:
            yield file
        except tarfile.TarError as error:
            raise InputCorrupt(f"{uri}: not a readable tar archive, or cut off: {error}") from error


def _samples(uri: str, file: Reading, wanted: set[str] | None = None) -> Iterator[tuple[str, dict[str, _Content]]]:
    """Each sample's key, and its files by their endings. wanted: the endings of files that are read; None for all.

    Raises:
        InputCorrupt: The archive is cut off.
        TarError: It is no tar archive.
    """
    for key, files in groupby(_files(uri, file, wanted), key=lambda each: each[0]):
        members: dict[str, _Content] = {}
        for _, ending, data in files:
            if ending in members:
                data = InputCorrupt(f"{uri}: the sample {_shown(key)!r} has two files that end with .{_shown(ending)}")
            if data is not None:
                members[ending] = data
        yield key, members


def _files(uri: str, file: Reading, wanted: set[str] | None) -> Iterator[tuple[str, str, _Content | None]]:
    """Key, ending and content of each file that is part of a sample; no content if it is not wanted.

    A link is a file whose content lies elsewhere: behind us in the stream, or outside of the archive. A file whose name
    is not UTF-8, or ends as the column of the keys is named, has no content even if it is not wanted: no table can name
    its sample, or nobody can ask for its ending.
    """
    kept = _Kept(file)
    with tarfile.open(fileobj=kept, mode="r|", bufsize=tarfile.RECORDSIZE, encoding="utf-8") as archive:  # type: ignore[call-overload] # `read` is enough
        for member in archive:
            named = _NAMED.fullmatch(member.name)
            if named is None or not (member.isreg() or member.islnk() or member.issym()):
                continue
            key, ending, shown = named[1], named[2].lower(), _shown(member.name)
            wrong = ""
            if shown != member.name:
                wrong = "its name is not UTF-8; rename the file"
            elif ending in _NO_COLUMN:
                wrong = f"no column can be named {ending!r}; rename the file"
            elif wanted is not None and ending not in wanted:
                yield key, ending, None
                continue
            elif not member.isreg() or member.issparse():
                wrong = "a link, or a sparse file; write the archive with tar --dereference --hard-dereference"
            if wrong:
                yield key, ending, InputCorrupt(f"{uri}: {shown}: {wrong}")
                continue
            content = archive.extractfile(member)
            assert content is not None
            data = content.read()
            if len(data) != member.size:
                raise InputCorrupt(f"{uri}: cut off within {shown}")
            yield key, ending, data
        offset = archive.offset
    if not kept.ends(offset):
        raise InputCorrupt(
            f"{uri}: it was cut off or damaged at byte {offset}, or another archive follows: write archives as one"
        )
