"""Preflight in a worker: loads the model once and scores a few rows.

It is separate from the engine, so that preflight's process does not need Ray Data.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference import witness
from nightjar.inference.errors import (
    BatchesBroken,
    JobError,
    NightjarError,
    ProcessSpoilt,
    ShardError,
    StorageError,
)
from nightjar.inference.input.plan import Plan, shard_of_line
from nightjar.inference.input.sources.reading import read_sample
from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.messages import clip, counted
from nightjar.inference.metrics.columns import FiniteState, holds_floats
from nightjar.inference.metrics.states import nonfinite_notes
from nightjar.inference.records import UNKNOWN, Piece
from nightjar.inference.scoring.cuts import Cuts
from nightjar.inference.scoring.microbatches import (
    Ahead,
    BatchSize,
    ScoredRows,
    ScoreRows,
    drained,
    score_table,
)
from nightjar.inference.scoring.worker import ShardWorker
from nightjar.inference.witness.packages import Package, loaded_packages

SAMPLE_ROWS = 32
PLACES = 8
WRITES = (
    "the model's code writes into its batch. The batch is a copy, so carried columns and rows that are tried again "
    "are not changed. If this was not meant, let the code work on a copy of its own"
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What preflight found: the device of the model, and why the samples could not be scored, if they could not.

    place: the index of the place that was tried last. hung: whether preflight took longer than the job allows. notes:
    what else a person should know about the model's code. outside: what the code used that the identity does not cover.
    packages: the installed packages that are loaded.
    """

    device: str
    sample_error: str = ""
    place: int = 0
    hung: bool = False
    notes: tuple[str, ...] = ()
    outside: tuple[witness.Seen, ...] = ()
    packages: Mapping[str, Package] = field(default_factory=dict)


def samples(plan: Plan) -> list[Piece]:
    """Pieces of the input, far from each other, on which to try the model; the first piece of the input comes first."""
    rows = plan.table["rows"]
    readable = pc.indices_nonzero(pc.or_(pc.greater(rows, 0), pc.equal(rows, UNKNOWN)))
    if not len(readable):
        return []
    at = sorted({len(readable) * index // PLACES for index in range(PLACES)})
    return [shard_of_line(line).pieces[0] for line in plan.table.take(readable.take(at)).to_pylist()]


PreflightSteps = Callable[[ShardWorker, Sequence[Piece], bool], Iterator["Loaded | str"]]
"""What preflight does with the loaded model: `preflight_steps`, or a function that does more.

Yields what is known after each step, or what is wrong with the model."""


Outcome = Loaded | str | JobError
"""A step of preflight: what is known, or what is wrong: a sentence, or an error that names a key."""


def observed(
    steps: PreflightSteps, load: Callable[[], ShardWorker], places: Sequence[Piece], last: bool = False
) -> Iterator[Outcome]:
    """Load the model and run the steps; add what the code used meanwhile, and at the end the loaded packages.

    If the model cannot be loaded, yields the error, which names a key, or a sentence.
    """
    with witness.closely():
        try:
            worker = load()
        except JobError as error:
            yield JobError(clip(str(error)))
            return
        except NightjarError as error:
            yield clip(str(error))
            return
        outcome: Loaded | str = ""
        for outcome in steps(worker, places, last):
            yield replace(outcome, outside=witness.seen()) if isinstance(outcome, Loaded) else outcome
        if isinstance(outcome, Loaded):
            yield replace(outcome, outside=witness.seen(), packages=loaded_packages(witness.data()))


def preflight_steps(worker: ShardWorker, places: Sequence[Piece], last: bool = False) -> Iterator[Loaded | str]:
    """Yield `Loaded` before and after a place of the input is scored, or a sentence on what is wrong with the model.

    The next place is tried only if no row can be scored at the places before, because a bad file does not mean a bad
    model; rows that cannot be read are left out. A place is tried once more if rows fail only together, because this
    may have been an accident. last: try the last rows of each place, not the first.
    """
    spec, device = worker.spec, worker.scorer.device
    unread, broken, refused = "", "", []
    for place, piece in enumerate(places):
        yield Loaded(device, place=place)
        try:
            read, first = read_sample(spec.storage, spec.job, piece, worker.features(), SAMPLE_ROWS, last=last)
        except (ShardError, StorageError) as error:
            # A file that cannot be read fails its own shards later, in the passes.
            unread = unread or clip(str(error))
            continue
        if not read.readable:
            unread = unread or (clip(read.unreadable(piece.uri)) if read.failures else "")
            continue
        try:
            scored = score_sample(worker, read, first)
        except BatchesBroken as error:
            if broken:
                break
            broken = clip(str(error))
            continue
        except ProcessSpoilt as spoilt:
            # The passes will find this row, as they find a row that kills its process.
            yield Loaded(device, str(spoilt))
            return
        failures = [failure for failure in scored.failures if failure.row not in read.failures]
        if len(failures) < read.readable:
            notes = broken, WRITES if worker.scorer.wrote else "", *_nonfinite(scored.outputs)
            yield Loaded(device, notes=tuple(filter(None, notes)))
            return
        why = f"{failures[0].error}: {failures[0].message}"
        refused.append(f"{read.readable} rows of {piece.uri} can be scored: {why}")
    if broken:
        yield broken
        return
    if not refused:
        yield Loaded(device, unread)
        return
    more = f"; nor any at {counted(len(refused) - 1, 'other place')} of the input" if refused[1:] else ""
    yield f"none of the first {refused[0]}{more}"


def score_sample(worker: ShardWorker, read: RowsRead, first: int, scorer: ScoreRows | None = None) -> ScoredRows:
    """Score the rows. Raises BatchesBroken if a batch fails though each of its rows can be scored.

    scorer: used instead of the worker's own.
    """
    return drained(calls(worker, read, min(SAMPLE_ROWS, worker.size.rows), first, scorer))


def calls(
    worker: ShardWorker,
    read: RowsRead,
    rows: int,
    first: int,
    scorer: ScoreRows | None = None,
    budget: int | None = None,
) -> Generator[Ahead, None, ScoredRows]:
    """Run `score_table` in batches of `rows` rows. Raises BatchesBroken if any batch is broken."""
    size, types = BatchSize(rows), worker.spec.job.model.output_types()
    cuts = Cuts(allowed=0, share=0.0)
    return score_table(
        read.table,
        scorer or worker.scorer,
        size,
        types,
        skip=read.failures,
        origin=first,
        cuts=cuts,
        budget=budget,
    )


def _nonfinite(outputs: pa.Table) -> list[str]:
    found = {}
    for name in outputs.column_names:
        if holds_floats(outputs[name].type):
            found[name] = FiniteState()
            found[name].update(outputs[name])
    return nonfinite_notes({name: state.results() for name, state in found.items()}, "the sample")
