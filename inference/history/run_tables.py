"""Tables about a run for people, from the ledger and the parts; bounded, with failed and slow shards first."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nightjar.inference.errors import InputCorrupt, SchemaMismatch, StorageError
from nightjar.inference.input.plan import Plan, shard_of_line
from nightjar.inference.ledger.ledger import Ledger
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.logs.printed import last_lines
from nightjar.inference.messages import clip
from nightjar.inference.output import revisions as revs
from nightjar.inference.output.outcomes import lines, outcomes, parts_of_shards, total
from nightjar.inference.output.quarantine import MODEL
from nightjar.inference.records import Failed, Shard, replay_command
from nightjar.inference.run.request import RunRequest
from nightjar.inference.storage.protocol import Storage, join

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
    """A shard for people; the most important fields come first."""

    input: str
    """The file's name, and if they are known its rows, as `Shard.label`."""

    status: str
    """`committed`, or `missing` if the shard has no result."""

    failed_attempts: int
    """How many attempts failed, in all commands that wrote the revision."""

    why: str
    """The last attempt's message, if the shard has no result; else empty."""

    rows: int | None
    """Rows of the plan, or else rows that were read; None if the file was not read, or had no row to score."""

    quarantined: int
    """Rows in the quarantine, those that some models scored included."""

    retries_in_place: int
    """Requests to the storage that were repeated in the attempt that was committed."""

    seconds: float | None
    """Wall time of the attempt that was committed; None if the shard has no result."""

    worker: str
    """`host:pid` of the worker whose attempt was committed; empty if the shard has no result."""

    shard: str
    """The shard's id."""

    printed_last: tuple[str, ...]
    """The last lines that the worker of the last attempt printed, if the shard has no result."""


@dataclass(frozen=True, slots=True)
class Incident:
    """A failed attempt or a quarantined row, and what was done about it."""

    cause: str
    """One word, by which incidents are counted; `not read` for a part of the quarantine that cannot be read."""

    what_was_done: str
    """What was done about the attempt or the row; empty for a part that cannot be read."""

    message: str
    """What happened, a sentence for people."""

    replay: str
    """The command that scores the row again, if the incident is of one row; else empty."""

    file: str
    """The URI of the file, or of the shard's first file if nothing says which; empty if neither is known."""

    row: int | None
    """The row's index in the file; None if it is not known."""

    attempt: int | None
    """The number of the attempt; None for a quarantined row, and for a part that cannot be read."""

    shard: str
    """The shard's id."""

    model: str = ""
    """The name of the model that had the rows, if the job has several and it is known; else empty."""


class RunReport:
    """One revision, read back for people."""

    def __init__(self, request: RunRequest, revision: int | revs.Revision, *, goes_on: bool = False) -> None:
        """revision: its number, or the revision itself if it was read already. goes_on: a live writer works on it."""
        self.request, self.storage, self._goes_on = request, request.storage, goes_on
        if isinstance(revision, int):
            revision = revs.read_revision(self.storage, request.run_uri, revision)
        self.uri, self.state = revision.uri, revision.state
        self.plan = revision.plan(request.limit) or Plan.of([])
        self.outcomes = outcomes(self.plan, revision.ledger, self.state)

    def shards(self, limit: int) -> list[ShardLine]:
        """The shards to show: those without a result first, then those that failed before, then the slowest."""
        table, failures = self.outcomes, self.state.failures
        tries = pa.array([len(failures.get(shard, ())) for shard in table["shard"].to_pylist()], pa.int32())
        order = pc.sort_indices(
            pa.table({"status": table["status"], "tries": tries, "seconds": table["seconds"]}),
            sort_keys=[("status", "descending"), ("tries", "descending"), ("seconds", "descending")],
        )
        shown = list(lines(table.take(order.slice(0, limit))))
        lost = [line["shard"] for line in shown if line["status"] == "missing" and line["shard"] in failures]
        printed: dict[str, list[str]] = {}
        with suppress(StorageError):  # so that the rest is still reported
            printed = last_lines(self.storage, self.uri, {shard: failures[shard] for shard in lost})
        return [_shard_line(line, failures.get(line["shard"], ()), printed.get(line["shard"], ())) for line in shown]

    def incidents(self, limit: int) -> list[Incident]:
        """Failed attempts and quarantined rows, with what was done about them; at most `limit`.

        A third of the lines is kept for rows, however many attempts failed.
        """
        failures = itertools.chain.from_iterable(self.state.failures.values())
        attempts = [self._incident(failed) for failed in itertools.islice(failures, limit)]
        rows = list(self._quarantined(max(limit - len(attempts), limit // 3)))
        return attempts[: limit - len(rows)] + rows

    @property
    def all_incidents(self) -> int:
        """The number of all failed attempts and quarantined rows."""
        rows = sum(total(self.outcomes, name) for name in ("rows_quarantined", "rows_partial"))
        return sum(map(len, self.state.failures.values())) + rows

    def _incident(self, failed: Failed) -> Incident:
        shard, replay = self._failed.get(failed.shard), ""
        if failed.shard in self.state.committed:
            done = "tried again, committed"
        elif failed.shard in self.state.splits:
            done = "split into one shard per file"
        elif shard is None:
            done = "planned anew: its file, the model or the job changed since"
        elif self._goes_on:
            done = "no result yet: the run goes on"
        else:
            done = "no result: repeat the command once it is mended"
        if shard is not None and failed.row >= 0 and failed.rows <= 1:
            replay = self._replay(shard, failed.uri, failed.row, failed.model)
        return Incident(
            cause=failed.cause,
            what_was_done=done,
            message=failed.message,
            replay=replay,
            # A process that was lost without a crumb says no file.
            file=failed.uri or (shard.pieces[0].uri if shard else ""),
            row=failed.row if failed.row >= 0 else None,
            attempt=failed.attempt,
            shard=failed.shard,
            model=failed.model,
        )

    def _replay(self, shard: Shard, file: str, row: int, model: str) -> str:
        """The command of this run that scores a row again."""
        return replay_command(self.request.job_path, self.request.words, shard, file, row, model)

    @cached_property
    def _failed(self) -> dict[str, Shard]:
        """The shards of the plan that failed, by id."""
        return self.plan.named(self.state.failures)

    def _quarantined(self, limit: int) -> Iterator[Incident]:
        """At most `limit` quarantined rows, of as many parts at most. A part that cannot be read gives a line, too."""
        parts = parts_of_shards(self.outcomes, "quarantine")[:limit]
        shards = self.plan.named(shard for shard, _ in parts)
        for shard, name in parts:
            uri = join(self.uri, name)
            try:
                rows = self._rows(uri).slice(0, limit)
            except (StorageError, OSError, pa.ArrowException) as error:
                message = f"{uri}: cannot be read: {clip(str(error))}"
                yield Incident("not read", "", message, "", file="", row=None, attempt=None, shard=shard)
                continue
            for row in rows.to_pylist():
                file, number, model = row["_file"], row["_row"], row.get(MODEL) or ""
                yield Incident(
                    cause=row["error"],
                    what_was_done="quarantined",
                    message=row["message"],
                    # The part may be that of an earlier run, whose command is in it.
                    replay=self._replay(shards[shard], file, number, model),
                    file=file,
                    row=number,
                    attempt=None,
                    shard=shard,
                    model=model,
                )
            limit -= rows.num_rows
            if limit <= 0:
                return

    def _rows(self, uri: str) -> pa.Table:
        with pq.ParquetFile(self.storage.open(uri)) as file:
            several = [MODEL] if MODEL in file.schema_arrow.names else []
            return file.read(columns=["_file", "_row", *several, "error", "message"], use_threads=False)


def _shard_line(line: dict[str, Any], failures: Sequence[Failed], printed: Sequence[str]) -> ShardLine:
    """line: of the outcomes. printed: its last lines."""
    return ShardLine(
        input=shard_of_line(line).label,
        status=line["status"],
        failed_attempts=len(failures),
        why=failures[-1].message if failures and line["status"] == "missing" else "",
        rows=next((rows for rows in (line["rows"], line["rows_in"] or -1) if rows >= 0), None),
        quarantined=(line["rows_quarantined"] or 0) + (line["rows_partial"] or 0),
        retries_in_place=line["retries"] or 0,
        seconds=round(line["seconds"], 2) if line["seconds"] is not None else None,
        worker=line["worker"] or "",
        shard=line["shard"],
        printed_last=tuple(printed),
    )


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
