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
        keys = whole(rows.column(0)).dictionary_encode()
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
            labels = whole(known["label"]).take(pa.array(place, mask=place < 0).take(keys.indices))
        self.counts.labelled += len(labels) - labels.null_count
        return rows.select(range(1, rows.num_columns)), labels

    def _first_of_each_key(self, labels: pa.Table, names: pa.Array) -> pa.Table:
        """The first label of each key. labels: `key` is an index of `names`, `file` one of `self._files`.

        Raises:
            JobError: Two labels of one key differ. Names the key and the files.
        """
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
