"""What a quarantine says where several models score: which rows are lost whole, and which only to some of them.

A row is lost whole if it has no model in the quarantine (it could not be read), if every model is named for it, or if
the job writes only rows that all models can score. Every other row of the quarantine must be in the data part, too,
with nulls for each model that is named for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.errors import AuditFailed
from nightjar.inference.job.model import Job
from nightjar.inference.job.sections import LINEAGE
from nightjar.inference.messages import counted
from nightjar.inference.output.datapart import DataPart
from nightjar.inference.output.parts import MODEL


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The rows of one quarantine. lost: lineage of those that are lost whole, each once. partial: (file, row) of each
    other row, by the name of each model that could not score it.
    """

    lost: pa.Table
    partial: dict[str, list[tuple[str, int]]] = field(default_factory=dict)

    @property
    def rows_partial(self) -> int:
        """The rows that only some models could score, each once."""
        return len({place for places in self.partial.values() for place in places})


def read_quarantine(job: Job, table: pa.Table) -> Quarantined:
    """Sort the lines of a quarantine. table: its lineage columns and, for several models, `MODEL`.

    Raises:
        AuditFailed: A line is there twice, or names a model that the job does not have.
    """
    if not job.models:
        return Quarantined(table)
    files, rows = (table[name].to_pylist() for name in LINEAGE)
    lines: dict[tuple[str, int], dict[str | None, int]] = {}
    for index, (file, row, model) in enumerate(zip(files, rows, table[MODEL].to_pylist(), strict=True)):
        named = lines.setdefault((file, row), {})
        if model in named or None in named or (model is None and named):
            raise AuditFailed(f"row {row} of {file} is in the quarantine twice under one name")
        named[model] = index
    everyone = {model.name for model in job.models}
    whole, partial = [], dict[str, list[tuple[str, int]]]()
    for (file, row), named in lines.items():
        if unknown := named.keys() - everyone - {None}:
            raise AuditFailed(f"row {row} of {file} is in the quarantine of a model {min(map(str, unknown))!r}")
        if None in named or job.output.rows == "all" or named.keys() == everyone:
            whole.append(min(named.values()))
            continue
        for model in named:
            partial.setdefault(str(model), []).append((file, row))
    return Quarantined(table.select(LINEAGE).take(pa.array(whole, pa.int64())), partial)


def prove_nulls(job: Job, found: Quarantined, part: DataPart) -> None:
    """Check that the data part has null for each output of each model that could not score a row.

    Without lineage only the nulls are counted, because no row can be told from another.

    Raises:
        AuditFailed: It has a value there.
    """
    for name, places in found.partial.items():
        model = job.of(name).model
        columns = [f"{model.prefix}{output}" for output in model.outputs]
        table = part.table([*columns, *(LINEAGE if job.output.lineage else ())])
        if job.output.lineage:
            table = table.filter(_at(table, places))
        for column in columns:
            if table[column].null_count < len(places):
                raise AuditFailed(
                    f"{column}: {counted(table[column].null_count, 'null')}, where the quarantine has "
                    f"{counted(len(places), 'row')} that the model {name!r} could not score, the first of them row "
                    f"{places[0][1]} of {places[0][0]}"
                )


def _at(table: pa.Table, places: list[tuple[str, int]]) -> pa.Array:
    """Which rows of a part are at these places."""
    mask = np.zeros(table.num_rows, dtype=bool)
    for uri in {file for file, _ in places}:
        rows = pa.array([row for file, row in places if file == uri], pa.int64())
        mine = pc.and_(pc.equal(table[LINEAGE[0]], uri), pc.is_in(table[LINEAGE[1]], value_set=rows))
        mask |= np.asarray(mine)
    return pa.array(mask)
