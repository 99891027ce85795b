"""Snapshots of code and model: taken when a run begins, kept with the output, and loaded by every process that scores.

A snapshot lists files by name and SHA-256. Small local files are sent in its archive. Local files that are too large
are linked and verified where they are; remote files are downloaded. So a file that is edited during the run either has
no effect, or the run notices.
"""

from __future__ import annotations

import hashlib
import io
import json
import operator
import os
import socket
import zipfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path

from nightjar.inference.errors import AlreadyExists, Denied, JobError, Missing, RunFailed, StorageError
from nightjar.inference.jsonform import of_json, to_json
from nightjar.inference.storage.local import storage_error
from nightjar.inference.storage.locations import Reach
from nightjar.inference.storage.protocol import ANYBODY, Storage, is_local, join

COPIED_BYTES = 64 << 20
"""The most bytes of local files that are copied, the smallest files first; the other files are linked."""

CHUNK_BYTES = 8 << 20
_LIST = "snapshot.json"
"""The member of a kept archive with the list of all files, also linked and remote ones."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of a snapshot."""

    name: str
    """The name relative to the folder of the job or of the model; '' for a model of one file."""

    size: int
    """The size, in bytes."""

    sha256: str
    """The SHA-256 of the content, in hexadecimal."""

    source: str = ""
    """The URI of the file; '' if the file is copied."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Files by content, sorted by name. archive: a zip of the copied files."""

    files: tuple[File, ...] = ()
    archive: bytes = field(default=b"", repr=False, compare=False)

    @property
    def digest(self) -> str:
        """A SHA-256 of names and contents, independent of where the files are; '' without files."""
        if not self.files:
            return ""
        lines = (f"{file.name}\0{file.sha256}\0" for file in self.files)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @property
    def linked(self) -> tuple[File, ...]:
        """The local files that are not copied, but read where they are."""
        return tuple(file for file in self.files if file.source and is_local(file.source))


NOTHING = Snapshot()


def take_model(storage: Storage, path: str | None) -> Snapshot:
    """Take the snapshot of a model, a file or a folder. Empty for None.

    Raises:
        JobError: There is nothing at the path.
    """
    return NOTHING if path is None else take("model.path", storage, _model_files(storage, path))


def take(key: str, storage: Storage, found: Sequence[tuple[str, str, int]]) -> Snapshot:
    """Take the snapshot of these files. found: name, URI and size in bytes of each file.

    Each file is read once, so that the copied bytes are the hashed bytes.

    Raises:
        JobError: A file may not be read, or does not exist any more. Names the key.
        StorageError: The disk or the storage failed; this may pass.
    """
    for name, uri, _ in found:
        _check_name(key, name, uri)
    copied = _copied(found)
    files, archive = [], io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        for name, uri, size in sorted(found):
            try:
                if uri not in copied:
                    files.append(File(name, size, hash_of(storage, uri), uri))
                    continue
                content = Path(uri).read_bytes()
                _pack(packed, name, uri, content)
            except OSError as error:
                fault = storage_error(error, uri)
                raise (JobError(f"{key}: {fault}") if isinstance(fault, Missing | Denied) else fault) from error
            except Missing as error:
                raise JobError(f"{key}: {error}") from error
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
    entry = zipfile.ZipInfo(inside(name))
    entry.external_attr = (Path(uri).stat().st_mode & 0o777) << 16
    packed.writestr(entry, content)


def inside(name: str) -> str:
    """The name of a file in an archive."""
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
    # Any bytes can be weights, and then become outputs. In the Hub's cache each file is a link to a blob.
    hub = [up.with_name("blobs") for up in Path(os.path.realpath(folder)).parents if up.name == "snapshots"]
    reach = Reach([folder, *map(str, hub)])
    for name, uri, _ in found:
        if is_local(uri) and not reach.has(uri):
            raise JobError(
                f"model.path: {folder}{name} is a link to {reach.real(uri)}, outside of the model's folder; copy the "
                "file there, or name the folder in which all of them lie"
            )
    if not found:
        where = f" on {socket.gethostname()}" if is_local(path) else ""
        raise JobError(f"model.path: there is no file or folder {path}{where}")
    return found


def hash_of(storage: Storage, uri: str) -> str:
    """SHA-256 of a file's content."""
    if is_local(uri):
        with Path(uri).open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    digest = hashlib.sha256()
    with storage.open(uri) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


# ---- kept with the output -----------------------------------------------------------------------------------


def keep(storage: Storage, output: str, snapshot: Snapshot) -> None:
    """Store the snapshot in the output, named by its digest. Nights that are scored alike share one."""
    if not snapshot.files:
        return
    uri = _kept(output, snapshot.digest)
    with suppress(Missing):
        storage.stat(uri)
        return  # its name says what it holds, and most nights have the model of the night before
    packed = io.BytesIO(snapshot.archive)
    with zipfile.ZipFile(packed, "a") as kept:
        # The permissions that all copied files have.
        mode = reduce(operator.and_, (each.external_attr >> 16 for each in kept.infolist()), ANYBODY) | 0o600
        kept.writestr(zipfile.ZipInfo(_LIST), json.dumps([to_json(file) for file in snapshot.files], indent=1))
    with suppress(AlreadyExists):
        storage.create(uri, packed.getvalue(), mode)


def read_kept(storage: Storage, output: str, digest: str) -> Snapshot:
    """Read a snapshot that a run kept; empty for ''.

    Raises:
        Missing: It does not exist any more.
        StorageError: It is damaged, or not what was kept.
    """
    if not digest:
        return NOTHING
    uri = _kept(output, digest)
    try:
        archive = storage.read(uri)
        with zipfile.ZipFile(io.BytesIO(archive)) as kept:
            found = Snapshot(tuple(of_json(File, file) for file in json.loads(kept.read(_LIST))), archive)
    except (zipfile.BadZipFile, ValueError, TypeError, KeyError) as error:
        raise StorageError(f"{uri}: not a snapshot that this version can read; restore it") from error
    if found.digest != digest:
        raise StorageError(f"{uri}: not the snapshot that was kept; restore it")
    return found


def _kept(output: str, digest: str) -> str:
    return join(output, "snapshots", f"{digest}.zip")


def verify(storage: Storage, snapshot: Snapshot) -> None:
    """Check, before a publication, that the linked files still have their content, by reading them all.

    Raises:
        RunFailed: One of them has changed.
    """
    for file in snapshot.linked:
        try:
            same = hash_of(storage, file.source) == file.sha256
        except OSError:
            same = False
        if not same:
            raise RunFailed(
                f"{file.source} changed while the run went on; repeat the command: it scores with what is there now"
            )


def names(files: Iterable[File]) -> dict[str, str]:
    """Name → SHA-256."""
    return {file.name: file.sha256 for file in files}
