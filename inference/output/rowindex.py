"""The index of a night's rows: for the key of a row, the part and the row there that have the row's outputs.

A worker writes the keys of a part's rows beside the part, `sidecars/<base>.keys`. The audit sorts them into the index,
`index/…-<epoch>.arrow`: files of Arrow that processes map into memory, each with a range of keys, and one with the list
of the parts. A key takes 24 bytes. See `scoring.rowkeys` for keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

INDEX = "index"
"""The folder of a revision's index."""

BUCKETS = 256
"""Keys are divided by their first eight bits, so that a range of them is a range of buckets."""

NOWHERE = -1
"""In place of a part: no earlier night has the row's outputs."""


@dataclass(frozen=True)
class RowKeys:
    """The keys of the rows of one part, for one model. Arrays of one length: the rows of the part, in order."""

    high: npt.NDArray[np.uint64]
    """The first half of each key, by which an index is ordered first."""

    low: npt.NDArray[np.uint64]
    """The second half of each key. Both halves are 0 for a row that has no outputs of this model."""

    part: npt.NDArray[np.int32]
    """The part of the earlier night that the outputs were taken from, by its place in that night's list of parts;
    `NOWHERE` if the row was scored."""

    row: npt.NDArray[np.int32]
    """The row of that part."""


ENTRY = np.dtype([("high", "<u8"), ("low", "<u8"), ("part", "<i4"), ("row", "<i4")])
"""An entry of an index, by the names of `RowKeys`: the row with this key lies there."""

_NAMES = ("high", "low", "part", "row")


def key_order(high: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """The order of keys by their first halves. Of equal keys the first one stays the first."""
    # Two radix sorts, of 16 bits each, leave few keys out of order for the last sort: a third of the time of one sort.
    order = np.argsort((high >> np.uint64(32)).astype(np.uint16), kind="stable")
    order = order[np.argsort((high >> np.uint64(48)).astype(np.uint16)[order], kind="stable")]
    return order[np.argsort(high[order], kind="stable")]


def keys_to_bytes(models: Sequence[RowKeys]) -> pa.Buffer:
    """The keys of a part for each model of the job, in order. Where nothing was reused, it is not written."""
    columns = {
        f"{at}.{name}": getattr(keys, name)
        for at, keys in enumerate(models)
        for name in _NAMES
        if name in ("high", "low") or (keys.part != NOWHERE).any()
    }
    return _written(pa.table(columns))


def keys_from_bytes(data: pa.Buffer | bytes) -> tuple[RowKeys, ...]:
    """The inverse of `keys_to_bytes`."""
    table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
    nowhere = np.full(table.num_rows, NOWHERE, np.int32)
    found = []
    for at in range(sum(name.endswith(".high") for name in table.column_names)):
        named = {name: f"{at}.{name}" for name in _NAMES}
        given = {name: _array(table, column) for name, column in named.items() if column in table.column_names}
        found.append(RowKeys(**{"part": nowhere, "row": nowhere, **given}))
    return tuple(found)


def _array(table: pa.Table, name: str) -> npt.NDArray[Any]:
    # One chunk as it is: a file that is mapped into memory is not copied.
    found: npt.NDArray[Any] = table[name].chunk(0).to_numpy() if table.num_rows else np.empty(0, np.int32)
    return found


def _written(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue()


# ---- the index ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One file of an index."""

    name: str
    """Relative to the revision."""

    sha256: str
    """Of its content."""

    low: int = 0
    """The first bucket of its keys."""

    high: int = BUCKETS
    """The bucket after the last one of its keys."""


@dataclass(frozen=True, slots=True)
class ModelIndex:
    """The index of the outputs of one model."""

    identity: str
    """What scored them: the same identity gives the same outputs for the same key."""

    prefix: str
    """Of the names of the columns with its outputs."""

    files: tuple[IndexFile, ...]
    """In the order of their buckets."""


@dataclass(frozen=True, slots=True)
class NightIndex:
    """The index of a revision."""

    parts: IndexFile
    """The list of its parts."""

    rows: int
    """The rows that have a key in it."""

    models: tuple[ModelIndex, ...]
    """In the job's order."""

    row_s: float = 0.0
    """The seconds for which a worker prepares and scores a row."""

    def of(self, identity: str) -> ModelIndex | None:
        """The index of the outputs that this identity scored."""
        return next((each for each in self.models if each.identity == identity), None)


REUSED_KEY = b"nightjar.reused"


@dataclass(frozen=True, slots=True)
class ReusedRows:
    """What the footer of a part says of rows whose outputs were taken from an earlier night."""

    source: str
    """That revision, as `Revision.name`."""

    rows: tuple[int, ...]
    """How many there are, for each model of the job."""

    prefixes: tuple[str, ...]
    """Of the names that the model's outputs have in that revision, for each model of the job; '' if there are none."""

    parts: IndexFile
    """The list of its parts."""


@dataclass(frozen=True, slots=True)
class RowReuse:
    """What a worker needs to take outputs of rows from an earlier night."""

    secret: bytes
    """Under which the keys of all nights of the output are made."""

    identities: Mapping[str, str]
    """What scores, by the name of the model; as in `ModelIndex`."""

    source: str = ""
    """The earlier revision, as `Revision.name`; empty for none."""

    folder: str = ""
    """Its URI."""

    index: NightIndex | None = None
    """Its index."""


_PART_FIELDS = ("shard", "name", "rows", "size", "checksum")


def parts_to_bytes(table: pa.Table) -> pa.Buffer:
    """The list of a revision's parts. table: lines of `outcomes.OUTCOMES`, whose order gives each part its place."""
    data = table["data"].combine_chunks()
    columns = {name: pc.struct_field(data, name) for name in _PART_FIELDS[1:]}
    return _written(pa.table({"shard": table["shard"].combine_chunks(), **columns}))


def mapped(path: Path) -> pa.Buffer:
    """A file of this machine, mapped into memory."""
    with pa.memory_map(str(path)) as file:
        return file.read_buffer()


@dataclass(frozen=True)
class PartsList:
    """The list of a night's parts. content: of its file, mapped into memory or read."""

    content: pa.Buffer

    @cached_property
    def _table(self) -> pa.Table:
        return pa.ipc.open_file(pa.BufferReader(self.content)).read_all()

    def part(self, place: int) -> tuple[str, Mapping[str, Any]]:
        """The shard of the part at this place, and the part as in its receipt."""
        (line,) = self._table.slice(place, 1).to_pylist()
        return line.pop("shard"), line


def entries_to_bytes(entries: npt.NDArray[Any]) -> pa.Buffer:
    """A file of an index. entries: of the type `ENTRY`, sorted by `high`."""
    return _written(pa.table({name: np.ascontiguousarray(entries[name]) for name in _NAMES}))


@dataclass(frozen=True)
class IndexReader:
    """The index of one model, mapped into memory: the arrays of each of its files."""

    index: ModelIndex
    files: tuple[Mapping[str, npt.NDArray[Any]], ...]

    @classmethod
    def of(cls, index: ModelIndex, paths: Iterable[Path]) -> IndexReader:
        """Map the files of an index. paths: on this machine, in order."""
        tables = (pa.ipc.open_file(pa.BufferReader(mapped(path))).read_all() for path in paths)
        return cls(index, tuple({name: _array(table, name) for name in _NAMES} for table in tables))

    def find(
        self, high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """The part and the row of each key; `NOWHERE` for a key that is not there. high: ascending."""
        part, row = (np.full(len(high), NOWHERE, np.int32) for _ in range(2))
        for number, begin, end in self._ranges(high):
            entries = self.files[number]
            if not len(entries["high"]):
                continue
            at = np.minimum(np.searchsorted(entries["high"], high[begin:end]), len(entries["high"]) - 1)
            same = np.flatnonzero(entries["high"][at] == high[begin:end])
            same = same[entries["low"][at[same]] == low[begin:end][same]]
            part[begin:end][same], row[begin:end][same] = entries["part"][at[same]], entries["row"][at[same]]
        return part, row

    def _ranges(self, high: npt.NDArray[np.uint64]) -> Iterator[tuple[int, int, int]]:
        """The files that may have some of these keys, and which of the keys, (number, first, last + 1)."""
        buckets = high >> np.uint64(56)
        for number, file in enumerate(self.index.files):
            begin, end = (int(np.searchsorted(buckets, each)) for each in (file.low, file.high))
            if begin < end:
                yield number, begin, end
