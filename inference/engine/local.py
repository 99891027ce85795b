"""The engine that scores in one process on this machine, without Ray: for small nights, notebooks and tests.

Only where the work is done differs from Ray: the same worker writes the same parts, in a process that the command
starts. If the user's code ends that process, the pass ends, and the next one begins with a new process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import cloudpickle
import pyarrow as pa

from nightjar.inference import predictors
from nightjar.inference.engine.auditing import each_here
from nightjar.inference.engine.protocol import NO_EVENT, TICK_S, Take, try_model
from nightjar.inference.errors import PassEnded, ProcessSpoilt, RunFailed
from nightjar.inference.input.plan import shard_of_line
from nightjar.inference.job.model import Job
from nightjar.inference.logs.capture import CopiedOutput, keep_rest
from nightjar.inference.records import Event, Piece
from nightjar.inference.scoring.assignment import Assignment, WorkerSpec
from nightjar.inference.scoring.child import FORKS, Child, WorkLost
from nightjar.inference.scoring.preflight import Loaded, Outcome, PreflightSteps, Ready, observed, preflight_steps
from nightjar.inference.scoring.streaming import worker_of
from nightjar.inference.scoring.suspects import Attempt
from nightjar.inference.scoring.worker import ShardWorker
from nightjar.inference.validation.rescore import Rescored
from nightjar.inference.validation.rescore import rescore as rescore_shards

T = TypeVar("T")
R = TypeVar("R")


class LocalEngine:
    """`Engine` in one process. It loads the model once, for preflight and for the passes after it."""

    in_tasks = None
    each = staticmethod(each_here)

    def __init__(self) -> None:
        self._process: _Process | None = None

    def check_capacity(self, job: Job) -> None:
        """Do nothing: one process always has room."""

    def preflight(self, spec: WorkerSpec, places: Sequence[Piece], steps: PreflightSteps = preflight_steps) -> Loaded:
        @contextmanager
        def begin(places: Sequence[Piece]) -> Iterator[Take]:
            with self._asked(spec, partial(_try, steps, list(places))) as process:
                yield process.take

        loaded = try_model(spec.job, places, begin)
        if loaded.sample_error:
            self._end()  # the model may have been interrupted anywhere
        return loaded

    def run_pass(
        self, spec: WorkerSpec, shards: pa.Table, attempts: Sequence[Attempt]
    ) -> Generator[list[Event], None, None]:
        with self._asked(spec, partial(_score, shards, list(attempts))) as process:
            try:
                for event in process.answers(NO_EVENT * spec.job.retry.stall_s):
                    yield [] if event is None else [event]
            except WorkLost as lost:
                raise PassEnded(f"the process that scores {lost.how}") from None
            except TimeoutError:
                raise PassEnded(f"nothing happened for {NO_EVENT} × retry.stall_s") from None

    def rescore(self, spec: WorkerSpec, chosen: pa.Table) -> Generator[Rescored | None, None, None]:
        merged, retry, lines = Rescored(), spec.job.retry, chosen.to_pylist()
        with self._asked(spec, lambda serving: rescore_shards(serving.spec, lines)) as process:
            try:
                for found in process.answers(retry.shard_s + NO_EVENT * retry.stall_s):
                    if found is not None:
                        merged.merge(found)
                    yield None
            except WorkLost as lost:
                raise RunFailed(f"rescore: the process that scored shards again {lost.how}") from None
            except TimeoutError:
                raise RunFailed("rescore: no shard was scored again within the time for one, retry.shard_s") from None
        yield merged

    def close(self) -> None:
        if self._process is not None and not self._process.busy:
            self._process.leave()
        self._end()

    @contextmanager
    def _asked(self, spec: WorkerSpec, work: Callable[[_Serving], Iterator[Any]]) -> Iterator[_Process]:
        """Begin this work in the process of the spec. If not all of its answers were taken, the process ends."""
        if self._process is not None and self._process.spec != spec:
            self.close()
        self._process = process = self._process or _Process(spec)
        try:
            process.ask(work)
        except OSError:  # it ended while it waited, as where memory runs short
            self._end()
            self._process = process = _Process(spec)
            process.ask(work)
        try:
            yield process
        finally:
            if process.busy:
                self._end()

    def _end(self) -> None:
        if self._process is not None:
            spec = self._process.spec
            self._process.end()
            self._process = None
            if spec.revision:
                keep_rest(spec.storage, spec.revision, spec.secrets)


class _Process:
    """The process of an engine, as the engine sees it. busy: whether answers of the last work are left to take."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec, self.busy = spec, False
        given, self._asking = FORKS.Pipe(duplex=False)
        # By cloudpickle, as on Ray: also what is defined in a script or a notebook.
        with given:
            self._child = Child(_serve, cloudpickle.dumps(spec), given)

    def ask(self, work: Callable[[_Serving], Iterator[Any]]) -> None:
        """Begin this work, when the process has done what it was asked before."""
        self.busy = True
        self._asking.send_bytes(cloudpickle.dumps(work))

    def take(self, patience_s: float) -> Any:
        """The next answer; None after the last one. Raises as `Child.answers`."""
        found = next(self._child.answers(patience_s))  # it ends only when it is told to
        self.busy = not isinstance(found, _Done)
        return found if self.busy else None

    def answers(self, patience_s: float) -> Iterator[Any]:
        """All answers, and None on a tick. Raises as `take`."""
        heard = time.monotonic()
        while self.busy:
            try:
                found = self.take(TICK_S)
            except TimeoutError:
                if time.monotonic() - heard > patience_s:
                    raise
                yield None
                continue
            heard = time.monotonic()
            if found is not None:
                yield found

    def leave(self) -> None:
        """Let the process end by itself, so that the user's exit handlers run."""
        self._asking.close()
        self._child.wait()

    def end(self) -> None:
        """End the process by force, unless it has ended."""
        self._asking.close()
        self._child.end()


class _Done:
    """The last answer of each work."""


class _Serving:
    """What the process of an engine keeps from one work to the next."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.worker: ShardWorker | None = None
        self.logs = CopiedOutput(spec.storage, spec.revision, spec.epoch, spec.secrets) if spec.revision else None

    def loaded(self) -> ShardWorker:
        """The worker with its models, which the first call loads."""
        if self.worker is None:
            made = worker_of(self.spec)
            self.worker = made(self.spec, turn_to=self.logs.turn_to) if self.logs else made(self.spec)
        return self.worker


def _serve(given: bytes, asked: Connection) -> Iterator[Any]:
    """Do each work that is asked for, until the other end closes. given: the spec."""
    serving = _Serving(cloudpickle.loads(given))
    while True:
        try:
            work = cloudpickle.loads(asked.recv_bytes())
        except EOFError:
            break
        yield from work(serving)
        yield _Done()
    if serving.logs:
        serving.logs.close()


def _try(steps: PreflightSteps, places: list[Piece], serving: _Serving) -> Iterator[Outcome | Ready]:
    predictors.warm(serving.spec.job)  # the limit is for the model, not for the import of its library
    yield Ready()
    yield from observed(serving.spec.job, steps, serving.loaded, places)
    if serving.worker is not None:
        serving.worker.begin_anew()


def _score(shards: pa.Table, attempts: list[Attempt], serving: _Serving) -> Iterator[Event]:
    lines = zip(shards.to_pylist(), attempts, strict=True)
    try:
        yield from serving.loaded().process(Assignment(shard_of_line(line), each) for line, each in lines)
    except ProcessSpoilt:
        os._exit(1)
