"""A snapshot on the node that scores: copied or linked into a folder of each process's own; fetched once per node."""

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
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from nightjar.inference.errors import JobError, Missing, ModelChanged
from nightjar.inference.identity.snapshots import (
    CHUNK_BYTES,
    File,
    Snapshot,
    inside,
)
from nightjar.inference.storage.protocol import Storage, is_local

Stamp = tuple[int, ...]
"""Size, modification and change time, inode and device of a file: no write leaves all of them as they were."""


@dataclass(frozen=True, slots=True)
class Linked:
    """A file that is not copied for this process but read where it lies, as it was when its content was found right.

    stamp: as much of one as is compared.
    """

    source: str
    stamp: Stamp

    def check(self) -> None:
        """Whether it is still that file, untouched.

        Raises:
            ModelChanged: it was written to or replaced.
        """
        if _now(Path(self.source))[: len(self.stamp)] != self.stamp:
            raise ModelChanged(
                f"{self.source} was changed while the run went on, and is read where it lies; nothing scored since is "
                "kept. Repeat the command: it scores with what is there now"
            )


def watched(path: Path) -> Linked:
    """A file of an installed package: only size and modification time are compared.

    Installers link one file into many environments, and each link made or removed changes the rest.
    """
    return Linked(str(path), _now(path)[:2])


def place_model(storage: Storage, snapshot: Snapshot, cache: Path, path: str) -> tuple[str, tuple[Linked, ...]]:
    """The model, under its own name, in a folder that is this process's own until it ends; and its linked files.

    Raises:
        JobError: a linked or remote file is no longer what the snapshot holds, or the model cannot be kept here.
    """
    return _place("model.path", storage, snapshot, cache, "model/" + path.rstrip("/").rsplit("/", 1)[-1])


def place_code(storage: Storage, snapshot: Snapshot, cache: Path) -> tuple[str, tuple[Linked, ...]]:
    """The code in a folder that is this process's own until it ends; and its linked files.

    Raises:
        JobError: a linked file is no longer what the snapshot holds, or the code cannot be kept here.
    """
    return _place("model.uses", storage, snapshot, cache, "job")


def is_at_hand(key: str, storage: Storage, snapshot: Snapshot, cache: Path) -> bool:
    """Whether the files that are not copied can still be had, with their content. Remote ones are fetched.

    Raises:
        JobError: there is no room for them here.
    """
    with _room_in(cache, key):
        cache.mkdir(parents=True, exist_ok=True)
        try:
            for file in snapshot.files:
                if file.source:
                    _link(key, storage, file, cache)
        except JobError:
            return False
    return True


def _place(key: str, storage: Storage, snapshot: Snapshot, cache: Path, name: str) -> tuple[str, tuple[Linked, ...]]:
    """Not shared: what a predictor writes beside its code or model must reach no other process, and no later run."""
    own = cache / "processes"
    with _room_in(cache, key):
        _remove_abandoned(own)
        target = _own_folder(own) / name
        linked = {file.name: _link(key, storage, file, cache) for file in snapshot.files if file.source}
        _fill(snapshot, target, linked)
        return str(target), tuple(linked.values())


_ELSEWHERE_S = 7 * 86400.0
"""How old the folder of another node's process must be to be abandoned. Some file systems keep locks to each node: its
lock tells nothing here, and no process scores for a week."""

_owned: list[int] = []
"""Locks of this process's own folders: held, by being open, until it ends, however it ends."""


def _own_folder(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / "lock"):  # nobody may take it for abandoned before it is locked
        own = Path(tempfile.mkdtemp(prefix=f"{_node()}+{os.getpid()}-", dir=root))
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
    """Of all processes that are sure to see each other's locks: those that one kernel runs, in whatever containers."""
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


def _link(key: str, storage: Storage, file: File, cache: Path) -> Linked:
    """Where this node has the file, of verified content: a local one where it lies, a remote one fetched once."""
    local = is_local(file.source)
    path = Path(file.source) if local else cache.absolute() / "models" / file.sha256 / file.source.rsplit("/", 1)[-1]
    if local and not os.access(path, os.R_OK):
        raise JobError(
            f"{key}: there is no {file.source} on {socket.gethostname()} that may be read, and it is too large to "
            "travel with the run; put it where every node sees it, or into object storage"
        )
    with _locked(cache / f"{file.sha256}.lock"):
        stamp = _verified(path, file, cache)
        if stamp is None and not local:
            _fetch(storage, file, path)
            stamp = _verified(path, file, cache)
    if stamp is None:
        raise _changed(key, file)
    return Linked(str(path), stamp)


def _verified(path: Path, file: File, cache: Path) -> Stamp | None:
    """The stamp of the file if its content is right: read once per node, not once per process."""
    try:
        stamp = _stamp(path)
    except FileNotFoundError:
        return None
    known = cache / "verified" / hashlib.sha256(repr((str(path), stamp, file.sha256)).encode()).hexdigest()
    if not known.exists():
        with path.open("rb") as content:
            right = hashlib.file_digest(content, "sha256").hexdigest() == file.sha256
        if not right or _stamp(path) != stamp:
            return None
        known.parent.mkdir(parents=True, exist_ok=True)
        known.touch()
    return stamp


def _fetch(storage: Storage, file: File, path: Path) -> None:
    """Appears whole, and for nobody to write to. Called under the lock: a partial file is a dead process's."""
    partial = path.with_name(f".partial-{path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    try:
        with storage.open(file.source) as source, partial.open("wb") as copy:
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                copy.write(chunk)
        if digest.hexdigest() != file.sha256:
            raise _changed("model.path", file)
        partial.chmod(0o444)
        partial.replace(path)
    except Missing as error:
        raise _changed("model.path", file) from error
    finally:
        partial.unlink(missing_ok=True)


def _changed(key: str, file: File) -> JobError:
    return JobError(
        f"{key}: {file.source} changed after the run began; start the run again to score with what it is now"
    )


def _stamp(path: Path) -> Stamp:
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev


def _now(path: Path) -> Stamp:
    """The stamp of a file, or of none."""
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
