"""Lance datasets. The package `pylance` reads the versions, their deletions and the data files.

A fragment takes the place of a file; its first data file names it. Its `_row` counts the rows that the version has of
it. Lance writes no file twice, so what the version says of a fragment also names what is in its other data files.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nightjar.inference.arrow_types import row_bytes
from nightjar.inference.errors import InputCorrupt, JobError, Missing, Transient
from nightjar.inference.input.schemas import normalised
from nightjar.inference.input.sources.fitting import check_columns
from nightjar.inference.input.sources.protocol import Description, bound, path
from nightjar.inference.input.sources.tables import Snapshot, SnapshotSource
from nightjar.inference.job.options import whole as number
from nightjar.inference.records import Piece
from nightjar.inference.storage.locations import as_url
from nightjar.inference.storage.protocol import Entry, Storage, is_local, join

if TYPE_CHECKING:
    from lance import LanceDataset, LanceFragment

_CACHE_BYTES = 64 * 1024 * 1024
"""The most memory that an open version keeps of what it has read of its files' footers. Without it, it is 1 GiB."""

_FAULTS = (OSError, ValueError, RuntimeError, pa.ArrowException)
"""What Lance raises. The type does not say whether the storage failed or a file is damaged."""


@dataclass(frozen=True)
class Fragment:
    """A fragment of a version, as `tables.SnapshotFile`."""

    number: int
    """The number of the fragment."""

    rows: int
    """The rows of the fragment, without deleted ones."""

    size: int
    """The size of the first data file, in bytes; 0 if the version does not say."""

    content: str
    """A digest of all that the version says of the fragment."""

    others: Mapping[str, int]
    """URI → size in bytes of the other data files and the file of deletions; 0 if the version does not say."""


@dataclass(frozen=True)
class Lance(SnapshotSource[Fragment]):
    """The source of Lance datasets. version: the version to read; without it the newest."""

    uri: str = ""
    version: int = 0

    name = "Lance"
    mark = "_versions/*.manifest"
    extra = "lance"
    options = (number("version", "the version with this number", "the newest", what="the number of a version"),)

    def opened(self, storage: Storage, number: str | None) -> Snapshot[Fragment] | None:
        if next(iter(storage.list(join(self.uri, "_versions"))), None) is None:
            return None
        with self._as_ours():
            table = self._table(storage, number)
            fragments = dict(map(self._listed, table.get_fragments()))
            return Snapshot(str(table.version), _columns(table), fragments)

    def describe(self, storage: Storage, entry: Entry) -> Description:
        """Nothing is read; each file of the fragment must be there, with all its bytes."""
        snapshot, fragment = self.listed(storage, entry.uri, entry.version)
        for uri, size in {entry.uri: fragment.size, **fragment.others}.items():
            try:
                found = storage.stat(uri).size
            except Missing:
                raise InputCorrupt(f"{uri}: does not exist, {self.lost(snapshot.number)}") from None
            if size not in (0, found):
                raise InputCorrupt(f"{uri}: not a readable Lance file: it has {found:,} bytes, and had {size:,}")
        size = max(fragment.size + sum(fragment.others.values()), int(fragment.rows * row_bytes(snapshot.schema)), 1)
        return Description(snapshot.schema, (fragment.rows,), (size,))

    def read(self, storage: Storage, piece: Piece, schema: pa.Schema, most: int | None = None) -> pa.Table:
        """The version is opened each time, with the credentials of now."""
        snapshot, fragment = self.listed(storage, piece.uri, piece.version)
        check_columns(piece.uri, snapshot.schema, schema)
        for is_last in (False, True):
            with self._as_ours():
                table = self._table(storage, snapshot.number)
            try:
                return _rows(table, piece, fragment, schema)
            except _FAULTS as error:
                for uri in (piece.uri, *fragment.others):
                    try:
                        with storage.open(uri) as file:
                            file.read(1)
                    except Missing:
                        raise self.gone(replace(piece, uri=uri)) from None
                # The storage gives these files. If they cannot be read twice, it is their content.
                if is_last:
                    raise InputCorrupt(f"{piece.uri}: not a readable Lance file: {_said(error)}") from error
        raise AssertionError("the second time returns or raises")

    def _listed(self, found: LanceFragment) -> tuple[str, Fragment]:
        """A fragment, by the location of its first data file."""
        told, deletions = found.metadata.to_json(), found.deletion_file()
        files = [*told["files"], *(each["data_file"] for each in told["overlays"])]
        if any(each["base_id"] is not None for each in (*files, told["deletion_file"]) if each):
            raise JobError(
                f"input.uri: the Lance dataset {self.uri} has files outside its folder, which is not supported yet"
            )
        first, *others = ((join(self.uri, "data", each["path"]), each["file_size_bytes"] or 0) for each in files)
        content = sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:20]
        kept = found.metadata.num_rows
        named = {join(self.uri, deletions): 0} if deletions else {}
        return first[0], Fragment(found.fragment_id, kept, first[1], content, dict(others) | named)

    def _table(self, storage: Storage, number: str | None) -> LanceDataset:
        """The dataset at the version of this number, or else at the one that the options name. Raises as `opened`."""
        from lance import dataset

        uri = self.uri if is_local(self.uri) else as_url(self.uri, "input.uri: ")
        opened = partial(dataset, uri, storage_options=storage.options(uri), metadata_cache_size_bytes=_CACHE_BYTES)
        wanted = int(number) if number else self.version or None
        try:
            return opened(wanted)
        except _FAULTS:
            if wanted is None:
                raise
            newest = opened()
            if wanted in {each["version"] for each in newest.versions()}:
                raise
        raise self.no_version(wanted, newest.version, planned=bool(number))

    @contextmanager
    def _as_ours(self) -> Iterator[None]:
        """Faults of Lance and of its storage as ours. Raises as `imported`."""
        self.imported("lance")
        # Lance warns at each fork, also at those that start another program, as Ray's start does.
        warnings.filterwarnings("ignore", message="lance is not fork-safe")
        try:
            yield
        except NotImplementedError as error:
            raise JobError(f"input.uri: the Lance dataset {self.uri} cannot be read: {_said(error)}") from error
        except _FAULTS as error:
            raise Transient(f"{self.uri}: {_said(error)}") from error


SOURCE = Lance()


def _rows(table: LanceDataset, piece: Piece, fragment: Fragment, schema: pa.Schema) -> pa.Table:
    found = table.get_fragment(fragment.number)
    assert found is not None, "the version has it"
    scanner = found.scanner(
        columns=schema.names,
        offset=piece.first_row,
        limit=piece.rows,
        blob_handling="all_binary",
    )
    return scanner.to_table().select(schema.names)


def _columns(table: LanceDataset) -> pa.Schema:
    """The columns, normalised and bound to their numbers; blobs are read as bytes."""
    schema, numbers = table.schema, {each.name(): _number(each) for each in table.lance_schema.fields()}
    for index, field in enumerate(schema):
        if getattr(field.type, "extension_name", "").startswith("lance.blob"):
            schema = schema.set(index, pa.field(field.name, pa.large_binary(), field.nullable))
    return pa.schema([bound(each, numbers[each.name]) for each in normalised(schema)])


def _number(field: Any) -> str:
    """The number of a field, and those of the fields in it: a file's values are found by these, and not by names."""
    return path(field.id(), map(_number, field.children()))


def _said(error: BaseException) -> str:
    """An error's first line, without the places in Lance's own code."""
    return re.sub(r", /\S+\.rs:\d+:\d+", "", str(error).partition("\n")[0])
