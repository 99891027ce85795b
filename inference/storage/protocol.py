"""The seam of storage: the operations that Nightjar needs, and how objects are named.

An absolute URI names an object: `/a/b` on this machine, `s3://bucket/key`, `gs://bucket/key`, `az://container/key`. A
local path starts with a slash and may contain any other character. Every error is a class of `errors`, and its message
names the URI.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

Names = list[str]  # inside the classes `list` is the method

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
        """Delete these objects. An object that does not exist is no error."""

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

    def leftovers(self, folder: str) -> dict[str, str]:
        """List the temporary files directly in this folder: URI → URI of the object that was being written.

        `list` does not show them. They may be deleted if no living writer is writing that object. A bucket has none: an
        object in it is whole or does not exist, and the bucket's lifecycle rules remove unfinished multipart uploads.
        """


def is_local(uri: str) -> bool:
    """Whether an absolute URI names a file on this machine (or on a mounted file system)."""
    return uri.startswith("/")


def is_web(uri: str) -> bool:
    """Whether a URI names a file of a web server."""
    return uri.startswith(("http://", "https://"))


def join(base: str, *names: str) -> str:
    """The URI of `names` below the folder `base`, which may end with a slash."""
    return "/".join((base.rstrip("/"), *names))
