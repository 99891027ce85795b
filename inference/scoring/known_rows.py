"""Rows of a shard that need no model: an earlier night has their outputs, or another row of the shard is the same."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nightjar.inference.errors import NightjarError
from nightjar.inference.identity.snapshots import File
from nightjar.inference.identity.unpacking import fetched
from nightjar.inference.output.parts import read_data
from nightjar.inference.output.rowindex import NOWHERE, IndexFile, IndexReader, PartsList, RowReuse, key_order, mapped
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.rowkeys import Keys, row_keys
from nightjar.inference.storage.protocol import Storage, join

_HELD_BYTES = 256 << 20
"""The most bytes of an earlier night's outputs that a process keeps: rows of a shard mostly lie in one or two parts."""


@dataclass(frozen=True)
class KnownRows:
    """What is known of a table's rows before one model scores them."""

    keys: Keys
    """The key of each row."""

    part: npt.NDArray[np.int32]
    """The part of the earlier night that has the row's outputs, by its place in the list of parts; else `NOWHERE`."""

    row: npt.NDArray[np.int32]
    """The row of that part."""

    twin: npt.NDArray[np.int64]
    """The first row of the table with the same key, which is scored for all of them."""

    outputs: pa.Table
    """The outputs of the rows that the earlier night has, in order."""

    @cached_property
    def to_score(self) -> Sequence[int]:
        """The rows that go to the model, ascending."""
        rows = len(self.part)
        found = np.flatnonzero((self.part == NOWHERE) & (self.twin == np.arange(rows)))
        return range(rows) if found.size == rows else found.tolist()


def earlier_rows(spec: WorkerSpec) -> EarlierRows | None:
    """What finds known rows; None if the job does not reuse rows."""
    return EarlierRows(spec.reuse, spec.patient_storage(), Path(spec.cache)) if spec.reuse else None


class EarlierRows:
    """Finds what is known of rows, from any thread. What cannot be read of the earlier night counts as not there, and
    is printed.
    """

    def __init__(self, reuse: RowReuse, storage: Storage, cache: Path) -> None:
        """Fetch the earlier night's index onto this node, and map it into memory."""
        self._reuse, self._storage = reuse, storage
        self._readers: dict[str, IndexReader] = {}
        self._held = OrderedDict[tuple[str, int], pa.Table]()
        self._lost = set[int]()
        self._reading = Lock()
        if reuse.index is not None:
            try:
                self._parts = PartsList(mapped(self._at_hand(reuse.index.parts, cache)))
                for name, identity in reuse.identities.items():
                    if (index := reuse.index.of(identity)) is not None:
                        paths = [self._at_hand(file, cache) for file in index.files]
                        self._readers[name] = IndexReader.of(index, paths)
            except (NightjarError, pa.ArrowException, OSError) as error:
                self._readers.clear()
                _say(f"the index of {reuse.source} cannot be read, so its rows are scored: {error}")

    def known(self, name: str, features: pa.Table, apart: Collection[int], types: pa.Schema | None = None) -> KnownRows:
        """What is known of rows before a model scores them.

        name: of the model. features: the columns that it sees. apart: rows that are scored or skipped whatever is
        known. types: of the outputs, to read them; without them only which rows are known is asked.
        """
        keys = row_keys(features, self._reuse.secret)
        order = key_order(keys[:, 0])
        high, low = keys[order, 0], keys[order, 1]
        part, row = (np.full(len(keys), NOWHERE, np.int32) for _ in range(2))
        reader = self._readers.get(name)
        if reader is not None:
            part[order], row[order] = reader.find(high, low)
        part[list(apart)] = NOWHERE
        twin = _twins(order, high, low, part, apart)
        found = (types or pa.schema([])).empty_table()
        if types is not None and reader is not None:
            with self._reading:
                found = self._outputs(reader, types, part, row)
        return KnownRows(keys, part, row, twin, found)

    def _at_hand(self, file: IndexFile, cache: Path) -> Path:
        return fetched("reuse", self._storage, File("", 0, file.sha256, join(self._reuse.folder, file.name)), cache)

    def _outputs(
        self, reader: IndexReader, types: pa.Schema, part: npt.NDArray[np.int32], row: npt.NDArray[np.int32]
    ) -> pa.Table:
        """The outputs of the known rows, in order. A row whose part cannot be read is no known one any more."""
        taken, rows = [types.empty_table()], [np.empty(0, np.int64)]
        for place in np.unique(part[part != NOWHERE]).tolist():
            at = np.flatnonzero(part == place)
            held = self._part(reader, types, place)
            if held is None:
                part[at] = NOWHERE
                continue
            taken.append(held.take(row[at]))
            rows.append(at)
        order = np.argsort(np.concatenate(rows), kind="stable")
        return pa.concat_tables(taken).take(order)

    def _part(self, reader: IndexReader, types: pa.Schema, place: int) -> pa.Table | None:
        """The outputs of one part; None if it cannot be read."""
        prefix = reader.index.prefix
        if (held := self._held.get((prefix, place))) is not None:
            self._held.move_to_end((prefix, place))
            return held
        if place in self._lost:
            return None
        shard, part = self._parts.part(place)
        try:
            data = read_data(self._storage, self._reuse.folder, part, shard)
            held = data.table([f"{prefix}{name}" for name in types.names]).rename_columns(types.names).cast(types)
        except (NightjarError, pa.ArrowException, OSError) as error:
            self._lost.add(place)
            _say(f"a part of {self._reuse.source} cannot be read, so its rows are scored: {error}")
            return None
        self._held[prefix, place] = held
        while len(self._held) > 1 and sum(each.nbytes for each in self._held.values()) > _HELD_BYTES:
            self._held.popitem(last=False)
        return held


def _twins(
    order: npt.NDArray[np.int64],
    high: npt.NDArray[np.uint64],
    low: npt.NDArray[np.uint64],
    part: npt.NDArray[np.int32],
    apart: Collection[int],
) -> npt.NDArray[np.int64]:
    """Of each row the first one with the same key, or itself if an earlier night has it, or it is scored apart.

    order: the rows by their keys, rows of one key ascending. high, low: the keys in this order.
    """
    twin = np.arange(len(order))
    same = np.flatnonzero(high[1:] == high[:-1]) + 1
    same = same[low[same] == low[same - 1]]
    if not same.size:
        return twin
    begins = np.arange(len(order))
    begins[same] = 0
    first = order[np.maximum.accumulate(begins)]
    apart = list(apart)
    alone = np.zeros(len(order), bool)
    alone[apart] = True
    at = order[same]
    good = ~alone[at] & ~alone[first[same]] & (part[at] == NOWHERE)
    twin[at[good]] = first[same][good]
    return twin


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
