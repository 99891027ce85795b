"""Counts the user's own accumulators over what was published, and asks for their figures.

The user's code runs in processes of its own: one for each block of shards, and one that merges the blocks in order. The
states are made from the parts, so a change of the class costs no scoring.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from nightjar.inference.metrics.accumulators import Kind
from nightjar.inference.metrics.figures import AccumulatorFigures
from nightjar.inference.output import outcomes
from nightjar.inference.output.parts import read_data
from nightjar.inference.scoring.accumulating import Accumulators, Answers, answers_of, columns_of
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.storage.retrying import RetryingStorage
from nightjar.inference.validation.unique import Each

BLOCK_SHARDS = 64
"""The most shards that one process counts."""

_States = Mapping[str, bytes | str]
"""Accumulator → its state of some shards, empty without any; a text says why there is none."""


def accumulated(
    each: Each, spec: WorkerSpec, table: pa.Table, block: int = BLOCK_SHARDS
) -> Generator[dict[str, AccumulatorFigures] | None, None, None]:
    """The figures of the job's accumulators; yields None on a tick, and at the end all figures, by name.

    each: carries out the work. table: the run's `outcomes.OUTCOMES`. block: the most shards of a block.
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
