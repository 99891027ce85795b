"""Merges the states of the user's own accumulators, in the order of the shards, and asks for their figures.

The user's code runs in processes of its own: one for each block of shards, and one that merges the blocks. A state that
other code made, or that is not there because the class failed, is made anew from the part: so a change of the class
costs no scoring.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import NightjarError
from nightjar.inference.messages import clip
from nightjar.inference.metrics.accumulators import Kept, unpacked
from nightjar.inference.metrics.figures import AccumulatorFigures
from nightjar.inference.output import exports, outcomes
from nightjar.inference.output.parts import read_data
from nightjar.inference.scoring.accumulating import Accumulators, columns_of
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.child import Child, WorkLost
from nightjar.inference.storage.protocol import join
from nightjar.inference.storage.retrying import RetryingStorage
from nightjar.inference.validation.unique import Each

BLOCK_SHARDS = 1024
"""The most shards whose states one process merges."""

_AT_ONCE = 16
"""The states that are read at the same time, and held."""


@dataclass(frozen=True, slots=True)
class Total:
    """An accumulator over some shards. state: as of `Kept`. failed: why there is none, or no figures. values: the
    figures of these shards.
    """

    state: bytes = b""
    failed: str = ""
    values: Mapping[str, float | None] = field(default_factory=dict)


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
    return _in_child(spec, _merge_shards, lines)


def _in_child(spec: WorkerSpec, work: Callable[..., Iterator[tuple[str, Total | None]]], given: Any) -> Totals:
    """Do work in a process of its own. What it has not answered when it is lost is told as its failure."""
    names, stall_s = list(spec.job.accumulators), spec.job.retry.stall_s
    found, at = Totals(), names[0]
    try:
        with Child(work, spec, given) as child:
            for at, total in child.answers(stall_s):
                if total is not None:
                    found[at] = total
            child.wait()
        how = "gave no answer"
    except TimeoutError:
        how = f"gave no answer within retry.stall_s = {stall_s:g} s"
    except WorkLost as lost:
        how = lost.how
    except NightjarError as error:
        return {name: found.get(name, Total(failed=f"accumulators: {error}")) for name in names}
    failed = clip(f"accumulators.{at}: {spec.job.accumulators[at]} {how}")
    return {name: found.get(name, Total(failed=failed)) for name in names}


def _merge_shards(spec: WorkerSpec, lines: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Total | None]]:
    """Merge the states of some shards. Yields (name, None) before an accumulator's code runs, then (name, total)."""
    pa.set_cpu_count(spec.job.resources.cores)
    own = Accumulators(spec)
    remade = _Remade(spec, own)
    for name in spec.job.accumulators:
        yield name, None
        if name in own.broken:
            yield name, Total(failed=own.broken[name])
            continue
        states = list[bytes]()
        failed = ""
        for line, kept in remade.kept(name, lines):
            yield name, None
            state = kept if kept.state else remade.state(name, line, kept)
            if not state.state:
                failed = f"{state.failed} (shard {line['shard']})"
                break
            states.append(state.state)
            if len(states) == _AT_ONCE:
                states, failed = _merged(own, name, states)
                if failed:
                    break
        yield name, Total(failed=failed) if failed else _total(own, name, states)


def _merge_blocks(spec: WorkerSpec, totals: Sequence[Totals]) -> Iterator[tuple[str, Total | None]]:
    """As `_merge_shards`, with the totals of blocks."""
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


class _Remade:
    """Reads the states of shards, and makes those anew that cannot be used."""

    def __init__(self, spec: WorkerSpec, own: Accumulators) -> None:
        self._spec, self._own = spec, own
        self._storage = RetryingStorage(spec.storage, spec.job.retry.attempts, spec.job.retry.backoff_s)

    def kept(self, name: str, lines: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], Kept]]:
        """Each shard with its state; without one if it is not of this code."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for at in range(0, len(lines), _AT_ONCE):
                window = lines[at : at + _AT_ONCE]
                for line, raw in zip(window, pool.map(self._read, window), strict=True):
                    yield line, self._usable(name, raw)

    def _read(self, line: dict[str, Any]) -> bytes:
        uri = join(self._spec.revision, exports.name_of(line["data"]["name"], exports.ACCUMULATORS))
        return self._storage.read(uri)

    def _usable(self, name: str, raw: bytes) -> Kept:
        uses = self._spec.job.accumulators[name]
        try:
            code, states = unpacked(raw)
        except ValueError:  # of another version
            return Kept(uses)
        found = states.get(name, Kept(uses))
        return found if (code, found.uses) == (self._spec.scoring.counting, uses) else Kept(uses)

    def state(self, name: str, line: dict[str, Any], before: Kept) -> Kept:
        """The state of a shard's rows, from its part. before: what the worker kept."""
        job = self._spec.job
        try:
            part = read_data(self._storage, self._spec.revision, line["data"], line["shard"])
            wanted = columns_of(job, self._spec.schema.names)
            if job.label and job.label not in part.columns:
                # The worker had it from the input. Its code is part of what scored, so only a failure leads here.
                return before if before.failed else replace(before, failed=self._unlabelled(name))
            return self._own.state(name, [part.table(wanted)])
        except NightjarError as error:
            return replace(before, failed=clip(f"accumulators.{name}: {error}"))

    def _unlabelled(self, name: str) -> str:
        return (
            f"accumulators.{name}: the parts do not have the label, so its states cannot be made anew; write --fresh, "
            f"or carry {self._spec.job.label!r}"
        )
