"""The seam of storage: the operations that Nightjar needs, and how objects are named.

An absolute URI names an object: `/a/b` on this machine, `s3://bucket/key`, `gs://bucket/key`, `az://container/key`. A
local path starts with a slash and may contain any other character. Every error is a class of `errors`, and its message
names the URI.

The version of a local file has four fields: its times, its inode and more. That of an object in a bucket is its etag. A
table's file has a version of three fields with a space between them, see `of_table`. An etag has no space.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol, TypeVar

from nightjar.inference.errors import Damaged, StorageError

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

Names = list[str]  # inside the classes `list` is the method
T = TypeVar("T")
R = TypeVar("R")

ANYBODY = 0o666
"""The permissions of new files, before the process's mask."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One object. size: in bytes. version: its etag, or the `local_version` of a local file."""

    uri: str
    size: int
    version: str


class Storage(Protocol):
    """A storage for objects. Every method may raise `Denied`, `Transient` and `StorageError`."""

    def subfolders(self, folder: str) -> Names:
        """Names of the folders directly in this one, sorted."""

    def read(self, uri: str) -> bytes:
        """Read the whole object.

        Raises:
            Missing: It does not exist.
        """

    def create(self, uri: str, data: bytes, mode: int = ANYBODY) -> None:
        """Create the object, whole and durable, if it does not exist. mode: its permissions as a local file.

        After `Transient` the caller must read the object back to know whether this call created it, because the answer
        may have been lost. `LakeStorage` itself reads back when it has repeated a request: its `AlreadyExists` means
        that another writer created the object.

        Raises:
            AlreadyExists: It exists.
        """

    def write(self, uri: str, data: Buffer) -> None:
        """Write the whole object durably, replacing any that exists. Nobody else may be writing this name."""

    def list(self, folder: str, after: str = "") -> Iterator[Entry]:
        """List the objects below the folder, at any depth, sorted by URI; only those whose URI is > `after`.

        A folder without objects gives an empty listing; a bucket that does not exist raises Missing.
        """

    def stat(self, uri: str) -> Entry:
        """Return the object's size and version.

        Raises:
            Missing: It does not exist, or is a folder.
        """

    def open(self, uri: str) -> pa.NativeFile:
        """Open the object for random access; the caller closes it.

        Read Parquet with `pre_buffer=True`. Reading a local file raises OSError, which `local.storage_error` converts.

        Raises:
            Missing: It does not exist.
        """

    def delete(self, uris: Iterable[str]) -> None:
        """Delete these objects of one bucket or file system. An object that does not exist is no error."""

    def copy(self, source: str, target: str) -> None:
        """Copy within one bucket or file system without reading the bytes; replaces the target.

        A local copy is a hard link, so a later change in place would show under both names. `write` never changes in
        place. So is one from the Hub's cache on this machine.

        Raises:
            Missing: The source does not exist.
        """

    def options(self, uri: str) -> dict[str, str]:
        """Return options with which a library built on object_store reaches this URI with the same credentials.

        The credentials are valid for the next minutes. Empty for a local file, and where the library finds everything
        in this machine's environment.
        """
        return {}

    def leftovers(self, folder: str) -> dict[str, str]:
        """List the temporary files below this folder: URI → URI of the object that was being written.

        `list` does not show them. They may be deleted if no living writer is writing that object. A bucket has none: an
        object in it is whole or does not exist, and the bucket's lifecycle rules remove unfinished multipart uploads.
        """
        return {}


def is_local(uri: str) -> bool:
    """Whether an absolute URI names a file on this machine (or on a mounted file system)."""
    return uri.startswith("/")


def is_web(uri: str) -> bool:
    """Whether a URI names a file of a web server."""
    return uri.startswith(("http://", "https://"))


def file_name(uri: str) -> str:
    """A file's location without the query of a web server's URL: its end tells the format."""
    return uri.partition("?")[0] if is_web(uri) else uri


def at_once(call: Callable[[T], R], given: Iterable[T], most: int = 16) -> Iterator[R]:
    """As `map`, with this many calls at once, in threads: each waits for the storage. No more results are held."""
    with ThreadPoolExecutor(most) as pool:
        ahead = deque[Future[R]]()
        for one in given:
            ahead.append(pool.submit(call, one))
            if len(ahead) == most:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def join(base: str, *names: str) -> str:
    """The URI of `names` below the folder `base`, which may end with a slash."""
    return "/".join((base.rstrip("/"), *names))


# ---- versions of objects ------------------------------------------------------------------------------------


def local_version(found: os.stat_result) -> str:
    """A local file's version: modification and status-change times in ns; inode; links, permissions and owners.

    A copy may keep the size and the modification time. Nobody can set the status-change time.
    """
    links = f"{found.st_nlink}.{found.st_mode:o}.{found.st_uid}.{found.st_gid}"
    return f"{found.st_mtime_ns}+{found.st_ctime_ns}+{found.st_ino}+{links}"


def of_table(stored: str, content: str, snapshot: str) -> str:
    """The version of a table's file. stored: of the object. content: as `SnapshotFile`. snapshot: not compared."""
    return f"{stored} {content} {snapshot}"


def snapshot_of(version: str) -> str:
    """The snapshot of the table that a file was listed in; empty for a file of no table."""
    return version.partition(" ")[2].partition(" ")[2]


def same_version(now: str, then: str) -> bool:
    """Whether an object still has the version that an earlier command saw.

    For local files the times decide; a new mount may have other inodes.
    """
    return _fields(now)[:2] == _fields(then)[:2] and content_of(now) == content_of(then)


def untouched(now: str, then: str) -> bool:
    """Whether nobody has written to an object, or replaced it, since this command saw that version.

    New links, permissions or owners of the same file change its status-change time, too, but are no reason to fail.
    """
    new, old = _fields(now), _fields(then)
    if new[0] != old[0] or len(old) == 1:  # an etag
        return new[0] == old[0]
    return new[1] == old[1] or (new[2] == old[2] and new[3] != old[3])


def content_of(version: str) -> str:
    """What `of_table` was given as the content of a table's file; empty for a file of no table."""
    return version.partition(" ")[2].partition(" ")[0]


def _fields(version: str) -> list[str]:
    """The fields of an object's version; an etag is one field, whatever it contains."""
    stored = version.partition(" ")[0]
    if stored.startswith('"'):  # Azure puts quotes around an etag in one answer, and none in another
        return [stored.strip('"')]
    return stored.split("+") if stored[:1].isdecimal() else [stored]


# ---- control files ------------------------------------------------------------------------------------------


def read_control(storage: Storage, uri: str, parse: Callable[[bytes], T], what: str, remedy: str) -> T:
    """What a control file says. what: its kind, as "a publication". remedy: says what a person can do without it.

    Raises:
        Missing: It does not exist.
        Damaged: `parse` cannot read it.
    """
    raw = storage.read(uri)
    try:
        return parse(raw)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Damaged(
            f"{uri}: not {what} that this version can read; it was damaged, or a newer version wrote it: {remedy}"
        ) from error


def beginning(storage: Storage, prefix: str) -> Iterator[Entry]:
    """List the objects whose URI begins with `prefix` and is longer, sorted. prefix: a folder, and how a name begins.

    Nothing else of the folder is listed.
    """
    entries = storage.list(prefix.rpartition("/")[0], after=prefix)
    return takewhile(lambda entry: entry.uri.startswith(prefix), entries)


def numbered(storage: Storage, folder: str, ending: str, after: str = "") -> Iterator[int]:
    """The numbers of the files in a folder that are named by a number, as `00000042.json`; others there are ignored.

    after: as in `Storage.list`.
    """
    named = re.compile(rf"(\d{{8,}}){re.escape(ending)}")
    for entry in storage.list(folder, after=after):
        if found := named.fullmatch(entry.uri[len(folder) :].lstrip("/")):
            yield int(found[1])


# ---- bases of storages --------------------------------------------------------------------------------------


class Forwarding(ABC):
    """Base of storages that forward each operation to another storage."""

    @abstractmethod
    def _forward(self, operation: str, uri: str, call: Callable[[Storage], T]) -> T:
        """Do `call`, which is this operation on `uri`, with the other storage."""

    def subfolders(self, folder: str) -> Names:
        return self._forward("subfolders", folder, lambda other: other.subfolders(folder))

    def read(self, uri: str) -> bytes:
        return self._forward("read", uri, lambda other: other.read(uri))

    def create(self, uri: str, data: bytes, mode: int = ANYBODY) -> None:
        self._forward("create", uri, lambda other: other.create(uri, data, mode))

    def write(self, uri: str, data: Buffer) -> None:
        self._forward("write", uri, lambda other: other.write(uri, data))

    def list(self, folder: str, after: str = "") -> Iterator[Entry]:
        return self._forward("list", folder, lambda other: other.list(folder, after))

    def stat(self, uri: str) -> Entry:
        return self._forward("stat", uri, lambda other: other.stat(uri))

    def open(self, uri: str) -> pa.NativeFile:
        return self._forward("open", uri, lambda other: other.open(uri))

    def delete(self, uris: Iterable[str]) -> None:
        if all_uris := tuple(uris):
            self._forward("delete", all_uris[0], lambda other: other.delete(all_uris))

    def copy(self, source: str, target: str) -> None:
        self._forward("copy", target, lambda other: other.copy(source, target))

    def options(self, uri: str) -> dict[str, str]:
        return self._forward("options", uri, lambda other: other.options(uri))

    def leftovers(self, folder: str) -> dict[str, str]:
        return self._forward("leftovers", folder, lambda other: other.leftovers(folder))


class ReadOnly(Storage):
    """Base of storages that are only read. refusal: what the error says of a file."""

    refusal = "models there are only read"

    def read(self, uri: str) -> bytes:
        with self.open(uri) as file:
            return bytes(file.read())

    def create(self, uri: str, data: bytes, mode: int = ANYBODY) -> None:
        raise self._refused(uri)

    def write(self, uri: str, data: Buffer) -> None:
        raise self._refused(uri)

    def delete(self, uris: Iterable[str]) -> None:
        raise self._refused(next(iter(uris), "nothing"))

    def copy(self, source: str, target: str) -> None:
        raise self._refused(target)

    def subfolders(self, folder: str) -> Names:
        return []

    def _refused(self, uri: str) -> StorageError:
        return StorageError(f"{uri}: {self.refusal}")
