"""What the first steps and the model cost, measured on a few rows, and where the first steps run because of it."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from nightjar.inference.job.preprocess import Preprocess
from nightjar.inference.messages import counted
from nightjar.inference.predictors import Scorer, batches
from nightjar.inference.scoring.prepared_batches import not_handed_over, unpicklable

GAIN = 1.15
"""How many times as many rows a CPU stage must promise: less is within what the measurement may be wrong."""

HANDED_BYTES_S = 1e9
"""Bytes of prepared rows that an actor takes from the object store in a second, about."""

_REPEATS, _LONGEST_S = 3, 2.0


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds and bytes of one row. prepare_s: of what the CPU stage would do, but for reading. bytes: as prepared.
    refused: why what preprocess returns cannot be handed to another process, if it cannot.
    """

    prepare_s: float
    predict_s: float
    bytes: float
    rows: int
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where `Job.in_stage` runs. preparers: workers of the CPU stage; 0: in the actors. why: in words, with the reason.
    notable: whether a person should read it each night.
    """

    preparers: int = 0
    why: str = ""
    notable: bool = False


def timed(scorer: Scorer, table: pa.Table, *, own: bool) -> Timed:
    """Prepare and score these rows again, each step by itself. They were scored before, so nothing is cold.

    own: whether the CPU stage would do a part of it; else all is the actor's time.

    Errors of the user's code pass through.
    """
    prepare: list[float] = []
    predict: list[float] = []
    content, began = None, time.perf_counter()
    while len(prepare) < _REPEATS and time.perf_counter() - began < _LONGEST_S:
        start = time.perf_counter()
        content = scorer.preprocess(table) if own else None
        between = time.perf_counter()
        scorer.score(scorer.accept(content, table.num_rows) if own else scorer.prepare(table))
        prepare.append(between - start)
        predict.append(time.perf_counter() - between)
    refused = ""
    try:
        pickle.dumps(content, protocol=5, buffer_callback=lambda _: False)
    except Exception as error:  # noqa: BLE001 (pickle raises whatever the object's own code raises)
        refused = unpicklable(error)
    rows = table.num_rows
    weight = batches.weight(content) if own else 0
    return Timed(min(prepare) / rows, min(predict) / rows, weight / rows, rows, refused)


def together(found: Sequence[Timed]) -> Timed:
    """The costs of several models that score the same rows."""
    return Timed(
        sum(each.prepare_s for each in found),
        sum(each.predict_s for each in found),
        sum(each.bytes for each in found),
        found[0].rows,
        next((each.refused for each in found if each.refused), ""),
    )


def placed(step: Preprocess, actors: int, ahead: bool, free: int, found: Timed | None) -> Placement:
    """Decide from the job, the cluster and what was measured. This is pure.

    actors: of the model. ahead: whether each prepares the next batch while the model computes. free: the workers of the
    stage for which there are CPUs beside the actors. found: None if nothing could be measured.

    Raises:
        JobError: The job wants a stage that cannot hand over what it prepares.
    """
    if step.placement == "fused":
        return Placement(0, "in the model's actors, as placement: fused says")
    if step.placement == "staged":
        if found is not None and found.refused:
            raise not_handed_over(found.refused)
        most = step.max_workers or max(1, free)
        wanted = most if step.max_workers or found is None else min(most, _enough(found, actors))
        return Placement(wanted, f"in a stage of {_workers(wanted)}, as placement: staged says", notable=True)
    if found is None:
        return Placement(0, "in the model's actors: nothing could be measured")
    costs = (
        f"on {counted(found.rows, 'row')} of the input it takes {_ms(found.prepare_s)} a row, and the model "
        f"{_ms(found.predict_s)}"
    )
    wanted = step.max_workers or _enough(found, actors)
    gain = _gain(found, actors, wanted, ahead)
    if gain < GAIN:
        return Placement(0, f"in the model's actors: {costs}; {_workers(wanted)} would make {gain:.1f} × as many rows")
    if found.refused:
        return Placement(0, f"in the model's actors, although {costs}: {found.refused}", notable=True)
    workers = min(wanted, free)
    if workers < 1 or (gain := _gain(found, actors, workers, ahead)) < GAIN:
        few = f"the cluster has CPUs for only {workers} beside them" if workers > 0 else "no CPUs are free beside them"
        why = f"in the model's actors, although {costs}: {few}, and {_workers(wanted)} would make {gain:.1f} ×"
        return Placement(0, f"{why} as many rows", notable=True)
    return Placement(workers, f"in a stage of {_workers(workers)}: {costs}; {gain:.1f} × as many rows", notable=True)


def _gain(found: Timed, actors: int, workers: int, ahead: bool) -> float:
    """How many times as many rows a CPU stage makes."""
    fused = max(found.prepare_s, found.predict_s) if ahead else found.prepare_s + found.predict_s
    staged = max(found.prepare_s * actors / workers, found.predict_s + found.bytes / HANDED_BYTES_S)
    return fused / staged if staged > 0 else 1.0


def _enough(found: Timed, actors: int) -> int:
    """The workers that keep the actors busy."""
    return max(1, math.ceil(actors * found.prepare_s / max(found.predict_s, 1e-9)))


def _workers(count: int) -> str:
    return counted(count, "CPU worker")


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
