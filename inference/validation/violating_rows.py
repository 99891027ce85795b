"""Finds rows with values that a gate refuses: the first one of a shard, in the first few shards that have one.

Workers search while they audit, in the part that is in memory; the driver adds the replay commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from nightjar.inference.arrow_types import shown
from nightjar.inference.input.plan import Plan
from nightjar.inference.job.sections import LINEAGE
from nightjar.inference.messages import MESSAGE_CHARS, clip
from nightjar.inference.metrics.columns import ColumnState, number
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.output.parts import DataPart
from nightjar.inference.records import replay_command
from nightjar.inference.validation.gates import Offender
from nightjar.inference.validation.gates.column import ColumnGate

Offenders = dict[str, tuple[Offender, ...]]
"""Key of a gate → the first rows that it refuses, one per shard."""

MAX_OFFENDERS = 3
"""The most offenders per gate. The manifest has the column's figures, and the parts have every row."""


def join(earlier: Offenders, later: Offenders) -> Offenders:
    """Join the offenders of two blocks of shards."""
    both = {**earlier, **later}
    return {key: (*earlier.get(key, ()), *later.get(key, ()))[:MAX_OFFENDERS] for key in both}


def find(
    gates: Sequence[ColumnGate], found: Offenders, line: dict[str, Any], metrics: Metrics, part: DataPart
) -> Offenders:
    """The offenders of these gates in one more shard, after those of the shards before it.

    line: of `outcomes.OUTCOMES`. metrics: of the shard.
    """
    short = [gate for gate in gates if len(found.get(gate.key, ())) < MAX_OFFENDERS]
    more = {
        gate.key: tuple(_offender(gate, line, part)) for gate in short if not gate.spares(metrics.columns[gate.column])
    }
    return join(found, more)


def _offender(gate: ColumnGate, line: dict[str, Any], part: DataPart) -> Iterator[Offender]:
    """The first row that the gate refuses; none if such rows are in the quarantine alone."""
    table = part.table([gate.column, *LINEAGE])
    column = table[gate.column]
    if gate.spares(ColumnState.of(column)):
        return
    index = _first(gate, column)
    yield Offender(line["shard"], *place_of(table, index), _shown(column.slice(index, 1)))


def place_of(table: pa.Table, index: int) -> tuple[str, int]:
    """The file and row of a row of a part; as in `Offender`. table: has the lineage."""
    file, row = (table[name][index].as_py() for name in LINEAGE)
    return str(file), int(row)


def _first(gate: ColumnGate, column: pa.ChunkedArray) -> int:
    """The first row that the gate refuses, found by bisection: what judges the column judges each part of it."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if gate.spares(ColumnState.of(column.slice(low, middle - low))) else (low, middle)
    return low


def _shown(row: pa.ChunkedArray) -> str:
    if pa.types.is_floating(row.type) and (low := ColumnState.of(row).min) is not None:
        return number(low)
    return clip(shown(row[0], MESSAGE_CHARS))


def with_replays(
    job_path: str, run: tuple[str, ...], table: pa.Table, offenders: Mapping[str, tuple[Offender, ...]]
) -> Offenders:
    """Add to the offenders the commands that score their rows again.

    run: the arguments that name the run, see `replay_command`. table: the run's `outcomes.OUTCOMES`.
    """
    shards = Plan(table).named({offender.shard for found in offenders.values() for offender in found})

    def replayed(offender: Offender) -> Offender:
        command = replay_command(job_path, run, shards[offender.shard], offender.file, offender.row)
        return replace(offender, replay=command)

    return {key: tuple(map(replayed, found)) for key, found in offenders.items()}
