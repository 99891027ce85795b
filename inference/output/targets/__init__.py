"""Publication targets: tables that also show what is published. A new kind is one module and one line in `TARGETS`.

The parts stay where they are, as Parquet. After a snapshot has made a night visible, a second step commits the snapshot
to each table of `output.tables`. The same transaction stores the snapshot's number in the table. So the step may fail,
be killed, be repeated, and run in two commands at once: the next command sees from the number what the table lacks. A
table that is several publications behind gets the newest one, in one transaction.

A night that cannot be read, or does not fit into the table, is left out, and no other night suffers for that. The table
has the number all the same, so what it lacks is then found by its dates. A run tries its own date again; `nightjar
tables` compares all dates.

If a date has several runs, a table has the same one as `dates/`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

import pyarrow as pa

from nightjar.inference.errors import Damaged, JobError, Missing, StorageError
from nightjar.inference.job.model import Job
from nightjar.inference.job.seams import TARGETS
from nightjar.inference.job.sections import TableTarget
from nightjar.inference.ledger.lines import Published
from nightjar.inference.messages import counted
from nightjar.inference.output import publications as publish
from nightjar.inference.output.nights import Files, night_of
from nightjar.inference.output.parts import checksum, output_schema, readers_schema
from nightjar.inference.output.publications import Snapshot
from nightjar.inference.output.revisions import revision_in
from nightjar.inference.storage.protocol import Storage, at_once, join

_MAX_ROUNDS = 100

_SAID = 20
"""The most nights that a table lacks that are named: the latest ones. A new table may lack years of nights."""


@dataclass(frozen=True)
class Change:
    """A change of a table.

    number: of the snapshot. nights: date → the night that the table must show, in order; None to remove the date. One
    that cannot be read has no files, and its `problem` says why. only: remove all other dates, too, because it is not
    known what they were.
    """

    number: int
    nights: Mapping[str, Files | None]
    only: bool = False


@dataclass(frozen=True, slots=True)
class TableShown:
    """One of the job's output.tables."""

    kind: str
    """The format of the table, as `delta`."""

    uri: str
    """The location of the table."""

    publication: int
    """The publication that the table shows; 0 for none."""

    problem: str = ""
    """Why the table could not be looked up; else empty."""

    lacks: tuple[str, ...] = ()
    """The latest dates of `publication` that the table lacks, at most 20."""


class Target(Protocol):
    """One table. Every method may raise `JobError` and `StorageError`."""

    def check(self, columns: pa.Schema, date: str) -> None:
        """Check that the table can be written and can have these columns and this logical time; changes nothing.

        Raises:
            JobError: Something must be changed: the location, the columns, or a package that is not installed.
        """

    def committed(self) -> int:
        """The number of the snapshot that is stored in the table; 0 for none.

        Raises:
            JobError: Another program, or another output, made the table.
        """

    def dates(self) -> dict[str, bool]:
        """The dates that the table has files of, as `committed` found it; and whether no other program has changed
        these files, so that they can be compared with what is published.
        """

    def commit(self, change: Change) -> list[Files] | None:
        """Change the table in one transaction, which also stores the number; none if the table has all of that already.

        Returns the nights that the table cannot show; or None if somebody else has committed since the call of
        `committed`, and nothing was changed.
        """


def opened(storage: Storage, output: str, table: TableTarget) -> Target:
    """Open a table of an output. The content of `job.json` tells its transactions from those of other outputs."""
    try:
        owner = f"nightjar-{checksum(storage.read(join(output, 'job.json')))}"
    except Missing:  # Nothing was run yet, so this output has no table either.
        owner = ""
    target: Target = import_module(TARGETS[table.kind]).open_target(storage, table.uri, output, owner)
    return target


def check(storage: Storage, job: Job, schema: pa.Schema, date: str) -> None:
    """Check that each table of the job can be written. schema: all columns of the input. date: the run's logical time.

    Raises:
        JobError: As in `Target.check`. Names the key.
    """
    columns = readers_schema(output_schema(job, schema))
    for index, table in enumerate(job.output.tables):
        try:
            opened(storage, job.output.uri, table).check(columns, date)
        except JobError as error:
            raise JobError(f"output.tables[{index}].{table.kind}: {error}") from error


def shown(storage: Storage, output: str, tables: Iterable[TableTarget]) -> tuple[TableShown, ...]:
    """Which publication each table shows."""
    return tuple(_shown(storage, output, table) for table in tables)


def _shown(storage: Storage, output: str, table: TableTarget) -> TableShown:
    number = 0
    try:
        target = opened(storage, output, table)
        number = target.committed()
        now = publish.newest(storage, output) if number else Snapshot(0)
        missing = sorted(set(now.nights()).difference(target.dates()))[-_SAID:] if now.number == number else []
        nights = change(storage, output, number, now, missing).nights if missing else {}
    except (StorageError, JobError) as error:
        return TableShown(table.kind, table.uri, number, str(error))
    lacks = tuple(date for date, night in nights.items() if night and (night.problem or night.uris))
    return TableShown(table.kind, table.uri, number, lacks=lacks)


def commit(
    storage: Storage, output: str, tables: Iterable[TableTarget], dates: Collection[str] | None = ()
) -> list[str]:
    """Commit what is published now to each table. Returns a sentence for each table that could not be changed, and for
    each night that a table does not show.

    dates: those of which a night that an earlier commit left out is tried again; None for all, of which the files are
    compared, too.
    """
    problems = []
    for table in tables:
        try:
            problems += [f"{table.uri}: {problem}" for problem in _commit(storage, output, table, dates)]
        except (StorageError, JobError) as error:
            said = str(error).removeprefix(f"{table.uri}: ").rstrip(".")
            problems.append(f"{table.uri} does not show it: {said}")
    return problems


def _commit(storage: Storage, output: str, table: TableTarget, dates: Collection[str] | None) -> list[str]:
    target = opened(storage, output, table)
    for _ in range(_MAX_ROUNDS):
        # Read in this order: a table that says a later publication was made of some that are lost, and is made anew.
        committed, now = target.committed(), publish.newest(storage, output)
        if not now.number:
            return []
        there = target.dates()
        missing = set(now.nights()).difference(there)
        if dates is not None:
            missing.intersection_update(dates)
        else:
            # A restored table has files of an older publication, and says the number of the newest one all the same.
            missing.update(date for date, unchanged in there.items() if unchanged)
        if committed == now.number and not missing:
            return []
        left = target.commit(change(storage, output, committed, now, missing))
        if left is not None:
            return _sentences(left)
    raise StorageError("others commit to the table faster than this command can; try again")


def _sentences(left: list[Files]) -> list[str]:
    said = [f"the run {each.run_id!r} of {each.date} is not in it: {each.problem}" for each in left[-_SAID:]]
    more = len(left) - len(said)
    return [*said, f"{counted(more, 'earlier night')} not shown either"] if more else said


def change(storage: Storage, output: str, committed: int, now: Snapshot, missing: Collection[str] = ()) -> Change:
    """What a table lacks that says the snapshot of number `committed`, 0 for none. missing: dates of
    which it may lack the night, too.
    """
    before = _said(storage, output, committed)
    nights, dates = now.nights(), sorted({*missing, *now.dates_unlike(before or Snapshot(0))})

    def read(date: str) -> Files | None:
        run = nights.get(date)
        return _read(storage, output, run, now.runs[run]) if run else None

    return Change(now.number, dict(zip(dates, at_once(read, dates), strict=True)), only=before is None)


def _said(storage: Storage, output: str, number: int) -> Snapshot | None:
    """The snapshot that a table says; None if it is gone or cannot be read."""
    if number == 0:
        return Snapshot(0)
    with suppress(JobError, Damaged):
        return publish.snapshot(storage, output, number)
    return None


def _read(storage: Storage, output: str, run: str, entry: Published) -> Files:
    try:
        night = night_of(storage, output, 0, run, entry)
        night.columns  # noqa: B018 (read here, beside other nights)
    except (Missing, JobError, pa.ArrowInvalid) as error:
        # Somebody deleted or changed it: no other night must suffer for that.
        folder, problem = revision_in(output, run, entry.revision), str(error)
        if next(storage.list(folder), None) is None:
            problem = f"{folder} was deleted; restore it, or take the night away with `nightjar unpublish JOB {run}`"
        return Files(storage, 0, run, entry.date, problem=problem)
    return night


def late_tables(tables: Iterable[TableShown], newest: int, published: bool) -> tuple[TableShown, ...]:
    """The tables that are behind what readers of the files see, or cannot be asked. newest: the number of the newest
    publication of the output. published: whether it shows a night; where it shows none there may be no table yet.
    """
    return tuple(
        each
        for each in tables
        if each.problem or each.lacks or (each.publication < newest and (published or each.publication))
    )
