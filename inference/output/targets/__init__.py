"""Publication targets: tables that also show what is published. A new kind is one module and one line in `TARGETS`.

The parts stay where they are, as Parquet. After a snapshot has made a night visible, a second step commits the snapshot
to each table of `output.tables`. The same transaction stores the snapshot's number in the table. So the step may fail,
be killed, be repeated, and run in two commands at once: the next command sees from the number what the table lacks. A
table that is several publications behind gets the newest one, in one transaction.

A night that cannot be read, or does not fit into the table, is left out, and no other night suffers for that. The table
has the number all the same, so what it lacks is then found by its dates. Each command tries the latest 20 of such
nights again, and those of its own dates; a command about all dates tries all of them.

If a date has several runs, a table has the same one as `dates/`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from nightjar.inference.errors import Damaged, JobError, Missing, StorageError
from nightjar.inference.job.model import Job
from nightjar.inference.job.outputtypes import arrow_type
from nightjar.inference.job.seams import TARGETS
from nightjar.inference.job.sections import TableTarget
from nightjar.inference.ledger.lines import Published
from nightjar.inference.messages import counted
from nightjar.inference.output import publications as publish
from nightjar.inference.output.nights import Files, night_of
from nightjar.inference.output.parts import checksum, output_schema, readers_schema
from nightjar.inference.output.publications import Snapshot
from nightjar.inference.output.revisions import revision_in
from nightjar.inference.storage.local import storage_error
from nightjar.inference.storage.protocol import Storage, join

_AT_ONCE = 8
"""The number of nights that are read at once; a new table may need thousands."""

_MAX_ROUNDS = 100

_SAID = 20
"""The most nights that a table lacks that are named, or tried again by a run: the latest ones. A new table may lack
years of nights.
"""


@dataclass(frozen=True)
class TableNight:
    """A published night for a table. columns: of its files, those that name their folders last; None without any file.

    problem: why the night cannot be read; then there are no files. gone: because somebody deleted all of it, as anybody
    may who needs the space.
    """

    date: str
    run: str
    files: Files
    columns: pa.Schema | None = None
    problem: str = ""
    gone: bool = False


@dataclass(frozen=True)
class Change:
    """A change of a table.

    number: of the snapshot. nights: date → the night that the table must show, in order; None to remove the date. only:
    remove all other dates, too, because it is not known what they were. again: the dates of these nights that an
    earlier commit left out.
    """

    number: int
    nights: Mapping[str, TableNight | None]
    only: bool = False
    again: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A published night that a table does not show. final: it never can, because the revision does not fit into it."""

    date: str
    run: str
    problem: str
    final: bool = False

    def __str__(self) -> str:
        return f"the run {self.run!r} of {self.date} {'cannot be' if self.final else 'is not'} in it: {self.problem}"


@dataclass(frozen=True, slots=True)
class TableShown:
    """One of the job's output.tables. kind: its format, as `delta`. publication: the one that it shows; 0 for none.

    problem: why this could not be looked up, or which nights of that publication it lacks, and why; else empty. final:
    it lacks only nights that do not fit into it, so that no command can commit them.
    """

    kind: str
    uri: str
    publication: int
    problem: str = ""
    final: bool = False


class Target(Protocol):
    """One table. Every method may raise `JobError` and `StorageError`."""

    def check(self, columns: pa.Schema, by: tuple[str, ...] = ()) -> None:
        """Check that the table can be written and can have these columns; changes nothing. by: as in
        `output.partition_by`.

        Raises:
            JobError: Something must be changed: the location, the columns, or a package that is not installed.
        """

    def committed(self) -> int:
        """The number of the snapshot that is stored in the table; 0 for none.

        Raises:
            JobError: Another program, or another output, made the table.
        """

    def dates(self) -> set[str]:
        """The dates that the table has files of, as `committed` found it."""

    def left_out(self, change: Change) -> list[LeftOut]:
        """The nights of a change that the table cannot show."""

    def commit(self, change: Change) -> list[LeftOut] | None:
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


def check(storage: Storage, job: Job, schema: pa.Schema) -> None:
    """Check that each table of the job can be written. schema: all columns of the input.

    Raises:
        JobError: As in `Target.check`. Names the key.
    """
    columns = readers_schema(output_schema(job, schema))
    for index, table in enumerate(job.output.tables):
        try:
            opened(storage, job.output.uri, table).check(columns, job.output.partition_by)
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
        left, earlier = _lacks(storage, output, target, number) if number else ([], 0)
    except (StorageError, JobError) as error:
        return TableShown(table.kind, table.uri, number, str(error))
    final = bool(left) and all(each.final for each in left)
    return TableShown(table.kind, table.uri, number, "; ".join(_sentences(left, earlier)), final)


def _lacks(storage: Storage, output: str, target: Target, number: int) -> tuple[list[LeftOut], int]:
    """The nights that a table lacks of the newest publication, if it says that one; and the number of earlier ones that
    it lacks, too, for which nobody can do anything.
    """
    now = publish.newest(storage, output)
    if now.number != number:
        return [], 0
    missing = sorted(set(now.nights()) - target.dates())
    looked_at = missing[-_SAID:]
    wanted = change(storage, output, number, now, looked_at)
    left = {each.date: each for each in target.left_out(wanted)}
    for date, night in wanted.nights.items():
        if night and night.columns is not None and date not in left:
            left[date] = LeftOut(date, night.run, "it can be committed now")
    return [left[date] for date in sorted(left)], len(missing) - len(looked_at)


def commit(
    storage: Storage, output: str, tables: Iterable[TableTarget], dates: Collection[str] | None = ()
) -> list[str]:
    """Commit what is published now to each table. Returns a sentence for each table that could not be changed, and for
    each night that a table does not show.

    dates: those that the command is about, None for all. A night of another date is not told of if it can never be in
    the table and an earlier commit left it out: somebody was told then, and nobody can mend it.
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
        missing = set(now.nights()) - target.dates()
        if dates is not None:
            missing = missing.intersection(dates).union(sorted(missing)[-_SAID:])
        if committed == now.number and not missing:
            return []
        wanted = change(storage, output, committed, now, missing)
        left = target.commit(wanted)
        if left is not None:
            known = wanted.again.difference(wanted.again if dates is None else dates)
            return _sentences([each for each in left if not each.final or each.date not in known])
    raise StorageError("others commit to the table faster than this command can; try again")


def _sentences(left: list[LeftOut], earlier: int = 0) -> list[str]:
    """earlier: the number of nights before these that a table lacks, too."""
    said = [str(each) for each in left[-_SAID:]]
    more = earlier + len(left) - len(said)
    return [*said, f"{counted(more, 'earlier night')} not shown either"] if more else said


def change(storage: Storage, output: str, committed: int, now: Snapshot, missing: Collection[str] = ()) -> Change:
    """What a table lacks that says the snapshot of number `committed`, 0 for none. missing: published dates that it has
    no files of.
    """
    before = _said(storage, output, committed)
    old, new = (_nights(each) if each else {} for each in (before, now))
    changed = {date for date in old.keys() | new.keys() if old.get(date) != new.get(date)}
    again = frozenset(missing) - changed
    dates = sorted(changed | again)

    def read(date: str) -> TableNight | None:
        return _read(storage, output, date, *new[date]) if date in new else None

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        nights = dict(zip(dates, pool.map(read, dates), strict=True))
    return Change(now.number, nights, only=before is None, again=again)


def _said(storage: Storage, output: str, number: int) -> Snapshot | None:
    """The snapshot that a table says; None if it is gone or cannot be read."""
    if number == 0:
        return Snapshot(0)
    with suppress(JobError, Damaged):
        return publish.snapshot(storage, output, number)
    return None


def _nights(snapshot: Snapshot) -> dict[str, tuple[str, Published]]:
    return {date: (run, snapshot.runs[run]) for date, run in snapshot.nights().items()}


def _read(storage: Storage, output: str, date: str, run: str, entry: Published) -> TableNight:
    try:
        files, columns = night_of(storage, output, 0, run, entry), None
        if files.uris:
            by = ((name, arrow_type(kind)) for name, kind in files.partitioned_by.items())
            columns = pa.schema([*_columns(storage, files.uris[0]), *by])
    except (Missing, JobError, pa.ArrowInvalid) as error:
        # Somebody deleted or changed it: no other night must suffer for that.
        folder, nothing = revision_in(output, run, entry.revision), Files(storage, 0)
        if next(storage.list(folder), None) is None:
            deleted = f"{folder} was deleted; restore it, or take the night away with `nightjar unpublish JOB {run}`"
            return TableNight(date, run, nothing, problem=deleted, gone=True)
        return TableNight(date, run, nothing, problem=str(error))
    return TableNight(date, run, files, columns)


def _columns(storage: Storage, uri: str) -> pa.Schema:
    """Those of a part; all parts of a night have the same."""
    with storage.open(uri) as file:
        try:
            return pq.read_schema(file)
        except OSError as error:
            raise storage_error(error, uri) from error


def late_tables(tables: Iterable[TableShown], newest: int, published: bool) -> tuple[TableShown, ...]:
    """The tables that are behind what readers of the files see, or cannot be asked. newest: the number of the newest
    publication of the output. published: whether it shows a night; where it shows none there may be no table yet.
    """
    return tuple(
        each for each in tables if each.problem or (each.publication < newest and (published or each.publication))
    )


def mendable(tables: Iterable[TableShown]) -> bool:
    """Whether a command can commit what one of them lacks."""
    return not all(each.final for each in tables)
