"""Scores a table: outputs for the rows that can be scored, and a failure for each row that cannot.

This is pure: no Ray, no storage, no framework. Rows go to the scorer in micro-batches. A micro-batch that raises is cut
in two, again and again, down to the rows that fail alone; a row whose output is an exception fails at once. One that
runs out of memory is cut in two, and the smaller size is remembered. Every row ends exactly once, in
`ScoredRows.outputs` or in `ScoredRows.failures`. If only rows together fail, the attempt ends with `BatchesBroken`,
because scoring row by row would take all night; if they have not one value each, it ends at once.
"""

from __future__ import annotations

import contextlib
import itertools
import traceback
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from nightjar.inference.errors import (
    BatchesBroken,
    LengthInvalid,
    NightjarError,
    OutputInvalid,
    ProcessSpoilt,
    Unaligned,
)
from nightjar.inference.input.sources.rows import over_budget
from nightjar.inference.messages import clip, raised_at, traceback_of, utf8
from nightjar.inference.predictors.adapter import is_device_lost, is_memory
from nightjar.inference.predictors.outputs import RowsRaised
from nightjar.inference.records import RowFailure
from nightjar.inference.scoring.batchsize import BatchSize, Weighed
from nightjar.inference.scoring.prepared_batches import Batch, Preparer

ALLOWED = 16
"""The number of broken batches that every attempt may have; finding them takes only seconds."""

SHARE = 0.5
"""Broken batches allowed per batch scored whole, so that an attempt goes on if each batch fails once, but not its
halves."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """A batch that raised. failed: the number of rows that had failed before it was cut. unaligned: as in `cut`."""

    first: int
    last: int
    failed: int
    why: str
    unaligned: str

    @property
    def rows(self) -> str:
        return f"rows {self.first} to {self.last}"


class Cuts:
    """The batches that one attempt had to cut for another reason than memory.

    batches: micro-batches that raised and were scored in parts. broken: batches and parts that raised although no row
    failed alone. whole: batches of several rows that were scored at once. The attempt ends when there are more broken
    batches than `allowed`, and more than `share` × `whole`.

    It also ends at the first batch whose values cannot be assigned to its rows although those of its parts can: what
    the predictor returns for a row depends on the other rows, so earlier batches may have been wrong without a sign.
    """

    def __init__(self, allowed: int = ALLOWED, share: float = SHARE) -> None:
        self.batches = self.broken = self.whole = 0
        self._allowed, self._share = allowed, share
        self._around: list[_Cut] = []

    def cut(self, first: int, last: int, failed: int, why: str, unaligned: str) -> None:
        """Rows first to last raised, and are tried in two parts next. failed: the number of rows that failed so far.

        unaligned: why its values cannot be assigned to its rows, as a sentence; empty if they can.
        """
        self.batches += not self._around
        self._around.append(_Cut(first, last, failed, why, unaligned))

    def unaligned(self) -> str:
        """Of the largest unaligned batch around the rows that are tried now the sentence; else empty."""
        return next((f"{each.unaligned} ({each.rows})" for each in self._around if each.unaligned), "")

    def done(self, last: int, failed: int, *, whole: bool) -> None:
        """Rows up to `last` have outputs or have failed. whole: several rows were scored at once.

        Raises:
            BatchesBroken: Too many batches raise although no row fails alone, or one is unaligned.
        """
        self.whole += whole
        while self._around and self._around[-1].last == last:
            batch = self._around[-1]
            if batch.failed == failed:
                if batch.unaligned:
                    raise BatchesBroken(
                        f"{self.unaligned()}, and smaller batches of {batch.rows} are right, so that no row is to "
                        "blame. Mend how the code handles a batch: it must return one value for each row, in the "
                        "order of the rows or with the batch's own index, however many rows there are"
                    )
                self.broken += 1
                if self.broken > max(self._allowed, self._share * self.whole):
                    raise BatchesBroken(self._message(batch))
            self._around.pop()

    def _message(self, batch: _Cut) -> str:
        if self.whole:
            return (
                f"the predictor fails for batches though it can score each of their rows: {batch.rows} together raise "
                f"{batch.why}. Mend how it handles a batch, or give it smaller ones: model.batch_size"
            )
        return (
            f"the predictor fails for batches of more than one row: {batch.rows} together raise {batch.why}; each row "
            "alone is scored. Mend how it handles a batch, or set model.batch_size: 1"
        )


S = TypeVar("S")
T = TypeVar("T")
U = TypeVar("U")
ScoreRows = Callable[[pa.Table], dict[str, pa.Array]]
"""A function from n rows to exactly n values of each declared output; it may raise. `RowsRaised` costs single rows."""

_ScorerOf = Callable[[pa.Table, Sequence[int]], ScoreRows]
"""Rows, and their indices in the whole table → what scores these rows."""

_NO_ROWS = range(0)


@dataclass(frozen=True, slots=True)
class Ahead:
    """Yielded before any of rows [first, first + rows) go to the scorer, on each try. model: as in `RowFailure`."""

    first: int
    rows: int
    model: str = ""


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """The result of scoring a table."""

    outputs: pa.Table
    """The declared outputs of the kept rows, in input order."""
    kept: np.ndarray | None
    """The int64 indices of the kept rows in the table, of shape (kept rows,); None if all were kept."""
    failures: tuple[RowFailure, ...]
    """One for each other row, in input order. Of several models each has one for a row that it could not score, so a
    kept row may have failures, too."""


def drained(steps: Generator[Any, None, T], on_step: Callable[[Any], object] = lambda _: None) -> T:
    """Run a generator (usually `score_table`) to its end, and return its result."""
    while True:
        try:
            step = next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        on_step(step)


def relayed(steps: Generator[S, None, T], made: Callable[[S], U]) -> Generator[U, None, T]:
    """Run a generator, yield what is made of each of its steps, and return its result."""
    while True:
        try:
            step = next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        yield made(step)


def score_table(
    table: pa.Table,
    scorer: ScoreRows,
    size: BatchSize,
    types: dict[str, pa.DataType],
    *,
    skip: Mapping[int, RowFailure] = {},
    singly: range = _NO_ROWS,
    budget: int | None = None,
    origin: int = 0,
    index: Callable[[int], int] = int,
    cuts: Cuts | None = None,
    preparer: Preparer | None = None,
    ahead: bool = True,
    shipped: Sequence[Batch] = (),
) -> Generator[Ahead, None, ScoredRows]:
    """Score a table, yielding `Ahead` before each call of the scorer and returning `ScoredRows`.

    Micro-batches are counted off from the table's first row, so that results do not depend on how the table was read.
    skip: row → failure; these rows never go to the scorer. singly: rows that are each scored alone. origin: the index
    in the file of the first row that was read, for messages. index: of a row of the table the index among the rows that
    were read, some of which may have been left out. cuts: counts the batches that raise, over all tables of an attempt.
    preparer: scores in place of the scorer, and with `ahead` prepares the next micro-batch meanwhile; shipped: what it
    need not prepare.

    Raises:
        OverBudget: More than `budget` rows failed; raised as soon as they did.
        BatchesBroken: Too many batches raise though each of their rows can be scored; or one had not one value for each
            row, though smaller ones of the same rows have.
        NightjarError: The scorer raised one other than `OutputInvalid`, which is not about a row.
        ProcessSpoilt: This process has lost its device; the last `Ahead` named the rows.
    """
    tally = _Tally(types, budget, lambda row: origin + index(row), cuts or Cuts())
    skipped = sorted(skip)
    for row in skipped:
        if not 0 <= row < table.num_rows:
            raise ValueError(f"skip names row {row} of a table of {table.num_rows} rows")
        tally.fail(row, replace(skip[row], row=row))

    if preparer:
        preparer.start(shipped)
    scorer_of: _ScorerOf = preparer.take if preparer else lambda *_: scorer
    weighed = Weighed(table, size)
    first = 0
    while first < table.num_rows:
        whole = _micro_batch(table, first, weighed, singly)
        first += len(whole.rows)
        piece = _without(whole, skipped)
        ready = scorer_of(piece.table, piece.rows) if piece.rows else None
        if preparer and ahead and first < table.num_rows:
            following = _without(_micro_batch(table, first, weighed, singly), skipped)
            preparer.begin(following.table, following.rows)
        if ready is not None:
            yield from _score_piece(piece, scorer_of, size, weighed, tally, ready)
    if preparer:
        preparer.start(())
    return tally.scored(table.num_rows)


def micro_batches(table: pa.Table, size: BatchSize, skipped: list[int]) -> Iterator[Slice]:
    """The micro-batches that `score_table` begins with, less the rows to skip. skipped: ascending."""
    weighed = Weighed(table, size)
    first = 0
    while first < table.num_rows:
        whole = _micro_batch(table, first, weighed, _NO_ROWS)
        first += len(whole.rows)
        if (piece := _without(whole, skipped)).rows:
            yield piece


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows that go to the scorer together; `rows` are their indices in the whole table, ascending."""

    table: pa.Table
    rows: Sequence[int]

    def part(self, low: int, high: int) -> Slice:
        return Slice(self.table.slice(low, high - low), self.rows[low:high])

    def ahead(self) -> Ahead:
        return Ahead(self.rows[0], self.rows[-1] - self.rows[0] + 1)


@dataclass(frozen=True, slots=True)
class _Raised:
    """What a scorer raised, as text: holding the exception would hold its frames and their memory.

    unaligned: why its values cannot be assigned to its rows, if they cannot. where: as in `RowFailure`.
    """

    memory: bool
    error: str
    message: str
    traceback: str
    unaligned: str = ""
    where: str = ""

    def failure(self, row: int) -> RowFailure:
        """As that of one row."""
        return RowFailure(row, self.error, self.message, self.traceback, where=self.where)


@dataclass(frozen=True, slots=True)
class _Scored:
    """What a scorer returned: the declared outputs in order, and what is wrong with the rows that have none, by their
    index in the batch.
    """

    columns: list[pa.Array]
    raised: Mapping[int, _Raised]


@dataclass(slots=True)
class _Tally:
    """What became of the rows so far. at: of a row of the table the index in the file."""

    types: dict[str, pa.DataType]
    budget: int | None
    at: Callable[[int], int]
    cuts: Cuts
    chunks: list[list[pa.Array]] = field(default_factory=list)
    failures: dict[int, RowFailure] = field(default_factory=dict)

    def cut(self, piece: Slice, raised: _Raised) -> None:
        """It raised, and its halves are tried next."""
        first, last = self.at(piece.rows[0]), self.at(piece.rows[-1])
        self.cuts.cut(first, last, len(self.failures), raised.failure(0).said, raised.unaligned)

    def done(self, piece: Slice) -> None:
        """Its rows have outputs or have failed."""
        last, whole = self.at(piece.rows[-1]), len(piece.rows) > 1
        self.cuts.done(last, len(self.failures), whole=whole)

    def lone(self, row: int, raised: _Raised) -> None:
        """This row was scored alone, and raised. The sentence of an unaligned batch comes first."""
        batch = self.cuts.unaligned() if raised.unaligned else ""
        message = clip(f"{batch}; for this row alone, {raised.message}") if batch else raised.message
        self.fail(row, replace(raised.failure(row), message=message))

    def fail(self, row: int, failure: RowFailure) -> None:
        self.failures[row] = failure
        if self.budget is not None and len(self.failures) > self.budget:
            first = min(self.failures)
            raise over_budget(self.failures, self.budget, self.at(first) - first)

    def scored(self, rows: int) -> ScoredRows:
        schema = pa.schema(list(self.types.items()))
        columns = [
            pa.chunked_array([chunk[index] for chunk in self.chunks], type=column.type)
            for index, column in enumerate(schema)
        ]
        outputs = pa.Table.from_arrays(columns, schema=schema).combine_chunks()
        failed = sorted(self.failures)
        kept = np.delete(np.arange(rows, dtype=np.int64), failed) if failed else None
        if outputs.num_rows + len(failed) != rows:
            raise AssertionError(f"{rows} rows in, {outputs.num_rows} scored and {len(failed)} failed")
        return ScoredRows(outputs, kept, tuple(self.failures[row] for row in failed))


def _micro_batch(table: pa.Table, first: int, weighed: Weighed, singly: range) -> Slice:
    """From this row on. How far it goes depends on the size, which may shrink from one to the next."""
    if first in singly:
        return Slice(table.slice(first, 1), range(first, first + 1))
    stop = weighed.stop(first)
    stop = min(stop, singly.start) if singly and first < singly.start else stop
    return Slice(table.slice(first, stop - first), range(first, stop))


def _without(piece: Slice, skipped: list[int]) -> Slice:
    """The piece less the rows to skip, as slices of it. skipped: ascending."""
    gaps = skipped[bisect_left(skipped, piece.rows[0]) : bisect_right(skipped, piece.rows[-1])]
    if not gaps:
        return piece
    base = piece.rows[0]
    edges = [-1, *(row - base for row in gaps), len(piece.rows)]
    slices = [piece.table.slice(low + 1, high - low - 1) for low, high in itertools.pairwise(edges)]
    return Slice(pa.concat_tables(slices), np.delete(np.asarray(piece.rows), [row - base for row in gaps]).tolist())


def _score_piece(
    piece: Slice,
    scorer_of: _ScorerOf,
    size: BatchSize,
    weighed: Weighed,
    tally: _Tally,
    ready: ScoreRows,
) -> Generator[Ahead, None, None]:
    """Score one micro-batch, in halves where the whole of it raises. ready: scores all of it."""
    before = size.most, size.forced
    todo = [piece]  # a stack, its top the earliest rows, so that outputs come in input order
    while todo:
        now = todo.pop()
        if (fitting := weighed.fitting(now.rows)) < len(now.rows):
            todo.append(now.part(fitting, len(now.rows)))
            now = now.part(0, fitting)
        yield now.ahead()
        outcome = _attempt(ready if now is piece else scorer_of(now.table, now.rows), now.table, tally.types)
        if isinstance(outcome, _Scored):
            tally.chunks.append(outcome.columns)
            for row, raised in outcome.raised.items():
                tally.fail(now.rows[row], raised.failure(now.rows[row]))
            tally.done(now)
        elif len(now.rows) > 1:
            if outcome.memory:
                size.force(weighed.half(now.rows))
                todo.append(now)  # it is cut to what is allowed now
                continue
            tally.cut(now, outcome)
            half = (len(now.rows) + 1) // 2
            todo += now.part(half, len(now.rows)), now.part(0, half)
        else:
            if outcome.memory:
                # One row too large for memory says nothing of the others: they keep their batches.
                size.most, size.forced = before
            tally.lone(now.rows[0], outcome)
            tally.done(now)


def _attempt(scorer: ScoreRows, table: pa.Table, types: dict[str, pa.DataType]) -> _Scored | _Raised:
    try:
        return _Scored(_checked(scorer(table), table.num_rows, types), {})
    except RowsRaised as some:
        raised = {row: _raised(error) for row, error in some.raised.items()}
        # Memory lacks for the rows together.
        lack = next((each for each in raised.values() if each.memory), None)
        return lack or _Scored(_checked(some.outputs, table.num_rows - len(raised), types), raised)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is charged to the rows)
        return _raised(error, own=True)


def _checked(outputs: dict[str, pa.Array], rows: int, types: dict[str, pa.DataType]) -> list[pa.Array]:
    """The declared outputs in order, checked, so that a faulty scorer cannot shift rows."""
    for name, type_ in types.items():
        if name not in outputs:
            raise OutputInvalid(f"output {name!r} is missing")
        if len(outputs[name]) != rows:
            raise LengthInvalid(f"output {name!r}", len(outputs[name]), rows)
        if outputs[name].type != type_:
            raise OutputInvalid(f"output {name!r} is {outputs[name].type}, not {type_}")
    # Copied, because a predictor may use the same memory again for the next batch.
    return [pa.concat_arrays([outputs[name]]) for name in types]


def _raised(error: BaseException, *, own: bool = False) -> _Raised:
    """What was raised, or returned for a row, as text. own: `_attempt` is the first frame of the traceback.

    Raises:
        NightjarError: It is one other than `OutputInvalid`: an error of the user's code is about these rows, one of
            Nightjar is about the shard.
        ProcessSpoilt: It says that the device is lost.
    """
    if isinstance(error, NightjarError) and not isinstance(error, OutputInvalid):
        raise error
    if is_device_lost(error):
        raise ProcessSpoilt(utf8(type(error).__name__), clip(utf8(str(error)))) from error
    said = traceback.format_exception_only(error)[-1]  # survives a `__str__` that raises
    with contextlib.suppress(Exception):
        said = str(error)
    unaligned = error.found if isinstance(error, Unaligned) else ""
    name, text = utf8(type(error).__name__), traceback_of(error, skip=own)
    return _Raised(is_memory(error), name, clip(utf8(said)), text, unaligned, raised_at(error))
