"""What Nightjar asks of object storage, and how it names an object there.

An absolute URI names an object: `/a/b` on this machine, `s3://bucket/key`, `gs://bucket/key`, `az://container/key`. A
local path starts with a slash and may hold any other character. Everything raised is from `errors`, by type, and
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


@dataclass(frozen=True, slots=True)
class Entry:
    """One object. size: bytes. version: its etag, or a local file's `local_version`."""

    uri: str
    size: int
    version: str


class Storage(Protocol):
    """What Nightjar asks of storage. Every method may raise `Denied`, `Transient` and `StorageError`."""

    def subfolders(self, folder: str) -> Names:
        """Names of the folders right under this one, sorted."""

    def read(self, uri: str) -> bytes:
        """The whole object. Raises: Missing."""

    def create(self, uri: str, data: bytes) -> None:
        """Create the object, whole and durable, if there is none. Raises: AlreadyExists.

        `Transient` leaves open whether this call created it (an answer may be lost): read back to know.
        `LakeStorage` reads back itself when it sent a request again: its `AlreadyExists` is another's object.
        """

    def write(self, uri: str, data: Buffer) -> None:
        """Write the whole object, durable, under a name that nobody else writes; replaces what is there."""

    def list(self, folder: str, after: str = "") -> Iterator[Entry]:
        """Every object under the folder, at any depth, sorted by URI; only those with a URI > `after`.

        A folder without objects gives nothing; a bucket that does not exist raises Missing.
        """

    def stat(self, uri: str) -> Entry:
        """Size and version. Raises: Missing, also for a folder."""

    def open(self, uri: str) -> pa.NativeFile:
        """The object for random access; close it. Parquet: open with `pre_buffer=True`. Raises: Missing.

        Reading a local file raises OSError: `local.storage_error` gives its type.
        """

    def delete(self, uris: Iterable[str]) -> None:
        """Delete these objects; one that is gone already is fine."""

    def copy(self, source: str, target: str) -> None:
        """Copy inside one bucket or file system without reading; replaces the target. Raises: Missing.

        A local copy is a hard link: both names see a later change in place. `write` makes none.
        """

    def options(self, uri: str) -> dict[str, str]:
        """How a library of object_store reaches that place as whom this storage does, for the next minutes.

        Nothing for a local file, nor where such a library finds the way itself, from this machine's environment.
        """

    def leftovers(self, folder: str) -> dict[str, str]:
        """What lies right in this folder of objects that were begun: URI → URI of the object it was to become.

        It is not listed, and may be deleted if no living writer is at that object. Nothing in a bucket, where an
        object is whole or not there: an upload in parts that was broken off is for the bucket's lifecycle rules.
        """


def is_local(uri: str) -> bool:
    """Whether an absolute URI names a file of this machine (or a mounted file system)."""
    return uri.startswith("/")


def join(base: str, *names: str) -> str:
    """`names` under the folder `base`, which may end with a slash."""
    return "/".join((base.rstrip("/"), *names))
