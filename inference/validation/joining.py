"""Joins labels to the rows of a night by their keys: exactly, at any size, in bounded memory.

The rows, and then the labels, are divided by the hash of their key. Then one division at a time is joined. The rows of
a division are in memory together; its labels are read a block at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.errors import JobError
from nightjar.inference.metrics.columns import nan_as_null, plain
from nightjar.inference.validation.dividing import blocks, divide, divisions
from nightjar.inference.validation.joinkeys import keys_of, shown, whole


@dataclass(slots=True, kw_only=True)
class Counts:
    """What a join found, in rows. keyless: rows of the night with a null in their key, which no label can find.
    repeated_rows: those whose key an earlier row has. labels: all that were read. null_labels: those without a value.
    unmatched_labels: those with a value, whose key no row has. repeated_labels: those that say again what another one
    said.
    """

    rows: int = 0
    labelled: int = 0
    keyless: int = 0
    repeated_rows: int = 0
    labels: int = 0
    null_labels: int = 0
    unmatched_labels: int = 0
    repeated_labels: int = 0


@dataclass(slots=True)
class Join:
    """One join. folder: an empty one on the local disk. key: the columns that rows and labels have in common. rows:
    about as many as the night has. counts: of what was joined so far. some_key: the first key of the rows, and that of
    the labels, for people.
    """

    folder: Path
    key: Sequence[str]
    rows: int
    counts: Counts = field(default_factory=Counts)
    some_key: list[str] = field(default_factory=lambda: ["", ""])
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
        divide((self._keyed(each, wanted) for each in night), mine, into)
        divide((self._of_file(*each, label) for each in labels), theirs, into)
        for index in range(into):
            said = blocks(theirs, index)
            if rows := list(blocks(mine, index)):
                yield self._labelled(pa.concat_tables(rows), said)
            else:
                self.counts.unmatched_labels += sum(each.num_rows for each in said)

    def _keyed(self, rows: pa.Table, wanted: Sequence[str]) -> pa.Table:
        keys = keys_of([rows[name] for name in self.key])
        self.counts.rows += len(keys)
        self.counts.keyless += keys.null_count
        self._note(0, keys)
        return pa.table([keys, *(plain(rows[name]) for name in wanted)], ["", *wanted])

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

    def _note(self, side: int, keys: pa.Array | pa.ChunkedArray) -> None:
        if not self.some_key[side] and len(there := keys.drop_null()):
            self.some_key[side] = shown(there[0].as_py(), self.key)

    def _labelled(self, rows: pa.Table, said: Iterator[pa.Table]) -> tuple[pa.Table, pa.Array]:
        keys = rows.column(0).combine_chunks().dictionary_encode()
        known = _Known(keys.dictionary, list(self._files), self.key)
        for block in said:
            known.add(block, self.counts)
        labels = known.labels_of(keys.indices)
        self.counts.repeated_rows += len(keys) - keys.null_count - len(keys.dictionary)
        self.counts.labelled += len(labels) - labels.null_count
        return rows.select(range(1, rows.num_columns)), labels


class _Known:
    """What the labels say of the keys of one division."""

    def __init__(self, keys: pa.Array, files: Sequence[str], names: Sequence[str]) -> None:
        self._keys, self._files, self._names = keys, files, names
        self._at = np.full(len(keys), -1, np.int64)  # of each key the index of its label below
        self._labels: pa.Array | None = None
        self._from = np.empty(0, np.int32)  # the file of each label

    def add(self, block: pa.Table, counts: Counts) -> None:
        """Add labels, of which each has a value.

        Raises:
            JobError: One differs from an earlier one of its key.
        """
        found = pc.index_in(block.column(0), value_set=self._keys)
        counts.unmatched_labels += found.null_count
        block = block.filter(found.is_valid())
        keys = found.drop_null().to_numpy()
        labels, files = whole(block["label"]), block["file"].to_numpy()
        first = np.full(len(self._at), -1, np.int64)
        first[keys[::-1]] = np.arange(len(keys))[::-1]  # of each key the first of its labels here
        new = np.flatnonzero((first >= 0) & (self._at < 0))
        first = first[new]
        counts.repeated_labels += len(keys) - len(new)
        if len(new):
            self._at[new] = len(self._from) + np.arange(len(new))
            more = labels.take(pa.array(first))
            self._labels = more if self._labels is None else pa.concat_arrays([self._labels, more])
            self._from = np.concatenate([self._from, files[first]])
        if len(new) < len(keys):
            assert self._labels is not None
            before = self._labels.take(pa.array(self._at[keys]))
            if len(wrong := pc.indices_nonzero(pc.not_equal(before, labels))):
                at = wrong[0].as_py()
                raise self._contradiction(keys[at], before[at], labels[at], self._files[files[at]])

    def labels_of(self, keys: pa.Array) -> pa.Array:
        """The label of each key, given by its index; null where there is none."""
        if self._labels is None:
            return pa.nulls(len(keys))
        at = pa.array(self._at, mask=self._at < 0).take(keys)
        return self._labels.take(at)

    def _contradiction(self, key: int, one: pa.Scalar, other: pa.Scalar, file: str) -> JobError:
        named = shown(self._keys[int(key)].as_py(), self._names)
        first = self._files[self._from[self._at[key]]]
        where = f"both in {file}" if first == file else f"in {first} and {file}"
        return JobError(
            f"labels: {named} has the label {one.as_py()!r} and the label {other.as_py()!r}, {where}; leave one of "
            "them out, or name all the columns that make a row's key"
        )
