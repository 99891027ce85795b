"""Iceberg tables. pyiceberg reads the catalog and the metadata; the data files are read as Parquet.

`input.uri` is the table's location. Where the catalog is, and how to sign in there, pyiceberg finds in its own settings
(`~/.pyiceberg.yaml`, `PYICEBERG_CATALOG__LAKE__URI`), on the machine that runs the command. The workers need only the
snapshot's metadata file, whose location stands behind the snapshot's number. The newest snapshot is read with the
columns that the table has now, one that `snapshot` names with those that it had. Rows that are deleted by their
position are not read; tables with other kinds of deletions are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as is_

from nightjar.inference.arrow_types import is_list, list_of
from nightjar.inference.errors import InputChanged, JobError, Transient
from nightjar.inference.input.schemas import normalised, value_type
from nightjar.inference.input.sources.protocol import bound, path
from nightjar.inference.input.sources.tables import Mask, TableFile, TableSnapshot, TableSource
from nightjar.inference.job.options import text, whole
from nightjar.inference.storage.protocol import Storage

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.name_mapping import MappedField
    from pyiceberg.types import IcebergType, NestedField


# A file has the names that its columns had when it was written. A field in a column is found as the column itself is.
_NUMBER = b"PARQUET:field_id"
"""The key of a column's number in the metadata of a Parquet file's column."""


@dataclass(frozen=True)
class Column:
    """A column of a table, a field in one, the element of a list, or the key or the value of a map."""

    name: str
    """The name in the schema of the snapshot."""

    number: int
    """Iceberg's field id, which stays when the column is renamed."""

    names: frozenset[str]
    """The names of the column in files without column numbers."""

    default: object
    """The value of rows older than the column; None for null."""

    fields: tuple[Column, ...]
    """The fields in the column, in order; empty if it has none."""

    @property
    def path(self) -> str:
        """The number, and those of the fields in it: what the values of the column are found by."""
        return path(self.number, (each.path for each in self.fields))


def matched(own: Iterable[pa.Field], columns: tuple[Column, ...]) -> list[Column | None]:
    """The table's column for each field of a file, or None. If any field has a number, those without match none."""
    fields = list(own)
    numbers = {each.number: each for each in columns}
    if any(_NUMBER in (field.metadata or {}) for field in fields):
        return [numbers.get(int((field.metadata or {}).get(_NUMBER, -1))) for field in fields]
    names = {name: each for each in columns for name in each.names}
    return [names.get(field.name) for field in fields]


def renamed(kind: pa.DataType, column: Column, *, whole: bool) -> pa.DataType:
    """A file column's type, its fields named as in the table. whole: keep fields that the table has dropped."""
    inner = column.fields
    if is_.is_struct(kind):
        fields = list(kind)
        found = [
            _field(field, each, each.name, whole=whole) if each else field.with_name(f"\0{index}")
            for index, (field, each) in enumerate(zip(fields, matched(fields, inner), strict=True))
            if each or whole
        ]
        return pa.struct(found)
    if is_.is_map(kind) and len(inner) == 2:
        key, item = kind.key_field, kind.item_field
        return pa.map_(_field(key, inner[0], key.name, whole=whole), _field(item, inner[1], item.name, whole=whole))
    if is_list(kind) and len(inner) == 1:
        return list_of(kind, _field(kind.value_field, inner[0], kind.value_field.name, whole=whole))
    return kind


def _field(field: pa.Field, column: Column, name: str, *, whole: bool) -> pa.Field:
    return field.with_name(name).with_type(renamed(field.type, column, whole=whole))


@dataclass(frozen=True)
class IcebergSnapshot(TableSnapshot):
    """As `Snapshot`. columns: of the table, with the fields in them."""

    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Iceberg(TableSource):
    """The source of Iceberg tables."""

    uri: str = ""
    """The table's location, see `Source.at`."""

    catalog: str = ""
    """The option `catalog`: the name of a catalog in pyiceberg's settings; '' for pyiceberg's default."""

    table: str = ""
    """The option `table`: the table's name in the catalog."""

    snapshot: int | None = None
    """The option `snapshot`: the number of the snapshot to read; None for the newest."""

    name = "Iceberg"
    mark = "metadata/*.metadata.json"
    extra = "iceberg"
    options = (
        text("catalog", "the name of a catalog in pyiceberg's settings", "pyiceberg's default", r"\S+", "a name"),
        text("table", "the table's name in the catalog; it must be named", "none", r"\S+", "a name as shop.sales"),
        whole("snapshot", "the snapshot of this number", "the newest", "the number of a snapshot"),
    )

    def at(self, uri: str) -> Self:
        if not self.table:
            raise JobError("input.options.table: write the table's name in the catalog, as shop.sales")
        return super().at(uri)

    def opened(self, storage: Storage, number: str | None) -> TableSnapshot | None:
        with self._as_ours(number is not None):
            table = self._table(storage, number)
            wanted = self.snapshot
            found = None if table is None else table.snapshot_by_id(wanted) if wanted else table.current_snapshot()
            if table is not None and wanted and found is None:
                raise JobError(f"input.options.snapshot: the Iceberg table {self.table} has no snapshot {wanted}")
            # The metadata of a number are those of which its snapshot was the newest, or has the columns of its own.
            return None if table is None or found is None else self._snapshot(storage, table, found.snapshot_id)

    def stored(self, snapshot: TableSnapshot, own: pa.Schema) -> Mapping[str, str]:
        """A column keeps its number when it is renamed. Files that were added to a table
        without being written for it have no numbers; of these the table says which names its columns have there.
        """
        assert isinstance(snapshot, IcebergSnapshot)
        found = zip(own.names, matched(own, snapshot.columns), strict=True)
        return {column.name: name for name, column in found if column}

    def as_named(
        self, snapshot: TableSnapshot, name: str, kind: pa.DataType, values: pa.ChunkedArray
    ) -> pa.ChunkedArray:
        column = _column(snapshot, name)
        whole = renamed(kind, column, whole=True)
        if whole == kind:
            return values
        same = pa.chunked_array([chunk.view(whole) for chunk in values.chunks], whole)
        return same.cast(renamed(kind, column, whole=False))

    def before(self, snapshot: TableSnapshot, name: str, kind: pa.DataType) -> pa.Scalar:
        default = _column(snapshot, name).default
        return super().before(snapshot, name, kind) if default is None else _scalar(default, kind)

    def _table(self, storage: Storage, number: str | None) -> Table | None:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError
        from pyiceberg.table import StaticTable

        settings = _settings(storage.options(self.uri))
        if number:
            return StaticTable.from_metadata(number.partition(" ")[2], settings)
        try:
            catalog = load_catalog(self.catalog or None, **settings)
        except ValueError as error:
            raise JobError(f"input.options.catalog: {' '.join(str(error).split())}") from error
        try:
            table = catalog.load_table(self.table)
        except NoSuchTableError:
            return None
        if (place := _plain(table.location()).rstrip("/")) != self.uri:
            raise JobError(f"input.uri: the Iceberg table {self.table} lies at {place}, not at {self.uri}")
        return table

    def _snapshot(self, storage: Storage, table: Table, number: int) -> TableSnapshot:
        scan = table.scan(snapshot_id=self.snapshot)
        schema = scan.projection()
        tasks = list(scan.plan_files())
        deleted = self._deleted(storage, tasks)
        columns = _columns(schema.fields, table.name_mapping() or ())
        arrow = _arrow(schema, columns)
        files = {}
        for task in tasks:
            self._check_kind(task.file, "data")
            place = _plain(task.file.file_path)
            own = _partition(task.file, table.specs()[task.file.spec_id], schema, arrow)
            files[place] = TableFile(task.file.file_size_in_bytes, own, _mask(deleted.get(place, [])))
        return IcebergSnapshot(f"{number} {table.metadata_location}", arrow, files, columns)

    def _deleted(self, storage: Storage, tasks: Iterable[FileScanTask]) -> dict[str, list[pa.ChunkedArray]]:
        from pyiceberg.manifest import DataFileContent

        found: dict[str, list[pa.ChunkedArray]] = {}
        for each in {file.file_path: file for task in tasks for file in task.delete_files}.values():
            if each.content != DataFileContent.POSITION_DELETES:
                raise JobError(
                    f"input.uri: the Iceberg table {self.table} has deletions by value; these are not read yet"
                )
            self._check_kind(each, "deletions")
            try:
                with storage.open(_plain(each.file_path)) as opened:
                    lines = pq.read_table(opened, columns=["file_path", "pos"])
            except (pa.ArrowException, OSError) as error:
                # Arrow reports undecodable bytes as OSError without an errno, too; a real I/O error has one.
                if getattr(error, "errno", None) is not None:
                    raise
                raise JobError(
                    f"input.uri: {_plain(each.file_path)}, with deletions of the Iceberg table {self.table}, is not a "
                    f"readable Parquet file: {error}"
                ) from error
            for place in lines["file_path"].unique().to_pylist():
                rows = lines.filter(pc.equal(lines["file_path"], place))
                found.setdefault(_plain(place), []).append(rows["pos"])
        return found

    def _check_kind(self, file: DataFile, what: str) -> None:
        if str(file.file_format).rpartition(".")[2].lower() != "parquet":
            raise JobError(f"input.uri: {what} of the Iceberg table {self.table} are {file.file_format}, not Parquet")

    @contextmanager
    def _as_ours(self, planned: bool) -> Iterator[None]:
        """Faults of pyiceberg and of what it asks as ours. Raises as `imported` and `opened`. planned: whether a plan
        has the snapshot.
        """
        errors = self.imported("pyiceberg.exceptions")
        try:
            yield
        except (errors.RESTError, OSError) as error:
            said = " ".join(str(error).split())
            if planned and isinstance(error, FileNotFoundError):
                raise InputChanged(
                    f"{self.uri}: the Iceberg table has the snapshot no more that this run reads ({said}); run again "
                    "to score the newest one. Snapshots must be kept for as long as runs read them"
                ) from error
            raise Transient(f"{self.uri}: {said}") from error
        except ValueError as error:
            said = " ".join(str(error).split())
            raise JobError(f"input.uri: the Iceberg table {self.table} cannot be read: {said}") from error


SOURCE = Iceberg()


def _plain(place: str) -> str:
    return "/" + place.removeprefix("file:").lstrip("/") if place.startswith("file:") else place


def _settings(options: Mapping[str, str]) -> dict[str, str]:
    names = {
        "aws_access_key_id": "s3.access-key-id",
        "aws_secret_access_key": "s3.secret-access-key",
        "aws_session_token": "s3.session-token",
        "aws_region": "s3.region",
        "aws_endpoint_url": "s3.endpoint",
    }
    return {names[name]: value for name, value in options.items() if name in names}


def _column(snapshot: TableSnapshot, name: str) -> Column:
    assert isinstance(snapshot, IcebergSnapshot)
    return next(each for each in snapshot.columns if each.name == name)


def _columns(fields: Iterable[NestedField], mapping: Iterable[MappedField]) -> tuple[Column, ...]:
    """Columns, or the fields in one. mapping: says which names they have in files without numbers; else their own."""
    given = {each.field_id: each for each in mapping}
    found = []
    for field in fields:
        mapped = given.get(field.field_id)
        names, below = ([field.name], []) if mapped is None else (mapped.names, mapped.fields)
        inner = _columns(_within(field.field_type), below)
        found.append(Column(field.name, field.field_id, frozenset(names), field.initial_default, inner))
    return tuple(found)


def _within(kind: IcebergType) -> Iterable[NestedField]:
    """The fields in a type: those of a struct, the element of a list, the key and the value of a map."""
    parts = (getattr(kind, name, None) for name in ("element_field", "key_field", "value_field"))
    return getattr(kind, "fields", None) or [each for each in parts if each is not None]


def _arrow(schema: Schema, columns: tuple[Column, ...]) -> pa.Schema:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    fields = zip(columns, normalised(schema_to_pyarrow(schema, include_field_ids=False)), strict=True)
    return pa.schema(
        [bound(pa.field(each.name, value_type(each.type), each.nullable), own.path) for own, each in fields]
    )


def _partition(file: DataFile, spec: PartitionSpec, schema: Schema, columns: pa.Schema) -> dict[str, pa.Scalar]:
    """The values of columns by which the table is partitioned as they are: a file may lack them."""
    from pyiceberg.transforms import IdentityTransform

    found = {}
    for index, field in enumerate(spec.fields):
        if isinstance(field.transform, IdentityTransform) and field.source_id in schema.field_ids:
            name = schema.find_column_name(field.source_id)
            if name is not None and name in columns.names:
                found[name] = _scalar(file.partition[index], columns.field(name).type)
    return found


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """A value of the table's metadata, in which dates and times may be whole numbers."""
    if not pa.types.is_temporal(kind) or not isinstance(value, int):
        return pa.scalar(value, kind)
    return pa.scalar(value, pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(kind)


def _mask(deleted: list[pa.ChunkedArray]) -> Mask | None:
    if not deleted:
        return None
    rows = np.concatenate([np.asarray(each) for each in deleted])
    kept = np.ones(int(rows.max()) + 1, dtype=bool)
    kept[rows] = False
    return kept
