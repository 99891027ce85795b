"""Work in a separate process, because the user's code may end the process, hang in it, or change its state.

The process is forked off a server of `multiprocessing`, which has imported what scores, and runs no thread and none of
the user's code. So a start takes milliseconds, and it copies nothing of the command: neither Prefect nor a notebook.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from nightjar.inference.errors import NightjarError
from nightjar.inference.messages import clip

_GRACE_S = 10.0
"""The most seconds for what the user's code does when the process ends, and for threads that it left."""

_LOOK_S = 0.2
"""Seconds between checks that the process is alive; processes that it forked keep its end of the pipe open."""


_IMPORTED = ["nightjar.inference.run.checking", "nightjar.inference.engine.local", "pandas"]
"""What the server imports: all that scoring and its checks need."""

FORKS = multiprocessing.get_context("forkserver")


def prepare() -> None:
    """Start the server of this process, unless it runs, and do not wait for its imports."""
    FORKS.set_forkserver_preload(_IMPORTED)
    with _no_program():
        forkserver.ensure_running()


class WorkLost(Exception):
    """The work did not finish: its process died, or it raised an unexpected error.

    how: the rest of a sentence: "ended its process (exit code 3), without an exception", or "failed with OSError: …".
    """

    def __init__(self, how: str, *, died: bool) -> None:
        super().__init__(how)
        self.how, self.died = how, died


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a work. error: the NightjarError that it raised. broken: any other error, as text."""

    error: NightjarError | None = None
    broken: str = ""


class Child:
    """A process that does one work, beginning at once. Used as a context, it is ended with the block.

    It has a session of its own: processes that the work starts end with it, and it ends with its parent. What it prints
    goes to standard error, because a command's standard output is for the command's result.
    """

    def __init__(
        self,
        work: Callable[..., Iterable[Any]],
        *args: Any,
        silent: bool = False,
    ) -> None:
        """work: called in the process with `args`; yields the answers. silent: discard what it prints."""
        prepare()
        self._answers, answer = FORKS.Pipe(duplex=False)
        # The server has the variables and the standard error of the moment of its own start.
        error = Connection(os.open(os.devnull, os.O_WRONLY) if silent else os.dup(2), readable=False)
        self._process = FORKS.Process(target=_run, args=(answer, error, dict(os.environ), work, args))
        with _no_program(), error:
            self._process.start()
        assert self._process.pid is not None
        self._pid, self._ended = self._process.pid, False
        answer.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.end()

    def end(self) -> None:
        """End the process and all processes that it started, by force."""
        self._kill()
        self._answers.close()

    def _kill(self) -> None:
        if self._ended:
            return
        # The fork server waits for each process that ends. From then on its pid may be given to another process, whose
        # group this is not; but not while a process of its own group is left.
        if self._process.exitcode is None or not psutil.pid_exists(self._pid):
            self._process.kill()
            # No group: the process had not made one yet. Not permitted: macOS's answer for a group without live
            # processes.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
        self._process.join()
        self._ended = True

    def answers(self, patience_s: float | None = None) -> Iterator[Any]:
        """Yield what the work yields. After the last answer the process ends by itself, so that its exit handlers run,
        for example to remove files.

        Raises:
            WorkLost: The work did not finish.
            TimeoutError: Nothing came for `patience_s` seconds.
            NightjarError: The work raised it.
        """
        while not isinstance(found := self._next(patience_s), _End):
            yield found
        self.wait()
        if found.error is not None:
            raise found.error
        if found.broken:
            raise WorkLost(found.broken, died=False)

    def _next(self, patience_s: float | None) -> Any:
        began = time.monotonic()
        while not self._answers.poll(_LOOK_S):
            if self._process.exitcode is not None and not self._answers.poll():
                raise self._lost()
            if patience_s is not None and time.monotonic() - began > patience_s:
                raise TimeoutError
        try:
            return self._answers.recv()
        except EOFError:
            raise self._lost() from None

    def _lost(self) -> WorkLost:
        self.wait()  # a process closes its files a moment before it has ended
        self._kill()
        code = self._process.exitcode or 0
        how = f"signal {-code}, {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"
        short = "; the system does this when memory runs short" if code == -signal.SIGKILL else ""
        return WorkLost(f"ended its process ({how}), without an exception{short}", died=True)

    def wait(self) -> None:
        """Wait for the process to end by itself, as long as its exit handlers may take."""
        self._process.join(_GRACE_S)


_starting = threading.Lock()


@contextmanager
def _no_program() -> Iterator[None]:
    """Hide the program's own module from a process that is started in this context.

    The process would run a script from its first line again, up to where the script called Nightjar; few scripts have
    the guard that `multiprocessing` asks for, and no work here needs the script.
    """
    with _starting:
        program = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = program


def _run(
    answer: Connection,
    error: Connection,
    environ: Mapping[str, str],
    work: Callable[..., Iterable[Any]],
    args: tuple[Any, ...],
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent ends it
    os.setsid()
    threading.Thread(target=_end_with_parent, daemon=True, name="nightjar-parent").start()
    with suppress(OSError):  # where memory runs short, this process ends, and its parent says so
        Path("/proc/self/oom_score_adj").write_text("500")
    os.environ.clear()
    os.environ.update(environ)
    os.dup2(error.fileno(), 2)
    os.dup2(error.fileno(), 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    end = _End()
    try:
        for found in work(*args):
            answer.send(found)
    except NightjarError as raised:
        end = _End(raised)
    except Exception as raised:  # noqa: BLE001 (whatever it is, the parent raises it)
        end = _End(broken=clip(f"failed with {type(raised).__name__}: {raised}"))
    sys.stdout.flush()
    answer.send(end)


def _end_with_parent() -> None:
    """End this process and those that it started when the parent dies, because a killed parent cannot do it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for_any([parent.sentinel])
    os.kill(0, signal.SIGKILL)
