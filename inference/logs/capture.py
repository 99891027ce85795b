"""Copies what a worker's process prints into the run's logs.

Nothing is redirected: a worker's standard output and error are Ray's files already. A thread keeps in parts what is new
in these files. A note on the same machine says how far the output is kept. With it `keep_rest` keeps what a dead
process had no time to keep.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from nightjar.inference.errors import NightjarError
from nightjar.inference.jsonform import of_bytes, to_bytes
from nightjar.inference.logs.keeping import Book, Masks, Position, keep, marker
from nightjar.inference.logs.printed import NOTE, Line, write
from nightjar.inference.privatefiles import is_own, private_folder
from nightjar.inference.process import this_worker
from nightjar.inference.records import Started
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Storage

EVERY_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)
"""Seconds from one part to the next: the first ones follow soon, later ones once a minute."""

_PATIENCE_S = 5.0
"""Seconds that a run waits at its end for storage that is away."""


class Capture:
    """Keeps what this process prints from now on, until it ends."""

    def __init__(
        self,
        storage: Storage,
        revision: str,
        epoch: int,
        fds: tuple[int, int] = (1, 2),
        secrets: Sequence[str] = (),
    ) -> None:
        """fds: of standard output and error. secrets: values to mask."""
        self._storage, self._revision, self._fds = storage, revision, fds
        self._masks = Masks(storage, secrets=secrets)
        self._closed = threading.Event()
        self._book: Book | None = None
        self._note: Path | None = None
        worker = this_worker()
        files = _path(fds[0]), _path(fds[1])
        if revision and all(files):
            kept = (Position(os.fstat(fds[0]).st_size), Position(os.fstat(fds[1]).st_size))
            self._book = Book(worker, epoch, files, kept)
            # Without a note, only the last output of a killed process is missing.
            with suppress(OSError):
                self._note = _own_path(revision, "json")
            self._save(self._book)
            self._thread = threading.Thread(target=self._watch, daemon=True, name="nightjar-logs")
            self._thread.start()
        elif revision:
            self._say_that_nothing_is_kept(epoch, worker)

    def _say_that_nothing_is_kept(self, epoch: int, worker: str) -> None:
        said = (
            "… what this worker prints is not kept: its standard output and error are no files, or "
            f"{_folder()} is not a folder of this user. See Ray's own logs"
        )
        with suppress(NightjarError):
            write(self._storage, self._revision, epoch, worker, [Line(time.time(), NOTE, said)])

    def turn_to(self, started: Started) -> None:
        """Mark that what is printed from here on belongs to this attempt."""
        if self._book is not None:
            for fd in self._fds:
                with suppress(OSError):  # a full disk loses the log
                    os.write(fd, marker(started))

    def close(self) -> bool:
        """Keep the rest and stop. Returns whether everything is kept; if not, the note stays for `keep_rest`."""
        if self._book is None:
            return True
        self._closed.set()
        self._thread.join()
        self._keep(final=True)
        if self._book.is_complete and self._note is not None:
            with suppress(OSError):
                self._note.unlink()
        return self._book.is_complete

    def _watch(self) -> None:
        for pause_s in chain(EVERY_S, repeat(EVERY_S[-1])):
            if self._closed.wait(pause_s):
                return
            self._keep(final=False)

    def _keep(self, *, final: bool) -> None:
        assert self._book is not None
        with suppress(NightjarError, OSError):  # the output stays in its file, and the next part will have it
            self._book = keep(self._storage, self._revision, self._book, self._masks, final=final)
        self._save(self._book)

    def _save(self, book: Book) -> None:
        """Write the note. A process that is killed meanwhile leaves the note of before."""
        if self._note is not None:
            new = self._note.with_suffix(".new")
            with suppress(OSError):
                new.write_bytes(to_bytes(book))
                new.replace(self._note)


def keep_rest(storage: Storage, revision: str, secrets: Sequence[str] = ()) -> None:
    """Keep what this revision's ended processes on this machine printed and did not keep.

    What cannot be kept now is left for the next call. secrets: values to mask.
    """
    masks, folder, begins = Masks(storage, secrets=secrets), _folder(), _beginning(revision)
    if not is_own(folder):
        return
    if isinstance(storage, LakeStorage):
        storage = LakeStorage(replace(storage.settings, retry_s=_PATIENCE_S, timeout_s=_PATIENCE_S))
    for path in folder.glob(f"{begins}*.new"):
        with suppress(OSError):  # of a process that was killed in `_save`; a live one writes its note again
            path.unlink()
    for path in sorted(folder.glob(f"{begins}*.json")):
        try:
            if path.lstat().st_uid != os.getuid():
                continue  # the folder may have been open to others, and another user's note could name any file
            book = of_bytes(Book, path.read_bytes())
            keep(storage, revision, book, masks, final=True)
            path.unlink()
            for file in map(Path, book.files):
                if file.parent == folder:
                    file.unlink(missing_ok=True)
        except NightjarError:
            break  # the storage is away, for the others, too
        except (OSError, ValueError, LookupError, TypeError):
            continue  # another process has taken it, or it is damaged


def copies(revision: str) -> tuple[int, int]:
    """Make two files for the output and error of a process that has none, beside the notes. -1: none could be made."""
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND
    try:
        return (
            os.open(_own_path(revision, "out"), flags, 0o600),
            os.open(_own_path(revision, "err"), flags, 0o600),
        )
    except OSError:
        return -1, -1


def close_copies(fds: tuple[int, int], *, left: bool) -> None:
    """Close the copies. left: keep the files, because not all of them is kept yet, and a note names them."""
    for fd in fds:
        path = Path(_path(fd))
        with suppress(OSError):
            os.close(fd)
            if not left:
                path.unlink()


def _own_path(revision: str, suffix: str) -> Path:
    """A path in the folder of notes that no other process uses. Raises OSError if the folder cannot be used."""
    return private_folder(_folder()) / f"{_beginning(revision)}{os.getpid()}-{uuid.uuid4().hex[:8]}.{suffix}"


def _path(fd: int) -> str:
    """The path of a descriptor's file; empty if it is not a file, but for example a terminal or a pipe."""
    with suppress(OSError):
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return str(Path(f"/proc/self/fd/{fd}").readlink())
    return ""


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"nightjar-logs-{os.getuid()}"


def _beginning(revision: str) -> str:
    """How the names of a revision's files begin."""
    return f"{hashlib.sha256(revision.encode()).hexdigest()[:20]}-"


# ---- in a process whose output is also seen ------------------------------------------------------------------

_STREAMS = ("stdout", "stderr")


class CopiedOutput(Capture):
    """Keeps what this process prints until `close`, and lets it be seen where it was seen before."""

    def __init__(self, storage: Storage, revision: str, epoch: int, secrets: Sequence[str] = ()) -> None:
        keep_rest(storage, revision, secrets)  # of a command that was killed
        super().__init__(storage, revision, epoch, copies(revision), secrets)
        for name, fd in zip(_STREAMS, self._fds, strict=True):
            setattr(sys, name, _Copied(getattr(sys, name), fd))

    def close(self) -> bool:
        """Keep what was copied; what is printed from here on is only seen."""
        is_complete = super().close()
        for name in _STREAMS:
            if isinstance(stream := getattr(sys, name), _Copied):
                stream.stop()
        close_copies(self._fds, left=not is_complete)
        return is_complete


class _Copied:
    """A stream whose text is copied to a file, and otherwise the wrapped one."""

    def __init__(self, stream: Any, fd: int) -> None:
        self._stream, self._fd = stream, fd

    def write(self, text: str) -> int:
        self.copy(text)
        written: int = self._stream.write(text)
        return written

    def copy(self, text: str) -> None:
        """Write to the file alone."""
        # A full disk loses the log, but must not raise in the code that prints.
        with suppress(OSError):
            if self._fd >= 0:
                os.write(self._fd, text.encode(errors="backslashreplace"))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def stop(self) -> None:
        """Stop copying. The object stays in use, because a handler of `logging` may have kept it."""
        self._fd = -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
