"""What scores a shard, by content: the model's files, the user's code, the job. And the model, on this node.

`scoring_fingerprint` is the one identity under which results are kept: change anything in it, and no old
result is used again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import JobError, Missing
from nightjar.inference.job import Job
from nightjar.inference.predictors import input_columns
from nightjar.inference.storage import Storage

_SCORING_VERSION = 1
"""Raise it when Nightjar itself comes to score the same job, model and input differently."""

_CHUNK_BYTES = 8 << 20


def model_fingerprint(storage: Storage, path: str | None) -> str:
    """SHA-256 over the sorted relative names and the bytes of a file or folder; '' for None.

    A file's own name does not count, nor does where it lies.

    Raises:
        JobError: there is nothing at the path.
    """
    return "" if path is None else _digest(storage, path, None)


def fetch_model(storage: Storage, path: str | None, fingerprint: str, cache: Path) -> str | None:
    """The model as a local path: a local one in place, a remote one downloaded once per node into `cache`.

    Safe for any number of processes and nodes at once: one downloads under a lock of the operating system, and a
    model appears in the cache whole, under its verified fingerprint, or not at all.

    Raises:
        JobError: there is nothing at the path, or no longer what the fingerprint was taken of; or it cannot be kept.
    """
    if path is None:
        return None
    if "://" not in path:
        _verify(path, _digest(storage, path, None), fingerprint)
        return path
    name = path.rstrip("/").rsplit("/", 1)[-1]
    target = cache / fingerprint / name
    try:
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with _locked(cache / f"{fingerprint}.lock"):
                if not target.exists():
                    _download(storage, path, fingerprint, target)
    except OSError as error:
        raise JobError(
            f"model.path: {path} cannot be kept in {cache} on {socket.gethostname()}: {error.strerror or error}; make "
            "room there, or name another place for caches in XDG_CACHE_HOME where the run is started"
        ) from error
    return str(target)


def scoring_fingerprint(job: Job, model: str, code: str, schema: pa.Schema) -> str:
    """SHA-256 over everything that can change an output: the job's identity, the model's and the code's hash, and
    the columns as they reach the model.

    schema: all columns of the input. Where the job does not list its features they follow from it, and with them
    what the model sees.

    Raises:
        JobError: a feature that the job names is not in the schema.
    """
    types: dict[str, list[str]] = {}
    for field in schema:
        types.setdefault(field.name, []).append(str(field.type))
    given = [[name, types[name]] for name in input_columns(job, schema)]
    kept = sorted([name, types.get(name)] for name in {*job.carry, *filter(None, [job.label])})
    identity = [_SCORING_VERSION, job.identity(), model, code, given, kept]
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), default=_tagged)
    return hashlib.sha256(text.encode()).hexdigest()


def _tagged(value: Any) -> Any:
    """What YAML knows and JSON does not (dates, sets, bytes), so that no two values look alike."""
    return [type(value).__name__, sorted(map(repr, value)) if isinstance(value, set) else repr(value)]


def _files(storage: Storage, path: str) -> list[tuple[str, str]]:
    """Relative name and URI of each file of the model, sorted; a single file has the name ''."""
    try:
        return [("", storage.stat(path).uri)]
    except Missing:
        folder = path.rstrip("/") + "/"
    try:
        found = sorted((entry.uri.removeprefix(folder), entry.uri) for entry in storage.list(folder))
    except Missing:
        found = []
    if not found:
        where = f" on {socket.gethostname()}" if "://" not in path else ""
        raise JobError(f"model.path: there is no file or folder {path}{where}")
    return found


def _digest(storage: Storage, path: str, copy_to: Path | None) -> str:
    """The fingerprint, read in one pass that copies the files too when it is told where to."""
    digest = hashlib.sha256()
    for name, uri in _files(storage, path):
        content = hashlib.sha256()
        with _copy(copy_to, name) as copy:
            for chunk in _chunks(storage, uri):
                content.update(chunk)
                if copy is not None:
                    copy.write(chunk)
        digest.update(f"{name}\0{content.hexdigest()}\0".encode())
    return digest.hexdigest()


@contextmanager
def _copy(root: Path | None, name: str) -> Iterator[Any]:
    if root is None:
        yield None
        return
    target = root / name if name else root
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        yield file


def _chunks(storage: Storage, uri: str) -> Iterator[bytes]:
    with storage.open(uri) as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def _download(storage: Storage, path: str, fingerprint: str, target: Path) -> None:
    """Called under the lock: what lies in the partial place was left by a process that died."""
    partial = target.with_name(f".partial-{target.name}")
    _remove(partial)
    try:
        _verify(path, _digest(storage, path, partial), fingerprint)
        partial.rename(target)
    finally:
        _remove(partial)


def _verify(path: str, found: str, fingerprint: str) -> None:
    if found != fingerprint:
        raise JobError(
            f"model.path: {path} changed after the run began; start the run again to score with the new model"
        )


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Held by one process at a time; the system lets go of it when that process dies."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
