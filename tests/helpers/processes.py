"""An engine for tests: each pass has a process of its own, without Ray.

What ends that process is found as on Ray, by the same campaign over the same worker, and a death costs no second of
starting: the process is forked off one that has done the imports.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from nightjar.inference.engine.local import LocalEngine
from nightjar.inference.errors import JobError, PassEnded, ProcessSpoilt
from nightjar.inference.input.plan import shard_of_line
from nightjar.inference.records import Event, Piece
from nightjar.inference.scoring.assignment import Assignment, WorkerSpec
from nightjar.inference.scoring.preflight import (
    Loaded,
    Outcome,
    PreflightSteps,
    observed,
    preflight_steps,
    with_packages,
)
from nightjar.inference.scoring.streaming import worker_of
from nightjar.inference.scoring.suspects import Attempt
from nightjar.inference.scoring.worker import ShardWorker

PROCESSES = "processes"
"""Its name among the engines of the tests that use it."""

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["nightjar.inference.engine.local", "nightjar.inference.scoring.worker", "torch", "pandas"]
)


class ProcessEngine(LocalEngine):
    """`Engine` whose preflight and passes may lose their process; audit and rescoring run in this one."""

    def preflight(self, spec: WorkerSpec, places: Sequence[Piece], steps: PreflightSteps = preflight_steps) -> Loaded:
        loaded: Loaded | None = None
        for outcome in _answers(_preflight, steps, spec, list(places)):
            if isinstance(outcome, JobError):
                raise outcome
            loaded = outcome
        assert loaded is not None, "loading the model ended its process"
        return loaded

    def run_pass(
        self, spec: WorkerSpec, shards: pa.Table, attempts: Sequence[Attempt]
    ) -> Generator[list[Event], None, None]:
        work = [Assignment(shard_of_line(line), each) for line, each in zip(shards.to_pylist(), attempts, strict=True)]
        for event in _answers(_score, spec, work):
            yield [event]


def _preflight(steps: PreflightSteps, spec: WorkerSpec, places: list[Piece]) -> Iterator[Outcome]:
    outcome: Outcome | None = None
    for outcome in observed(spec.job, steps, partial(ShardWorker, spec), places):
        yield outcome
    yield from with_packages(outcome)


def _score(spec: WorkerSpec, work: list[Assignment]) -> Iterator[Event]:
    try:
        yield from worker_of(spec)(spec).process(work)
    except ProcessSpoilt:
        os._exit(1)


def _answers(work: Callable[..., Iterable[Any]], *args: Any) -> Iterator[Any]:
    """What the work yields in a process of its own, up to the end of the work or of the process."""
    answers, answer = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(target=_tell, args=(answer, work, args), daemon=True)
    process.start()
    answer.close()
    try:
        while True:
            try:
                found = answers.recv()
            except EOFError:
                return
            if isinstance(found, _Raised):
                raise PassEnded(found.what)
            yield found
    finally:
        process.kill()
        process.join()
        answers.close()


class _Raised:
    """What the work raised, in words."""

    def __init__(self, what: str) -> None:
        self.what = what


def _tell(answer: Connection, work: Callable[..., Iterable[Any]], args: tuple[Any, ...]) -> None:
    try:
        for found in work(*args):
            answer.send(found)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is told where it is waited for)
        answer.send(_Raised(f"{type(error).__name__}: {error}"))
