"""Scoring promises: every row ends once, bad rows cost themselves, memory is learnt, order is kept."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazily import lazily
from nightjar.inference.errors import Fenced, InputCorrupt, OutputInvalid, OverBudget, ProcessSpoilt
from nightjar.inference.messages import TRACEBACK_CHARS
from nightjar.inference.predictors.scorer import normalise
from nightjar.inference.records import RowFailure
from nightjar.inference.scoring.assignment import BatchSize, auto_batch_rows
from nightjar.inference.scoring.microbatches import Ahead, drained
from nightjar.inference.scoring.scored_rows import ScoredRows
from predicting import score_table

torch = lazily("torch")

TYPES = {"score": pa.int64()}


def rows(count: int) -> pa.Table:
    return pa.table({"x": pa.array(range(count), pa.int64())})


def double(batch: pa.Table) -> dict[str, pa.Array]:
    return {"score": pa.array(np.asarray(batch["x"]) * 2)}


class Recorder:
    """A real scorer that doubles x, remembers its batches, and raises where it is told to."""

    def __init__(self, raises: Callable[[list[int]], BaseException | None] = lambda _: None) -> None:
        self.raises = raises
        self.batches: list[list[int]] = []

    def __call__(self, batch: pa.Table) -> dict[str, pa.Array]:
        seen = batch["x"].to_pylist()
        self.batches.append(seen)
        if error := self.raises(seen):
            raise error
        return double(batch)


def bad(members: Iterable[int], error: Callable[[str], BaseException] = ValueError) -> Any:
    wanted = set(members)
    return lambda seen: error(f"bad {sorted(wanted & set(seen))}") if wanted & set(seen) else None


def run(table: pa.Table, scorer: Any, size: BatchSize | int, **options: Any) -> tuple[ScoredRows, list[Ahead]]:
    size = BatchSize(size) if isinstance(size, int) else size
    work = score_table(table, scorer, size, options.pop("types", TYPES), **options)
    aheads = []
    while True:
        try:
            aheads.append(next(work))
        except StopIteration as done:
            return done.value, aheads


def kept(scored: ScoredRows, count: int) -> list[int]:
    return list(range(count)) if scored.kept is None else scored.kept.tolist()


def covers(scored: ScoredRows, count: int) -> bool:
    """Every row exactly once, in order, with its own output."""
    good = kept(scored, count)
    return scored.outputs["score"].to_pylist() == [2 * row for row in good] and sorted(
        good + [failure.row for failure in scored.failures]
    ) == list(range(count))


@st.composite
def bad_sets(draw: st.DrawFn) -> tuple[int, set[int], int]:
    count = draw(st.integers(0, 60))
    members = st.sets(st.integers(0, count - 1)) if count else st.just(set())
    return count, draw(members), draw(st.integers(1, 70))


@given(bad_sets())
def test_bisection_quarantines_exactly_the_bad_rows(case: tuple[int, set[int], int]) -> None:
    count, members, size = case
    scored, _ = run(rows(count), Recorder(bad(members)), size)
    assert [failure.row for failure in scored.failures] == sorted(members)
    assert covers(scored, count)
    assert (scored.kept is None) == (not members)


@given(bad_sets(), st.integers(1, 9), st.data())
def test_every_row_ends_once_whatever_memory_skips_and_singles_do(
    case: tuple[int, set[int], int], capacity: int, data: st.DataObject
) -> None:
    """More rows than fit in memory, bad rows, skipped rows and rows scored singly, all at once."""
    count, members, size = case
    skipped = data.draw(st.sets(st.integers(0, count - 1))) if count else set()
    first = data.draw(st.integers(0, count))
    singly = range(first, data.draw(st.integers(first, count)))

    def raises(seen: list[int]) -> BaseException | None:
        return MemoryError() if len(seen) > capacity else bad(members)(seen)

    recorder = Recorder(raises)
    skip = {row: RowFailure(row, "Died", "killed its process", "") for row in skipped}
    scored, aheads = run(rows(count), recorder, size, skip=skip, singly=singly)
    assert covers(scored, count)
    assert {failure.row for failure in scored.failures} == members | skipped
    assert len(aheads) == len(recorder.batches)
    for ahead, batch in zip(aheads, recorder.batches, strict=True):
        assert not skipped & set(batch)
        assert ahead == Ahead(batch[0], batch[-1] - batch[0] + 1)
        assert len(batch) == 1 or not set(batch) & set(singly)


def test_micro_batches_start_at_multiples_of_their_size_however_the_table_is_chunked() -> None:
    whole, chunked = Recorder(), Recorder()
    table = rows(10)
    run(table, whole, 4)
    run(pa.concat_tables([table.slice(0, 3), table.slice(3, 6), table.slice(9)]), chunked, 4)
    assert whole.batches == chunked.batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_rows_around_those_scored_singly_keep_their_grid() -> None:
    recorder = Recorder()
    _, aheads = run(rows(12), recorder, 4, singly=range(5, 7))
    assert recorder.batches == [[0, 1, 2, 3], [4], [5], [6], [7], [8, 9, 10, 11]]
    assert aheads[1:4] == [Ahead(4, 1), Ahead(5, 1), Ahead(6, 1)]


def test_skipped_rows_never_reach_the_scorer_and_their_batch_is_scored_without_them() -> None:
    recorder = Recorder()
    given_failure = RowFailure(1, "Died", "killed its process three times", "")
    scored, aheads = run(rows(6), recorder, 3, skip={1: given_failure, 3: given_failure})
    assert recorder.batches == [[0, 2], [4, 5]]
    assert aheads == [Ahead(0, 3), Ahead(4, 2)]
    assert scored.failures == (given_failure, dataclasses.replace(given_failure, row=3))
    assert kept(scored, 6) == [0, 2, 4, 5]


@pytest.mark.parametrize("row", [-1, 3, 9])
def test_a_skip_outside_the_table_is_refused_rather_than_forgotten(row: int) -> None:
    with pytest.raises(AssertionError, match=r"^3 rows in, 3 scored and 1 failed$"):
        run(rows(3), double, 2, skip={row: RowFailure(row, "Died", "", "")})


def test_a_batch_that_fails_whole_while_its_halves_pass_loses_nothing() -> None:
    scored, _ = run(rows(8), Recorder(lambda seen: ValueError() if len(seen) == 8 else None), 8)
    assert scored.failures == ()
    assert covers(scored, 8)


def test_halves_of_two_rows_that_pass_count_for_a_predictor_whose_batches_of_four_fail() -> None:
    """Else many such batches would end the attempt: each costs one call more, not one for each row."""
    recorder = Recorder(lambda seen: ValueError() if len(seen) == 4 else None)
    assert covers(run(rows(400), recorder, 4)[0], 400)
    assert len(recorder.batches) == 300


@pytest.mark.parametrize("name", ["builtins.MemoryError", "torch.OutOfMemoryError", "pyarrow.ArrowMemoryError"])
def test_out_of_memory_halves_the_batch_and_is_remembered(name: str) -> None:
    error = resolve_name(name)
    recorder = Recorder(lambda seen: error("no room") if len(seen) > 5 else None)
    size = BatchSize(16)
    scored, _ = run(rows(32), recorder, size)
    assert scored.failures == ()
    assert (size.most, size.forced) == (4, 4)
    assert [len(batch) for batch in recorder.batches] == [16, 8, *[4] * 8]
    run(rows(8), recorder, size)
    assert [len(batch) for batch in recorder.batches[-2:]] == [4, 4]


def test_out_of_memory_is_told_by_type_never_by_message() -> None:
    size = BatchSize(4)
    scored, _ = run(rows(4), Recorder(bad([1], lambda _: RuntimeError("CUDA out of memory"))), size)
    assert (size.most, size.forced) == (4, 0)
    assert [failure.error for failure in scored.failures] == ["RuntimeError"]


def test_one_row_too_large_for_memory_is_quarantined_and_the_others_keep_their_batches() -> None:
    size = BatchSize(8)
    recorder = Recorder(bad([2], MemoryError))
    scored, _ = run(rows(16), recorder, size)
    assert [(failure.row, failure.error) for failure in scored.failures] == [(2, "MemoryError")]
    assert (size.most, size.forced) == (8, 0)
    assert recorder.batches[-1] == list(range(8, 16))


def test_without_memory_trouble_nothing_is_forced() -> None:
    size = BatchSize(4)
    run(rows(9), Recorder(bad([3])), size)
    assert (size.most, size.forced) == (4, 0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_never_taken_for_a_bad_row(error: type[BaseException]) -> None:
    with pytest.raises(error):
        run(rows(4), Recorder(bad([1], error)), 2)


@pytest.mark.parametrize("error", [InputCorrupt, Fenced])
def test_a_fault_of_the_shard_is_never_taken_for_a_bad_row(error: type[Exception]) -> None:
    with pytest.raises(error):
        run(rows(4), Recorder(bad([1], error)), 2)


def test_an_invalid_output_costs_the_rows_that_give_it() -> None:
    scored, _ = run(rows(4), Recorder(bad([1], OutputInvalid)), 4)
    assert [(failure.row, failure.error) for failure in scored.failures] == [(1, "OutputInvalid")]


@pytest.mark.parametrize(
    ("values", "error"), [(pa.array([1, 2, 3]), AssertionError), (pa.array([1.0]), TypeError)], ids=["number", "type"]
)
def test_a_scorer_that_breaks_its_promise_never_shifts_rows(values: pa.Array, error: type[Exception]) -> None:
    with pytest.raises(error):
        run(rows(1), lambda _: {"score": values}, 1)


def test_outputs_are_the_declared_ones_in_declared_order() -> None:
    types = {"b": pa.int64(), "a": pa.string()}
    answer = {"a": pa.array(["x"]), "extra": pa.array([0]), "b": pa.array([1])}
    scored, _ = run(rows(1), lambda _: answer, 1, types=types)
    assert scored.outputs.schema == pa.schema(list(types.items()))


@given(bad_sets(), st.integers(0, 60))
def test_a_table_fails_exactly_when_its_failures_exceed_the_budget(
    case: tuple[int, set[int], int], budget: int
) -> None:
    count, members, size = case
    if len(members) <= budget:
        assert len(run(rows(count), Recorder(bad(members)), size, budget=budget)[0].failures) == len(members)
        return
    with pytest.raises(OverBudget) as caught:
        run(rows(count), Recorder(bad(members)), size, budget=budget, at=lambda row: 1000 + row)
    noun = "1 row failed" if budget == 0 else f"{budget + 1} rows failed"
    assert str(caught.value).startswith(f"{noun} where at most {budget} may (retry.max_quarantined); the first is row ")
    assert f"row {1000 + min(members)}: ValueError: bad [" in str(caught.value)


def test_over_budget_stops_at_once() -> None:
    """A predictor that fails on everything is asked a handful of times, not twice per row."""
    recorder = Recorder(lambda _: ValueError("broken"))
    with pytest.raises(OverBudget, match="the first is row 0: ValueError: broken"):
        run(rows(1024), recorder, 1024, budget=2)
    assert len(recorder.batches) < 20


def test_a_table_without_rows_asks_the_scorer_nothing() -> None:
    recorder = Recorder()
    scored, aheads = run(rows(0), recorder, 4)
    assert (aheads, recorder.batches, scored.kept, scored.failures) == ([], [], None, ())
    assert scored.outputs.schema == pa.schema(list(TYPES.items()))


def test_a_failure_is_bounded_and_shows_the_users_own_frames() -> None:
    def deep(batch: pa.Table) -> dict[str, pa.Array]:
        return deep(batch) if batch.num_rows else {}

    def wordy(batch: pa.Table) -> dict[str, pa.Array]:
        raise ValueError("x" * 100_000)

    def mine(batch: pa.Table) -> dict[str, pa.Array]:
        raise KeyError("colour")

    for scorer in (deep, wordy, mine):
        failure = run(rows(1), scorer, 1)[0].failures[0]
        assert len(failure.message) <= 600
        assert len(failure.traceback) <= TRACEBACK_CHARS
    assert (failure.error, failure.message) == ("KeyError", "'colour'")
    assert "in mine" in failure.traceback
    assert "_attempt" not in failure.traceback


FRAMES = """
def even(depth):
    if not depth:
        raise ValueError(MESSAGE)
    odd(depth)

def odd(depth):
    even(depth - 1)

def score(batch):
    even(24)
"""


def failure_of(message: str) -> RowFailure:
    """Of a row whose scorer raises this below 49 frames of a file that has no lines to show."""
    names: dict[str, Any] = {"MESSAGE": message}
    exec(compile(FRAMES, "m.py", "exec"), names)
    return run(rows(1), names["score"], 1)[0].failures[0]


def test_of_a_deep_traceback_the_last_frames_are_kept() -> None:
    lines = ["Traceback (most recent call last):"]
    for _ in range(20):
        lines += ['  File "m.py", line 8, in odd', '  File "m.py", line 5, in even']
    lines[-1] = '  File "m.py", line 4, in even'
    assert failure_of("no").traceback == "".join(f"{line}\n" for line in (*lines, "ValueError: no"))


def test_of_a_long_traceback_the_last_whole_lines_are_kept() -> None:
    room = TRACEBACK_CHARS - len(failure_of("x").traceback)
    just_fits = failure_of("x" * (1 + room)).traceback
    assert len(just_fits) == TRACEBACK_CHARS
    assert just_fits.startswith("Traceback")
    kept = failure_of("\n".join(f"line {number}" for number in range(1000))).traceback
    numbers = [int(line.removeprefix("line ")) for line in kept.splitlines()]
    assert numbers == list(range(numbers[0], 1000))
    assert kept.startswith("line ")
    assert TRACEBACK_CHARS - len("line 999\n") <= len(kept) <= TRACEBACK_CHARS


def test_an_exception_that_cannot_be_printed_is_still_a_failure() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    failure = run(rows(1), Recorder(lambda _: MuteError()), 1)[0].failures[0]
    assert failure.error == "MuteError"
    assert "str() failed" in failure.message


def test_an_error_whose_text_is_no_utf_8_is_still_a_failure() -> None:
    r"""Half an emoji from the model, as JSON may have it, is written as `\ud83d`: the quarantine file takes it."""
    failure = run(rows(1), Recorder(lambda _: ValueError("bad text: \ud83d")), 1)[0].failures[0]
    assert (failure.error, failure.message) == ("ValueError", r"bad text: \ud83d")
    assert failure.traceback.endswith("ValueError: bad text: \\ud83d\n")
    assert pa.array([failure.error, failure.message, failure.traceback], pa.string()).null_count == 0


def test_a_lost_device_says_so_in_utf_8() -> None:
    """It is said again in the quarantine, of the row that loses it each time."""
    with pytest.raises(ProcessSpoilt) as caught:
        run(rows(1), Recorder(lambda _: torch.AcceleratorError("lost \ud83d")), 1)
    assert caught.value.message == r"lost \ud83d"


def test_a_failed_attempt_releases_what_its_frames_held() -> None:
    """Else a retry after out-of-memory would find the memory still taken."""

    class Tensor:
        pass

    held: list[weakref.ref[Tensor]] = []

    def scorer(batch: pa.Table) -> dict[str, pa.Array]:
        assert not any(ref() for ref in held)
        tensor = Tensor()
        held.append(weakref.ref(tensor))
        if batch.num_rows > 1:
            raise MemoryError
        return double(batch)

    assert covers(run(rows(4), scorer, 4)[0], 4)


FLOATS = pa.schema([(f"f{index}", pa.float32()) for index in range(20)])


@pytest.mark.parametrize(
    ("schema", "gpu", "expected"),
    [
        (FLOATS, False, 16384),
        (FLOATS, True, 65536),
        (pa.schema([("embedding", pa.list_(pa.float32(), 384))]), False, 2048),
        (pa.schema([("image", pa.list_(pa.uint8(), 3 * 224 * 224))]), False, 32),
        (pa.schema([("image", pa.list_(pa.uint8(), 3 * 224 * 224))]), True, 256),
        (pa.schema([("text", pa.string()), ("tokens", pa.list_(pa.int64()))]), False, 4096),
        (pa.schema([("tensor", pa.fixed_shape_tensor(pa.float32(), [32, 32]))]), False, 1024),
        (pa.schema([("colour", pa.dictionary(pa.int8(), pa.string()))]), False, 16384),
        (pa.schema([(f"b{index}", pa.bool_()) for index in range(1000)]), False, 4096),
        (pa.schema([]), False, 16384),
        (pa.schema([("just too wide for 4096 rows", pa.list_(pa.float32(), 257))]), False, 2048),
        (pa.schema([("just too wide for 65536 rows", pa.list_(pa.float32(), 257))]), True, 32768),
        (pa.schema([("just", pa.list_(pa.int64())), ("not too wide", pa.list_(pa.int64()))]), False, 4096),
        (pa.schema([("just not too wide", pa.list_(pa.float32(), 256))]), False, 4096),
        (pa.schema([("larger than all of it", pa.list_(pa.float32(), 4 << 20))]), False, 32),
    ],
)
def test_the_automatic_batch_size_depends_on_schema_and_device_alone(
    schema: pa.Schema, gpu: bool, expected: int
) -> None:
    assert auto_batch_rows(schema, gpu) == expected
    assert auto_batch_rows(schema, gpu, packs=True) == (16384 if gpu else 2048), "its rows are packed by their tokens"


class Answering(Recorder):
    """Doubles x, and returns an exception for some rows in place of raising one."""

    def __init__(self, members: Iterable[int], error: Callable[[str], BaseException] = ValueError) -> None:
        super().__init__()
        self.members, self.error = set(members), error

    def __call__(self, batch: pa.Table) -> dict[str, pa.Array]:
        seen = batch["x"].to_pylist()
        self.batches.append(seen)
        values = [self.error(f"bad {x}") if x in self.members else 2 * x for x in seen]
        return normalise({"score": values}, TYPES, len(seen))


@given(bad_sets())
def test_rows_whose_output_is_an_exception_are_quarantined_and_no_row_is_scored_twice(
    case: tuple[int, set[int], int],
) -> None:
    count, members, size = case
    scorer = Answering(members)
    scored, _ = run(rows(count), scorer, size)
    assert [(each.row, each.error, each.message) for each in scored.failures] == [
        (row, "ValueError", f"bad {row}") for row in sorted(members)
    ]
    assert covers(scored, count)
    assert [row for batch in scorer.batches for row in batch] == list(range(count))


def test_a_returned_exception_that_was_caught_shows_the_frame_that_raised_it() -> None:
    def answered(batch: pa.Table) -> dict[str, pa.Array]:
        try:
            raise ValueError("no answer")
        except ValueError as error:
            return normalise({"score": [error, 1]}, TYPES, 2)

    assert "in answered" in run(rows(2), answered, 2)[0].failures[0].traceback


def test_who_drains_the_steps_is_told_each() -> None:
    told: list[Ahead] = []
    drained(score_table(rows(5), Recorder(), BatchSize(2), TYPES), told.append)
    assert told == [Ahead(0, 2), Ahead(2, 2), Ahead(4, 1)]


def test_returned_exceptions_count_against_the_budget_as_soon_as_it_is_spent() -> None:
    scorer = Answering({1, 4, 6})
    with pytest.raises(OverBudget):
        run(rows(100), scorer, 5, budget=1)
    assert len(scorer.batches) == 1
    scored, _ = run(rows(100), scorer, 5, budget=3)
    assert covers(scored, 100), "so many may fail"


def test_too_little_memory_for_some_rows_is_too_little_for_the_batch() -> None:
    """Its halves are tried; a row that does not fit alone is lost alone."""
    scorer, size = Answering({3}, MemoryError), BatchSize(8)
    scored, _ = run(rows(8), scorer, size)
    assert covers(scored, 8)
    assert [(each.row, each.error) for each in scored.failures] == [(3, "MemoryError")]
    assert scorer.batches[:3] == [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3], [0, 1]]


def test_a_returned_error_that_is_not_about_its_row_ends_the_attempt() -> None:
    """As one that is raised."""
    with pytest.raises(InputCorrupt, match="bad 3"):
        run(rows(8), Answering({3}, InputCorrupt), 8)
