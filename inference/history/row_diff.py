"""The rows of two runs whose outputs moved: each found in both by its key."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from nightjar.inference.arrow_types import row_bytes, type_name
from nightjar.inference.errors import JobError, Missing
from nightjar.inference.history.joinkeys import check_kinds, values_of
from nightjar.inference.history.joins import Pairing, Side
from nightjar.inference.history.movement import Movement, OutputMoved, incomparable, kind_of
from nightjar.inference.job.checks import UniqueCheck
from nightjar.inference.job.model import Job
from nightjar.inference.job.sections import LINEAGE
from nightjar.inference.ledger.lines import Published
from nightjar.inference.messages import nearest
from nightjar.inference.output.nights import Files, deleted, night_of
from nightjar.inference.output.reading import blocks
from nightjar.inference.storage.protocol import Storage
from nightjar.inference.validation.manifest import Manifest


@dataclass(frozen=True, slots=True)
class RunRows:
    """The rows of one of two runs. Each was joined, or is one of these.

    keyless: with a null in their key. repeated: whose key several rows of this run, or of the other one, have. only:
    whose key the other run does not have. some_only: the first keys of these, each as in `RowMoved`.
    """

    rows: int
    keyless: int
    repeated: int
    only: int
    some_only: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsCompared:
    """The rows of two runs, joined by a key. key: its columns. joined: the rows that both have."""

    key: tuple[str, ...]
    joined: int
    before: RunRows
    now: RunRows
    outputs: tuple[OutputMoved, ...]


@dataclass(frozen=True, slots=True)
class _Run:
    """One of the two runs. called: for people."""

    called: str
    files: Files
    schema: pa.Schema
    aside: frozenset[str] = field(default_factory=frozenset)

    @property
    def outputs(self) -> list[str]:
        return [name for name in self.schema.names if name not in self.aside]


def key_of(job: Job) -> tuple[str, ...]:
    """The columns that the job itself calls a row's key: of its late labels, or of its first check on keys."""
    if job.late_labels:
        return job.late_labels.key
    return next((check.unique for check in job.checks if isinstance(check, UniqueCheck)), ())


def moved(
    storage: Storage,
    output: str,
    runs: Sequence[tuple[str, Published, Manifest]],
    key: Sequence[str],
    most: int,
) -> RowsCompared:
    """Join the rows of two runs, and find those whose outputs moved most.

    runs: before, and now; each with its name. key: the columns of the key. most: rows to name of each output.

    Raises:
        JobError: A run lacks a column of the key, or the columns are never equal; or a list of shards is not what was
            written.
        StorageError: The storage refused or failed, or the local disk took no more.
    """
    before, now = (_run(storage, output, *each) for each in runs)
    for each in (before, now):
        _check_key(each, key)
    called = (f"the run {before.called}", f"the run {now.called}")
    check_kinds(key, before.schema, now.schema, called, "so that no row would find its other one")
    movements, others = _movements(before, now, len(key), most)
    wanted = list(movements)
    # Packed bytes tell of texts and lists of any length; unpacked ones of numbers that pack well.
    wide = row_bytes(pa.schema([before.schema.field(name) for name in (*key, *wanted)]))
    size = max(int(each.files.rows * wide) for each in (before, now))
    packed = max(each.files.bytes for each in (before, now))
    with tempfile.TemporaryDirectory(prefix="nightjar-diff-") as folder:
        pairing = Pairing(Path(folder), key, max(before.files.rows, now.files.rows), max(size, packed))
        joined = 0
        read = [_blocks(each, [*key, *wanted]) for each in (before, now)]
        for pairs in pairing.pairs(read[0], read[1], wanted):
            joined += len(pairs.keys)
            for name, movement in movements.items():
                movement.update(pairs.keys, pairs.before[name], pairs.now[name])
    found = {**{name: each.results() for name, each in movements.items()}, **others}
    names = dict.fromkeys((*now.outputs, *before.outputs))
    return RowsCompared(
        key=tuple(key),
        joined=joined,
        before=_rows(pairing.before, len(key)),
        now=_rows(pairing.now, len(key)),
        outputs=tuple(found[name] for name in names),
    )


def _run(storage: Storage, output: str, run: str, entry: Published, manifest: Manifest) -> _Run:
    try:
        files = night_of(storage, output, 0, run, entry)
        schema = files.dataset().schema
    except Missing as error:
        raise _deleted(run, entry.date, error) from error
    return _Run(run, files, schema, frozenset((*manifest.identity.get("carry", ()), *LINEAGE)))


def _check_key(run: _Run, key: Sequence[str]) -> None:
    if not run.files.rows:
        raise JobError(f"the run {run.called} has no rows that could be joined")
    for name in key:
        if name not in run.schema.names:
            known = run.schema.names
            more = nearest(name, known) or f"; it has {', '.join(known[:30])}; or carry it, and score the night again"
            raise JobError(f"key: {name!r} is not a column of the run {run.called}{more}")


def _movements(before: _Run, now: _Run, key: int, most: int) -> tuple[dict[str, Movement], dict[str, OutputMoved]]:
    """What will measure each output, and why other ones are not compared. key: its number of columns."""
    measured, others = {}, {}
    for name in dict.fromkeys((*now.outputs, *before.outputs)):
        one, other = (each.schema.field(name).type if name in each.outputs else None for each in (before, now))
        told = (None if one is None else type_name(one), None if other is None else type_name(other))
        if why := incomparable(one, other, (before.called, now.called)):
            others[name] = OutputMoved(output=name, why=why, types=told)
        else:
            measured[name] = Movement(name, kind_of(one), (str(told[0]), str(told[1])), most, key)
    return measured, others


def _blocks(run: _Run, columns: list[str]) -> Iterator[pa.Table]:
    try:
        yield from blocks(run.files.dataset(), list(dict.fromkeys(columns)), run.files.folder)
    except Missing as error:
        raise _deleted(run.called, run.files.date, error) from error


def _deleted(run: str, date: str, error: Missing) -> Missing:
    return Missing(deleted(run, f" ({error})", date))


def _rows(side: Side, key: int) -> RunRows:
    some = tuple(tuple(values_of(each, key)) for each in side.some_only)
    return RunRows(side.rows, side.keyless, side.repeated, side.only, some)
