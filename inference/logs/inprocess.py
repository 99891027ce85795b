"""Keeps what a run's code prints in a process that it shares, as with the local engine.

The output still goes where it went before, and a copy of it goes to files. `capture` keeps these files with the run,
and its note finds them if the process is killed. What C code and child processes print is not copied, because they
write to the process's own descriptors, which others use, too.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from typing import Any
from weakref import WeakSet

from nightjar.inference.logs.capture import Capture, close_copies, copies, keep_rest
from nightjar.inference.records import Started
from nightjar.inference.storage.protocol import Storage

_STREAMS = ("stdout", "stderr")


class InProcess:
    """Keeps what this process prints until `close`; not older threads, as of the progress, a notebook or Prefect."""

    def __init__(self, storage: Storage, revision: str, epoch: int, secrets: Sequence[str] = ()) -> None:
        keep_rest(storage, revision, secrets)  # of a command that was killed
        others = WeakSet(threading.enumerate())
        others.discard(threading.current_thread())
        self._fds = copies(revision)
        self._logs = Capture(storage, revision, epoch, fds=self._fds, secrets=secrets)
        self._copied = [_Copied(getattr(sys, name), fd, others) for name, fd in zip(_STREAMS, self._fds, strict=True)]
        # Without any handler Python prints a record to `sys.stderr`, which copies it.
        self._records = _Records(self._copied) if logging.getLogger().handlers else None
        for name, stream in zip(_STREAMS, self._copied, strict=True):
            setattr(sys, name, stream)
        if self._records:
            logging.getLogger().addHandler(self._records)

    def turn_to(self, started: Started) -> None:
        """What is printed from here on belongs to this attempt."""
        self._logs.turn_to(started)

    def urge(self) -> None:
        """A shard failed: what it printed is wanted soon."""
        self._logs.urge()

    def close(self) -> None:
        """Restore the streams, and keep what was copied."""
        if self._records:
            logging.getLogger().removeHandler(self._records)
        for name, stream in zip(_STREAMS, self._copied, strict=True):
            # The user's code may have replaced the stream; its own one must stay.
            if getattr(sys, name) is stream:
                setattr(sys, name, stream.stream)
            stream.stop()
        close_copies(self._fds, left=not self._logs.close())


class _Copied:
    """A stream whose text is copied to a file, and otherwise the wrapped one; a notebook's has no descriptor."""

    def __init__(self, stream: Any, fd: int, others: WeakSet[threading.Thread]) -> None:
        self.stream, self._fd, self._others = stream, fd, others
        self._lock, self._process = threading.Lock(), os.getpid()

    def write(self, text: str) -> int:
        written: int = self.stream.write(text)
        self.copy(text)
        return written

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def copy(self, text: str) -> None:
        """Write to the file only."""
        if threading.current_thread() in self._others:
            return
        # In a forked process the lock may be held for ever, by a thread that only the parent has.
        lock = self._lock if os.getpid() == self._process else nullcontext()
        # A full disk loses the log, but must not raise in the code that prints.
        with lock, suppress(OSError):
            if self._fd >= 0:
                os.write(self._fd, text.encode(errors="backslashreplace"))

    def stop(self) -> None:
        """Stop copying. The object stays in use, because a new handler of `logging` may have kept it."""
        with self._lock:
            self._fd = -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _Records(logging.Handler):
    """Copies records of `logging` that no handler prints to a copied stream."""

    def __init__(self, copied: list[_Copied]) -> None:
        super().__init__()
        self._copied = copied

    def emit(self, record: logging.LogRecord) -> None:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(self._prints(handler, record) for handler in logger.handlers):
                return
            logger = logger.parent if logger.propagate else None
        self._copied[1].copy(self.format(record) + "\n")

    def _prints(self, handler: logging.Handler, record: logging.LogRecord) -> bool:
        return record.levelno >= handler.level and getattr(handler, "stream", None) in self._copied
