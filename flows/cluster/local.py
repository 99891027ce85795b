"""A Ray of the run's own, on this machine: it listens only on loopback and leaves nothing behind.

It writes into one private folder, `/tmp/njray-…`, and every process that it starts has the folder's name in its
environment. So its remains can be found, whatever died, and nothing else is touched.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import ray

from nightjar.flows.cluster.internals import in_folder, loopback, new_token, nobody_else, temporary_folder
from nightjar.inference.errors import ClusterError
from nightjar.inference.ledger.holders import has_ended
from nightjar.inference.privatefiles import OTHERS, create_private
from nightjar.inference.process import environment

_RAISED = (OSError, RuntimeError, ValueError, ray.exceptions.RayError)


def start(address: str, options: dict[str, Any]) -> None:
    """Join the cluster at an address, or start one (`local`); this process's own handler of SIGTERM stays."""
    on_sigterm = signal.getsignal(signal.SIGTERM)
    ray.init(address=address, **options)
    if threading.current_thread() is threading.main_thread():
        # Ray's own handler would end the process without a message.
        signal.signal(signal.SIGTERM, on_sigterm)


def is_rays(error: Exception) -> bool:
    """Whether Ray raised this because it could not start or join. For a time-out it raises a bare `Exception`."""
    return isinstance(error, _RAISED) or type(error) is Exception


def essence(error: Exception) -> str:
    """Ray's message on one line: its first line, or for versions the first line and the last one, which has the
    fault.
    """
    text = str(error).strip() or type(error).__name__
    if text.startswith("Version mismatch"):
        return ", ".join(line.strip() for line in text.splitlines() if line.strip()).replace(":,", ":")
    first, *more = text.splitlines()
    # The first line is only a heading; the last line says what is wrong.
    return f"{first} {more[-1].strip()}" if first.endswith(":") and more else first


def keep_token_private() -> None:
    """Make sure that only this user can read the token file, and create it, before Ray writes one that is open to all.

    Raises:
        ClusterError: The file cannot be written, or belongs to somebody else and is open to others.
    """
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token" or os.environ.get("RAY_AUTH_TOKEN"):
        return
    given = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(given) if given else Path.home() / ".ray" / "auth_token"
    try:
        if not path.exists() and given is None:
            create_private(path, new_token())
        if path.exists() and path.stat().st_mode & OTHERS:
            path.chmod(0o600)
    except OSError as error:
        raise ClusterError(
            f"Ray's token cannot be kept in {path}: {error.strerror or error}; mend its owner and mode (0600), or put "
            "the token into RAY_AUTH_TOKEN"
        ) from error


KEEP = "NIGHTJAR_KEEP_RAY"
"""The environment variable that keeps the whole folder of a run's own Ray, however the run ended."""

KEPT_LOGS = 5
"""The number of runs whose Ray logs stay, of runs that were killed or that failed.

The next run removes the logs of earlier ones, so that they do not fill the disk."""

_MARK = "NIGHTJAR_RAY_FOLDER"
_PREFIX = "njray-"
"""A short prefix: Ray's sockets are below this folder, and the system limits the length of their paths."""

_LONGEST_BASE = 26
"""The longest path of the temporary folder, in characters, with which a socket's path is within the system's limit."""

_LOCK = "lock"
"""The file that the run's process holds locked. The system frees the lock however the process ends."""

_locks: dict[Path, int] = {}
"""The locks of this process, as file descriptors, by folder."""

_GRACE_S = 2.0
"""Seconds that processes have to end by themselves after Ray has ended."""


@contextmanager
def local_ray(env: Mapping[str, str], options: Mapping[str, Any], failed: Callable[[], bool]) -> Iterator[None]:
    """Run a Ray on this machine for this context.

    env: environment variables of its processes, besides this process's own. failed: called at the end; says whether to
    keep Ray's logs.

    Raises:
        ClusterError: Ray did not start, twice.
    """
    tidy_up()
    keep_token_private()
    folder = _start_or_again(env, options)
    try:
        yield
    finally:
        ray.shutdown()
        _end(folder, keep_logs=failed())


def tidy_up() -> None:
    """End the processes and remove the folders of this user's killed runs; keep the logs of the last few.

    A folder without a lock file is left alone: it was kept on purpose (`KEEP`), or is being made.
    """
    with ExitStack() as locks:
        killed = []
        for folder in _folders():
            with suppress(OSError):  # its run lives, or another run is tidying up, too
                locks.callback(os.close, _locked(folder, os.O_RDWR))
                killed.append(((folder / _LOCK).stat().st_mtime, folder))
        for index, (_, folder) in enumerate(sorted(killed, reverse=True)):
            if (folder / "r").exists():
                _end(folder, keep_logs=True)
            if index >= KEPT_LOGS:
                shutil.rmtree(folder, ignore_errors=True)


def _locked(folder: Path, flags: int) -> int:
    """Lock a folder. Raises OSError if another process holds it, or if it has no lock file."""
    lock = os.open(folder / _LOCK, flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _start_or_again(env: Mapping[str, str], options: Mapping[str, Any]) -> Path:
    """Start Ray and return its folder. Tries twice, because on a busy or stopped machine Ray gives up too early."""
    first = _new_folder()
    try:
        return _start(first, env, options)
    except Exception as error:
        if not is_rays(error):
            raise
    try:
        second = _start(_new_folder(), env, options)
    except Exception as error:
        if not is_rays(error):
            raise
        raise ClusterError(
            f"Ray could not start on this machine, twice: {essence(error).rstrip('.')}. Repeat the command when the "
            f"machine is less busy; Ray's logs are in {_base() / _PREFIX}*/logs"
        ) from error
    _end(first, keep_logs=False)  # the second try succeeded, so the first one's logs are not needed
    return second


def _new_folder() -> Path:
    """Make a folder for a Ray of this process, and lock it."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_base()))
    _locks[folder] = _locked(folder, os.O_RDWR | os.O_CREAT)
    return folder


def _start(folder: Path, env: Mapping[str, str], options: Mapping[str, Any]) -> Path:
    try:
        # The processes of this Ray inherit it; the next run of this process may have other settings.
        with environment({**env, _MARK: str(folder)}), loopback(), nobody_else(logs=options.get("log_to_driver", True)):
            # One level down, because Ray opens its own folder to everybody.
            start("local", {**options, **in_folder(folder / "r"), "include_dashboard": False})
    except BaseException:
        # If a node did not come up, Ray forgets which processes it started.
        ray.shutdown()
        _end(folder, keep_logs=True)
        raise
    return folder


def _end(folder: Path, *, keep_logs: bool) -> None:
    """End the processes of the Ray in this folder, by force if needed, and remove the folder, perhaps except its
    logs.
    """
    _wait_for_end(left := list(_processes(folder)))
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    _wait_for_end(left)
    if os.environ.get(KEEP):
        (folder / _LOCK).unlink(missing_ok=True)  # so that no later run treats it as a killed run's
    else:
        for logs in (folder / "r").glob("session_2*/logs") if keep_logs else ():
            with suppress(OSError):
                logs.rename(folder / "logs")
        shutil.rmtree(folder / "r" if keep_logs else folder, ignore_errors=True)
    if (lock := _locks.pop(folder, None)) is not None:
        os.close(lock)


def _wait_for_end(processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + _GRACE_S
    while not all(map(has_ended, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)


def _processes(folder: Path) -> Iterator[psutil.Process]:
    """The processes of this folder's Ray, and those that they started."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(_MARK) == str(folder) and not has_ended(process):
                yield process


def _base() -> Path:
    """The folder in which Ray would put its own folder.

    Raises:
        ClusterError: The path is too long for sockets.
    """
    base = temporary_folder()
    if len(base) <= _LONGEST_BASE:
        return Path(base)
    if "RAY_TMPDIR" in os.environ:
        raise ClusterError(
            f"RAY_TMPDIR={base} is too long for the paths of sockets: {_LONGEST_BASE} characters at most"
        )
    return Path("/tmp")


def _folders() -> Iterator[Path]:
    """The folders of this user's runs. Links and other users' folders are left out: everybody may write in /tmp."""
    for folder in _base().glob(f"{_PREFIX}*"):
        with suppress(OSError):
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
                yield folder
