"""A snapshot on the node that scores: its code in a folder of each process's own, its model shared by all of them."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import socket
import tempfile
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from nightjar.inference.errors import JobError, Missing, ModelChanged
from nightjar.inference.snapshots import CHUNK_BYTES, File, Snapshot, hash_of, inside
from nightjar.inference.storage import Storage, is_local

Stamp = tuple[int, int, int, int, int]
"""Device, inode, size, modification and change time of a file: no write leaves all of them as they were."""


@dataclass(frozen=True, slots=True)
class Linked:
    """A large file that is read where it lies, as it was when this process found its content right."""

    source: str
    stamp: Stamp

    def check(self) -> None:
        """Whether it is still that file, untouched.

        Raises:
            ModelChanged: it was written to or replaced.
        """
        try:
            now = _stamp(self.source)
        except OSError:
            now = None
        if now != self.stamp:
            raise ModelChanged(
                f"{self.source} was changed while the run went on, and is too large to have been copied; nothing "
                "scored since is kept. Repeat the command: it scores with what is there now"
            )


def place_model(storage: Storage, snapshot: Snapshot, cache: Path, path: str) -> tuple[str, tuple[Linked, ...]]:
    """The model on this node, under its own name, shared by all processes here; and its linked files.

    Safe for any number of processes and nodes at once: one places it under a lock of the operating system, and it
    appears whole, of verified content, or not at all.

    Raises:
        JobError: a linked or remote file is no longer what the snapshot holds, or the model cannot be kept here.
    """
    cache = cache / "models"
    target = cache / snapshot.digest / path.rstrip("/").rsplit("/", 1)[-1]
    with _room_in(cache, "model.path"):
        target.parent.mkdir(parents=True, exist_ok=True)
        if not _is_whole(snapshot, target, cache):
            with _locked(cache / f"{snapshot.digest}.lock"):
                if not _is_whole(snapshot, target, cache, thorough=True):
                    _place(storage, snapshot, target, cache)
        return str(target), _linked(storage, "model.path", snapshot, cache)


def place_code(storage: Storage, snapshot: Snapshot, cache: Path) -> tuple[str, tuple[Linked, ...]]:
    """A folder with the code that is this process's own until it ends; and its linked files.

    Not shared: what a predictor writes beside itself must reach no other process, and no later run.

    Raises:
        JobError: a linked file is no longer what the snapshot holds, or the code cannot be kept here.
    """
    with _room_in(cache, "model.uses"):
        _remove_abandoned(cache / "code")
        target = _own_folder(cache / "code") / "job"
        _fill(storage, snapshot, target)
        return str(target), _linked(storage, "model.uses", snapshot, cache)


_owned: list[int] = []
"""Locks of this process's own folders: held, by being open, until it ends, however it ends."""


def _own_folder(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / "lock"):  # nobody may take it for abandoned before it is locked
        own = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))
        handle = os.open(own / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(handle, fcntl.LOCK_EX)
        _owned.append(handle)
    return own


def _remove_abandoned(root: Path) -> None:
    """Folders of processes that ended: the system let go of their locks."""
    if not root.is_dir():
        return
    with _locked(root / "lock"):
        for own in root.iterdir():
            if own.is_dir() and _is_abandoned(own):
                shutil.rmtree(own, ignore_errors=True)


def _is_abandoned(own: Path) -> bool:
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


def _is_whole(snapshot: Snapshot, target: Path, cache: Path, *, thorough: bool = False) -> bool:
    """Whether everything is there and untouched: a predictor may have written to it.

    What was copied is read, for it is little. What was downloaded may be large: it is known by its stamp. One with
    another stamp is not whole; thorough: unless its content, read whole, is right.
    """
    return all(_is_there(file, _at(target, file), cache, thorough) for file in snapshot.files)


def _is_there(file: File, path: Path, cache: Path, thorough: bool) -> bool:
    if file.source and is_local(file.source):
        return path.is_symlink() and os.readlink(path) == file.source  # noqa: PTH115 (text, compared as text)
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    if not file.source:
        return hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256
    known = _mark(cache, str(path), _stamp(str(path)), file)
    if not known.exists() and thorough:
        with path.open("rb") as content:
            if hashlib.file_digest(content, "sha256").hexdigest() == file.sha256:
                _touch(known)
    return known.exists()


def _at(target: Path, file: File) -> Path:
    return target / file.name if file.name else target


def _place(storage: Storage, snapshot: Snapshot, target: Path, cache: Path) -> None:
    """Called under the lock: what lies in the partial place was left by a process that died."""
    partial = target.with_name(f".partial-{target.name}")
    _remove(partial)
    try:
        _fill(storage, snapshot, partial)
        if target.exists() or target.is_symlink():  # spoilt; who uses it keeps its open files
            spoilt = target.with_name(f".spoilt-{uuid.uuid4().hex[:8]}")
            target.rename(spoilt)
            _remove(spoilt)
        partial.rename(target)
        for file in snapshot.files:
            if file.source and not is_local(file.source):  # its content was right as it came
                path = str(_at(target, file))
                _touch(_mark(cache, path, _stamp(path), file))
    finally:
        _remove(partial)


def _fill(storage: Storage, snapshot: Snapshot, target: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(snapshot.archive)) if snapshot.archive else nullcontext() as packed:
        for file in snapshot.files:
            path = _at(target, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            if not file.source:
                assert packed is not None
                _unpack(packed, file, path)
            elif is_local(file.source):
                path.symlink_to(file.source)
            else:
                _download(storage, file, path)
    if not snapshot.files:
        target.mkdir(parents=True, exist_ok=True)


def _unpack(packed: zipfile.ZipFile, file: File, path: Path) -> None:
    entry = packed.getinfo(inside(file.name))
    path.write_bytes(packed.read(entry))
    path.chmod((entry.external_attr >> 16) & 0o777 | 0o600)


def _download(storage: Storage, file: File, path: Path) -> None:
    digest = hashlib.sha256()
    try:
        with storage.open(file.source) as source, path.open("wb") as copy:
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                copy.write(chunk)
    except Missing as error:
        raise _changed("model.path", file) from error
    if digest.hexdigest() != file.sha256:
        raise _changed("model.path", file)


def _linked(storage: Storage, key: str, snapshot: Snapshot, cache: Path) -> tuple[Linked, ...]:
    found = []
    for file in snapshot.linked:
        try:
            stamp = _verified(storage, file, cache)
        except FileNotFoundError:
            raise JobError(
                f"{key}: there is no {file.source} on {socket.gethostname()}, and it is too large to travel with the "
                "run; put it where every node sees it, or into object storage"
            ) from None
        found.append(Linked(file.source, stamp))
    return tuple(found)


def _verified(storage: Storage, file: File, cache: Path) -> Stamp:
    """The stamp of a linked file whose content is right: read once per node, not once per process."""
    stamp = _stamp(file.source)
    known = _mark(cache, file.source, stamp, file)
    if known.exists():
        return stamp
    with _locked(cache / f"{file.sha256}.lock"):
        if known.exists():
            return stamp
        if hash_of(storage, file.source) != file.sha256 or _stamp(file.source) != stamp:
            raise _changed("model.path", file)
        _touch(known)
    return stamp


def _mark(cache: Path, path: str, stamp: Stamp, file: File) -> Path:
    """Is there if the file at the path, with this stamp, was seen to hold what the snapshot says."""
    return cache / "verified" / hashlib.sha256(repr((path, stamp, file.sha256)).encode()).hexdigest()


def _touch(mark: Path) -> None:
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


def _changed(key: str, file: File) -> JobError:
    return JobError(
        f"{key}: {file.source} changed after the run began; start the run again to score with what it is now"
    )


def _stamp(path: str) -> Stamp:
    found = Path(path).stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _room_in(cache: Path, key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise JobError(
            f"{key}: it cannot be kept in {cache} on {socket.gethostname()}: {error.strerror or error}; make room "
            "there, or name another place for caches in XDG_CACHE_HOME where the run is started"
        ) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Held by one process at a time; the system lets go of it when that process dies."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
