"""Delta Lake tables. delta-rs (the package `deltalake`) reads the log; the data files are read as Parquet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from nightjar.inference.errors import JobError, Transient
from nightjar.inference.input.schemas import normalised
from nightjar.inference.input.sources.tables import Mask, TableFile, TableSnapshot, TableSource
from nightjar.inference.job.options import whole
from nightjar.inference.messages import clip
from nightjar.inference.storage.locations import as_url
from nightjar.inference.storage.protocol import Storage, join

if TYPE_CHECKING:
    from deltalake import DeltaTable

_READ = {"timestampNtz", "deletionVectors", "v2Checkpoint", "vacuumProtocolCheck", "typeWidening"}
"""The features of tables that change how they are read, and that are honoured here."""

_LOGGED = re.compile(r"/(\d{20})\.(json$|checkpoint)")
"""A file of the log: the number of its version, and whether it is a commit or a checkpoint."""


@dataclass(frozen=True)
class Delta(TableSource):
    """The source of Delta tables. version: the snapshot to read; None for the newest."""

    uri: str = ""
    version: int | None = None

    name = "Delta"
    mark = "_delta_log/*.json"
    extra = "delta"
    options = (
        whole("version", "the snapshot with this number", "the newest", what="the number of a version", least=0),
    )

    def opened(self, storage: Storage, number: str | None) -> TableSnapshot | None:
        with self._as_ours():
            table = self._table(storage, int(number) if number else None)
            return None if table is None else self._snapshot(table)

    def stored(self, snapshot: TableSnapshot, own: pa.Schema) -> Mapping[str, str]:
        """Delta Lake finds columns by their names."""
        return {name: name for name in own.names}

    def _table(self, storage: Storage, number: int | None) -> DeltaTable | None:
        """The table, at a version of this number, or else at the one that the option names."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            table = DeltaTable(as_url(self.uri, "input.uri: "), storage_options=storage.options(self.uri))
        except TableNotFoundError:
            return None
        newest = table.version()
        wanted = self.version if number is None else number
        if wanted is not None:
            try:
                table.load_as_version(wanted)
            except DeltaError as error:
                if self._is_kept(storage, wanted):
                    raise
                raise self.no_version(wanted, newest, planned=number is not None) from error
        return table

    def _is_kept(self, storage: Storage, version: int) -> bool:
        """Whether the log still has all that makes this version: a checkpoint at or before it, or else the first
        commit, and every commit from there on.
        """
        numbers: dict[str, set[int]] = {"json": set(), "checkpoint": set()}
        for entry in storage.list(join(self.uri, "_delta_log")):
            if found := _LOGGED.search(entry.uri):
                numbers[found[2]].add(int(found[1]))
        first = max((number for number in numbers["checkpoint"] if number <= version), default=-1)
        return numbers["json"].issuperset(range(first + 1, version + 1))

    def _snapshot(self, table: DeltaTable) -> TableSnapshot:
        self._check_features(table)
        schema = normalised(pa.schema(table.schema().to_arrow()))
        actions = pa.table(table.get_add_actions(flatten=True))
        values = {
            name: actions[f"partition.{name}"].cast(schema.field(name).type)
            for name in table.metadata().partition_columns
            if f"partition.{name}" in actions.column_names
        }
        masks = _masks(table)
        files = {}
        for index, (path, size) in enumerate(
            zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True)
        ):
            uri, own = self._uri_of(path), {name: column[index] for name, column in values.items()}
            files[uri] = TableFile(size, own, masks.pop(uri, None))
        if masks:
            raise JobError(f"input.uri: the Delta table {self.uri} has deletions of a file that it lacks: {min(masks)}")
        return TableSnapshot(str(table.version()), schema, files)

    def _uri_of(self, path: str) -> str:
        """The location of a data file; the log has it encoded as in a URL, most often relative to the table."""
        found = unquote(path).removeprefix("file://")
        return found if found.startswith("/") or "://" in found else join(self.uri, found)

    def _check_features(self, table: DeltaTable) -> None:
        protocol = table.protocol()
        features = set(protocol.reader_features or ())
        if table.metadata().configuration.get("delta.columnMapping.mode", "none") == "none":
            features -= {"columnMapping"}
        elif protocol.min_reader_version == 2:
            features |= {"columnMapping"}
        if unknown := sorted(features - _READ):
            raise JobError(f"input.uri: the Delta table {self.uri} uses {unknown[0]}, which is not supported yet")

    @contextmanager
    def _as_ours(self) -> Iterator[None]:
        """Faults of delta-rs and of its storage as ours. Raises as `imported`."""
        errors = self.imported("deltalake.exceptions")
        try:
            yield
        except (errors.DeltaError, OSError) as error:
            said = " ".join(line.strip() for line in str(error).splitlines()[:3])
            raise Transient(f"{self.uri}: the Delta table cannot be opened: {clip(said)}") from error


SOURCE = Delta()


def _masks(table: DeltaTable) -> dict[str, Mask]:
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    found = pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all()
    return {
        unquote(file).removeprefix("file://"): np.asarray(mask.values.to_numpy(zero_copy_only=False), dtype=bool)
        for file, mask in zip(found["filepath"].to_pylist(), found["selection_vector"], strict=True)
    }
