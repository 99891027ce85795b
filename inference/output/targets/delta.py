"""Delta Lake tables, through delta-rs (the package `deltalake`): one transaction for each publication.

The table has a root of its own, since a vacuum deletes what the table does not know below its root. Few readers follow
paths in its log that lead out of that root. So each part gets a second name there: a hard link on a local disk, a copy
by the store itself in a bucket. Nothing is rewritten, and a vacuum of the table takes the second name only.

    <table>/_delta_log/
    <table>/date=2026-11-19/<run>/r1/<part>.parquet

`date` is the partition column: the night's logical time, a date or, of a job that is due several times a day, a text.
It is no column of the parts, and polars reads it from the path, not from the log. A second name is made of the night's
own names, so whoever repeats a commit that was killed finds what is there already.

The number of the snapshot is the version of an application transaction in the same commit; the application is the
output. delta-rs accepts a version that is equal or lower.

Each commit is tried once, at the version of the table that was read (`max_commit_retries=0`). delta-rs itself would try
it again at a later version: of two commands that make one table in a bucket at once, both would succeed.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from nightjar.inference.arrow_types import alike, not_told_apart
from nightjar.inference.errors import JobError, StorageError
from nightjar.inference.job.times import is_day
from nightjar.inference.messages import counted, install
from nightjar.inference.output import outcomes
from nightjar.inference.output.nights import Files
from nightjar.inference.output.targets import Change
from nightjar.inference.storage.locations import as_url
from nightjar.inference.storage.protocol import Storage, at_once, is_local, join

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable, Schema
    from deltalake.transaction import AddAction, RemoveAction

DATE = "date"
"""The table's partition column."""

_OWN = re.compile(rf"{DATE}=[^/]+/[^/]+/r\d+/[0-9a-f]+-\d{{6,}}-[0-9a-f]{{8}}\.parquet")
"""The path that `DeltaTarget` gives a part."""

_OURS, _THEIRS = "ours", "theirs"
_OURS_ALONE = frozenset({_OURS})
_THEN = "commit with `nightjar tables JOB`"


def open_target(storage: Storage, uri: str, output: str, owner: str) -> DeltaTarget:
    """The table at `uri`. owner: what names the output's transactions; empty if it has none yet.

    Raises:
        JobError: deltalake is not installed.
    """
    try:
        import deltalake  # noqa: F401 (an extra: whoever has no Delta table does without)
    except ImportError as error:
        raise JobError(f"Delta Lake needs another package ({error}); install it: {install('delta')}") from error
    return DeltaTarget(storage, uri, output, owner)


class DeltaTarget:
    """One Delta table, as `Target`."""

    def __init__(self, storage: Storage, uri: str, output: str, owner: str) -> None:
        self._storage, self._uri, self._output, self._owner = storage, uri, output, owner
        self._table: DeltaTable | None = None

    def check(self, columns: pa.Schema, date: str) -> None:
        if _bucket(self._uri) != _bucket(self._output):
            where = _bucket(self._output) or "a folder of this machine"
            raise JobError(f"{self._uri} must be where output.uri is ({where}), so that no part has to be read for it")
        self.committed()
        wanted = _delta_columns(columns)
        if self._table is not None:
            self._check_columns(wanted, date)

    def committed(self) -> int:
        self._table = self._open()
        if self._table is None:
            return 0
        version = self._table.transaction_version(self._owner) if self._owner else None
        if version is None:
            raise JobError(f"the Delta table at {self._uri} is not this output's; choose another place for the table")
        return version

    def dates(self) -> dict[str, bool]:
        files = self._files(self._table) if self._table else {}
        origins, found = self._origins(files), dict[str, bool]()
        for path, (date, _) in files.items():
            if _OURS in origins[path]:
                found[date] = found.get(date, True) and _OWN.fullmatch(path) is not None
        return found

    def commit(self, change: Change) -> list[Files] | None:
        nights, left = self._fitting(change)
        held = self._held(None if change.only else set(change.nights))
        wanted = {path: line for night in nights for path, line in self._linked(night)}
        added = [_add(path, *line) for path, line in wanted.items() if path not in held]
        if self._table is None:
            done = self._create(self._properties(change.number), added, nights[-1] if nights else None)
        else:
            removed = [_remove(path, size) for path, (_, size) in held.items() if path not in wanted]
            if removed and "deletionVectors" in (self._table.protocol().reader_features or ()):
                raise JobError(
                    f"the table {self._uri} has deletion vectors, and deltalake cannot remove a file that has one: its "
                    f"rows would be there twice. Drop the feature deletionVectors from the table; {_THEN}"
                )
            has_number = self._table.transaction_version(self._owner) == change.number
            done = (has_number and not added and not removed) or self._change(
                self._table, self._properties(change.number), [*added, *removed]
            )
        return left if done else None

    def _open(self) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        options = self._storage.options(as_url(self._uri))
        with self._as_ours():
            try:
                return DeltaTable(self._uri, storage_options=options)
            except TableNotFoundError:
                return None

    def _fitting(self, change: Change) -> tuple[list[Files], list[Files]]:
        """The nights that the table can show, and those that it cannot. A new table has the latest's columns."""
        nights = [night for night in change.nights.values() if night]
        latest = next((night for night in reversed(nights) if night.columns is not None), None)
        fitting, left = [], []
        for night in nights:
            if night.columns is not None and latest is not None:
                try:
                    self._check_columns(_delta_columns(night.columns), night.date, latest)
                    fitting.append(night)
                except JobError as error:
                    left.append(replace(night, problem=str(error)))
            elif night.problem:
                left.append(night)
        return fitting, left

    def _check_columns(self, wanted: dict[str, pa.DataType], date: str, latest: Files | None = None) -> None:
        """Check that the table, or before there is one the latest night, has these columns and can have this date."""
        if self._table:
            has, days = _columns_of(self._table.schema()), _has_days(self._table.schema())
        else:
            assert latest is not None
            has, days = _delta_columns(latest.columns), is_day(latest.date)
        said = [f"it lacks {name}" for name in wanted if name not in has]
        said += [f"it has {name} too" for name in has if name not in wanted]
        said += [
            f"its {name} is {kind}, not {wanted[name]}" for name, kind in has.items() if wanted.get(name, kind) != kind
        ]
        said += [f"its {DATE} is of days, and {date} is an instant"] if days and not is_day(date) else []
        if said:
            raise JobError(f"the table {self._uri} has other columns: {', '.join(said)}; choose another place for it")

    def _held(self, dates: set[str] | None) -> dict[str, tuple[str, int]]:
        """The files of these dates in the table with rows of this output, None for all: path → date and size.

        Raises:
            JobError: One of them has rows of another writer, too. Names it.
        """
        if self._table is None:
            return {}
        files = self._files(self._table)
        files = {path: line for path, line in files.items() if dates is None or line[0] in dates}
        origins = self._origins(files)
        if mixed := sorted(path for path in files if len(origins[path]) > 1):
            raise JobError(
                f"in the table {self._uri} {counted(len(mixed), 'file')} may have rows of another program beside "
                f"this output's, the first of {files[mixed[0]][0]}: {mixed[0]}. Nothing was changed. Copy rows that "
                f"are not this output's, delete all rows of that date from the table, {_THEN}, and append them again"
            )
        return {path: line for path, line in files.items() if _OURS in origins[path]}

    def _files(self, table: DeltaTable) -> dict[str, tuple[str, int]]:
        """All files of the table that have a date: path → date and size."""
        with self._as_ours():
            actions = pa.table(table.get_add_actions(flatten=True))
        lines = zip(*(actions[name].to_pylist() for name in ("path", f"partition.{DATE}", "size_bytes")), strict=True)
        # The log has paths encoded as in a URL. delta-rs gives them as they are there, and encodes those it is given.
        return {unquote(path): (str(date), size) for path, date, size in lines if date}

    def _origins(self, paths: Iterable[str]) -> dict[str, frozenset[str]]:
        """Whose rows each file has: `_OURS`, `_THEIRS`, or both, also where nobody knows. A file of another writer has
        the rows of those that its commit removed from the partition; and rows of its own, if it changes data.
        """
        known: dict[str, frozenset[str]] = {}

        def of(path: str) -> frozenset[str]:
            return _OURS_ALONE if _OWN.fullmatch(path) else known.get(path, _OURS_ALONE | {_THEIRS})

        def partition(action: Mapping[str, Any]) -> str:
            return json.dumps(action.get("partitionValues") or "", sort_keys=True)

        for actions in self._commits() if not all(map(_OWN.fullmatch, paths)) else ():
            sources = defaultdict[str, frozenset[str]](frozenset)
            for removed in (each["remove"] for each in actions if "remove" in each):
                sources[partition(removed)] |= of(unquote(removed["path"]))
            for added in (each["add"] for each in actions if "add" in each):
                rows = sources[partition(added)] | sources[partition({})]
                known[unquote(added["path"])] = rows | {_THEIRS} if added["dataChange"] or not rows else rows
        return {path: of(path) for path in paths}

    def _commits(self) -> Iterator[list[dict[str, Any]]]:
        log = (entry.uri for entry in self._storage.list(join(self._uri, "_delta_log")))
        for content in at_once(self._storage.read, filter(re.compile(r".*/\d{20}\.json").fullmatch, log)):
            yield [json.loads(line) for line in content.splitlines()]

    def _linked(self, night: Files) -> Iterator[tuple[str, tuple[int, int]]]:
        """Give the files of a night their second names; each path in the table, with size and rows."""
        folder = f"{DATE}={night.date}/{night.run_id}/r{night.revision}"
        there = {entry.uri: entry.size for entry in self._storage.list(join(self._uri, folder))}

        def link(name: str, size: int) -> str:
            path = f"{folder}/{name.partition('/')[2]}"
            if there.get(join(self._uri, path)) != size:
                self._storage.copy(join(night.folder, name), join(self._uri, path))
            return path

        parts = list(outcomes.lines(night.parts))
        paths = at_once(lambda part: link(part["name"], part["size"]), parts)
        for part, path in zip(parts, paths, strict=True):
            yield path, (part["size"], part["rows"])

    def _create(self, properties: CommitProperties, added: list[AddAction], latest: Files | None) -> bool:
        """Make the table, with the first publication in it; not before there is a night that says its columns."""
        from deltalake.transaction import create_table_with_add_actions

        if latest is None:
            return True
        return self._unless_overtaken(
            lambda: create_table_with_add_actions(
                self._uri,
                _schema(_delta_columns(latest.columns), days=is_day(latest.date)),
                added,
                partition_by=[DATE],
                storage_options=self._storage.options(self._uri),
                commit_properties=properties,
            )
        )

    def _change(self, table: DeltaTable, properties: CommitProperties, actions: list[AddAction | RemoveAction]) -> bool:
        return self._unless_overtaken(
            lambda: table.create_write_transaction(
                actions, "append", table.schema(), [DATE], commit_properties=properties
            )
        )

    def _unless_overtaken(self, commit: Callable[[], None]) -> bool:
        """Commit; False if another commit was faster, which delta-rs does not tell by the type of its error alone."""
        from deltalake.exceptions import DeltaError

        before = self._table.version() if self._table else -1
        with self._as_ours():
            try:
                commit()
            except DeltaError:
                now = self._open()
                if now is None or now.version() == before:
                    raise
                return False
        return True

    def _properties(self, number: int) -> CommitProperties:
        from deltalake import CommitProperties, Transaction

        return CommitProperties(
            custom_metadata={"nightjar": {"output": self._output, "publication": number}},
            max_commit_retries=0,
            app_transactions=[Transaction(self._owner, number)],
        )

    @contextmanager
    def _as_ours(self) -> Iterator[None]:
        """Faults of delta-rs and of its storage as ours."""
        from deltalake.exceptions import DeltaError

        try:
            yield
        except (DeltaError, OSError) as error:
            said = " ".join(line.strip() for line in str(error).splitlines()[:3])
            raise StorageError(f"{self._uri}: {said}") from error


def _add(path: str, size: int, rows: int) -> AddAction:
    from deltalake.transaction import AddAction

    return AddAction(path, size, _values(path), _now(), True, json.dumps({"numRecords": rows}))


def _remove(path: str, size: int) -> RemoveAction:
    from deltalake.transaction import RemoveAction

    return RemoveAction(path, True, _now(), size, _values(path))


def _values(path: str) -> dict[str, str | None]:
    """The value of the partition column of a file, which its folder in the table names."""
    return {DATE: path.removeprefix(f"{DATE}=").partition("/")[0]}


def _now() -> int:
    return int(time.time() * 1000)


def _bucket(uri: str) -> str:
    return "" if is_local(uri) else "/".join(uri.split("/")[:3])


def _delta_columns(columns: pa.Schema) -> dict[str, pa.DataType]:
    """Columns as Delta Lake keeps them.

    Raises:
        JobError: it has no such type, or some reader cannot read it; or two names are one to it.
    """
    if two := alike(columns):
        raise JobError(f"of the columns {not_told_apart(*two)}")
    for field in columns:
        if field.name.lower() == DATE:
            raise JobError(
                f"the column {field.name!r} is in the way: a Delta table has its nights by a column {DATE!r}"
            )
        if not _is_kept(field.type):
            raise JobError(
                f"the column {field.name!r} is {field.type}, which not every reader of a Delta table can read; of "
                "numbers choose a signed int or float32, of lists list<float32>, of times timestamp[us] or "
                "timestamp[us, UTC]; or leave the column out"
            )
    return _columns_of(_schema({field.name: field.type for field in columns}, days=True))


def _is_kept(kind: pa.DataType) -> bool:
    """Whether deltalake, polars and DuckDB find in the table what is in the parts."""
    is_ = pa.types
    if is_.is_struct(kind):
        return all(_is_kept(kind.field(index).type) for index in range(kind.num_fields))
    if is_.is_list(kind) or is_.is_large_list(kind):
        return _is_kept(kind.value_type)
    if is_.is_timestamp(kind):
        return kind.unit in {"ms", "us"} and kind.tz in {None, "UTC"}
    kept = (is_.is_boolean, is_.is_signed_integer, is_.is_float32, is_.is_float64, is_.is_date32, is_.is_decimal128)
    texts = (is_.is_string, is_.is_large_string, is_.is_binary, is_.is_large_binary, is_.is_fixed_size_binary)
    return any(test(kind) for test in (*kept, *texts))


def _schema(columns: dict[str, pa.DataType], *, days: bool) -> Schema:
    """days: whether the logical times are days, and not instants, for which Delta Lake has no type."""
    from deltalake import Schema

    return Schema.from_arrow(pa.schema([*columns.items(), (DATE, pa.date32() if days else pa.string())]))


def _has_days(schema: Schema) -> bool:
    return any(field.name == DATE and pa.types.is_date(field.type) for field in pa.schema(schema.to_arrow()))


def _columns_of(schema: Schema) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in pa.schema(schema.to_arrow()) if field.name != DATE}
