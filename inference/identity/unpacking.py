"""A snapshot on the node that scores. Each process gets a folder of its own; remote files are fetched once per node."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import socket
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from nightjar.inference.errors import JobError, Missing, ModelChanged, StorageError
from nightjar.inference.identity.snapshots import CHUNK_BYTES, File, Snapshot, hash_of, inside
from nightjar.inference.storage.locations import is_registered
from nightjar.inference.storage.protocol import Storage, is_local

Stamp = tuple[int, ...]
"""Size, modification time, status-change time, inode and device of a file. Every write changes at least one of them."""


@dataclass(frozen=True, slots=True)
class Linked:
    """A file read where it is, with the right content when its stamp was taken. stamp: the part to compare."""

    source: str
    stamp: Stamp

    def check(self) -> None:
        """Check that the file is unchanged.

        Raises:
            ModelChanged: It was written to or replaced.
        """
        if _now(Path(self.source))[: len(self.stamp)] != self.stamp:
            raise ModelChanged(
                f"{self.source} was changed while the run went on, and is read where it lies; nothing scored since is "
                "kept. Repeat the command: it scores with what is there now"
            )


def watched(path: Path) -> Linked:
    """Watch a file of a package. Only size and modification time are compared.

    Installers link one file into many environments, and each new or removed link changes the status-change time.
    """
    return Linked(str(path), _now(path)[:2])


def place_model(storage: Storage, snapshot: Snapshot, cache: Path, path: str) -> tuple[str, tuple[Linked, ...]]:
    """Put the model, under its own name, into a folder that belongs to this process until it ends.

    Returns the model's path and its linked files.

    Raises:
        JobError: A linked or remote file has changed since the snapshot, or there is no room for the model here.
    """
    return _place("model.path", snapshot, cache, "model/" + path.rstrip("/").rsplit("/", 1)[-1], storage)


def place_code(snapshot: Snapshot, cache: Path) -> tuple[str, tuple[Linked, ...]]:
    """Put the code into a folder that belongs to this process until it ends. Returns the folder and the linked files.

    None of it is fetched: the code lies in the job's folder, and what is not copied from there is linked.

    Raises:
        JobError: A linked file has changed since the snapshot, or there is no room for the code here.
    """
    return _place("model.uses", snapshot, cache, "job")


def is_at_hand(key: str, storage: Storage, snapshot: Snapshot, cache: Path) -> bool:
    """Whether the files that are not copied still exist with their content. Remote files are fetched.

    Raises:
        JobError: There is no room for them here.
    """
    with _room_in(cache, key):
        cache.mkdir(parents=True, exist_ok=True)
        try:
            for file in snapshot.files:
                if file.source:
                    _link(key, file, cache, storage)
        except JobError:
            return False
    return True


def fetched(key: str, storage: Storage, file: File, cache: Path) -> Path:
    """A file on this node with the right content: a local one where it is, a remote one fetched once per node. A night
    has other files than the one before, so what was fetched more than a day ago is removed.

    Raises:
        JobError: It is not there, its content is another, or there is no room for it here.
    """
    cache = cache / key
    with _room_in(cache, key):
        cache.mkdir(parents=True, exist_ok=True)
        for old in (*cache.glob("models/*"), *cache.glob("verified/*")):
            with suppress(OSError):  # another process removes it, or it is another user's
                if time.time() - old.stat().st_mtime > _FETCHED_S:
                    shutil.rmtree(old) if old.is_dir() else old.unlink()
        return Path(_link(key, file, cache, storage).source)


def _place(
    key: str, snapshot: Snapshot, cache: Path, name: str, storage: Storage | None = None
) -> tuple[str, tuple[Linked, ...]]:
    """Fill a folder that no process shares: no other process and no later run sees what a predictor writes there."""
    own = cache / "processes"
    with _room_in(cache, key):
        if own not in _tidied:
            _tidied.add(own)
            _remove_abandoned(own)
        target = _own_folder(own) / name
        linked = {file.name: _link(key, file, cache, storage) for file in snapshot.files if file.source}
        _fill(snapshot, target, linked)
        return str(target), tuple(linked.values())


_ELSEWHERE_S = 7 * 86400.0
"""The age after which a folder of another node's process counts as abandoned.

On some file systems a lock is seen only on its own node, so the lock of another node's process tells nothing here. No
process scores for a week."""

_FETCHED_S = 86400.0
"""The age after which a file that one night needs is removed."""

_tidied: set[Path] = set()
"""The folders in which this process has looked for what others left: in one with many others, that takes a while."""

_owned: list[int] = []
"""Open locks of this process's own folders. The system releases them when the process ends, however it ends."""


def _own_folder(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / "lock"):  # so that nobody removes the folder as abandoned before it is locked
        own = Path(tempfile.mkdtemp(prefix=f"{_node()}+{os.getpid()}-", dir=root))
        handle = os.open(own / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(handle, fcntl.LOCK_EX)
        _owned.append(handle)
    return own


def _remove_abandoned(root: Path) -> None:
    """Remove the folders of processes that ended; the system has released their locks."""
    if not root.is_dir():
        return
    with _locked(root / "lock"):
        for own in root.iterdir():
            if own.is_dir() and _is_abandoned(own):
                shutil.rmtree(own, ignore_errors=True)


def _is_abandoned(own: Path) -> bool:
    if not own.name.startswith(f"{_node()}+") and time.time() - own.stat().st_mtime < _ELSEWHERE_S:
        return False
    try:
        handle = os.open(own / "lock", os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(handle)


def _node() -> str:
    """An id shared by all processes that see each other's locks: those of one kernel, in any container."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else socket.gethostname()


def _fill(snapshot: Snapshot, target: Path, linked: Mapping[str, Linked]) -> None:
    with zipfile.ZipFile(io.BytesIO(snapshot.archive)) if snapshot.archive else nullcontext() as packed:
        for file in snapshot.files:
            path = target / file.name if file.name else target
            path.parent.mkdir(parents=True, exist_ok=True)
            if file.name in linked:
                path.symlink_to(linked[file.name].source)
            else:
                assert packed is not None
                _unpack(packed, file, path)
    if not snapshot.files:
        target.mkdir(parents=True, exist_ok=True)


def _unpack(packed: zipfile.ZipFile, file: File, path: Path) -> None:
    entry = packed.getinfo(inside(file.name))
    path.write_bytes(packed.read(entry))
    path.chmod((entry.external_attr >> 16) & 0o777 | 0o600)


def _link(key: str, file: File, cache: Path, storage: Storage | None) -> Linked:
    """A verified file on this node: local where it is, remote fetched once from `storage`."""
    local = is_local(file.source)
    path = Path(file.source) if local else cache.absolute() / "models" / file.sha256 / file.source.rsplit("/", 1)[-1]
    if local and not os.access(path, os.R_OK):
        raise JobError(
            f"{key}: there is no {file.source} on {socket.gethostname()} that may be read, and it is too large to "
            "travel with the run; put it where every node sees it, or into object storage"
        )
    with _locked(cache / f"{file.sha256}.lock"):
        stamp = _verified(path, file, cache)
        if stamp is None and not local and storage is not None:
            stamp = _fetch(key, storage, file, path, cache)
    if stamp is None:
        raise _changed(key, file)
    # Each new or removed link to a file changes its status-change time, also one of another program's.
    return Linked(str(path), stamp[:2] if is_registered(file.source) else stamp)


def _verified(path: Path, file: File, cache: Path) -> Stamp | None:
    """The stamp of the file if its content is right. The file is read once per node, not once per process."""
    try:
        stamp = _stamp(path)
    except FileNotFoundError:
        return None
    mark = _mark(path, stamp, file, cache)
    if not mark.exists():
        with path.open("rb") as content:
            right = hashlib.file_digest(content, "sha256").hexdigest() == file.sha256
        if not right or _stamp(path) != stamp:
            return None
        mark.touch()
    return stamp


def _mark(path: Path, stamp: Stamp, file: File, cache: Path) -> Path:
    """The file that exists if this content is right, so that no process of this node reads it again to check it."""
    verified = cache / "verified"
    verified.mkdir(exist_ok=True)
    return verified / hashlib.sha256(repr((str(path), stamp, file.sha256)).encode()).hexdigest()


def _fetch(key: str, storage: Storage, file: File, path: Path, cache: Path) -> Stamp:
    """Fetch a file; it appears whole. Call this under the lock: then a partial file is a dead process's."""
    partial = path.with_name(f".partial-{path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial.unlink(missing_ok=True)
    try:
        if _fetched(storage, file, partial) != file.sha256:
            raise _changed(key, file)
        partial.replace(path)
        stamp = _stamp(path)
        _mark(path, stamp, file, cache).touch()
        return stamp
    except Missing as error:
        raise _changed(key, file) from error
    finally:
        partial.unlink(missing_ok=True)


def _fetched(storage: Storage, file: File, target: Path) -> str:
    """Write a file, read-only, and return its SHA-256. If a client has the file on this disk already, link it."""
    if is_registered(file.source) and _linked(storage, file.source, target):
        with suppress(PermissionError):  # of another user, who may write to it
            target.chmod(0o444)
        return hash_of(storage, str(target))
    digest = hashlib.sha256()
    with storage.open(file.source) as source, target.open("wb") as copy:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            copy.write(chunk)
    target.chmod(0o444)
    return digest.hexdigest()


def _linked(storage: Storage, source: str, target: Path) -> bool:
    try:
        storage.copy(source, str(target))
    except StorageError:  # to fetch it says what is wrong, if it is not only the link
        return False
    return True


def _changed(key: str, file: File) -> JobError:
    return JobError(
        f"{key}: {file.source} changed after the run began; start the run again to score with the file as it is now"
    )


def _stamp(path: Path) -> Stamp:
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev


def _now(path: Path) -> Stamp:
    """The stamp of a file, or an empty one if there is no file."""
    try:
        return _stamp(path)
    except OSError:
        return (-1,)


@contextmanager
def _room_in(cache: Path, key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise JobError(
            f"{key}: it cannot be stored in {cache} on {socket.gethostname()}: {error.strerror or error}; make room "
            "there, or name another place for caches in XDG_CACHE_HOME where the run is started"
        ) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that only one process has at a time; the system releases it when the process dies."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
