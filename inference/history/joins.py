"""Joins rows by their keys: labels to the rows of a night, and the rows of two runs. Exactly, at any size, in bounded
memory.

The rows of both sides are divided by the hash of their key among files on the local disk. Then one division at a time
is joined. Of labels, the rows of a division are in memory together, and its labels are read a block at a time. Of two
runs, the distinct keys of a division are in memory together, and the rows whose key both runs have. A key that several
rows of a run have does not say which row is meant, so that none of these rows is paired.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.errors import JobError, StorageError
from nightjar.inference.history.joinkeys import keys_of, shown
from nightjar.inference.metrics.columns import nan_as_null, plain
from nightjar.inference.metrics.keyhash import hashes
from nightjar.inference.validation.evaluations import LabelsJoined

BLOCK_ROWS = 1 << 20
"""The most rows that are divided, or looked up, at a time; and about the rows of a division."""

BLOCK_BYTES = 1 << 27
"""The same bound in bytes, for wide rows."""

_MOST = 256
"""The most divisions, each of which is an open file. Rows of more than so many blocks need more memory."""


@dataclass(slots=True)
class Join:
    """One join."""

    folder: Path
    """An empty folder on the local disk."""

    key: Sequence[str]
    """The columns that rows and labels have in common."""

    rows: int
    """About as many rows as the night has."""

    counts: LabelsJoined = field(default_factory=LabelsJoined)
    """Counts of what was joined so far."""

    some_key: list[str] = field(default_factory=lambda: ["", ""])
    """The first key of the rows, and the first key of the labels, for people; empty where none was seen."""

    _files: dict[str, int] = field(default_factory=dict)

    def joined(
        self,
        night: Iterable[pa.Table],
        wanted: Sequence[str],
        labels: Iterable[tuple[str, pa.Table]],
        label: str,
    ) -> Iterator[tuple[pa.Table, pa.Array]]:
        """The wanted columns of the night's rows, in blocks, each with its labels; in no order.

        night: its rows, in blocks. labels: in blocks, each of one file, which is named first. label: the column with
        the label. A row without a label has a null.

        Raises:
            JobError: Two labels of one key differ. Names the key and the files.
            StorageError: The disk took no more.
        """
        into = divisions(self.rows)
        mine, theirs = self.folder / "rows", self.folder / "labels"
        divide((self._of_night(each, wanted) for each in night), mine, into)
        divide((self._of_file(*each, label) for each in labels), theirs, into)
        for index in range(into):
            said = blocks(theirs, index)
            if rows := list(blocks(mine, index)):
                yield self._labelled(pa.concat_tables(rows), said)
            else:
                self.counts.unmatched_labels += sum(each.num_rows for each in said)

    def _of_night(self, rows: pa.Table, wanted: Sequence[str]) -> pa.Table:
        found = _keyed(rows, self.key, wanted)
        self.counts.rows += found.num_rows
        self.counts.keyless += found.column(0).null_count
        self._note(0, found.column(0))
        return found

    def _of_file(self, file: str, labels: pa.Table, label: str) -> pa.Table:
        """Those that have a value, which NaN is not: key, label, file."""
        keys, values = keys_of([labels[name] for name in self.key]), nan_as_null(plain(labels[label]))
        at = self._files.setdefault(file, len(self._files))
        found = pa.table([keys, values, pa.array(np.full(len(keys), at, np.int32))], ["", "label", "file"])
        found = found.filter(values.is_valid())
        self.counts.labels += len(keys)
        self.counts.null_labels += len(keys) - found.num_rows
        self._note(1, found.column(0))
        return found

    def _note(self, side: int, keys: pa.ChunkedArray) -> None:
        if not self.some_key[side] and len(there := keys.drop_null()):
            self.some_key[side] = shown(there[0].as_py(), self.key)

    def _labelled(self, rows: pa.Table, said: Iterator[pa.Table]) -> tuple[pa.Table, pa.Array]:
        keys = rows.column(0).combine_chunks().dictionary_encode()
        self.counts.repeated_rows += len(keys) - keys.null_count - len(keys.dictionary)
        known: pa.Table | None = None
        for block in said:
            at = pc.index_in(block.column(0), value_set=keys.dictionary)
            mine = block.set_column(0, "key", at).filter(at.is_valid())
            self.counts.unmatched_labels += at.null_count
            both = mine if known is None else pa.concat_tables([known, mine])
            known = self._first_of_each_key(both, keys.dictionary)
            self.counts.repeated_labels += both.num_rows - known.num_rows
        labels = pa.nulls(len(keys))
        if known is not None:
            place = np.full(len(keys.dictionary), -1)
            place[known["key"].to_numpy()] = np.arange(known.num_rows)
            labels = known["label"].combine_chunks().take(pa.array(place, mask=place < 0).take(keys.indices))
        self.counts.labelled += len(labels) - labels.null_count
        return rows.select(range(1, rows.num_columns)), labels

    def _first_of_each_key(self, labels: pa.Table, names: pa.Array) -> pa.Table:
        """The first label of each key. labels: `key` is an index of `names`, `file` one of `self._files`."""
        keys, first = labels["key"].to_numpy(), np.full(len(names), -1)
        first[keys[::-1]] = np.arange(len(keys))[::-1]
        differ = pc.not_equal(labels["label"].take(pa.array(first[keys])), labels["label"])
        if not len(wrong := pc.indices_nonzero(differ)):
            return labels.take(pa.array(first[first >= 0]))
        other = wrong[0].as_py()
        two = labels.take(pa.array([first[keys[other]], other]))
        label, other_label = two["label"].to_pylist()
        files = [list(self._files)[file] for file in two["file"].to_pylist()]
        where = f"both in {files[0]}" if files[0] == files[1] else f"in {files[0]} and {files[1]}"
        raise JobError(
            f"labels: {shown(names[int(keys[other])].as_py(), self.key)} has the label {label!r} and the label "
            f"{other_label!r}, {where}; leave one of them out, or name all the columns that make a row's key"
        )


@dataclass(slots=True, kw_only=True)
class RunRows:
    """The rows of one of two runs. Each was joined, or is `keyless`, `repeated` or `only`."""

    rows: int = 0
    """All rows of the run."""

    keyless: int = 0
    """Rows with a null in their key."""

    repeated: int = 0
    """Rows whose key several rows of this run, or of the other one, have."""

    only: int = 0
    """Rows that are not repeated, and whose key the other run does not have."""

    def count(self, rows: np.ndarray, others: np.ndarray) -> None:
        """Count a division's keys, which so many rows of this run and of the other one have."""
        self.only += int(((rows == 1) & (others == 0)).sum())
        self.repeated += int(rows[(rows > 1) | (others > 1)].sum())


@dataclass(frozen=True, slots=True)
class Pairs:
    """Rows of both runs: those at the same place have the same key, which no other row has. keys: as of `keys_of`."""

    keys: pa.Array
    before: pa.Table
    now: pa.Table


@dataclass(slots=True)
class Pairing:
    """One pairing."""

    folder: Path
    """An empty folder on the local disk."""

    key: Sequence[str]
    """The columns that both runs have in common."""

    rows: int
    """About as many rows as the larger run has."""

    size: int
    """About as many bytes as the rows of the larger run have."""

    before: RunRows = field(default_factory=RunRows)
    """Counts of the rows of the first run, so far."""

    now: RunRows = field(default_factory=RunRows)
    """Counts of the rows of the second run, so far."""

    def pairs(self, before: Iterable[pa.Table], now: Iterable[pa.Table], wanted: Sequence[str]) -> Iterator[Pairs]:
        """The wanted columns of the rows that both runs have, in blocks, in no order.

        before, now: all rows of each run, in blocks.

        Raises:
            JobError: A time in a key is finer than a microsecond.
            StorageError: The disk took no more.
        """
        into = divisions(self.rows, self.size)
        one, other = self.folder / "before", self.folder / "now"
        divide((self._of_run(each, wanted, self.before) for each in before), one, into)
        divide((self._of_run(each, wanted, self.now) for each in now), other, into)
        for index in range(into):
            keys, (before_rows, now_rows) = _counted(blocks(one, index), blocks(other, index))
            self.before.count(before_rows, now_rows)
            self.now.count(now_rows, before_rows)
            paired = keys.filter(pa.array((before_rows == 1) & (now_rows == 1)))
            if len(paired):
                yield Pairs(paired, *(_aligned(blocks(folder, index), paired) for folder in (one, other)))

    def _of_run(self, rows: pa.Table, wanted: Sequence[str], side: RunRows) -> pa.Table:
        found = _keyed(rows, self.key, wanted)
        keys = found.column(0)
        side.rows += len(keys)
        side.keyless += keys.null_count
        return found.filter(keys.is_valid()) if keys.null_count else found


def _keyed(rows: pa.Table, key: Sequence[str], wanted: Sequence[str]) -> pa.Table:
    """The key of each row, as of `keys_of`, in a column without a name; and the wanted columns."""
    return pa.table([keys_of([rows[name] for name in key]), *(plain(rows[name]) for name in wanted)], ["", *wanted])


def _counted(*runs: Iterator[pa.Table]) -> tuple[pa.Array, np.ndarray]:
    """The distinct keys of a division of all runs, and for each run how many of its rows have each."""
    keys, counts = pa.array([], pa.large_binary()), np.zeros((len(runs), 0), np.int64)
    for run, rows in enumerate(runs):
        for block in rows:
            found = block.column(0).combine_chunks().dictionary_encode()
            new = found.dictionary.filter(pc.invert(pc.is_in(found.dictionary, value_set=keys)))
            keys, counts = pa.concat_arrays([keys, new]), np.pad(counts, ((0, 0), (0, len(new))))
            at = pc.index_in(found.dictionary, value_set=keys).to_numpy()
            counts[run, at] += np.bincount(found.indices.to_numpy(), minlength=len(at))
    return keys, counts


def _aligned(rows: Iterator[pa.Table], keys: pa.Array) -> pa.Table:
    """The rows with these keys, which are each there once, in their order; without the key."""
    tables, places = [], []
    for block in rows:
        at = pc.index_in(block.column(0), value_set=keys)
        tables.append(block.filter(at.is_valid()).select(range(1, block.num_columns)))
        places.append(at.drop_null().to_numpy())
    return pa.concat_tables(tables).take(pa.array(np.argsort(np.concatenate(places))))


def divisions(rows: int, size: int = 0) -> int:
    """The number of divisions for so many rows, which have so many bytes together."""
    return min(_MOST, max(1, -(-rows // BLOCK_ROWS), -(-size // BLOCK_BYTES)))


def divide(tables: Iterable[pa.Table], folder: Path, into: int) -> None:
    """Write rows to one file for each division that has any, by its index. The first column is the key; rows whose key
    is null are in one division.

    Raises:
        StorageError: The disk took no more.
    """
    with _on_disk(folder), ExitStack() as stack:
        folder.mkdir()
        files: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
        for block in _gathered(tables):
            which = (hashes([block.column(0).combine_chunks()], block.num_rows) % np.uint64(into)).astype(np.uint8)
            order = np.argsort(which, kind="stable")
            rows = block.take(pa.array(order)) if into > 1 else block
            edges = np.searchsorted(which[order], np.arange(into + 1))
            for index, (low, high) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
                if low == high:
                    continue
                if index not in files:
                    file = stack.enter_context(pa.OSFile(str(folder / str(index)), "wb"))
                    files[index] = stack.enter_context(pa.ipc.new_stream(file, rows.schema))
                files[index].write_table(rows.slice(low, high - low))


@contextmanager
def _on_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise StorageError(f"{folder}: {reason}; the environment variable TMPDIR names another place for it") from error


def blocks(folder: Path, division: int) -> Iterator[pa.Table]:
    """The rows of a division, in blocks; none if it has no file. folder: as given to `divide`."""
    path = folder / str(division)
    if path.exists():
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as batches:
            yield from _gathered(pa.Table.from_batches([batch]) for batch in batches)


def _gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Small tables together, as ones of about `BLOCK_ROWS` rows, or `BLOCK_BYTES`."""
    held: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        held.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows >= BLOCK_ROWS or size >= BLOCK_BYTES:
            yield pa.concat_tables(held)
            held, rows, size = [], 0, 0
    if held and (last := pa.concat_tables(held)).num_rows:
        yield last
