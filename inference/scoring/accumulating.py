"""The user's own accumulators, imported in a process of their own: their code may end the process, hang in it, or
change its state. Whatever goes wrong with them costs figures, and no row and no shard.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from nightjar.inference.errors import JobError, NightjarError, raised
from nightjar.inference.job.finding import find
from nightjar.inference.job.model import Job
from nightjar.inference.messages import clip
from nightjar.inference.metrics.accumulators import Broken, Kind, try_on
from nightjar.inference.metrics.figures import AccumulatorFigures
from nightjar.inference.output import outcomes
from nightjar.inference.output.parts import read_data
from nightjar.inference.scoring.assignment import OfRun, WorkerSpec, aside_folder, enter
from nightjar.inference.scoring.child import Child, WorkLost
from nightjar.inference.storage.retrying import RetryingStorage

R = TypeVar("R")

Answers = Iterator[tuple[str, Any]]
"""What work in a process of its own yields: (name, None) before an accumulator's code runs, then (name, answer)."""


class Accumulators:
    """The accumulators of a job, imported in this process from its copies of the code."""

    def __init__(self, run: OfRun, job: Job | None = None) -> None:
        """job: in this process's copy of the folder, if it has one already."""
        self._given, job = run.job, job or enter(run)
        folder = aside_folder(run, job)
        self.kinds: dict[str, Kind] = {}
        """Those that can be used, by name."""
        self.broken: dict[str, str] = {}
        """What is wrong with each of the others, in a sentence."""
        for name, uses in run.job.accumulators.items():
            found = self.result(name, partial(_kind, name, uses, folder))
            if isinstance(found, str):
                self.broken[name] = found
            else:
                self.kinds[name] = found

    def result(self, name: str, work: Callable[[], R]) -> R | str:
        """The result of work with an accumulator, or in a sentence why there is none."""
        key, uses = f"accumulators.{name}", self._given.accumulators[name]
        try:
            return work()
        except Broken as broken:
            return f"{key}: {uses} {broken}"
        except JobError as error:
            return clip(str(error))
        except BaseException as error:  # noqa: BLE001 (also sys.exit and Ctrl-C of the class's own)
            return f"{key}: {uses} failed with {clip(raised(error, installed=True))}"


def _kind(name: str, uses: str, folder: Path) -> Kind:
    made = find(f"accumulators.{name}", uses, folder)
    if not isinstance(made, type):
        raise Broken(f"is a {type(made).__name__}, not a class")
    return Kind(name, uses, made)


def check_classes(run: OfRun, job: Job) -> None:
    """Check that the accumulators can be imported and have their methods. job: in this process's copy of the folder.

    Raises:
        JobError: One cannot. Names the key.
    """
    if run.job.accumulators and (broken := Accumulators(run, job).broken):
        raise JobError(next(iter(broken.values())))


def answers_of(
    spec: WorkerSpec, work: Callable[[WorkerSpec, Any], Answers], given: Any, share: float = 1.0
) -> tuple[dict[str, Any], str]:
    """Do work with the job's accumulators in a process of its own.

    share: of `retry.stall_s`, which each step of it may take.

    Returns the answers by the accumulator's name, and in a sentence why the others did not answer.
    """
    stall_s = spec.job.retry.stall_s
    found, at = dict[str, Any](), next(iter(spec.job.accumulators))
    try:
        with Child(work, spec, given) as child:
            for at, answer in child.answers(stall_s * share):
                if answer is not None:
                    found[at] = answer
        how = "gave no answer"
    except TimeoutError:
        within = f"{stall_s * share:g} s, a part of " if share < 1 else ""
        how = f"gave no answer within {within}retry.stall_s = {stall_s:g} s"
    except WorkLost as lost:
        how = lost.how
    except NightjarError as error:  # the code's copy, or a part that cannot be read
        return found, f"accumulators: {error}"
    return found, clip(f"accumulators.{at}: {spec.job.accumulators[at]} {how}")


def try_all(spec: WorkerSpec, table: pa.Table) -> dict[str, tuple[str, ...]]:
    """Try each accumulator of the job on sample rows.

    Raises:
        JobError: One of them is broken. Names its key.
    """
    # A whole `stall_s` would outlast that of preflight's own step, which began before, and would blame the model.
    found, lost = answers_of(spec, _tried, table, share=0.5)
    wrong = next((each for each in found.values() if isinstance(each, str)), "")
    if wrong or len(found) < len(spec.job.accumulators):
        raise JobError(f"{wrong or lost}. It is given the columns {', '.join(table.column_names)}")
    return found


def _tried(spec: WorkerSpec, table: pa.Table) -> Answers:
    own = Accumulators(spec)
    for name in spec.job.accumulators:
        yield name, None
        kind = own.kinds.get(name)
        yield name, own.result(name, partial(try_on, kind, table)) if kind else own.broken[name]


def columns_of(job: Job, names: Sequence[str]) -> list[str]:
    """The columns that accumulators are given. names: all columns of the input."""
    return [*job.carried(names), *job.output_types()]


# ---- over what is published: a process for each block of shards, and one that merges their states in order --------

BLOCK_SHARDS = 64
"""The most shards that one process counts."""

_States = Mapping[str, bytes | str]
"""Accumulator → its state of some shards, empty without any; a text says why there is none."""


def accumulated(
    each: Callable[..., Iterator[Any]], spec: WorkerSpec, table: pa.Table, block: int = BLOCK_SHARDS
) -> Generator[dict[str, AccumulatorFigures] | None, None, None]:
    """The figures of the job's accumulators; yields None on a tick, and at the end all figures, by name.

    each: as `Engine.each`. table: the run's `outcomes.OUTCOMES`. block: the most shards of a block.
    """
    blocks = [list(outcomes.lines(table.slice(at, block))) for at in range(0, max(1, table.num_rows), block)]
    states: list[_States] = []
    for found in each(partial(_of_block, spec), blocks, spec.job, "accumulators"):
        if found is None:
            yield None
        else:
            states.append(found)
    merged, lost = answers_of(spec, _merge_blocks, states)
    figures = {}
    for name, uses in spec.job.accumulators.items():
        values = merged.get(name, lost)
        said = ({}, values) if isinstance(values, str) else (values, None)
        figures[name] = AccumulatorFigures(uses, spec.scoring.counting, *said)
    yield figures


def _of_block(spec: WorkerSpec, lines: list[dict[str, Any]]) -> _States:
    found, lost = answers_of(spec, _count_shards, lines)
    return {name: found.get(name, lost) for name in spec.job.accumulators}


def _count_shards(spec: WorkerSpec, lines: Sequence[dict[str, Any]]) -> Answers:
    pa.set_cpu_count(spec.job.resources.cores)
    own, columns = Accumulators(spec), columns_of(spec.job, spec.schema.names)
    storage = RetryingStorage(spec.storage, spec.job.retry.attempts, spec.job.retry.backoff_s)
    states: dict[str, bytes | str] = {name: own.broken.get(name, b"") for name in spec.job.accumulators}
    for line in lines:
        table = read_data(storage, spec.revision, line["data"], line["shard"]).table(columns)
        for name, kind in own.kinds.items():
            if isinstance(state := states[name], str):
                continue
            yield name, None
            found = own.result(name, partial(_plus, kind, state, table))
            states[name] = f"{found} (shard {line['shard']})" if isinstance(found, str) else found
    yield from states.items()


def _plus(kind: Kind, state: bytes, table: pa.Table) -> bytes:
    return kind.of_states([*([state] if state else []), kind.of_rows([table])])


def _merge_blocks(spec: WorkerSpec, blocks: Sequence[_States]) -> Answers:
    own = Accumulators(spec)
    for name in spec.job.accumulators:
        yield name, None
        found = [own.broken.get(name, b""), *(each[name] for each in blocks)]
        states = [state for state in found if isinstance(state, bytes) and state]
        failed = next((state for state in found if isinstance(state, str)), None)
        yield name, failed or own.result(name, partial(_figures, own.kinds[name], states))


def _figures(kind: Kind, states: Sequence[bytes]) -> dict[str, float | None]:
    return kind.results(kind.of_states(states))
