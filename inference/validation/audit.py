"""The audit: proves from the files written, shard by shard, that every row is covered. The engine runs it as a pass.

For every shard it checks the size and checksum of the parts, their footers, and that data and quarantine together hold
each planned row of each file exactly once. Counters are not trusted; they are compared with what was found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nightjar.inference.errors import AuditFailed, Missing
from nightjar.inference.job.model import Job
from nightjar.inference.job.sections import LINEAGE
from nightjar.inference.messages import clip
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.output.parts import (
    SHARD_KEY,
    checksum,
    read_metrics,
    read_part,
)
from nightjar.inference.records import UNKNOWN
from nightjar.inference.storage.protocol import Storage, join
from nightjar.inference.validation.offenders import Finder, Offenders
from nightjar.inference.validation.offenders import join as join_offenders

MAX_FINDINGS = 20
"""The most findings that are kept for the message: enough to act on, and bounded whatever went wrong."""

MAX_DAMAGED = 1000
"""The most damaged shards that are kept by name. The next audit finds the others."""

_LINEAGE = pa.schema([(LINEAGE[0], pa.dictionary(pa.int32(), pa.string())), (LINEAGE[1], pa.int64())])
"""The columns as `_part` reads them."""


@dataclass
class Audited:
    """What the audit of a block of shards found. Counts are of shards, rows and bytes.

    damaged: shard → what is wrong with its parts. metrics: merged in shard order. offenders: as in `offenders.Finder`.
    """

    shards: int = 0
    rows_in: int = 0
    rows_out: int = 0
    rows_quarantined: int = 0
    size: int = 0
    problems: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    metrics: bytes = b""
    offenders: Offenders = field(default_factory=dict)

    def merge(self, other: Audited) -> None:
        """Add a later block; blocks are merged in order."""
        self.shards += other.shards
        self.rows_in += other.rows_in
        self.rows_out += other.rows_out
        self.rows_quarantined += other.rows_quarantined
        self.size += other.size
        self.problems += other.problems
        self.damaged = dict(islice((self.damaged | other.damaged).items(), MAX_DAMAGED))
        self.offenders = join_offenders(self.offenders, other.offenders)
        if self.metrics and other.metrics:
            merged = Metrics.from_bytes(self.metrics)
            merged.merge(Metrics.from_bytes(other.metrics))
            self.metrics = merged.to_bytes()
        self.metrics = self.metrics or other.metrics


def audit_block(storage: Storage, revision: str, job: Job, lines: Iterable[dict[str, Any]]) -> Audited:
    """Audit committed shards (lines of `outcomes.OUTCOMES`), in order."""
    audited = Audited()
    metrics, finder = Metrics.for_job(job), Finder(job)
    for line in lines:
        try:
            metrics.merge(_audit_shard(storage, revision, job, line, audited, finder))
        except (AuditFailed, Missing, pa.ArrowInvalid, OSError) as error:
            audited.problems += 1
            if len(audited.damaged) < MAX_DAMAGED:
                audited.damaged[line["shard"]] = clip(str(error))
    audited.metrics, audited.offenders = metrics.to_bytes(), finder.found
    return audited


def _audit_shard(
    storage: Storage, revision: str, job: Job, line: dict[str, Any], audited: Audited, finder: Finder
) -> Metrics:
    raw, data, footer = _part(storage, revision, line["data"], line["shard"], job.output.lineage)
    quarantined = _LINEAGE.empty_table()
    if line["quarantine"] is not None:
        _, quarantined, _ = _part(storage, revision, line["quarantine"], line["shard"], True)
    rows_in = line["rows_in"]
    if all(piece["rows"] != UNKNOWN for piece in line["pieces"]):
        _equal("input rows", rows_in, sum(piece["rows"] for piece in line["pieces"]))
    _equal("rows of the data part", line["data"]["rows"], line["rows_out"])
    _equal("rows of the quarantine", quarantined.num_rows, line["rows_quarantined"])
    _equal("rows out and quarantined", line["rows_out"] + quarantined.num_rows, rows_in)
    if job.output.lineage:
        _prove_cover(line["pieces"], data, quarantined)
    audited.shards += 1
    audited.rows_in += rows_in
    audited.rows_out += line["rows_out"]
    audited.rows_quarantined += quarantined.num_rows
    audited.size += line["data"]["size"]
    metrics = read_metrics(footer)
    finder.look(line, metrics, raw)
    return metrics


def _part(
    storage: Storage, revision: str, part: dict[str, Any], shard: str, lineage: bool
) -> tuple[bytes, pa.Table, dict[bytes, bytes]]:
    """Check a part's bytes. Returns them, the lineage columns with the file as a dictionary, and the footer."""
    raw = read_part(storage, join(revision, part["name"]), part["size"])
    _equal(f"bytes of {part['name']}", len(raw), part["size"])
    _equal(f"checksum of {part['name']}", checksum(raw), part["checksum"])
    columns = LINEAGE if lineage else ()
    with pq.ParquetFile(pa.BufferReader(raw), read_dictionary=columns[:1]) as file:
        footer: dict[bytes, bytes] = file.metadata.metadata or {}
        _equal(f"rows of {part['name']}", file.metadata.num_rows, part["rows"])
        _equal(f"shard named in {part['name']}", footer.get(SHARD_KEY, b"").decode(), shard)
        return raw, file.read(columns=columns, use_threads=False), footer


def _prove_cover(pieces: list[dict[str, Any]], data: pa.Table, quarantined: pa.Table) -> None:
    """Check that each row of each piece is in data or quarantine exactly once, nothing else is, and data is in input
    order.

    If a piece's rows were not known before they were read, its rows must begin at 0 and have no gap. Together with
    `rows_in`, the worker's count, this proves that every row that was read ended exactly once. It does not prove that
    the whole file was read; only the file's size and version were checked before and after.
    """
    found = 0
    for uri in dict.fromkeys(piece["uri"] for piece in pieces):
        kept, lost = _rows_of(data, uri), _rows_of(quarantined, uri)
        count = len(kept) + len(lost)
        spans = [
            (p["first_row"], p["first_row"] + (count if p["rows"] == UNKNOWN else p["rows"]))
            for p in pieces
            if p["uri"] == uri
        ]
        found += count
        for low, high in spans:
            _prove_span(uri, low, high, kept, lost)
    if found != data.num_rows + quarantined.num_rows:
        raise AuditFailed(f"{data.num_rows + quarantined.num_rows - found} rows name files that are not in this shard")


def _prove_span(uri: str, low: int, high: int, kept: np.ndarray, lost: np.ndarray) -> None:
    if not lost.size and np.array_equal(kept, np.arange(low, high)):
        return
    if not bool((np.diff(kept) > 0).all()):
        raise AuditFailed(f"rows of {uri} are not in input order, or one occurs twice")
    rows, counts = np.unique(np.concatenate([kept, lost]), return_counts=True)
    if (counts > 1).any():
        raise AuditFailed(f"row {rows[counts > 1][0]} of {uri} is there {counts.max()} times")
    if rows.size != high - low or rows[0] != low or rows[-1] != high - 1:
        absent = np.setdiff1d(np.arange(low, high), rows)
        raise AuditFailed(
            f"{absent.size} of rows {low} to {high - 1} of {uri} are in no part"
            + (f", the first is row {absent[0]}" if absent.size else "; rows outside that span are")
        )


def _rows_of(table: pa.Table, uri: str) -> np.ndarray:
    files, rows = (table[name].combine_chunks() for name in LINEAGE)
    # The indices are not decoded: decoding a long path for each row costs more than all the rest. An unknown path has
    # the index -1, which no row has.
    mine = pc.equal(files.indices, pc.index(files.dictionary, uri))
    return np.asarray(rows.filter(mine).to_numpy())


def _equal(what: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise AuditFailed(f"{what}: found {found}, the receipt says {expected}")


def check_plan_covers(lines: Iterable[dict[str, Any]], files: dict[str, int]) -> list[str]:
    """Check that the shards' pieces cover rows [0, n) of every file exactly once. Returns what is wrong.

    files: uri → rows, as discovery found them; `UNKNOWN` for a file that must be one whole piece.
    """
    expected: dict[str, int] = {}
    wrong = []
    for line in lines:
        for piece in line["pieces"]:
            if piece["first_row"] != expected.get(piece["uri"], 0):
                wrong.append(f"{piece['uri']}: row {expected.get(piece['uri'], 0)} is not where a shard begins")
            # Of a file that is one whole piece this is `UNKNOWN` if its rows are, as the first row is 0.
            expected[piece["uri"]] = piece["first_row"] + piece["rows"]
    wrong += [
        f"{uri}: shards end at row {expected.get(uri, 0)} of {rows}"
        for uri, rows in files.items()
        if expected.get(uri, 0) != rows
    ]
    return wrong[:MAX_FINDINGS]
