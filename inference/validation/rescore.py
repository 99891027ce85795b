"""The rescore: a sample of shards is read and scored a second time, elsewhere, and compared with what was written.

It finds what no count can: a device that computes wrongly, a model that answers differently each time, outputs that
belong to other rows. The engine runs `rescore` in separate processes.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import socket
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.errors import BatchesBroken, InputChanged, Missing, ProcessSpoilt, RunFailed
from nightjar.inference.input.plan import shard_of_line
from nightjar.inference.input.sources.reading import read_piece
from nightjar.inference.job.sections import LINEAGE
from nightjar.inference.messages import clip, counted
from nightjar.inference.output.parts import read_data
from nightjar.inference.output.quarantine import MODEL, read_quarantine
from nightjar.inference.records import RowFailure, Shard
from nightjar.inference.scoring.assignment import LoadedModel, WorkerSpec, loaded_models, open_scorers
from nightjar.inference.scoring.attempts import JoinedPieces
from nightjar.inference.scoring.microbatches import Ahead, drained, score_models
from nightjar.inference.scoring.neighbours import Moved, differences, other_orders, scored_in
from nightjar.inference.scoring.scored_rows import ScoredRows
from nightjar.inference.scoring.watchdog import Watchdog, answering
from nightjar.inference.scoring.worker import Assembly
from nightjar.inference.storage.protocol import Storage


@dataclass
class Rescored:
    """The result of scoring again."""

    shards: int = 0
    """Shards that were compared."""

    rows: int = 0
    """Rows of the shards that were compared."""

    differing: int = 0
    """Rows with any different value, or that could not be scored again."""

    greatest: float = 0.0
    """The largest difference of two numbers, relative to 1 + their size."""

    first: str = ""
    """One difference, for a message; empty if there is none."""

    changed: int = 0
    """Shards that were not compared, because their input has changed since they were scored."""

    def merge(self, other: Rescored) -> None:
        """Add the result of another process."""
        self.shards += other.shards
        self.rows += other.rows
        self.differing += other.differing
        self.greatest = max(self.greatest, other.greatest)
        self.first = self.first or other.first
        self.changed += other.changed


def sample(table: pa.Table, share: float, salt: str) -> pa.Table:
    """Choose a share of the shards that have rows, at least one. The choice depends only on the shards and the salt.

    table: as in `outcomes`. salt: names the night, so that other nights give other samples.
    """
    scored = table.filter(pc.greater(table["rows_out"], 0))
    count = min(scored.num_rows, max(1, math.ceil(share * table.num_rows)))

    def rank(item: tuple[int, str]) -> bytes:
        return hashlib.sha256(f"{salt} {item[1]}".encode()).digest()

    chosen = heapq.nsmallest(count, enumerate(scored["shard"].to_pylist()), key=rank)
    return scored.take(pa.array(sorted(index for index, _ in chosen), pa.int64()))


def rescore(spec: WorkerSpec, lines: Iterable[dict[str, Any]]) -> Iterator[Rescored]:
    """Score shards (lines of `outcomes.OUTCOMES`) again in this process, and compare. Yields one result per shard.

    Raises:
        RunFailed: Scoring spoilt this process.
    """
    opened = open_scorers(spec)
    models, spec = loaded_models(spec, opened.loaded), opened.reading(spec)
    storage = spec.patient_storage()
    for line in lines:
        try:
            again, scored = _score(spec, shard_of_line(line), _quarantined(storage, spec, line), models, storage)
        except (InputChanged, Missing):
            yield Rescored(changed=1)
            continue
        except ProcessSpoilt as spoilt:
            raise RunFailed(f"rescore: shard {line['shard']} could be scored once, but not again: {spoilt}") from None
        part = read_data(storage, spec.revision, line["data"], line["shard"]).table()
        yield _compare(spec, line, again, scored, part)


_Lost = set[tuple[str, int, str | None]]
"""The quarantined rows: (file, row, model). The model is None if the row is lost to all models of several."""


def _quarantined(storage: Storage, spec: WorkerSpec, line: dict[str, Any]) -> _Lost:
    """They are not tried again, because one may kill its process."""
    table = read_quarantine(storage, spec.revision, line)
    files, rows = (table[name].to_pylist() for name in LINEAGE)
    models = table[MODEL].to_pylist() if spec.job.several else [""] * len(rows)
    return set(zip(files, rows, models, strict=True))


def _score(
    spec: WorkerSpec, shard: Shard, lost: _Lost, models: Sequence[LoadedModel], storage: Storage
) -> tuple[Assembly, np.ndarray]:
    """Score the shard without the quarantined rows, in another order unless the order changes the outputs.

    Returns also which of the rows that are not in the quarantine were scored, as bools in their order.
    """
    with Watchdog(spec.job.retry.stall_s) as watchdog, answering((each.scorer for each in models), watchdog):
        reads = []
        for piece in shard.pieces:
            watchdog.calling()
            reads.append(read_piece(storage, spec.job, piece, spec.schema, len(lost)))
        joined = JoinedPieces(shard.pieces, reads)
        skip: dict[str | None, dict[int, RowFailure]] = {}
        for uri, at, model in lost:
            for row in joined.within(uri, at):
                skip.setdefault(model, {})[row] = RowFailure(row, "", "", "")

        def score(table: pa.Table, moved: Moved) -> Generator[Ahead, None, ScoredRows]:
            return score_models(
                table,
                models,
                skip=moved(skip.get(None, {}) | joined.failures),
                died={model.name: moved(skip.get(model.name, {})) for model in models},
                complete=spec.job.output.rows == "all",
            )

        found = None
        # Arrow cannot reorder a column of more than 2 GiB of text.
        if all(each.shuffles for each in spec.job.models) and joined.table.nbytes < 2 << 30:
            orders = other_orders(joined.table.num_rows, [model.size for model in models])
            with suppress(BatchesBroken):  # the model may take no row twice, as one that joins by a key
                found = drained(scored_in(orders, joined.table, score), lambda _: watchdog.calling())
        if found is None:
            found = drained(score(joined.table, lambda skip: skip), lambda _: watchdog.calling())
        again = Assembly(spec, shard, joined, found)
        kept = np.arange(joined.table.num_rows) if found.kept is None else found.kept
        newly = [each.row for each in found.failures if (*joined.place(each.row)[:2], "") not in lost]
    return again, ~np.isin(np.union1d(kept, newly), newly)


def _compare(spec: WorkerSpec, line: dict[str, Any], again: Assembly, scored: np.ndarray, part: pa.Table) -> Rescored:
    """scored: as `_score` returns it."""
    job, now = spec.job, again.table
    worse = again.failed - line["rows_quarantined"] - line["rows_partial"]
    found = Rescored(shards=1, rows=part.num_rows)
    if worse:
        found.first = f"{counted(worse, 'row')} of shard {line['shard']} could be scored at first, but not again"
        if job.several:
            return replace(found, differing=worse)
        part = part.filter(pa.array(scored))
    wrong = np.zeros(part.num_rows, dtype=bool)
    carried = job.carried(spec.schema.names)
    for name in (*carried, *job.output_types()):
        tolerance = 0.0 if name in carried else job.rescore.tolerance
        differs, greatest = differences(part[name], now[name], tolerance)
        found.greatest = max(found.greatest, greatest)
        if differs.any() and not found.first:
            found.first = _first(line, name, part, now, int(differs.argmax()))
        wrong |= differs
    found.differing = int(wrong.sum()) + max(0, worse)
    return found


def _first(line: dict[str, Any], name: str, part: pa.Table, now: pa.Table, index: int) -> str:
    where = f"row {now[LINEAGE[1]][index]} of {now[LINEAGE[0]][index]}"
    before, after = (clip(repr(table[name][index].as_py())) for table in (part, now))
    text = f"{where}: {name!r} was {before}, written by {line['worker']}, and is {after} on {socket.gethostname()}"
    names = ["rows_in"] if line["adopted_from"] else ["rows_reused", "rows_partly_reused"]
    taken = sum(line[name] or 0 for name in names)
    if not taken:
        return text
    source = (line["adopted_from"] or line["reused_from"]).replace("/", " ")
    return f"{text}; of its shard {line['shard']} {counted(taken, 'row')} {'is' if taken == 1 else 'are'} from {source}"
