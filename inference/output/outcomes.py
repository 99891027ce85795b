"""The outcome of every shard, as one Arrow table: the plan joined with the receipts.

The audit reads this table, `shards-<epoch>.parquet` stores it, and the manifest names that file.
"""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nightjar.inference.arrow_types import record_schema, table_of
from nightjar.inference.input.plan import SHARDS, Plan
from nightjar.inference.job.model import Job
from nightjar.inference.jsonform import SELDOM, of_json
from nightjar.inference.ledger.ledger import Ledger, State
from nightjar.inference.records import Part, Receipt, encode
from nightjar.inference.usage import NO_USAGE, Spent, Usage

NO_PARTS = pa.Table.from_batches([], record_schema(Part))  # `empty_table` would import pandas

_RECEIPT = record_schema(Receipt)
_OF_RECEIPT = [name for name in _RECEIPT.names if name != "shard"]
OUTCOMES = pa.schema([*SHARDS, pa.field("status", pa.string()), *map(_RECEIPT.field, _OF_RECEIPT)])
"""One line per shard of the plan; `status` is committed or missing."""


def outcomes(plan: Plan, ledger: Ledger, state: State) -> pa.Table:
    """Every shard of the plan with its committed receipt, in plan order. state: a replay of the ledger."""
    wanted = set(plan.ids())
    lines = ({"ceilings": [], **encode(each)} for each in ledger.receipts(state) if each.shard in wanted)
    receipts = table_of(lines, _RECEIPT)
    at = pc.index_in(plan.table["shard"], value_set=receipts["shard"].combine_chunks())
    status = pc.if_else(pc.is_valid(at), "committed", "missing")
    joined = receipts.take(at).select(_OF_RECEIPT)
    return pa.Table.from_arrays([*plan.table.columns, status, *joined.columns], schema=OUTCOMES)


def usage(table: pa.Table) -> Usage:
    """What language models took for all shards."""
    return NO_USAGE.plus(*(of_json(Usage, each) for each in table["usage"].to_pylist() if each))


@dataclass(frozen=True, slots=True)
class Reused:
    """Results that a revision took over from an earlier one."""

    source: str
    """The earlier revision, as `Revision.name`."""

    shards: int
    """Shards that were taken over as a whole."""

    rows: int
    """Rows of these shards, and of others whose outputs were taken over."""

    rows_partly: int = field(default=0, metadata=SELDOM)
    """Rows of which the outputs of some models were taken over."""

    saved_s: float = 0.0
    """Seconds that workers take to score them; 0 for a language model, which is asked for several shards at once."""

    saved: float = 0.0
    """What these seconds cost, by `cost` of the job, in its currency."""


def reused(table: pa.Table, job: Job, row_s: float = 0.0) -> tuple[Reused, ...]:
    """What was taken over, by the revision that it was taken from. table: as `outcomes` gives it. row_s: the seconds
    for which a worker prepares and scores a row.
    """
    shards, rows, partly, seconds = Counter[str](), Counter[str](), Counter[str](), defaultdict[str, float](float)
    taken = table.filter(pc.or_kleene(*(pc.not_equal(table[name], "") for name in ("adopted_from", "reused_from"))))
    columns = ["adopted_from", "reused_from", "rows_in", "rows_reused", "rows_partly_reused", "spent"]
    for line in lines(taken.select(columns)):
        source, whole = line["adopted_from"] or line["reused_from"], bool(line["adopted_from"])
        shards[source] += whole
        again = line["rows_reused"] or 0
        rows[source] += line["rows_in"] if whole else again
        partly[source] += 0 if whole else line["rows_partly_reused"] or 0
        seconds[source] += again * row_s + (of_json(Spent, line["spent"]).total if whole and line["spent"] else 0.0)
    price = job.cost.of(job.resources, 1.0) if job.cost else 0.0
    return tuple(
        Reused(name, shards[name], rows[name], partly[name], round(seconds[name], 3), round(seconds[name] * price, 6))
        for name in sorted(rows)
    )


def missing(table: pa.Table) -> int:
    """Shards without a receipt."""
    return int(pc.sum(pc.equal(table["status"], "missing")).as_py() or 0)


def total(table: pa.Table, column: str) -> int:
    """Sum of a column over all shards."""
    return int(pc.sum(table[column]).as_py() or 0)


def parts_of_shards(table: pa.Table, kind: str) -> list[tuple[str, str]]:
    """Each shard that has a part of this kind, and the part's name, in plan order."""
    names: list[str | None] = pc.struct_field(table[kind].combine_chunks(), "name").to_pylist()
    return [(shard, name) for shard, name in zip(table["shard"].to_pylist(), names, strict=True) if name]


def to_parquet(table: pa.Table, state: State) -> bytes:
    """`shards-<epoch>.parquet`: every shard's outcome and how often it failed before."""
    failures = [len(state.failures.get(shard, ())) for shard in table["shard"].to_pylist()]
    table = table.append_column("failed_attempts", pa.array(failures, pa.int32()))
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def read(data: bytes, columns: list[str] | None = None) -> pa.Table:
    """The inverse of `to_parquet`. columns: only these."""
    # Not in Arrow's threads: one that releases a Python object while the process is ending aborts the process.
    return pq.ParquetFile(pa.BufferReader(data)).read(columns, use_threads=False)


def data_files(data: bytes) -> pa.Table:
    """The data parts in what `to_parquet` made, in plan order: name, rows, size, checksum."""
    made = read(data, ["data"])["data"].combine_chunks()
    return pa.Table.from_struct_array(made.filter(made.is_valid()))


def lines(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Lines in order, with a bounded number of them in memory."""
    for batch in table.to_batches(max_chunksize=4096):
        yield from batch.to_pylist()
