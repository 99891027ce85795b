"""Tables about a run for people, from the ledger and the parts; bounded, with failed and slow shards first."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nightjar.inference.errors import InputCorrupt, Missing, SchemaMismatch, StorageError
from nightjar.inference.input.plan import Plan, shard_of_line
from nightjar.inference.ledger.ledger import Ledger
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.logs.printed import last_lines
from nightjar.inference.messages import clip
from nightjar.inference.output import revisions as revs
from nightjar.inference.output.outcomes import lines, outcomes, parts_of_shards
from nightjar.inference.output.quarantine import MODEL
from nightjar.inference.records import Failed
from nightjar.inference.run.request import RunRequest
from nightjar.inference.storage.protocol import Storage, join

MAX_LINES = 300
"""The most lines of a table for people; the complete records are `shards-<epoch>.parquet` and the ledger."""

PARTS_READ = 50
"""The most quarantine parts that are read for a table if nobody says how many lines are wanted: each is a request."""

_OF_FILES = frozenset({InputCorrupt.__name__, SchemaMismatch.__name__})
"""Causes of failed attempts for which no other try helps as long as the file is as it is."""

_FILES_NAMED = 3


def follow(storage: Storage, run_uri: str) -> Iterator[Progress | None]:
    """Yield a run's progress from its growing ledger each time the caller asks; None until there is a plan."""
    progress, uri, number = Progress(), "", 0
    while True:
        newest = revs.newest_number(storage, run_uri)
        if newest and uri != revs.revision_uri(run_uri, newest):
            progress, uri, number = Progress(), revs.revision_uri(run_uri, newest), 0
        if uri:
            for segment in Ledger(storage, uri).segments(number):
                number = segment.number
                for line in segment.lines:
                    progress.fold(line)
        yield progress if progress.shards else None


@dataclass(frozen=True, slots=True)
class ShardLine:
    """A shard for people; the most important fields come first. rows: None if its file was not read.

    status: committed or missing. why: the last attempt's message, if the shard has no result. quarantined: the number
    of rows. retries_in_place: retried requests to the storage. printed_last: the last printed lines, if it has no
    result.
    """

    input: str
    status: str
    failed_attempts: int
    why: str
    rows: int | None
    quarantined: int
    retries_in_place: int
    seconds: float | None
    worker: str
    shard: str
    printed_last: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Incident:
    """A failed attempt or a quarantined row, and what was done about it.

    cause: one word, by which incidents are counted. replay: the command that scores the row again, if it is one row.
    file: empty if it is not known. row: its index in the file, if known. attempt: its number; None for a quarantined
    row. model: the name of the model that had the rows, if the job has several and it is known.
    """

    cause: str
    what_was_done: str
    message: str
    replay: str
    file: str
    row: int | None
    attempt: int | None
    shard: str
    model: str = ""


class RunReport:
    """One revision, read back for people."""

    def __init__(self, request: RunRequest, revision: int | revs.Revision, *, goes_on: bool = False) -> None:
        """revision: its number, or the revision itself if it was read already. goes_on: a live writer works on it."""
        self.storage, self._goes_on = request.storage, goes_on
        if isinstance(revision, int):
            revision = revs.read_revision(self.storage, request.run_uri, revision)
        self._words = ("nightjar", "replay", request.job_path, request.run_id, *request.place)
        self.uri, self.ledger, self.state = revision.uri, revision.ledger, revision.state
        self.plan = (revision.plan() or Plan.of([])).limited(request.limit)
        self.outcomes = outcomes(self.plan, self.ledger, self.state)

    @cached_property
    def _printed(self) -> dict[str, list[str]]:
        planned, committed = self._planned, self.state.committed
        lost = {shard: said for shard, said in self.state.failures.items() if shard in planned - committed}
        try:
            return last_lines(self.storage, self.uri, lost)
        except StorageError:
            return {}  # so that the rest is still reported

    def shards(self, limit: int = MAX_LINES) -> list[ShardLine]:
        """The shards to show: those without a result first, then those that failed before, then the slowest."""
        failures = {shard: len(found) for shard, found in self.state.failures.items()}
        table = self.outcomes
        tries = pa.array([failures.get(shard, 0) for shard in table["shard"].to_pylist()], pa.int32())
        order = pc.sort_indices(
            pa.table({"status": table["status"], "tries": tries, "seconds": table["seconds"]}),
            sort_keys=[("status", "descending"), ("tries", "descending"), ("seconds", "descending")],
        )
        return [self._shard(line) for line in lines(table.take(order.slice(0, limit)))]

    def _shard(self, line: dict[str, Any]) -> ShardLine:
        failures = self.state.failures.get(line["shard"], [])
        missing = line["status"] == "missing"
        return ShardLine(
            input=shard_of_line(line).label,
            status=line["status"],
            failed_attempts=len(failures),
            why=failures[-1].message if failures and missing else "",
            rows=next((rows for rows in (line["rows"], line["rows_in"] or -1) if rows >= 0), None),
            quarantined=(line["rows_quarantined"] or 0) + (line["rows_partial"] or 0),
            retries_in_place=line["retries"] or 0,
            seconds=round(line["seconds"], 2) if line["seconds"] is not None else None,
            worker=line["worker"] or "",
            shard=line["shard"],
            printed_last=tuple(self._printed.get(line["shard"], ())) if missing else (),
        )

    def incidents(self, limit: int = MAX_LINES, parts: int = PARTS_READ) -> list[Incident]:
        """Failed attempts and quarantined rows, with what was done about them; at most `limit`.

        A third of the lines is kept for rows, however many attempts failed. parts: the most parts that are read.
        """
        failures = itertools.chain.from_iterable(self.state.failures.values())
        attempts = [self._incident(failed) for failed in itertools.islice(failures, limit)]
        rows = list(self._quarantined(max(limit - len(attempts), limit // 3), parts))
        return attempts[: limit - len(rows)] + rows

    @property
    def all_incidents(self) -> int:
        """The number of all failed attempts and quarantined rows."""
        named = {"rows_quarantined", "rows_partial"}.intersection(self.outcomes.column_names)
        rows = sum(pc.sum(self.outcomes[name]).as_py() or 0 for name in named)
        return sum(map(len, self.state.failures.values())) + rows

    def _incident(self, failed: Failed) -> Incident:
        if failed.shard in self.state.committed:
            done = "tried again, committed"
        elif failed.shard in self.state.splits:
            done = "split into one shard per file"
        elif failed.shard not in self._planned:
            done = "planned anew: its file, the model or the job changed since"
        elif self._goes_on:
            done = "no result yet: the run goes on"
        else:
            done = "no result: repeat the command once it is mended"
        return Incident(
            cause=failed.cause,
            what_was_done=done,
            message=failed.message,
            replay=self._replay(failed),
            file=failed.uri or self._file(failed.shard),
            row=failed.row if failed.row >= 0 else None,
            attempt=failed.attempt,
            shard=failed.shard,
            model=failed.model,
        )

    def _replay(self, failed: Failed) -> str:
        """The command that scores the row again at which an attempt failed, if one row is known and the plan has it."""
        if failed.row < 0 or failed.rows > 1 or failed.shard not in self._planned:
            return ""
        shard = self.plan.shard(failed.shard)
        which = [*(("--file", failed.uri) if shard and len(shard.pieces) > 1 else ())]
        which += ["--model", failed.model] if failed.model else []
        return shlex.join([*self._words, "--shard", failed.shard, "--row", str(failed.row), *which])

    @cached_property
    def _planned(self) -> set[str]:
        return set(self.plan.ids())

    def _file(self, shard: str) -> str:
        """The file of a shard whose process was lost without a crumb; empty for a shard of an earlier plan."""
        found = self.plan.shard(shard)
        return found.pieces[0].uri if found else ""

    def _quarantined(self, limit: int, parts: int = PARTS_READ) -> Iterator[Incident]:
        """Quarantined rows, read from a bounded number of parts. A part that cannot be read gives a line, too."""
        for shard, name in parts_of_shards(self.outcomes, "quarantine")[:parts]:
            try:
                rows = self._rows(join(self.uri, name)).slice(0, limit)
            except (StorageError, OSError, pa.ArrowException) as error:
                # A storage that refuses or is away says nothing about the part; a part that is not Parquet is damaged.
                away = isinstance(error, StorageError) and not isinstance(error, Missing)
                yield Incident(
                    cause="not read" if away else "damaged part",
                    what_was_done="" if away else self._mended,
                    message=f"{join(self.uri, name)}: cannot be read: {clip(str(error))}",
                    replay="",
                    file=self._file(shard),
                    row=None,
                    attempt=None,
                    shard=shard,
                )
                continue
            for row in rows.to_pylist():
                yield Incident(
                    cause=row["error"],
                    what_was_done="quarantined",
                    message=row["message"],
                    replay=row["replay"],
                    file=row["_file"],
                    row=row["_row"],
                    attempt=None,
                    shard=shard,
                    model=row.get(MODEL) or "",
                )
            limit -= rows.num_rows
            if limit <= 0:
                return

    @property
    def _mended(self) -> str:
        if self.state.intent is not None:
            return "published before it was damaged: restore it, or score the run anew with --fresh"
        return "left to the audit, which has its shard scored again"

    def _rows(self, uri: str) -> pa.Table:
        with pq.ParquetFile(self.storage.open(uri)) as file:
            several = [MODEL] if MODEL in file.schema_arrow.names else []
            return file.read(columns=["_file", "_row", *several, "error", "message", "replay"], use_threads=False)


def worded(again: Iterable[str], notes: Iterable[str]) -> list[tuple[str, str]]:
    """Each sentence with its word: `again` for why shards are scored again, `note` for all others."""
    return [*(("again", why) for why in again), *(("note", note) for note in notes)]


def mending(revision: revs.Revision, failed: Mapping[str, Sequence[Failed]]) -> list[str]:
    """A sentence on what can be done about files that cannot be read, or have other columns; none if there are none.

    failed: as `lost` returns it. The files of a table are the table's own: nobody replaces or removes one of them.
    """
    files = list(dict.fromkeys(said[-1].uri for said in failed.values() if said[-1].cause in _OF_FILES))
    if not files or revision.state.about.snapshots:
        return []
    more = f" and {len(files) - _FILES_NAMED:,} more" if len(files) > _FILES_NAMED else ""
    which, them = (files[0], "it") if len(files) == 1 else (f"{len(files):,} files", "them")
    listed = f": {', '.join(files[:_FILES_NAMED])}{more}" if len(files) > 1 else ""
    return [f"replace {which}, or remove {them} from the input, then repeat the command{listed}"]


def lost(revision: revs.Revision) -> dict[str, list[Failed]]:
    """Shards that failed and have no result, with all their failures, in the order of their first failures.

    Only shards of the newest plan: after a change of the file, the model or the job, earlier failures do not matter.
    """
    state = revision.state
    failed = {
        shard: said
        for shard, said in state.failures.items()
        if shard not in state.committed and shard not in state.splits
    }
    plan = revision.plan() if failed else None
    planned = set(plan.ids()) if plan is not None else set()
    return {shard: said for shard, said in failed.items() if shard in planned}
