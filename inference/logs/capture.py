"""What a worker's process prints, on its way to the run's logs.

Nothing is redirected: a worker's standard output and error are files already (Ray's), and what is in a file survives
its process, whatever ends it. A thread looks how far they have grown and keeps what is new in parts, seldom and never
by the line. A note on the same machine says how far that is and which shard was scored from where on; by it,
`keep_rest` keeps what a process that is gone had no time for. Nothing is written of a process that prints nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import stat
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nightjar.inference.errors import NightjarError
from nightjar.inference.logs.logbook import Book, Mark, keep
from nightjar.inference.logs.masking import Masks
from nightjar.inference.logs.printed import NOTE, Line, write
from nightjar.inference.records import Started
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Storage

POLL_S = 0.25
EVERY_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)
"""How long after a part the next one may follow: the first ones soon, then one a minute, whatever is printed."""

_PATIENCE_S = 5.0
"""How long a run that ends waits for storage that is away."""

URGENT_S = 1.0
"""A shard that failed does not wait for its turn, but so long after the last part."""


class Capture:
    """Keeps what this process prints, from now on until it ends."""

    def __init__(
        self, storage: Storage, revision: str, epoch: int, ignored: Sequence[str] = (), fds: tuple[int, int] = (1, 2)
    ) -> None:
        """ignored: how lines begin that are none of the predictor's. fds: of standard output and error."""
        self._storage, self._revision = storage, revision
        self._masks = Masks(storage)
        self._lock = threading.Lock()
        self._due = threading.Event()
        self._parts, self._last, self._failed, self._closed = 0, -URGENT_S, "", False
        worker = f"{socket.gethostname()}:{os.getpid()}"
        files = [_path(fd) for fd in fds]
        self._book: Book | None = None
        if revision and files[0] and files[1]:
            self._book = Book(worker, epoch, (files[0], files[1]), (0, 0), ignored=tuple(ignored))
            self._book.kept = self._book.sizes()
            self._book.marks = [Mark(time.time(), self._book.kept)]
            self._note = _Note(_place(revision))
            self._note.save(self._book)
            threading.Thread(target=self._watch, daemon=True, name="nightjar-logs").start()
        elif revision:
            self._say_that_nothing_is_kept(epoch, worker)

    def _say_that_nothing_is_kept(self, epoch: int, worker: str) -> None:
        said = "… what this worker prints is not kept: its standard output and error are no files. See Ray's own logs"
        with contextlib.suppress(NightjarError):
            write(self._storage, self._revision, epoch, worker, [Line(time.time(), NOTE, said)])

    def turn_to(self, started: Started) -> None:
        """What is printed from here on belongs to this attempt."""
        if self._book is not None:
            with self._lock:
                if self._book.mark(Mark(time.time(), self._book.sizes(), started.shard, started.attempt)):
                    self._note.save(self._book)

    def urge(self) -> None:
        """A shard failed: what it printed is wanted soon."""
        self._due.set()

    def close(self) -> None:
        """Keep what there is, and look no more."""
        self._closed = True
        if self._book is not None:
            if self._book.sizes() != self._book.kept:
                self._keep(final=True)
            if self._book.sizes() == self._book.kept:
                self._note.remove()

    def _watch(self) -> None:
        assert self._book is not None
        while not self._closed:
            urgent = self._due.wait(POLL_S)
            with self._lock:
                sizes = self._book.sizes()
                if sizes == self._book.kept:
                    self._due.clear()
                    continue
                last = self._book.marks[-1]
                if sizes != last.sizes:
                    # So that each line has the time it was printed at.
                    self._book.mark(replace(last, at=time.time(), sizes=sizes))
            since = time.monotonic() - self._last
            if since >= (URGENT_S if urgent else EVERY_S[min(self._parts, len(EVERY_S) - 1)]):
                self._due.clear()
                self._keep(final=urgent)
            elif urgent:
                time.sleep(POLL_S)

    def _keep(self, final: bool) -> None:
        assert self._book is not None
        with self._lock:
            book = replace(self._book, marks=list(self._book.marks))
        sizes = book.sizes()
        try:
            sizes, chars = keep(self._storage, self._revision, book, sizes, self._masks, self._failed, final=final)
        except (NightjarError, OSError) as error:
            # What is printed stays where it is: the next part has it.
            self._failed = f"{type(error).__name__}: {error}"
            sizes, chars = self._book.kept, 0
        else:
            self._failed = ""
        self._last = time.monotonic()
        self._parts += chars > 0
        with self._lock:
            self._book.total += chars
            self._book.lost = "" if sizes != self._book.kept else self._book.lost
            self._book.advance(sizes)
            self._note.save(self._book)


class _Note:
    """A book's file: written over in place, and left behind if the process is killed."""

    def __init__(self, place: Path) -> None:
        self._fd = -1
        self._path = place / f"{os.getpid()}-{uuid.uuid4().hex[:8]}.json"
        # Without one, only what a killed process printed last is missing.
        with contextlib.suppress(OSError):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)

    def remove(self) -> None:
        """Nothing is left to do."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def save(self, book: Book) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, os.pwrite(self._fd, book.to_bytes(), 0))


def keep_rest(storage: Storage, revision: str) -> int:
    """Keep what processes of this revision on this machine have printed and not kept; returns how many it was of.

    For when they are gone or about to go. What cannot be kept now is left for the next time.
    """
    masks, found, place = Masks(storage), 0, _place(revision)
    if isinstance(storage, LakeStorage):
        storage = LakeStorage(replace(storage.settings, retry_s=_PATIENCE_S, timeout_s=_PATIENCE_S))
    for path in sorted(place.glob("*.json")):
        try:
            if path.lstat().st_uid != os.getuid():
                continue  # the folder is open to all: a stranger's note could name any file
            book = Book.from_bytes(path.read_bytes())
            if (sizes := book.sizes()) != book.kept:
                found += keep(storage, revision, book, sizes, masks, "", final=True)[1] > 0
            path.unlink()
        except NightjarError:
            break  # the storage is away, for the others, too
        except (OSError, ValueError, LookupError, TypeError):
            continue  # another has taken it meanwhile, or it was damaged
    with contextlib.suppress(OSError):
        place.rmdir()
    return found


def _path(fd: int) -> str:
    """The file behind a descriptor; empty where it is none, as a terminal or a pipe."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return str(Path(f"/proc/self/fd/{fd}").readlink())
    return ""


def _place(revision: str) -> Path:
    """Where the notes of a revision's processes lie on this machine."""
    key = hashlib.sha256(revision.encode()).hexdigest()[:20]
    return Path(tempfile.gettempdir()) / f"nightjar-logs-{os.getuid()}" / key
