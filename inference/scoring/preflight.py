"""What preflight does in a worker: load the model once and score a few rows.

Apart from the engine, so that the process that tries needs nothing of Ray Data.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference import witness
from nightjar.inference.errors import (
    BatchesBroken,
    NightjarError,
    ProcessSpoilt,
    ShardError,
    StorageError,
)
from nightjar.inference.input.plan import Plan, shard_of_line
from nightjar.inference.input.sources.reading import read_sample
from nightjar.inference.messages import clip
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
from nightjar.inference.witness.packages import as_json, loaded_packages

SAMPLE_ROWS = 32
PLACES = 8
WRITES = (
    "the model's code writes over the batch it is given; that is a copy, so carried columns and rows tried again are "
    "what was read. Where that was not meant, let it work on a copy of its own"
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What preflight learnt: the device the model is on, and why the samples could not be scored, if so.

    place: which of the places was tried last. hung: nothing came of it for as long as the job allows. notes: what
    else a person should know of the model's code. outside: what it used so far that identity does not cover.
    packages: the installed ones that are loaded, as in the manifest.
    """

    device: str
    sample_error: str = ""
    place: int = 0
    hung: bool = False
    notes: tuple[str, ...] = ()
    outside: tuple[witness.Seen, ...] = ()
    packages: Mapping[str, Any] = field(default_factory=dict)


def samples(plan: Plan) -> list[Piece]:
    """Some places of the input, far from each other, the first of it first: where to try the model."""
    rows = plan.table["rows"]
    readable = pc.indices_nonzero(pc.or_(pc.greater(rows, 0), pc.equal(rows, UNKNOWN)))
    at = sorted({len(readable) * index // PLACES for index in range(PLACES)}) if len(readable) else []
    return [shard_of_line(line).pieces[0] for line in plan.table.take(readable.take(at)).to_pylist()] if at else []


Trial = Callable[[ShardWorker, Sequence[Piece], bool], Iterator["Loaded | str"]]
"""`try_model`, or what does as much and more: what is known after each step, or what is wrong with the model."""


def observed(
    trial: Trial, load: Callable[[], ShardWorker], places: Sequence[Piece], last: bool = False
) -> Iterator[Loaded | str]:
    """Load the model, then the trial: with what is noticed meanwhile, and at last the packages that are loaded.

    A model that cannot be loaded is a sentence.
    """
    with witness.closely():
        try:
            worker = load()
        except NightjarError as error:
            yield clip(str(error).removeprefix("model.uses: ").removeprefix("model.path: "))
            return
        outcome: Loaded | str = ""
        for outcome in trial(worker, places, last):
            yield replace(outcome, outside=witness.seen()) if isinstance(outcome, Loaded) else outcome
        if isinstance(outcome, Loaded):
            yield replace(outcome, outside=witness.seen(), packages=as_json(loaded_packages(witness.data())))


def try_model(worker: ShardWorker, places: Sequence[Piece], last: bool = False) -> Iterator[Loaded | str]:
    """Yields `Loaded` before and after a place of the input is scored, or what is wrong with the model.

    The next place is tried only if nothing at all can be scored at those before: a bad file is no bad model; and
    once more where rows fail together that can be scored, which may have been an accident. last: try the last rows
    there, not the first.
    """
    spec, device = worker.spec, worker.scorer.device
    unread, broken, refused = "", "", []
    for place, piece in enumerate(places):
        yield Loaded(device, place=place)
        try:
            table, first = read_sample(spec.storage, spec.job, piece, worker.features(), SAMPLE_ROWS, last=last)
        except (ShardError, StorageError) as error:
            # A file that cannot be read is the passes' business: it costs its own shards.
            unread = unread or clip(str(error))
            continue
        try:
            scored = score_sample(worker, table, first)
        except BatchesBroken as error:
            if broken:
                break
            broken = clip(str(error))
            continue
        except ProcessSpoilt as spoilt:
            # As with a row that kills its process: the passes find it.
            yield Loaded(device, str(spoilt))
            return
        failures = scored.failures
        if len(failures) < max(1, table.num_rows):
            notes = broken, WRITES if worker.scorer.wrote else "", *_nonfinite(scored.outputs)
            yield Loaded(device, notes=tuple(filter(None, notes)))
            return
        said = f"{failures[0].error}: {failures[0].message}" if failures else "it has none"
        refused.append(f"{table.num_rows} rows of {piece.uri} can be scored: {said}")
    if broken:
        yield broken
        return
    if not refused:
        yield Loaded(device, unread)
        return
    more = f"; nor any at {len(refused) - 1} other places of the input" if refused[1:] else ""
    yield f"none of the first {refused[0]}{more}"


def score_sample(worker: ShardWorker, table: pa.Table, first: int, scorer: ScoreRows | None = None) -> ScoredRows:
    """What becomes of the rows. A batch of which every row can be scored must not fail: `BatchesBroken`.

    scorer: in place of the worker's own.
    """
    return drained(calls(worker, table, min(SAMPLE_ROWS, worker.size.rows), first, scorer))


def calls(
    worker: ShardWorker,
    table: pa.Table,
    rows: int,
    first: int,
    scorer: ScoreRows | None = None,
    budget: int | None = None,
) -> Generator[Ahead, None, ScoredRows]:
    """`score_table` in batches of so many rows, of which none may break: `BatchesBroken`."""
    size, types = BatchSize(rows), worker.spec.job.model.output_types()
    cuts = Cuts(allowed=0, share=0.0)
    return score_table(table, scorer or worker.scorer, size, types, origin=first, cuts=cuts, budget=budget)


def _nonfinite(outputs: pa.Table) -> list[str]:
    found = {}
    for name, column in zip(outputs.column_names, outputs.columns, strict=True):
        if holds_floats(column.type):
            found[name] = FiniteState()
            found[name].update(column)
    return nonfinite_notes({name: asdict(state) for name, state in found.items()}, "the sample")
