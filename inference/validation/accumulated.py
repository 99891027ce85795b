"""Counts the user's own accumulators over what was published, and asks for their figures.

The user's code runs in processes of its own: one for each block of shards, and one that merges the blocks in order. The
states are made from the parts, so a change of the class costs no scoring.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Total:
    """An accumulator over some shards."""

    state: bytes = b""
    failed: str = ""
    """Why there is no state, or why it has no figures."""
    values: Mapping[str, float | None] = field(default_factory=dict)
    """The figures of these shards."""


Totals = dict[str, Total]
"""By the accumulator's name."""


def accumulated(
    each: Each, spec: WorkerSpec, table: pa.Table, block: int = BLOCK_SHARDS
) -> Generator[dict[str, AccumulatorFigures] | None, None, None]:
    """The figures of the job's accumulators; yields None on a tick, and at the end all figures, by name.

    each: carries out the work. table: the run's `outcomes.OUTCOMES`. block: the most shards of a block.
    """
    blocks = [list(outcomes.lines(table.slice(at, block))) for at in range(0, max(1, table.num_rows), block)]
    totals: list[Totals] = []
    for found in each(partial(_of_block, spec), blocks, spec.job, "accumulators"):
        if found is None:
            yield None
        else:
            totals.append(found)
    (whole,) = totals if len(totals) == 1 else [_in_child(spec, _merge_blocks, totals)]
    yield {
        name: AccumulatorFigures(uses, spec.scoring.counting, whole[name].values, whole[name].failed or None)
        for name, uses in spec.job.accumulators.items()
    }


def _of_block(spec: WorkerSpec, lines: list[dict[str, Any]]) -> Totals:
    return _in_child(spec, _count_shards, lines)


def _in_child(spec: WorkerSpec, work: Callable[[WorkerSpec, Any], Answers], given: Any) -> Totals:
    """Do work in a process of its own. An accumulator that did not answer has failed."""
    found, lost = answers_of(spec, work, given)
    return {name: found.get(name, Total(failed=lost)) for name in spec.job.accumulators}


def _count_shards(spec: WorkerSpec, lines: Sequence[dict[str, Any]]) -> Answers:
    pa.set_cpu_count(spec.job.resources.cores)
    own, columns = Accumulators(spec), columns_of(spec.job, spec.schema.names)
    storage = RetryingStorage(spec.storage, spec.job.retry.attempts, spec.job.retry.backoff_s)
    failed, states = dict(own.broken), {name: list[bytes]() for name in own.kinds}
    for line in lines:
        table = read_data(storage, spec.revision, line["data"], line["shard"]).table(columns)
        for name, kind in own.kinds.items():
            if name in failed:
                continue
            yield name, None
            state = own.result(name, partial(_plus, kind, states[name], table))
            if isinstance(state, str):
                failed[name] = f"{state} (shard {line['shard']})"
            else:
                states[name] = [state]
    for name in spec.job.accumulators:
        yield name, None
        yield name, Total(failed=failed[name]) if name in failed else _total(own, name, states[name])


def _plus(kind: Kind, states: Sequence[bytes], table: pa.Table) -> bytes:
    return kind.of_states([*states, kind.of_rows([table])])


def _merge_blocks(spec: WorkerSpec, totals: Sequence[Totals]) -> Answers:
    own = Accumulators(spec)
    for name in spec.job.accumulators:
        yield name, None
        failed = next((each[name].failed for each in totals if each[name].failed and not each[name].state), "")
        yield name, Total(failed=failed) if failed else _total(own, name, [each[name].state for each in totals])


def _total(own: Accumulators, name: str, states: Sequence[bytes]) -> Total:
    """The figures of states. If the class only fails to give figures, the state is kept: of all blocks it may."""
    if name in own.broken:
        return Total(failed=own.broken[name])
    kind = own.kinds[name]
    state = own.result(name, partial(kind.of_states, states))
    if isinstance(state, str):
        return Total(failed=state)
    values = own.result(name, partial(kind.results, state))
    return Total(state, failed=values) if isinstance(values, str) else Total(state, values=values)
