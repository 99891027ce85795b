"""Finds the rows with values that a gate refuses: in each shard the outermost one, or the first one where they have no
order, of the few shards with the outermost ones.

Workers search while they audit, in the part that is in memory; the driver adds the replay commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.input.plan import shard_of_line
from nightjar.inference.job.model import Job
from nightjar.inference.job.sections import LINEAGE
from nightjar.inference.messages import clip
from nightjar.inference.metrics.columns import ColumnState
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.output import outcomes
from nightjar.inference.output.parts import DataPart
from nightjar.inference.records import replay_command
from nightjar.inference.validation.gates import Offender, number
from nightjar.inference.validation.gates.column import ColumnGate
from nightjar.inference.validation.gates.rules import column_gates_of

Offenders = dict[str, tuple[Offender, ...]]
"""Key of a gate → rows that it refuses, one per shard, the outermost first, else in order."""

MAX_OFFENDERS = 3
"""The most offenders per gate. The manifest has the column's figures, and the parts have every row."""


def join(earlier: Offenders, later: Offenders) -> Offenders:
    """Join the offenders of two blocks of shards."""
    both = {key: (*earlier.get(key, ()), *later.get(key, ())) for key in {**earlier, **later}}
    return {key: tuple(sorted(found, key=lambda each: -each.rank)[:MAX_OFFENDERS]) for key, found in both.items()}


class Finder:
    """Notes the offenders of one block of shards, given in order."""

    def __init__(self, job: Job) -> None:
        self.found: Offenders = {}
        self._gates = column_gates_of(job)

    def look(self, line: dict[str, Any], metrics: Metrics, part: DataPart) -> None:
        """Search one shard. line: of `outcomes.OUTCOMES`. metrics: of the shard."""
        for gate in self._gates:
            known = self.found.get(gate.key, ())
            full = len(known) == MAX_OFFENDERS and not any(each.rank for each in known)
            if not full and not gate.spares(metrics.columns[gate.column]):
                self.found |= join({gate.key: known}, {gate.key: tuple(_offender(gate, line, part))})


def _offender(gate: ColumnGate, line: dict[str, Any], part: DataPart) -> Iterator[Offender]:
    """The outermost or first row that the gate refuses; none if such rows are in the quarantine alone."""
    table = part.table([gate.column, *LINEAGE])
    column = table[gate.column]
    state = ColumnState.of(column)
    if gate.spares(state):
        return
    index = _first(gate, column)
    shown = _shown(column.slice(index, 1))
    yield Offender(line["shard"], *place_of(table, index), shown, rank=gate.rank(state))


def place_of(table: pa.Table, index: int) -> tuple[str, int]:
    """The file and row of a row of a part; as in `Offender`. table: has the lineage."""
    file, row = (table[name][index].as_py() for name in LINEAGE)
    return str(file), int(row)


def _first(gate: ColumnGate, column: pa.ChunkedArray) -> int:
    """The first row that the gate refuses, of those furthest out, found by bisection: what judges the column judges
    each part of it.
    """
    low, high, outermost = 0, len(column), gate.rank(ColumnState.of(column))
    while high - low > 1:
        middle = (low + high) // 2
        half = ColumnState.of(column.slice(low, middle - low))
        low, high = (middle, high) if gate.spares(half) or gate.rank(half) < outermost else (low, middle)
    return low


def _shown(row: pa.ChunkedArray) -> str:
    value = row[0].as_py()
    if isinstance(value, float) and (low := ColumnState.of(row).low) is not None:
        return number(low)
    return "null" if value is None else clip(str(value))


def with_replays(
    job_path: str, run: tuple[str, ...], table: pa.Table, offenders: Mapping[str, tuple[Offender, ...]]
) -> Offenders:
    """Add to the offenders the commands that score their rows again.

    run: the arguments that name the run, see `replay_command`. table: the run's `outcomes.OUTCOMES`.
    """
    wanted = pa.array(sorted({offender.shard for found in offenders.values() for offender in found}), pa.string())
    lines = outcomes.lines(table.filter(pc.is_in(table["shard"], value_set=wanted)))
    shards = {line["shard"]: shard_of_line(line) for line in lines}

    def replayed(offender: Offender) -> Offender:
        command = replay_command(job_path, run, shards[offender.shard], offender.file, offender.row)
        return replace(offender, replay=command, rank=0.0)

    return {key: tuple(map(replayed, found)) for key, found in offenders.items()}
