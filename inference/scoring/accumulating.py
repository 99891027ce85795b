"""The user's own accumulators beside a worker: in a process of their own, because their code may end the process, hang
in it, or change its state. Whatever goes wrong with them costs figures, and no row and no shard.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from nightjar.inference.errors import JobError, NightjarError, raised
from nightjar.inference.job.finding import find
from nightjar.inference.job.model import Job
from nightjar.inference.messages import clip
from nightjar.inference.metrics.accumulators import Broken, Kept, Kind, lacking, packed, try_on
from nightjar.inference.scoring.asidecode import OfRun, aside_folder, enter
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.child import Child, WorkLost

R = TypeVar("R")

_STATES, _TRIED = "states", "tried"
"""What the process is asked for."""


class Accumulators:
    """The accumulators of a job, imported in this process from its copies of the code.

    kinds: those that can be used, by name. broken: what is wrong with each of the others, in a sentence.
    """

    def __init__(self, run: OfRun, job: Job | None = None) -> None:
        """job: in this process's copy of the folder, if it has one already."""
        self._given, job = run.job, job or enter(run)
        folder = aside_folder(run, job)
        self.kinds: dict[str, Kind] = {}
        self.broken: dict[str, str] = {}
        for name, uses in run.job.accumulators.items():
            found = self.result(name, partial(_kind, name, uses, folder))
            if isinstance(found, str):
                self.broken[name] = found
            else:
                self.kinds[name] = found

    def result(self, name: str, work: Callable[[], R]) -> R | str:
        """What work with an accumulator gives, or in a sentence why it gives nothing."""
        key, uses = f"accumulators.{name}", self._given.accumulators[name]
        try:
            return work()
        except Broken as broken:
            return f"{key}: {uses} {broken}"
        except JobError as error:
            return clip(str(error))
        except BaseException as error:  # noqa: BLE001 (also sys.exit and Ctrl-C of the class's own)
            return f"{key}: {uses} failed with {clip(raised(error, installed=True))}"

    def state(self, name: str, tables: Sequence[pa.Table]) -> Kept:
        """The state of a shard's rows, or why there is none. tables: as `Accumulator.update` gets them."""
        uses, kind = self._given.accumulators[name], self.kinds.get(name)
        found = self.result(name, partial(kind.of_rows, tables)) if kind else self.broken[name]
        return Kept(uses, failed=found) if isinstance(found, str) else Kept(uses, found)

    def tried(self, name: str, table: pa.Table) -> tuple[str, ...] | str:
        """The names of its figures, as of `accumulators.try_on`; or what is wrong."""
        kind = self.kinds.get(name)
        return self.result(name, partial(try_on, kind, table)) if kind else self.broken[name]


def _kind(name: str, uses: str, folder: Path) -> Kind:
    made = find(f"accumulators.{name}", uses, folder)
    if lacks := lacking(made):
        raise Broken(lacks)
    return Kind(name, uses, made)


def check_classes(run: OfRun, job: Job) -> None:
    """Check that the accumulators can be imported and have their methods. job: in this process's copy of the folder.

    Raises:
        JobError: One cannot. Names the key.
    """
    if run.job.accumulators and (broken := Accumulators(run, job).broken):
        raise JobError(next(iter(broken.values())))


class Accumulating:
    """The process beside a worker. Several threads may ask; one is answered after the other."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._turn = threading.Lock()
        self._lost = ""
        # For a whole question, however many accumulators there are: the worker's own limit of a step must not end
        # first, because that would charge the shard.
        self._patience_s = spec.job.retry.stall_s / 2
        asked, self._asking = multiprocessing.get_context("spawn").Pipe(duplex=False)
        self._child = Child(_serve, spec, asked, daemon=True)
        asked.close()
        self.close = weakref.finalize(self, _end, self._child, self._asking)
        """Ends the process, at the latest when nobody has this object any more."""

    def states(self, tables: Sequence[pa.Table]) -> bytes:
        """The states of a shard's rows, as `accumulators.packed`. tables: as `Accumulator.update` gets them."""
        job = self._spec.job
        with self._turn:
            found: dict[str, Kept] = {} if self._lost else self._asked(_STATES, tables)
        kept = {name: found.get(name, Kept(uses, failed=self._lost)) for name, uses in job.accumulators.items()}
        return packed(self._spec.scoring.counting, kept)

    def tried(self, table: pa.Table) -> dict[str, tuple[str, ...]]:
        """Try each accumulator on sample rows. Returns the names of their figures.

        Raises:
            JobError: One of them is broken. Names its key.
        """
        with self._turn:
            found: dict[str, tuple[str, ...] | str] = self._asked(_TRIED, [table])
        fine = {name: each for name, each in found.items() if isinstance(each, tuple)}
        if wrong := self._lost or next((each for each in found.values() if isinstance(each, str)), ""):
            raise JobError(f"{wrong}. It is given the columns {', '.join(table.column_names)}")
        return fine

    def _asked(self, what: str, tables: Sequence[pa.Table]) -> dict[str, Any]:
        """What the process answers for each accumulator, by name. If it dies or hangs it is not asked again, because
        each shard might cost as much time.
        """
        found: dict[str, Any] = {}
        at = "accumulators"
        until = time.monotonic() + self._patience_s
        try:
            _send(self._asking, what, tables)
            while (told := self._told(until)) is not None:
                name, answer = told
                if not name:
                    return found
                at = f"accumulators.{name}: {self._spec.job.accumulators[name]}"
                if answer is not None:
                    found[name] = answer
            how = "ended its process"
        except TimeoutError:
            how = (
                f"gave no answer before half of retry.stall_s = {self._spec.job.retry.stall_s:g} s was over, which all "
                "accumulators share for a shard; make them faster, or allow more"
            )
        except WorkLost as lost:
            how = lost.how
        except OSError:
            how = self._how_lost(until)
        except (NightjarError, pa.ArrowException) as error:  # the code's copy, or columns that cannot be sent
            at, how = "accumulators:", str(error)
        self._lost = clip(f"{at} {how}".strip())
        self.close()
        return found

    def _told(self, until: float) -> tuple[str, Any] | None:
        """What the process yields next; None if it ends. until: of the whole question, on the monotonic clock.

        Raises:
            TimeoutError: That time is over.
            WorkLost, NightjarError: As `Child.answers`.
        """
        if (left_s := until - time.monotonic()) <= 0:
            raise TimeoutError
        return next(self._child.answers(left_s), None)

    def _how_lost(self, until: float) -> str:
        """How the process was lost that could not be asked."""
        try:
            self._told(until)
        except WorkLost as lost:
            return lost.how
        except TimeoutError:
            pass
        return "ended its process"


def _end(child: Child, asking: Connection) -> None:
    child.end()
    asking.close()


def _send(asking: Connection, what: str, tables: Sequence[pa.Table]) -> None:
    """Send all of a question; the process reads it before it runs any of the user's code, so that nobody waits."""
    asking.send((what, len(tables)))
    for table in tables:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        asking.send_bytes(sink.getvalue())


def _received(asked: Connection) -> tuple[str, list[pa.Table]]:
    what, count = asked.recv()
    return what, [pa.ipc.open_stream(asked.recv_bytes()).read_all() for _ in range(count)]


def _serve(spec: WorkerSpec, asked: Connection) -> Iterator[tuple[str, Any]]:
    """Answer until the worker closes its end. For each accumulator yields (name, None) before its code runs, then
    (name, answer), and ("", None) at the end of each question.
    """
    pa.set_cpu_count(spec.job.resources.cores)
    own: Accumulators | None = None
    with suppress(EOFError):
        while True:
            what, tables = _received(asked)
            if own is None:
                yield next(iter(spec.job.accumulators)), None
                own = Accumulators(spec)
            for name in spec.job.accumulators:
                yield name, None
                yield name, own.tried(name, tables[0]) if what == _TRIED else own.state(name, tables)
            yield "", None


def columns_of(job: Job, names: Sequence[str]) -> list[str]:
    """The columns that accumulators are given. names: all columns of the input."""
    written = [*job.carried(names), *job.output_types()]
    return [*written, *([job.label] if job.label and job.label not in written else [])]
