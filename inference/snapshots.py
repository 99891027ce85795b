"""What scores, fixed by content when a run begins: kept with the output, and what every process that scores loads.

A snapshot lists files by name and SHA-256. Small local ones travel in its archive. Too large ones are linked where they
lie, and verified there; remote ones are downloaded. So a file that is edited in mid-run changes nothing of the run, or
the run notices.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
import socket
import tempfile
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nightjar.inference.errors import AlreadyExists, JobError, Missing, ModelChanged, RunFailed, StorageError
from nightjar.inference.storage import Storage, is_local, join

COPIED_BYTES = 64 << 20
"""Local files are copied, the smallest first, while together they take at most this; the others are linked."""

_CHUNK_BYTES = 8 << 20
_LIST = "snapshot.json"
"""In an archive that is kept: the list of files, linked and remote ones included."""

Stamp = tuple[int, int, int, int, int]
"""Device, inode, size, modification and change time of a file: no write leaves all of them as they were."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of a snapshot. name: relative, '' for a model of one file. source: where it lies, '' if it is copied."""

    name: str
    size: int
    sha256: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Files by content, sorted by name. archive: a zip of those that are copied."""

    files: tuple[File, ...] = ()
    archive: bytes = field(default=b"", repr=False, compare=False)

    @property
    def digest(self) -> str:
        """SHA-256 over names and contents, wherever the files lie; '' without files."""
        if not self.files:
            return ""
        lines = (f"{file.name}\0{file.sha256}\0" for file in self.files)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @property
    def linked(self) -> tuple[File, ...]:
        """The local files that are read where they lie."""
        return tuple(file for file in self.files if file.source and is_local(file.source))


NOTHING = Snapshot()


def take_model(storage: Storage, path: str | None) -> Snapshot:
    """The snapshot of a model: a file or a folder. Empty for None.

    Raises:
        JobError: there is nothing at the path.
    """
    return NOTHING if path is None else take("model.path", storage, _model_files(storage, path))


def take(key: str, storage: Storage, found: Sequence[tuple[str, str, int]]) -> Snapshot:
    """The snapshot of these files: name, URI and size of each.

    Each is read once: what is hashed is what is copied.

    Raises:
        JobError: a file cannot be read, or is there no more; names the key.
    """
    for name, uri, _ in found:
        _check_name(key, name, uri)
    copied = _copied(found)
    files, archive = [], io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        for name, uri, size in sorted(found):
            try:
                if uri not in copied:
                    files.append(File(name, size, _hash(storage, uri), uri))
                    continue
                content = Path(uri).read_bytes()
                _pack(packed, name, uri, content)
            except (OSError, Missing) as error:
                raise JobError(f"{key}: {uri} cannot be read: {error}") from error
            files.append(File(name, len(content), hashlib.sha256(content).hexdigest()))
    return Snapshot(tuple(files), archive.getvalue() if copied else b"")


def _check_name(key: str, name: str, uri: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise JobError(f"{key}: the name of {os.fsencode(uri)!r} is not UTF-8; rename the file") from None


def _copied(found: Sequence[tuple[str, str, int]]) -> set[str]:
    chosen, held = set(), 0
    for _, uri, size in sorted(found, key=lambda each: (each[2], each[0])):
        held += size
        if held > COPIED_BYTES:
            break
        if is_local(uri):
            chosen.add(uri)
    return chosen


def _pack(packed: zipfile.ZipFile, name: str, uri: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(_inside(name))
    entry.external_attr = (Path(uri).stat().st_mode & 0o777) << 16
    packed.writestr(entry, content)


def _inside(name: str) -> str:
    """A file's name in an archive."""
    return f"files/{name or '_'}"


def _model_files(storage: Storage, path: str) -> list[tuple[str, str, int]]:
    try:
        entry = storage.stat(path)
        return [("", entry.uri, entry.size)]
    except Missing:
        folder = path.rstrip("/") + "/"
    try:
        found = [(entry.uri.removeprefix(folder), entry.uri, entry.size) for entry in storage.list(folder)]
    except Missing:
        found = []
    if not found:
        where = f" on {socket.gethostname()}" if is_local(path) else ""
        raise JobError(f"model.path: there is no file or folder {path}{where}")
    return found


def _hash(storage: Storage, uri: str) -> str:
    if is_local(uri):
        with Path(uri).open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    digest = hashlib.sha256()
    with storage.open(uri) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


# ---- kept with the output -----------------------------------------------------------------------------------


def keep(storage: Storage, output: str, snapshot: Snapshot) -> None:
    """Make the snapshot durable in the output, under its content: nights that are scored alike share one."""
    if not snapshot.files:
        return
    packed = io.BytesIO(snapshot.archive)
    with zipfile.ZipFile(packed, "a") as kept:
        kept.writestr(zipfile.ZipInfo(_LIST), json.dumps([asdict(file) for file in snapshot.files], indent=1))
    with suppress(AlreadyExists):
        storage.create(_kept(output, snapshot.digest), packed.getvalue())


def read_kept(storage: Storage, output: str, digest: str) -> Snapshot:
    """A snapshot that a run kept; empty for ''.

    Raises:
        Missing: it is not there any more.
        StorageError: it is not what was kept.
    """
    if not digest:
        return NOTHING
    uri = _kept(output, digest)
    try:
        archive = storage.read(uri)
        with zipfile.ZipFile(io.BytesIO(archive)) as kept:
            found = Snapshot(tuple(File(**file) for file in json.loads(kept.read(_LIST))), archive)
    except (zipfile.BadZipFile, ValueError, TypeError, KeyError) as error:
        raise StorageError(f"{uri}: not a snapshot this version can read: {error}; restore it") from error
    if found.digest != digest:
        raise StorageError(f"{uri}: not the snapshot that was kept; restore it")
    return found


def _kept(output: str, digest: str) -> str:
    return join(output, "snapshots", f"{digest}.zip")


# ---- on the node that scores --------------------------------------------------------------------------------


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
    target = cache / snapshot.digest / path.rstrip("/").rsplit("/", 1)[-1]
    with _room_in(cache, "model.path"):
        target.parent.mkdir(parents=True, exist_ok=True)
        if not _is_whole(snapshot, target):
            with _locked(cache / f"{snapshot.digest}.lock"):
                if not _is_whole(snapshot, target):
                    _place(storage, snapshot, target)
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


def _is_whole(snapshot: Snapshot, target: Path) -> bool:
    """Whether everything is there. What was copied is read: it is little, and somebody may have written to it."""
    return all(_is_there(file, target / file.name if file.name else target) for file in snapshot.files)


def _is_there(file: File, path: Path) -> bool:
    if file.source and is_local(file.source):
        return path.is_symlink() and os.readlink(path) == file.source  # noqa: PTH115 (text, compared as text)
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    return bool(file.source) or hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256


def _place(storage: Storage, snapshot: Snapshot, target: Path) -> None:
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
    finally:
        _remove(partial)


def _fill(storage: Storage, snapshot: Snapshot, target: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(snapshot.archive)) if snapshot.archive else nullcontext() as packed:
        for file in snapshot.files:
            path = target / file.name if file.name else target
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
    entry = packed.getinfo(_inside(file.name))
    path.write_bytes(packed.read(entry))
    path.chmod((entry.external_attr >> 16) & 0o777 | 0o600)


def _download(storage: Storage, file: File, path: Path) -> None:
    digest = hashlib.sha256()
    try:
        with storage.open(file.source) as source, path.open("wb") as copy:
            while chunk := source.read(_CHUNK_BYTES):
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
    known = cache / "verified" / hashlib.sha256(repr((file.source, stamp, file.sha256)).encode()).hexdigest()
    if known.exists():
        return stamp
    known.parent.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f"{file.sha256}.lock"):
        if known.exists():
            return stamp
        if _hash(storage, file.source) != file.sha256 or _stamp(file.source) != stamp:
            raise _changed("model.path", file)
        known.touch()
    return stamp


def verify(storage: Storage, snapshot: Snapshot) -> None:
    """Whether the linked files still hold what the snapshot says: read whole, before a publication.

    Raises:
        RunFailed: one of them does not.
    """
    for file in snapshot.linked:
        try:
            same = _hash(storage, file.source) == file.sha256
        except OSError:
            same = False
        if not same:
            raise RunFailed(
                f"{file.source} changed while the run went on; repeat the command: it scores with what is there now"
            )


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


def names(files: Iterable[File]) -> dict[str, str]:
    """Name → SHA-256."""
    return {file.name: file.sha256 for file in files}
