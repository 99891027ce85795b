"""The engine that scores in this very process, without Ray: for small nights, notebooks, and tests.

What ends the process ends the command with it: a row that kills, code that hangs in C. Nothing is lost by that but the
shards of its last second; a run on Ray then finds the row. All else is as on Ray: the same worker, the same parts.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType

import pyarrow as pa

from nightjar.inference import witness
from nightjar.inference.engine.blocks import audit_blocks
from nightjar.inference.errors import JobError, ProcessSpoilt, RunFailed
from nightjar.inference.input.plan import shard_of_line
from nightjar.inference.job.model import Job
from nightjar.inference.records import Event, Piece
from nightjar.inference.scoring.assignment import Assignment, WorkerSpec
from nightjar.inference.scoring.preflight import Loaded, Trial, observed, try_model
from nightjar.inference.scoring.suspects import Attempt
from nightjar.inference.scoring.watchdog import Watchdog
from nightjar.inference.scoring.worker import ShardWorker
from nightjar.inference.storage.protocol import Storage
from nightjar.inference.validation.audit import Audited, audit_block
from nightjar.inference.validation.rescore import Rescored
from nightjar.inference.validation.rescore import rescore as rescore_shards

_ON_RAY = "Run it on Ray, which loses only the process that scores: leave --engine local out"


_OURS = {"__main__", "nightjar"}
"""Modules that stay, wherever they lie: a job may stand in the folder of the program that runs it."""


class LocalEngine:
    """`Engine` in this process. The model is loaded once for preflight and all passes of a step."""

    def __init__(self) -> None:
        self._process = _Process()
        self._worker: ShardWorker | None = None

    def check(self, job: Job, descriptors: int = 0) -> None:
        """There is always room for one."""

    def preflight(self, spec: WorkerSpec, places: Sequence[Piece], trial: Trial = try_model) -> Loaded:
        loaded: Loaded | None = None
        key = spec.job.model.loaded_by
        try:
            with Watchdog(spec.job.retry.stall_s) as watchdog:
                for outcome in observed(trial, partial(self._opened, spec), places):
                    if isinstance(outcome, str):
                        raise JobError(f"{key}: {outcome}")
                    loaded = outcome
                    watchdog.calling()
        except ProcessSpoilt as spoilt:
            raise JobError(f"{key}: loading the model or scoring the first rows: {spoilt}") from None
        assert loaded is not None
        if loaded.sample_error and loaded.hung:
            raise JobError(f"{key}: {loaded.sample_error}")
        return loaded

    def run_pass(
        self, spec: WorkerSpec, shards: pa.Table, attempts: Sequence[Attempt]
    ) -> Generator[list[Event], None, None]:
        work = [Assignment(shard_of_line(line), each) for line, each in zip(shards.to_pylist(), attempts, strict=True)]
        for each in work:
            if each.attempt.crumbs:
                raise RunFailed(
                    f"shard {each.shard.id} ({each.shard.label}) ended the process that scored it, and would end this "
                    f"command. {_ON_RAY}: it finds the row"
                )
        try:
            for event in self._opened(spec).process(work):
                yield [event]
        except ProcessSpoilt as spoilt:
            raise RunFailed(f"this process can score no more: {spoilt}. {_ON_RAY}") from None

    def audit(self, storage: Storage, revision: str, job: Job, outcomes: pa.Table) -> Iterator[Audited | None]:
        merged = Audited()
        with ThreadPoolExecutor(max(1, os.cpu_count() or 1)) as pool:
            blocks = (block.to_pylist() for _, block in audit_blocks(outcomes))
            for found in pool.map(partial(audit_block, storage, revision, job), blocks):
                merged.merge(found)
                yield None
        yield merged

    def rescore(self, spec: WorkerSpec, chosen: pa.Table) -> Iterator[Rescored | None]:
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
        if self._worker is None or self._worker.spec != spec:
            self._process.lend(spec)
            self._worker = ShardWorker(spec)
        return self._worker


_process = threading.Lock()
"""A process has one folder and one path: one run at a time is lent them."""


class _Process:
    """What of this process the user's code is lent while it scores, to be put back afterwards.

    Its folder, Python's path, and what is imported from the job's folder: a run uses the code it began with, and
    leaves none of it behind for the next one.
    """

    def __init__(self) -> None:
        self._lent = False

    def lend(self, spec: WorkerSpec) -> None:
        """Once: the live folder's modules make room for the run's own.

        Raises:
            RunFailed: another run scores in this process, in another thread.
        """
        if self._lent:
            return
        if not _process.acquire(blocking=False):
            raise RunFailed("another run scores in this process; wait until it has ended, or run this one on Ray")
        self._lent = True
        self._folder, self._path, self._cpus = Path.cwd(), list(sys.path), pa.cpu_count()
        self._cache = spec.cache
        self._hidden = _modules_in(spec.job.folder)
        for name in self._hidden:
            del sys.modules[name]

    def take_back(self) -> None:
        """As it was."""
        if not self._lent:
            return
        self._lent = False
        witness.unwatch()
        os.chdir(self._folder)
        sys.path[:] = self._path
        pa.set_cpu_count(self._cpus)
        for name in _modules_in(self._cache):
            del sys.modules[name]
        sys.modules.update(self._hidden)
        _process.release()


def _modules_in(folder: str) -> dict[str, ModuleType]:
    """The modules that were read from a folder, without packages that are installed below it."""
    real = os.path.realpath(folder)
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        below = os.path.relpath(os.path.realpath(file), real) if file else ".."
        if name.partition(".")[0] not in _OURS and not below.startswith("..") and "site-packages" not in below:
            found[name] = module
    return found
