"""Scores a table with all models of a job: outputs for rows that can be scored, and a failure for each that cannot.

This is pure: no Ray, no storage, no framework. Rows go to each model in micro-batches of its own size. A micro-batch
that raises is cut in two, again and again, down to the rows that fail alone; a row whose output is an exception fails
at once. One that runs out of memory is cut in two, and the smaller size is remembered. If only rows together fail, the
attempt ends with `BatchesBroken`, because scoring row by row would take all night; if they have not one value each, it
ends at once.

Every row of a model ends exactly once, in its outputs or in its failures. A row that one model cannot score keeps the
outputs of the others, has null for that model's outputs, and a failure under that model's name. A row that no model can
score is lost whole; with one model this is each failed row.
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

from nightjar.inference.errors import BatchesBroken, JobError, NightjarError, OutputInvalid, ProcessSpoilt, Unaligned
from nightjar.inference.input.sources.rows import over_budget, selected
from nightjar.inference.messages import clip, raised_at, traceback_of, utf8
from nightjar.inference.predictors.adapter import is_device_lost, is_memory
from nightjar.inference.predictors.scorer import RowsRaised
from nightjar.inference.records import RowFailure
from nightjar.inference.scoring.assignment import BatchSize, LoadedModel
from nightjar.inference.scoring.broken_batches import Cuts
from nightjar.inference.scoring.known_rows import KnownRows
from nightjar.inference.scoring.prepared_batches import Batch, ScoreRows
from nightjar.inference.scoring.scored_rows import ScoredRows, completed, side_by_side

T = TypeVar("T")
_NO_ROWS = range(0)


@dataclass(frozen=True, slots=True)
class Ahead:
    """Yielded before any of rows [first, first + rows) go to the scorer, on each try. model: as in `RowFailure`."""

    first: int
    rows: int
    model: str = ""


def drained(steps: Generator[Any, None, T], on_step: Callable[[Any], object] = lambda _: None) -> T:
    """Run a generator (usually `score_models`) to its end, and return its result."""
    while True:
        try:
            step = next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        on_step(step)


def score_models(
    table: pa.Table,
    models: Sequence[LoadedModel],
    *,
    skip: Mapping[int, RowFailure] = {},
    died: Mapping[str, Mapping[int, RowFailure]] = {},
    singly: Mapping[str, range] = {},
    budget: int | None = None,
    at: Callable[[int], int] = int,
    cuts: Callable[[], Cuts] = Cuts,
    complete: bool = False,
    ahead: bool = True,
    shipped: Mapping[str, Sequence[Batch]] = {},
    known: Mapping[str, KnownRows] = {},
) -> Generator[Ahead, None, ScoredRows]:
    """Score a table, yielding `Ahead` before each call of a scorer and returning `ScoredRows`.

    skip: row → failure; these rows never go to a scorer. died: the same for single models. singly: rows that are each
    scored alone. budget: of rows, however many models cannot score them. at: of a row of the table the index in its
    file, for messages. cuts: counts the batches of a model that raise, and how many may. complete: a row that any model
    cannot score is lost whole. ahead: prepare the next micro-batch while a model computes. shipped: the batches that
    came prepared. known: rows whose outputs an earlier night has; they do not go to the scorer. died, singly, shipped
    and known are given for each model by its name.

    Raises:
        OverBudget: More than `budget` rows failed; raised as soon as they did.
        BatchesBroken: Too many batches raise though each of their rows can be scored; or one had not one value for each
            row, though smaller ones of the same rows have.
        NightjarError: A scorer raised one other than `OutputInvalid`, which is not about a row.
        ProcessSpoilt: This process has lost its device; the last `Ahead` named the rows.
    """
    found = []
    failed: dict[int, RowFailure] = {}
    for model in models:
        features, before = table.select(list(model.columns)), known.get(model.name)
        rows = before.to_score if before else range(table.num_rows)
        try:
            scored = yield from _Scoring(model, budget, at, cuts()).table(
                Slice.of(features, rows),
                skip={**skip, **died.get(model.name, {})},
                singly=singly.get(model.name, _NO_ROWS),
                ahead=ahead,
                shipped=shipped.get(model.name, ()),
            )
        except (BatchesBroken, JobError) as error:
            if not model.name:
                raise
            raise type(error)(f"models.{model.name}: {error}") from error
        scored = completed(before, scored) if before else scored
        found.append(scored)
        failed = {failure.row: failure for failure in scored.failures} | failed
        _check_budget(failed, budget, at)
    return replace(side_by_side(table.num_rows, models, found, skip, complete), known=known)


def _check_budget(failures: Mapping[int, RowFailure], budget: int | None, at: Callable[[int], int]) -> None:
    if budget is not None and len(failures) > budget:
        raise over_budget(failures, budget, at(min(failures)) - min(failures))


def micro_batches(whole: Slice, size: BatchSize, skipped: list[int], singly: range = _NO_ROWS) -> Iterator[Slice]:
    """The micro-batches of rows, less those to skip. Each has as many rows as the size allows when it is cut.

    skipped: ascending. singly: rows that are each scored alone.
    """
    first = 0
    while first < len(whole.rows):
        stop = min(len(whole.rows), (first // size.most + 1) * size.most)
        if whole.rows[first] in singly:
            stop = first + 1
        elif singly and whole.rows[first] < singly.start:
            stop = min(stop, bisect_left(whole.rows, singly.start))
        piece = _without(whole.part(first, stop), skipped)
        first = stop
        if piece.rows:
            yield piece


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows that go to the scorer together; `rows` are their indices in the whole table, ascending."""

    table: pa.Table
    rows: Sequence[int]

    @classmethod
    def of(cls, whole: pa.Table, rows: Sequence[int]) -> Slice:
        """Rows of a table: a range if they are all of it."""
        return cls(whole if isinstance(rows, range) else selected(whole, np.asarray(rows, np.int64)), rows)

    def part(self, low: int, high: int) -> Slice:
        return Slice(self.table.slice(low, high - low), self.rows[low:high])

    def ahead(self, model: str) -> Ahead:
        return Ahead(self.rows[0], self.rows[-1] - self.rows[0] + 1, model)


@dataclass(frozen=True, slots=True)
class _Raised:
    """What a scorer raised, as text: holding the exception would hold its frames and their memory.

    failure: as that of row 0. unaligned: why its values cannot be assigned to its rows, if they cannot.
    """

    memory: bool
    failure: RowFailure
    unaligned: str = ""


@dataclass(frozen=True, slots=True)
class _Scored:
    """What a scorer returned: the declared outputs in order, and what is wrong with the rows that have none, by their
    index in the batch.
    """

    columns: list[pa.Array]
    raised: Mapping[int, _Raised]


@dataclass(slots=True)
class _Scoring:
    """Scores the rows of one table with one model, and keeps what became of them. Its fields and arguments are those of
    `score_models`.
    """

    model: LoadedModel
    budget: int | None
    at: Callable[[int], int]
    cuts: Cuts
    chunks: list[list[pa.Array]] = field(default_factory=list)
    failures: dict[int, RowFailure] = field(default_factory=dict)

    def table(
        self, whole: Slice, skip: Mapping[int, RowFailure], singly: range, ahead: bool, shipped: Sequence[Batch]
    ) -> Generator[Ahead, None, ScoredRows]:
        """Score rows of a table.

        Micro-batches are counted off from its first row, so that results do not depend on how the table was read. Where
        memory does not suffice, the batch that was cut ahead is scored in parts of the smaller size.
        """
        preparer, skipped = self.model.preparer, sorted(skip)
        for row in skipped:
            self.skip(row, skip[row])
        if preparer:
            preparer.start(shipped)
        pieces = micro_batches(whole, self.model.size, skipped, singly)
        following = next(pieces, None)
        while (piece := following) is not None:
            following = next(pieces, None)
            yield from self.rows(piece, following if ahead else None)
        if preparer:
            preparer.start(())
        return self.scored(whole.rows)

    def scorer_of(self, piece: Slice, following: Slice | None) -> ScoreRows:
        """What scores these rows. Those that follow begin to be prepared behind them."""
        if (preparer := self.model.preparer) is None:
            return self.model.scorer
        score = preparer.take(piece.table, piece.rows)
        if following is not None:
            preparer.begin(following.table, following.rows)
        return score

    def rows(
        self, piece: Slice, following: Slice | None = None, half: bool = False, around: str = ""
    ) -> Generator[Ahead, None, None]:
        """Score rows as one batch, or as several if memory does not suffice; in halves where a batch raises.

        following: the micro-batch to prepare meanwhile. half: of a micro-batch that raised. around: what is wrong with
        the largest unaligned batch around the rows, as a sentence.
        """
        size = self.model.size
        before = size.most, size.forced
        done, everything = 0, len(piece.rows)
        while done < everything:
            fitting = min(everything - done, size.most)
            now = piece if fitting == everything else piece.part(done, done + fitting)
            # Nothing of these rows is prepared before they are named, unless rows before them are scored meanwhile: a
            # row may end the process while it is prepared.
            yield now.ahead(self.model.name)
            outcome = _attempt(self.scorer_of(now, following), now.table, self.model.types)
            following = None
            several = len(now.rows) > 1
            if isinstance(outcome, _Raised) and outcome.memory and several:
                size.force((len(now.rows) + 1) // 2)
                continue  # with the rows that are allowed now
            done += len(now.rows)
            if isinstance(outcome, _Scored):
                self.chunks.append(outcome.columns)
                for row, raised in outcome.raised.items():
                    self.fail(now.rows[row], raised.failure)
                self.cuts.whole += several
            elif several:
                self.cuts.batches += not half
                yield from self._halves(now, outcome, around)
            else:
                if outcome.memory:
                    # One row too large for memory says nothing of the others: they keep their batches.
                    size.most, size.forced = before
                failure = outcome.failure
                if around and outcome.unaligned:
                    failure = replace(failure, message=clip(f"{around}; for this row alone, {failure.message}"))
                self.fail(now.rows[0], failure)

    def _halves(self, batch: Slice, raised: _Raised, around: str) -> Generator[Ahead, None, None]:
        """Score a batch that raised in two parts."""
        named = f"rows {self.at(batch.rows[0])} to {self.at(batch.rows[-1])}"
        if raised.unaligned:
            around = around or f"{raised.unaligned} ({named})"
        failed, middle = len(self.failures), (len(batch.rows) + 1) // 2
        yield from self.rows(batch.part(0, middle), half=True, around=around)
        yield from self.rows(batch.part(middle, len(batch.rows)), half=True, around=around)
        if len(self.failures) == failed:
            self.cuts.broke(named, raised.failure.said, around if raised.unaligned else "")

    def fail(self, row: int, failure: RowFailure) -> None:
        """The scorer raised for a row. failure: as of any row."""
        self.skip(row, replace(failure, model=self.model.name))

    def skip(self, row: int, failure: RowFailure) -> None:
        """A row is not scored."""
        self.failures[row] = replace(failure, row=row)
        _check_budget(self.failures, self.budget, self.at)

    def scored(self, rows: Sequence[int]) -> ScoredRows:
        schema = pa.schema(list(self.model.types.items()))
        columns = [
            pa.chunked_array([chunk[index] for chunk in self.chunks], type=column.type)
            for index, column in enumerate(schema)
        ]
        outputs = pa.Table.from_arrays(columns, schema=schema).combine_chunks()
        failed = sorted(self.failures)
        if outputs.num_rows + len(failed) != len(rows):
            raise AssertionError(f"{len(rows)} rows in, {outputs.num_rows} scored and {len(failed)} failed")
        lost = [bisect_left(rows, row) for row in failed]
        kept = None if not failed and isinstance(rows, range) else np.delete(np.asarray(rows, dtype=np.int64), lost)
        return ScoredRows(outputs, kept, tuple(self.failures[row] for row in failed), self.cuts.batches)


def _without(piece: Slice, skipped: list[int]) -> Slice:
    """The piece less the rows to skip, as slices of it. skipped: ascending."""
    gaps = skipped[bisect_left(skipped, piece.rows[0]) : bisect_right(skipped, piece.rows[-1])]
    if not gaps:
        return piece
    at = [bisect_left(piece.rows, row) for row in gaps]
    edges = itertools.pairwise([-1, *at, len(piece.rows)])
    slices = [piece.table.slice(low + 1, high - low - 1) for low, high in edges]
    return Slice(pa.concat_tables(slices), np.delete(np.asarray(piece.rows), at).tolist())


def _attempt(scorer: ScoreRows, table: pa.Table, types: Mapping[str, pa.DataType]) -> _Scored | _Raised:
    try:
        return _Scored(_own(scorer(table), types), {})
    except RowsRaised as some:
        raised = {row: _raised(error) for row, error in some.raised.items()}
        # Memory lacks for the rows together.
        lack = next((each for each in raised.values() if each.memory), None)
        return lack or _Scored(_own(some.outputs, types), raised)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is charged to the rows)
        return _raised(error, own=True)


def _own(outputs: dict[str, pa.Array], types: Mapping[str, pa.DataType]) -> list[pa.Array]:
    """The declared outputs in order, copied: a predictor may use the same memory again for the next batch."""
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
    return _Raised(is_memory(error), RowFailure(0, name, clip(utf8(said)), text, where=raised_at(error)), unaligned)
