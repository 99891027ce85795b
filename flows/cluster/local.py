"""A Ray of the run's own, on this machine: it listens on loopback only and leaves nothing behind.

What it writes lies in one private folder, `/tmp/njray-…`, and every process that it starts has that folder's
name in its environment. So what is left of it can be found, whatever died, and nothing else is touched.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import ray

from nightjar.flows.cluster.internals import in_folder, loopback, temporary_folder
from nightjar.flows.cluster.starting import essence, is_rays, start
from nightjar.flows.cluster.token import keep_token_private
from nightjar.inference.errors import ClusterError
from nightjar.inference.ledger.holders import (
    Holder,
    has_ended,
    is_dead,
    is_of_earlier_boot,
    this_holder,
)
from nightjar.inference.records import known

KEEP = "NIGHTJAR_KEEP_RAY"
"""Environment variable: the folder of a run's own Ray stays whole, however the run ended."""

KEPT_LOGS = 5
"""The logs of so many runs stay that were killed, or failed by what Ray may have to do with; the next run removes those
of earlier ones."""

_MARK = "NIGHTJAR_RAY_FOLDER"
_PREFIX = "njray-"
"""Short: Ray's sockets lie below, and the system bounds the length of their paths."""

_LONGEST_BASE = 26
"""Characters of the temporary folder that leave a socket's path within its bound."""

_OWNER = "owner.json"

_OLD = dt.timedelta(days=7)
"""How old a run's Ray must be to have ended where its process cannot be asked: no run lasts so long."""

_GRACE_S = 2.0
"""So long processes have to end by themselves when Ray has ended."""


@contextmanager
def local_ray(env: Mapping[str, str], options: Mapping[str, Any], failed: Callable[[], bool]) -> Iterator[None]:
    """A Ray on this machine for as long as the context lasts.

    env: what its processes have in their environment, beside what this process has.
    failed: asked at the end: whether Ray's logs are wanted.

    Raises:
        ClusterError: it did not start, twice.
    """
    tidy_up()
    keep_token_private()
    folder = _start_or_again(env, options)
    try:
        yield
    finally:
        ray.shutdown()
        _end(folder, keep_logs=failed())


def lifelines() -> list[psutil.Process]:
    """The head of the Ray that this process started, if it did: Ray itself notices its death after a minute."""
    return [each for each in psutil.Process().children() if each.name() == "gcs_server"]


def is_of_local_run(process: psutil.Process) -> bool:
    """Whether a process was started by some run's own Ray."""
    return _MARK in process.environ()


def tidy_up() -> None:
    """End and remove what is left of runs of this user that were killed; keep the logs of the last few."""
    found = [(folder, _owner(folder)) for folder in _folders()]
    for folder, owner in found:
        with suppress(FileNotFoundError):  # another run tidies up, too
            if owner is None and _is_nobodys(folder):
                _end(folder, keep_logs=False)
    killed = [(owner.at, folder) for folder, owner in found if owner and (is_dead(owner) or _is_over(owner))]
    for index, (_, folder) in enumerate(sorted(killed, reverse=True)):
        if (folder / "r").exists():
            _end(folder, keep_logs=True)
        if index >= KEPT_LOGS:
            shutil.rmtree(folder, ignore_errors=True)


def _is_over(owner: Holder) -> bool:
    """Whether it was before this machine was started again: where temporary files outlive that, so do these."""
    return is_of_earlier_boot(owner) and dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(owner.at) > _OLD


def _is_nobodys(folder: Path) -> bool:
    """Whether its run never came to start Ray, or a power cut took its owner's name.

    A folder that was to stay has no owner either, but what Ray wrote. One whose processes live is somebody's.
    """
    age = time.time() - folder.stat().st_mtime
    lost = (folder / _OWNER).exists() or not any(folder.iterdir())
    return lost and age > _OLD.total_seconds() and not any(_processes(folder))


def _start_or_again(env: Mapping[str, str], options: Mapping[str, Any]) -> Path:
    """Ray's folder, once it runs. On a machine that stood still, or is busy, Ray gives up too early: two tries."""
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
    _end(first, keep_logs=False)  # why it gave up, nobody needs to know now
    return second


def _new_folder() -> Path:
    """For a Ray of this process, and in its name."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_base()))
    (folder / _OWNER).write_text(json.dumps(asdict(this_holder("ray"))))
    return folder


def _start(folder: Path, env: Mapping[str, str], options: Mapping[str, Any]) -> Path:
    try:
        with _inherited({**env, _MARK: str(folder)}), loopback():
            # One level down: Ray opens its own folder to everybody.
            start("local", {**options, **in_folder(folder / "r"), "include_dashboard": False})
    except BaseException:
        # Of a node that did not come up Ray forgets which processes it started.
        ray.shutdown()
        _end(folder, keep_logs=True)
        raise
    return folder


@contextmanager
def _inherited(settings: Mapping[str, str]) -> Iterator[None]:
    """So is the environment of processes started meanwhile; this process's next run may have other settings."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _end(folder: Path, *, keep_logs: bool) -> None:
    """End the processes of the Ray in this folder, by force where need be, and remove it but for its logs."""
    _wait_for_end(left := list(_processes(folder)))
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    _wait_for_end(left)
    if os.environ.get(KEEP):
        (folder / _OWNER).unlink(missing_ok=True)  # no later run takes it for one that was killed
        return
    for logs in (folder / "r").glob("session_2*/logs") if keep_logs else ():
        with suppress(OSError):
            logs.rename(folder / "logs")
    shutil.rmtree(folder / "r", ignore_errors=True)
    if not keep_logs:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_end(processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + _GRACE_S
    while not all(map(has_ended, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)


def _processes(folder: Path) -> Iterator[psutil.Process]:
    """Whoever was started in this folder's Ray: its own processes, and theirs."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(_MARK) == str(folder) and not has_ended(process):
                yield process


def _base() -> Path:
    """Where Ray would put its own folder.

    Raises:
        ClusterError: the path is too long for sockets.
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
    """Folders of this user's runs. The temporary folder is everybody's: a link there, or another's folder, is none."""
    for folder in _base().glob(f"{_PREFIX}*"):
        with suppress(OSError):
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
                yield folder


def _owner(folder: Path) -> Holder | None:
    """The process whose Ray it was; None where that cannot be told."""
    try:
        return known(Holder, json.loads((folder / _OWNER).read_text()))
    except (OSError, ValueError, TypeError):
        return None
