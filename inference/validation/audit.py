"""The audit: proves from the files written, shard by shard, that every row is covered. The engine runs it as a pass.

For every shard it checks the size and checksum of the parts, their footers, and that data and quarantine together hold
each planned row of each file exactly once. A row that only some of several models could score is in both, and counts
as data. Counters are not trusted; they are compared with what was found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.errors import AuditFailed, Missing
from nightjar.inference.job.model import Job
from nightjar.inference.job.sections import LINEAGE
from nightjar.inference.jsonform import of_json
from nightjar.inference.messages import clip, counted
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.output.parts import STATES_KEY, DataPart, expect, read_data, read_metrics
from nightjar.inference.output.quarantine import prove_nulls, quarantined, read_quarantine
from nightjar.inference.records import NO_COUNTS, UNKNOWN, Counts
from nightjar.inference.storage.protocol import Storage
from nightjar.inference.validation.gates.rules import column_gates_of
from nightjar.inference.validation.indexing import BlockKeys, KeyRun
from nightjar.inference.validation.unique import KeyNotes, Spill
from nightjar.inference.validation.violating_rows import Offenders, find
from nightjar.inference.validation.violating_rows import join as join_offenders

MAX_FINDINGS = 20
"""The most findings that are kept for the message: enough to act on, and bounded whatever went wrong."""

MAX_DAMAGED = 1000
"""The most damaged shards that are kept by name. The next audit finds the others."""


@dataclass
class Audited:
    """What the audit of a block of shards found."""

    shards: int = 0
    """Shards that have no problem."""
    counts: Counts = NO_COUNTS
    """The counters of these shards, as their receipts have them."""
    size: int = 0
    """Bytes of the data parts of these shards."""
    problems: int = 0
    """Shards with a problem."""
    damaged: dict[str, str] = field(default_factory=dict)
    """Shard → what is wrong with its parts, for the first `MAX_DAMAGED` shards with a problem."""
    metrics: Metrics = field(default_factory=Metrics)
    """The metrics of all rows, merged in shard order."""
    offenders: Offenders = field(default_factory=dict)
    """Key of a gate → the first rows that the gate refuses, one per shard."""
    spills: list[Spill] = field(default_factory=list)
    """The hashes of keys, for checks on keys: one file per block and check; none of a block with a problem."""
    runs: list[KeyRun] = field(default_factory=list)
    """The keys of rows, for the index: one file per block and model; none of a block with a problem."""

    def merge(self, other: Audited) -> None:
        """Add a later block; blocks are merged in order."""
        self.shards += other.shards
        self.counts += other.counts
        self.size += other.size
        self.spills += other.spills
        self.runs += other.runs
        self.problems += other.problems
        self.damaged = dict(islice((self.damaged | other.damaged).items(), MAX_DAMAGED))
        self.offenders = join_offenders(self.offenders, other.offenders)
        self.metrics.merge(other.metrics)


def audit_block(storage: Storage, revision: str, job: Job, lines: Iterable[dict[str, Any]]) -> Audited:
    """Audit committed shards (lines of `outcomes.OUTCOMES`), in order."""
    audited = Audited(metrics=Metrics.for_job(job))
    gates, noted, keys = column_gates_of(job), KeyNotes(job), BlockKeys(job)
    for line in lines:
        try:
            part, metrics = _audit_shard(storage, revision, job, line)
            keys.look(storage, revision, line, part)
            audited.shards += 1
            audited.counts += of_json(Counts, line)
            audited.size += line["data"]["size"]
            audited.metrics.merge(metrics)
            audited.offenders = find(gates, audited.offenders, line, metrics, part)
            noted.look(line, part)
        except (AuditFailed, Missing, pa.ArrowInvalid, OSError) as error:
            audited.problems += 1
            if len(audited.damaged) < MAX_DAMAGED:
                audited.damaged[line["shard"]] = clip(str(error))
    if not audited.problems:
        audited.spills, audited.runs = noted.written(storage, revision), keys.written(storage, revision)
    return audited


def _audit_shard(storage: Storage, revision: str, job: Job, line: dict[str, Any]) -> tuple[DataPart, Metrics]:
    part = read_data(storage, revision, line["data"], line["shard"])
    expect(f"whether states lie beside {part.name}", STATES_KEY in part.footer, job.states_beside)
    found = quarantined(job, read_quarantine(storage, revision, line))
    lost = found.lost
    rows_in = line["rows_in"]
    if all(piece["rows"] != UNKNOWN for piece in line["pieces"]):
        planned = sum(piece["rows"] for piece in line["pieces"])
        expect("input rows", rows_in + line["rows_left_out"], planned)
    expect("rows of the data part", line["data"]["rows"], line["rows_out"])
    expect("rows of the quarantine", lost.num_rows, line["rows_quarantined"])
    expect("rows that some models could not score", found.rows_partial, line["rows_partial"])
    expect("rows out and quarantined", line["rows_out"] + lost.num_rows, rows_in)
    _prove_cover(line["pieces"], part.table(LINEAGE, dictionaries=LINEAGE[:1]), lost, line["rows_left_out"])
    prove_nulls(job, found, part)
    return part, read_metrics(storage, revision, part.name, part.footer)


def _prove_cover(pieces: list[dict[str, Any]], data: pa.Table, quarantined: pa.Table, left_out: int = 0) -> None:
    """Check that each row of each piece is in data or quarantine exactly once, nothing else is, and data is in input
    order.

    If a piece's rows were not known before they were read, its rows must begin at 0 and have no gap. Together with
    `rows_in`, the worker's count, this proves that every row that was read ended exactly once. It does not prove that
    the whole file was read; only the file's size and version were checked before and after.

    left_out: the number of rows that did not match `input.where`. With any, rows may be absent, but no more of a file
    than that, and none may be there twice or lie outside of the piece. That all other rows are there follows from
    their number.
    """
    found = 0
    for uri in dict.fromkeys(piece["uri"] for piece in pieces):
        kept, lost = _rows_of(data, uri), _rows_of(quarantined, uri)
        found += len(kept) + len(lost)
        _prove_file(uri, [piece for piece in pieces if piece["uri"] == uri], kept, lost, some=left_out > 0)
    if found != data.num_rows + quarantined.num_rows:
        strangers = counted(data.num_rows + quarantined.num_rows - found, "row")
        raise AuditFailed(f"the files of {strangers} are not in this shard")


def _prove_file(uri: str, pieces: list[dict[str, Any]], kept: np.ndarray, lost: np.ndarray, *, some: bool) -> None:
    """Check that each row of the file's pieces is there once, and no other row is. some: whether rows may be absent."""
    rows = kept if not lost.size else np.sort(np.concatenate([kept, lost]))
    first = pieces[0]["first_row"]
    unknown = int(rows.max(initial=first - 1)) + 1 - first if some else len(rows)
    counts = [unknown if piece["rows"] == UNKNOWN else piece["rows"] for piece in pieces]
    each = zip(pieces, counts, strict=True)
    expected = np.concatenate([piece["first_row"] + np.arange(count, dtype=np.int64) for piece, count in each])
    if np.array_equal(rows, expected) and not lost.size:
        return
    if not bool((np.diff(kept) > 0).all()):
        raise AuditFailed(f"rows of {uri} are not in input order, or one occurs twice")
    found, times = np.unique(rows, return_counts=True)
    if (times > 1).any():
        raise AuditFailed(f"row {found[times > 1][0]} of {uri} is there {times.max()} times")
    if not some and (absent := np.setdiff1d(expected, rows)).size:
        gone = counted(absent.size, "row")
        where = f"rows {expected[0]} to {expected[-1]} of {uri}"
        raise AuditFailed(f"no part has {gone} of {where}, the first is row {absent[0]}")
    if (strangers := np.setdiff1d(rows, expected)).size:
        raise AuditFailed(f"row {strangers[0]} of {uri} is in a part, and not in this shard")


def _rows_of(table: pa.Table, uri: str) -> np.ndarray:
    files, rows = (table[name].combine_chunks() for name in LINEAGE)
    # The indices are not decoded: decoding a long path for each row costs more than all the rest. An unknown path has
    # the index -1, which no row has.
    mine = pc.equal(files.indices, pc.index(files.dictionary, uri))
    return np.asarray(rows.filter(mine).to_numpy())


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
