"""Local files as objects: whole, durable, never half-written. `lake` calls this module for local paths.

A new object is first a temporary file in the object's folder. The file is synced, and then gets its name in one step:
by `link`, which refuses a name that exists, or by `rename`, which replaces the old file. Listings leave temporary files
out. Their names contain the object's name, which tells what a killed process was writing. File and folder are both
synced, for ledger and parts alike, so that after a power cut the ledger never names a part that is lost. This takes 1
to 4 ms for an object and about 5 ms for 10 MB on the machine where it was measured; scoring takes seconds.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nightjar.inference.errors import AlreadyExists, Denied, Missing, StorageError, Transient
from nightjar.inference.storage.protocol import ANYBODY, Entry, Names, Storage, join, local_version

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

_PREFIX, _SUFFIX = ".nightjar-", ".tmp"
_NAMED = 64
"""The longest object name, in bytes, that its temporary file's name repeats; that name must fit, too.

A part's name has 44 bytes."""

_PASSING = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.EIO,
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.ENETUNREACH,
    errno.ENOTCONN,
    errno.ESTALE,
}
"""Errnos of faults of a disk or a mounted file system that may pass."""

_SENTENCES = {
    errno.ENOSPC: "no space left on its file system; free some, or choose another output.uri",
    errno.EDQUOT: "the disk quota is used up; raise it, or choose another output.uri",
    errno.EROFS: "its file system is read-only; choose another output.uri",
}

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS}
_NOT_BY_LINK = {*_NO_LINKS, errno.EXDEV, errno.EMLINK}


def storage_error(error: OSError, uri: str) -> StorageError:
    """Convert an error of a local file to one of ours, by its type and errno."""
    if error.errno in _SENTENCES:
        return StorageError(f"{uri}: {_SENTENCES[error.errno]}")
    reason = error.strerror or str(error) or type(error).__name__
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Missing(f"{uri}: no such file")
    if error.errno == errno.ELOOP:  # a link to itself
        return Missing(f"{uri}: {reason}")
    if isinstance(error, FileExistsError):
        return AlreadyExists(f"{uri}: exists already")
    if isinstance(error, PermissionError):
        return Denied(f"{uri}: {reason}; allow it to the user this process runs as")
    if isinstance(error, TimeoutError | ConnectionError | InterruptedError) or error.errno in _PASSING:
        return Transient(f"{uri}: {reason}")
    return StorageError(f"{uri}: {reason}")


class LocalStorage(Storage):
    """`Storage` over absolute paths."""

    def subfolders(self, folder: str) -> Names:
        with suppress(Missing), _as_ours(folder), os.scandir(folder) as found:
            return sorted(item.name for item in found if item.is_dir())
        return []

    def read(self, uri: str) -> bytes:
        self.stat(uri)  # to open a pipe would wait for ever
        with _as_ours(uri):
            return Path(uri).read_bytes()

    def create(self, uri: str, data: bytes, mode: int = ANYBODY) -> None:
        with _as_ours(uri), _temporary(uri) as temporary:
            _fill(temporary, data, mode)
            _link(temporary, Path(uri))

    def write(self, uri: str, data: Buffer) -> None:
        with _as_ours(uri), _temporary(uri) as temporary:
            _fill(temporary, data)
            temporary.replace(uri)

    def list(self, folder: str, after: str = "") -> Iterator[Entry]:
        return _walk(folder.rstrip("/") + "/", after, ())

    def stat(self, uri: str) -> Entry:
        entry = _entry(uri)
        if entry is None:
            raise Missing(f"{uri}: no such file")
        return entry

    def open(self, uri: str) -> pa.NativeFile:
        # OSFile, not a memory map: the ten row groups of a cached 93 MB Parquet file took 97 ms through
        # OSFile and 96 ms mapped, its batches 101 and 90 ms (medians of 25, on 2 busy cores), and a
        # mapped file that shrinks under its reader kills the process with SIGBUS.
        import pyarrow as pa

        self.stat(uri)  # as in `read`
        with _as_ours(uri):
            return pa.OSFile(uri, "rb")

    def delete(self, uris: Iterable[str]) -> None:
        for uri in uris:
            with suppress(Missing), _as_ours(uri):
                Path(uri).unlink()

    def copy(self, source: str, target: str) -> None:
        with _as_ours(source), _temporary(target) as temporary:
            try:
                temporary.hardlink_to(Path(source).resolve(strict=True))
            except OSError as error:
                if error.errno not in _NOT_BY_LINK:
                    raise
                shutil.copyfile(source, temporary)
                _sync(temporary)
            temporary.replace(target)

    def leftovers(self, folder: str) -> dict[str, str]:
        found = ((here, name) for here, _, names in os.walk(folder) for name in names if _is_temporary(name))
        # Temporary files of long names do not tell their object's name.
        return {join(here, name): join(here, target) for here, name in found if (target := _target(name))}


def read_link(uri: str) -> str | None:
    """The target of a symbolic link, as it was written; None if there is no link.

    Raises:
        StorageError: There is a folder: whoever copied the link followed it.
    """
    with _as_ours(uri):
        try:
            return str(Path(uri).readlink())
        except FileNotFoundError:  # one call, because another command may remove the link at any moment
            return None
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            if Path(uri).is_dir():
                raise StorageError(
                    f"{uri} is a folder where a link belongs; remove it if nobody keeps files of their own there"
                ) from error
            return None


def remove_empty_folders(folder: str) -> None:
    """Remove a folder and those below it, as far as they hold no files. Nobody else may be writing there."""
    for here, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):  # one that holds something, or that another command has removed
            Path(here).rmdir()


def replace_link(uri: str, target: str) -> None:
    """Point a symbolic link at `target`, atomically for readers. A folder of that name stays, and is an error.

    Does nothing on a file system without symbolic links.
    """
    with _as_ours(uri), _temporary(uri) as temporary:
        try:
            temporary.symlink_to(target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return
        temporary.replace(uri)


@contextmanager
def _as_ours(uri: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise storage_error(error, uri) from error


@contextmanager
def _temporary(uri: str) -> Iterator[Path]:
    """A name that no one else uses, beside `uri`, in a folder that exists. The file is removed afterwards, and the
    folder is synced.
    """
    folder, name = Path(uri).parent, Path(uri).name
    _make_folder(folder)
    named = f"{name}-" if len(os.fsencode(name)) <= _NAMED else ""
    temporary = folder / f"{_PREFIX}{named}{uuid.uuid4().hex}{_SUFFIX}"
    try:
        yield temporary
    finally:
        # Also after a rename: if both names are links to one file, rename does nothing and leaves both.
        temporary.unlink(missing_ok=True)
    _sync_folder(folder)


def _is_temporary(name: str) -> bool:
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def _target(name: str) -> str:
    """The name of the object that a temporary file was to become; empty if its name does not tell."""
    return name.removeprefix(_PREFIX).removesuffix(_SUFFIX).rpartition("-")[0]


def _fill(path: Path, data: Buffer, mode: int = ANYBODY) -> None:
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _link(temporary: Path, target: Path) -> None:
    try:
        target.hardlink_to(temporary)
    except FileExistsError:
        # NFS may lose the answer to `link` and then find the name taken: a second link proves that it was ours.
        if temporary.stat().st_nlink < 2:
            raise
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise StorageError(
                f"{target}: its file system has no hard links, which create-if-absent needs; choose another output.uri"
            ) from error
        raise


def _make_folder(folder: Path) -> None:
    """Make the folder and its parents, durably."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError:
        raise Missing(f"{folder}: is no folder, so nothing can be written below it") from None
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    try:
        _sync(folder)
    except OSError as error:
        # Some network file systems cannot sync a folder, and do not need to.
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
            raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _walk(folder: str, after: str, above: tuple[tuple[int, int], ...]) -> Iterator[Entry]:
    """Files below `folder` (which ends with a slash) in the order of their URIs; one folder at a time is in memory.

    above: the folders that are being walked, by device and inode, so that a link to one of them is not followed.
    """
    try:
        with _as_ours(folder), os.scandir(folder) as items:
            found = Path(folder).stat()
            # A folder is sorted by its name with the slash, as the URIs below it are.
            names = sorted(item.name + "/" if _is_folder(item) else item.name for item in items)
    except Missing:
        return
    here = (found.st_dev, found.st_ino)
    if here in above:
        return
    for name in names:
        uri = folder + name
        if uri <= after and not after.startswith(uri):
            continue
        if name.endswith("/"):
            yield from _walk(uri, after, (*above, here))
        elif uri > after and not _is_temporary(name):
            entry = _entry(uri)
            if entry:
                yield entry


def _is_folder(item: os.DirEntry[str]) -> bool:
    try:
        return item.is_dir()
    except OSError:
        return False  # whoever opens it is told of it by its own name


def _entry(uri: str) -> Entry | None:
    """The entry of a file; None if the file is gone, or is a link to nothing or to itself, a pipe or a socket."""
    with suppress(Missing), _as_ours(uri):
        found = Path(uri).stat()
        if stat.S_ISREG(found.st_mode):
            return Entry(uri, found.st_size, local_version(found))
    return None
