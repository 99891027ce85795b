"""The engine that scores in this process, without Ray: for small nights, notebooks and tests.

A row that kills the process, or code that hangs in C, ends the command. Only the shards of the last second are lost,
and a run on Ray then finds the row. Everything else is as on Ray: the same worker, the same parts.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

import cloudpickle
import pyarrow as pa

from nightjar.inference import predictors, witness
from nightjar.inference.engine.auditing import audit_here, each_here
from nightjar.inference.environ import environment
from nightjar.inference.errors import JobError, NeedsRay, ProcessSpoilt, RunFailed
from nightjar.inference.garbage import users_code_begins
from nightjar.inference.identity.packages import is_imported
from nightjar.inference.input.plan import shard_of_line
from nightjar.inference.job.finding import modules_in
from nightjar.inference.job.model import Job
from nightjar.inference.logs.capture import InProcess
from nightjar.inference.records import Event, Failed, Piece
from nightjar.inference.scoring.assignment import Assignment, WorkerSpec
from nightjar.inference.scoring.child import Child, WorkLost
from nightjar.inference.scoring.preflight import (
    Loaded,
    Outcome,
    PreflightSteps,
    loaded_by,
    observed,
    preflight_steps,
    with_packages,
)
from nightjar.inference.scoring.streaming import worker_of
from nightjar.inference.scoring.suspects import Attempt
from nightjar.inference.scoring.watchdog import Watchdog, answering
from nightjar.inference.scoring.worker import ShardWorker
from nightjar.inference.storage.protocol import Storage
from nightjar.inference.validation.audit import Audited
from nightjar.inference.validation.rescore import Rescored
from nightjar.inference.validation.rescore import rescore as rescore_shards

_ON_RAY = "Run it on Ray, which loses only the process that scores: leave --engine local out"


T = TypeVar("T")
R = TypeVar("R")


class LocalEngine:
    """`Engine` in this process, but for preflight. The model is loaded once for all passes of a step."""

    def __init__(self) -> None:
        self._process = _Process()
        self._worker: ShardWorker | None = None
        self._spec: WorkerSpec | None = None

    def check_capacity(self, job: Job) -> None:
        """Do nothing: one process always has room."""

    def preflight(self, spec: WorkerSpec, places: Sequence[Piece], steps: PreflightSteps = preflight_steps) -> Loaded:
        """In a process of its own, which has ended when this returns: a model may crash, hang or take all memory."""
        loaded: Loaded | None = None
        key, stall_s, answered_at = loaded_by(spec.job), spec.job.retry.stall_s, time.monotonic()
        # By cloudpickle, as on Ray: also what is defined in a script or a notebook.
        # What the model prints goes where it goes in the run.
        with Child(_tried, cloudpickle.dumps((spec, list(places), steps)), prints=True) as child:
            try:
                for outcome in child.answers():
                    if isinstance(outcome, JobError):
                        raise outcome
                    loaded, answered_at = outcome, time.monotonic()
            except WorkLost as lost:
                # The watchdog in that process ends it where nothing else can.
                hung = lost.died and time.monotonic() - answered_at > stall_s
                how = f"took longer than retry.stall_s = {stall_s:g} s and was ended" if hung else lost.how
                if loaded is None:
                    raise JobError(f"{key}: loading the model {how}; load it once in Python to see why") from None
                raise NeedsRay(
                    f"{key}: scoring the first rows {how}. {_ON_RAY}. If each row does this, the model is damaged or "
                    "does not fit its library: write it again"
                ) from None
        assert loaded is not None
        if loaded.spoilt:
            # A pass in this process would be interrupted by the same row.
            raise NeedsRay(f"{key}: scoring the first rows: {loaded.sample_error}. {_ON_RAY}")
        return loaded

    def run_pass(
        self, spec: WorkerSpec, shards: pa.Table, attempts: Sequence[Attempt]
    ) -> Generator[list[Event], None, None]:
        work = [Assignment(shard_of_line(line), each) for line, each in zip(shards.to_pylist(), attempts, strict=True)]
        for each in work:
            if each.attempt.crumbs:
                raise NeedsRay(
                    f"shard {each.shard.id} ({each.shard.label}) ended the process that scored it, and would end this "
                    f"command. {_ON_RAY}: it finds the row"
                )
        try:
            for event in self._opened(spec).process(work):
                if isinstance(event, Failed) and self._process.logs:
                    self._process.logs.urge()
                yield [event]
        except ProcessSpoilt as spoilt:
            raise NeedsRay(f"this process can score no more: {spoilt}. {_ON_RAY}") from None
        except SystemExit as left:
            raise NeedsRay(f"the model's code {_exits(left)}. {_ON_RAY}") from left

    def audit(
        self, storage: Storage, revision: str, job: Job, outcomes: pa.Table
    ) -> Generator[Audited | None, None, None]:
        return audit_here(storage, revision, job, outcomes)

    def each(
        self, work: Callable[[T], R], given: Sequence[T], job: Job, called: str
    ) -> Generator[R | None, None, None]:
        return each_here(work, given, job, called)

    def rescore(self, spec: WorkerSpec, chosen: pa.Table) -> Generator[Rescored | None, None, None]:
        merged = Rescored()
        self._process.lend(spec)
        for found in rescore_shards(spec, chosen.to_pylist()):
            merged.merge(found)
            yield None
        yield merged

    def close(self) -> None:
        self._worker = None
        self._process.take_back()

    def _opened(self, spec: WorkerSpec) -> ShardWorker:
        # The worker's own spec may differ: it reads the run's copy of the code.
        if self._worker is None or self._spec != spec:
            self._process.lend(spec)
            logs = self._process.logs
            self._worker = None  # its models go before others are loaded
            made = worker_of(spec)
            self._worker, self._spec = made(spec, turn_to=logs.turn_to) if logs else made(spec), spec
        return self._worker


def _tried(given: bytes) -> Iterator[Outcome]:
    """Preflight, with the time limit of each step; what the code prints is kept with the run.

    given: spec, places and steps, as for `LocalEngine.preflight`.
    """
    spec, places, steps = cloudpickle.loads(given)
    predictors.warm(spec.job)  # the limit is for the model, not for the import of its library
    logs = InProcess(spec.storage, spec.revision, spec.epoch, spec.secrets) if spec.revision else None
    outcome: Outcome | None = None
    try:
        with ExitStack() as during:
            watchdog = during.enter_context(Watchdog(spec.job.retry.stall_s))

            def load() -> ShardWorker:
                watchdog.calling()  # from now on code that Python cannot interrupt is ended, too
                worker = worker_of(spec)(spec)
                during.enter_context(answering(worker.scorers, watchdog))
                return worker

            for outcome in observed(spec.job, steps, load, places):
                yield outcome
                watchdog.calling()
        yield from with_packages(outcome)
    except ProcessSpoilt as spoilt:
        yield JobError(f"{loaded_by(spec.job)}: loading the model or scoring the first rows: {spoilt}")
    except SystemExit as left:
        yield JobError(f"{loaded_by(spec.job)}: loading the model or scoring the first rows {_exits(left)}")
    finally:
        if logs:
            logs.close()


def _exits(left: SystemExit) -> str:
    """What the user's code did: its exit code would be taken for one of the command's own."""
    return f"calls sys.exit({left.code!r}), which would end this command"


_process = threading.Lock()
"""A process has one working directory and one path, so only one run at a time may use them."""

_imported: dict[str, str] = {}
"""The content of the installed packages that counted for a run of this process, as that run imported them."""


def _check_imported(spec: WorkerSpec) -> None:
    """Check that no installed package was changed between two runs of this process. Unlike the modules of the job's
    folder they stay imported, because compiled ones cannot be imported twice, and others may hold their objects.
    """
    for name, content in spec.scoring.packages.items():
        if _imported.get(name, content) != content and is_imported(name):
            raise JobError(
                f"model.uses: the installed package {name!r} was changed after this process had imported it, and would "
                "score as it was before. Run the job in a new process (in a notebook, restart the kernel), or on Ray"
            )


class _Process:
    """What the user's code uses of this process while it scores, and what is restored afterwards: the working
    directory, Python's path, variables, and the modules of the job's folder. A run uses the code that it began with,
    and leaves none of it behind for the next one.
    """

    def __init__(self) -> None:
        self._restore: ExitStack | None = None
        self.logs: InProcess | None = None
        """Keeps what the process prints with the run; None in `check`, which has no run."""

    def lend(self, spec: WorkerSpec) -> None:
        """Lend this process to the run, once.

        Raises:
            RunFailed: Another run scores in this process, in another thread.
            JobError: An installed package that counts is not the one that this process has imported.
        """
        if self._restore is not None:
            return
        _check_imported(spec)
        users_code_begins()
        if not _process.acquire(blocking=False):
            raise RunFailed("another run scores in this process; wait until it has ended, or run this one on Ray")
        self._restore = restore = ExitStack()
        restore.callback(_process.release)
        _imported.update(spec.scoring.packages)
        # Modules of the live folder are removed for the run's own.
        hidden = modules_in(spec.job.folder)
        for name in hidden:
            del sys.modules[name]
        restore.callback(sys.modules.update, hidden)
        restore.callback(pa.set_cpu_count, pa.cpu_count())
        restore.callback(sys.path.__setitem__, slice(None), list(sys.path))
        restore.callback(setattr, os, "_exit", os._exit)
        setattr(os, "_exit", partial(_leave, os._exit, os.getpid()))  # noqa: B010 (mypy lets nobody assign to it)
        restore.callback(_forget_modules, spec.cache)
        restore.enter_context(environment({name: each.get_secret_value() for name, each in spec.environment.items()}))
        restore.callback(os.chdir, Path.cwd())
        restore.callback(witness.unwatch)
        if spec.revision:
            self.logs = InProcess(spec.storage, spec.revision, spec.epoch, spec.secrets)
            restore.callback(self.logs.close)

    def take_back(self) -> None:
        """Restore the process as it was."""
        if self._restore is not None:
            self._restore.close()
            self._restore = self.logs = None


def _forget_modules(folder: str) -> None:
    """Forget the modules of a folder that is still on the path: packages without an `__init__` file follow the path."""
    for name in modules_in(folder):
        del sys.modules[name]


def _leave(leave: Callable[[int], None], process: int, status: int) -> None:
    """What `os._exit` does while the user's code runs: 0 would tell the caller that the night is published. Processes
    that this one forked end as they like.
    """
    if status == 0 and os.getpid() == process:
        print(f"nightjar: the model's code calls os._exit(0), which ends this command. {_ON_RAY}", file=sys.stderr)
        sys.stderr.flush()
        status = RunFailed.exit_code
    leave(status)
