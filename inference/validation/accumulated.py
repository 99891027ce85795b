"""Counts the user's own accumulators over what was published, and asks for their figures.

The user's code runs in processes of its own: one for each block of shards, and one that merges the blocks in order. The
states are made from the parts, so a change of the class costs no scoring.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from nightjar.inference.metrics.figures import AccumulatorFigures
from nightjar.inference.output import outcomes
from nightjar.inference.output.parts import read_data
from nightjar.inference.scoring.accumulating import Accumulators, Answers, answers_of, columns_of
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.storage.retrying import RetryingStorage
from nightjar.inference.validation.unique import Each

BLOCK_SHARDS = 64
"""The most shards that one process counts."""

_AHEAD = 2
"""The parts that are read before their rows are counted, and held."""

_MERGED = 16
"""The states of an accumulator that are held before they are merged."""


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
    """Count the rows of some shards."""
    pa.set_cpu_count(spec.job.resources.cores)
    own = Accumulators(spec)
    failed, states = dict(own.broken), {name: list[bytes]() for name in own.kinds}
    for line, table in zip(lines, _tables(spec, lines), strict=True):
        for name, kind in own.kinds.items():
            if name in failed:
                continue
            yield name, None
            state = own.result(name, partial(kind.of_rows, [table]))
            if isinstance(state, str):
                failed[name] = f"{state} (shard {line['shard']})"
                continue
            states[name].append(state)
            if len(states[name]) == _MERGED:
                states[name], failing = _merged(own, name, states[name])
                failed |= {name: failing} if failing else {}
    for name in spec.job.accumulators:
        yield name, None
        yield name, Total(failed=failed[name]) if name in failed else _total(own, name, states[name])


def _tables(spec: WorkerSpec, lines: Sequence[dict[str, Any]]) -> Iterator[pa.Table]:
    """The published rows of each shard, read ahead."""
    storage = RetryingStorage(spec.storage, spec.job.retry.attempts, spec.job.retry.backoff_s)
    columns = columns_of(spec.job, spec.schema.names)

    def read(line: dict[str, Any]) -> pa.Table:
        return read_data(storage, spec.revision, line["data"], line["shard"]).table(columns)

    with ThreadPoolExecutor(_AHEAD) as pool:
        reading = [pool.submit(read, line) for line in lines[:_AHEAD]]
        for index in range(len(lines)):
            yield reading.pop(0).result()
            if index + _AHEAD < len(lines):
                reading.append(pool.submit(read, lines[index + _AHEAD]))


def _merge_blocks(spec: WorkerSpec, totals: Sequence[Totals]) -> Answers:
    """Merge the totals of blocks."""
    own = Accumulators(spec)
    for name in spec.job.accumulators:
        yield name, None
        failed = next((each[name].failed for each in totals if each[name].failed and not each[name].state), "")
        yield name, Total(failed=failed) if failed else _total(own, name, [each[name].state for each in totals])


def _merged(own: Accumulators, name: str, states: Sequence[bytes]) -> tuple[list[bytes], str]:
    """States as one, and why they cannot be merged."""
    found = own.result(name, partial(own.kinds[name].of_states, states))
    return ([], found) if isinstance(found, str) else ([found], "")


def _total(own: Accumulators, name: str, states: Sequence[bytes]) -> Total:
    """The figures of states. If the class only fails to give figures, the state is kept: of all blocks it may."""
    if name in own.broken:
        return Total(failed=own.broken[name])
    merged, failed = _merged(own, name, states)
    if failed:
        return Total(failed=failed)
    values = own.result(name, partial(own.kinds[name].results, merged[0]))
    return Total(merged[0], failed=values) if isinstance(values, str) else Total(merged[0], values=values)
