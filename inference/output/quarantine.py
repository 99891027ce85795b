"""The rows that no attempt could score: how they are written, and read back for the audit and the second scoring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.errors import AuditFailed
from nightjar.inference.job.model import Job
from nightjar.inference.job.sections import LINEAGE
from nightjar.inference.messages import counted, utf8
from nightjar.inference.output.parts import SHARD_KEY, DataPart, read_data, write_part
from nightjar.inference.records import Part, RowFailure
from nightjar.inference.storage.protocol import Storage

MODEL = "model"
"""The column of a quarantine that names the model, if the job has several."""

_LINES = pa.schema(
    [(LINEAGE[0], pa.dictionary(pa.int32(), pa.string())), (LINEAGE[1], pa.int64()), (MODEL, pa.string())]
)


def write_quarantine(
    storage: Storage,
    revision: str,
    name: str,
    shard: str,
    rows: Sequence[tuple[str, int, RowFailure, str]],
    inputs: pa.Table,
    *,
    several: bool = False,
) -> Part:
    """Write the rows that no attempt could score. rows: (file, row in file, failure, replay command). inputs: the
    rows. several: whether the job has several models; then a row is there once for each that could not score it.
    """
    files, numbers, failures, replays = zip(*rows, strict=True)
    columns = {
        LINEAGE[0]: pa.array(files, pa.string()),
        LINEAGE[1]: pa.array(numbers, pa.int64()),
        # A row that cannot be read has no model to blame, and so null.
        **({MODEL: pa.array([failure.model or None for failure in failures], pa.string())} if several else {}),
        "error": pa.array([failure.error for failure in failures], pa.string()),
        "message": pa.array([failure.message for failure in failures], pa.string()),
        "traceback": pa.array([failure.traceback for failure in failures], pa.string()),
        "raw": pa.array([failure.raw or None for failure in failures], pa.string()),
        # The command names the job file, whose path may not be UTF-8.
        "replay": pa.array(map(utf8, replays), pa.string()),
        "input": pa.StructArray.from_arrays(
            [column.combine_chunks() for column in inputs.columns], fields=list(inputs.schema)
        ),
    }
    return write_part(storage, revision, name, pa.table(columns), {SHARD_KEY: shard.encode()})


def read_quarantine(storage: Storage, revision: str, line: Mapping[str, Any]) -> pa.Table:
    """The lineage of the rows in a shard's quarantine and, for several models, `MODEL`. line: of `outcomes.OUTCOMES`.

    Raises:
        AuditFailed: As `read_data`.
    """
    if line["quarantine"] is None:
        return _LINES.empty_table()
    part = read_data(storage, revision, line["quarantine"], line["shard"])
    # Arrow passes over a name that a file does not have.
    return part.table((*LINEAGE, MODEL), dictionaries=LINEAGE[:1])


# A row is lost whole if it has no model in the quarantine (it could not be read), if every model is named for it, or if
# the job writes only rows that all models can score. Every other row of the quarantine must be in the data part, too,
# with nulls for each model that is named for it.
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


def quarantined(job: Job, table: pa.Table) -> Quarantined:
    """Sort the lines of a quarantine. table: as `read_quarantine` returns it.

    Raises:
        AuditFailed: A line is there twice, or names a model that the job does not have.
    """
    if not job.several or not table.num_rows:
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

    Raises:
        AuditFailed: It has a value there.
    """
    for name, places in found.partial.items():
        model = job.model_named(name)
        columns = [f"{model.prefix}{output}" for output in model.outputs]
        table = part.table([*columns, *LINEAGE])
        table = table.filter(_at(table, places))
        for column in columns:
            if table[column].null_count < len(places):
                raise AuditFailed(
                    f"{column}: {counted(table[column].null_count, 'null')}, where the quarantine has "
                    f"{counted(len(places), 'row')} that the model {name!r} could not score, the first of them row "
                    f"{places[0][1]} of {places[0][0]}"
                )


def _at(table: pa.Table, places: list[tuple[str, int]]) -> pa.Array:
    mask = np.zeros(table.num_rows, dtype=bool)
    for uri in {file for file, _ in places}:
        rows = pa.array([row for file, row in places if file == uri], pa.int64())
        mine = pc.and_(pc.equal(table[LINEAGE[0]], uri), pc.is_in(table[LINEAGE[1]], value_set=rows))
        mask |= np.asarray(mine)
    return pa.array(mask)
