"""Preflight tries the model at a few places of the input and says what it found, without Ray and in this process."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nightjar.inference.errors import EndpointFailed, EndpointRefused, JobError, OverBudget, ProcessSpoilt, StorageError
from nightjar.inference.input.plan import Plan
from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.records import UNKNOWN, UNREADABLE, Piece, Shard
from nightjar.inference.scoring.microbatches import drained, score_models
from nightjar.inference.scoring.neighbours import Sample, Unfit, dependences
from nightjar.inference.scoring.preflight import (
    PLACES,
    SAMPLE_ROWS,
    Loaded,
    Outcome,
    loaded_by,
    observed,
    preflight_steps,
    samples,
    score_sample,
)
from nightjar.inference.scoring.worker import ShardWorker
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.witness import audit as witness
from nightjar.inference.witness.notes import Notes
from predicting import told
from support import Lake, OneStep

STORAGE = LakeStorage()
Score = Callable[[np.ndarray], np.ndarray]


class Scorer(OneStep):
    """Scores x by a function, on a device of its own."""

    device = "meta"

    def __init__(self, score: Score) -> None:
        self.score = score

    def __call__(self, table: pa.Table) -> dict[str, pa.Array]:
        return {"score": pa.array(self.score(np.asarray(table["x"])), pa.float32())}


def same(x: np.ndarray) -> np.ndarray:
    return x


def refuses(x: np.ndarray) -> np.ndarray:
    raise ValueError(f"not {x.min():g}")


AT = f" ({__file__.removeprefix(f'{Path.cwd()}/')}:{refuses.__code__.co_firstlineno + 1}, in refuses)"
"""Where it raises, as messages say it."""


def lost(x: np.ndarray) -> np.ndarray:
    raise ProcessSpoilt("DeviceLost", "the device is gone")


@pytest.fixture
def small(lake: Lake) -> Lake:
    """Three files of 100 rows."""
    for name, first in (("a", 0), ("b", 100), ("c", 200)):
        lake.write_file(f"{name}.parquet", first, 100)
    lake.write_model()
    lake.write_job(input__shard_rows=100)
    return lake


def worker(lake: Lake, score: Score) -> ShardWorker:
    return ShardWorker(lake.worker_spec(), Scorer(score))


def tried(lake: Lake, score: Score, places: Sequence[Piece] | None = None) -> list[Loaded | str]:
    places = samples(lake.planned()) if places is None else places
    return told(preflight_steps(worker(lake, score), places))


def piece(name: str, rows: int) -> Piece:
    return Piece(f"/{name}", 1, "1", 0, rows, (0, 1))


def test_samples_are_far_from_each_other_and_of_files_that_may_have_rows() -> None:
    counts = [0, UNREADABLE, 1, UNKNOWN, *[10] * 14]
    pieces = [piece(f"{index:02d}", rows) for index, rows in enumerate(counts)]
    plan = Plan.of(Shard(str(each.uri), (each,)) for each in pieces)
    assert samples(plan) == pieces[2::2]
    assert len(pieces[2::2]) == PLACES
    files = tuple(piece(str(index), 5) for index in range(20))
    assert samples(Plan.of([Shard("s", files[:2])])) == list(files[:2]), "a shard may be many small files"
    assert samples(Plan.of([Shard("s", files)])) == list(files[::3])


@pytest.mark.parametrize("counts", [[], [0], [UNREADABLE, 0]])
def test_an_input_without_rows_has_no_samples(counts: list[int]) -> None:
    assert samples(Plan.of(Shard(str(index), (piece(str(index), rows),)) for index, rows in enumerate(counts))) == []


def test_one_place_whose_rows_are_scored_is_enough(small: Lake) -> None:
    assert tried(small, same) == [Loaded("meta")] * 6, "one before the rows, and one before each of 4 further calls"
    assert tried(small, lambda x: np.where(x == 3, math.inf, x))[-1] == Loaded(
        "meta",
        notes=(
            "'score' is NaN or infinite in 1 value of 32 rows of the sample; a check {column: score, finite: true} "
            "refuses that",
        ),
    )


def test_a_row_whose_output_depends_on_its_neighbours_is_refused_with_both_values(small: Lake) -> None:
    first = samples(small.planned())[0].uri
    said = tried(small, lambda x: x - x.mean())[-1]
    assert isinstance(said, str)
    assert re.match(
        rf"the output of a row depends on the rows that are scored with it: row (\d+) of {re.escape(first)} gets "
        r"'score' -?[\d.]+ in the first batch, and -?[\d.]+ among other rows\.",
        said,
    )
    assert "write model.rows: dependent, with a batch_size" in said


def test_rows_that_cannot_be_scored_are_left_out_where_neighbours_are_tried(small: Lake) -> None:
    def but_three(x: np.ndarray) -> np.ndarray:
        return refuses(x) if 3 in x else x

    assert tried(small, but_three)[-1] == Loaded("meta")
    assert "depends on the rows" in str(tried(small, lambda x: but_three(x) - x.mean())[-1])


def test_files_of_one_row_are_tried_together(small: Lake) -> None:
    for row, name in enumerate("abc"):
        small.write_file(f"{name}.parquet", row, 1)
    assert "depends on the rows" in str(tried(small, lambda x: x - x.mean())[-1])
    assert tried(small, same)[-1] == Loaded("meta")


@pytest.mark.parametrize("kind", ["f2", "f4", "i8"])
def test_numbers_of_any_type_are_tried_alone(kind: str) -> None:
    """Arrow sorts no float16, and has integers that no float holds."""

    def score(rows: pa.Table) -> pa.Table:
        return pa.table({"score": rows["x"].to_numpy().astype(kind)})

    table = pa.table({"x": [2**15 - 1, 5, 7]} if kind != "i8" else {"x": [2**63 - 1, 5, 7]})
    sample = Sample(table, [("f", row) for row in range(3)])
    assert list(dependences(sample, score(table), score, 1e-5, 0.0)) == [None] * 4


def test_a_model_that_takes_no_row_twice_is_noted(small: Lake) -> None:
    def distinct(x: np.ndarray) -> np.ndarray:
        return x if len({*x}) == len(x) else refuses(x)

    (note,) = tried(small, distinct)[-1].notes  # type: ignore[union-attr]
    assert note.startswith("whether rows depend on each other could not be tried: ")


def test_a_slow_model_is_scored_no_second_time(small: Lake) -> None:
    """A quarter of the time of a step is the limit: four of these calls, and preflight would stall."""
    small.write_job(input__shard_rows=100, retry__stall_s=0.4)
    calls = []

    def slow(x: np.ndarray) -> np.ndarray:
        calls.append(len(x))
        time.sleep(0.11)
        return x

    (note,) = tried(small, slow)[-1].notes  # type: ignore[union-attr]
    assert note == "the sample took 0 s, so it was not tried whether its rows depend on each other"
    assert calls == [SAMPLE_ROWS]


def test_rows_that_depend_on_each_other_are_said_and_not_tried(small: Lake) -> None:
    small.write_job(input__shard_rows=100, model__rows="dependent", model__batch_size=16)
    (note,) = tried(small, lambda x: x - x.mean())[-1].notes  # type: ignore[union-attr]
    assert note.startswith(
        "rows depend on each other (model.rows: dependent): an output is that of its row among the 16"
    )


def test_a_place_of_one_row_is_enough_and_if_it_fails_the_next_one_is_tried(small: Lake) -> None:
    small.write_file("a.parquet", 7, 1)
    assert tried(small, same)[-1] == Loaded("meta")

    def not_seven(x: np.ndarray) -> np.ndarray:
        return refuses(x) if x.min() == 7 else x

    found = tried(small, not_seven)
    assert (found[0], found[1], found[-1]) == (Loaded("meta"), Loaded("meta", place=1), Loaded("meta", place=1))


def test_a_model_that_scores_no_row_anywhere_is_refused_with_the_first_error(small: Lake) -> None:
    first, *others = samples(small.planned())
    said = f"none of the first 32 rows of {first.uri} can be scored: ValueError: not 0{AT}"
    found = tried(small, refuses)
    assert found[:-1] == [Loaded("meta", place=place) for place in range(3)]
    assert found[-1] == f"{said}; nor any at 2 other places of the input"
    assert tried(small, refuses, [first, others[0]])[-1] == f"{said}; nor any at 1 other place of the input"
    assert tried(small, refuses, [first])[-1] == said
    (small.folder / "data" / "b.parquet").write_bytes(b"torn")
    assert tried(small, refuses, [others[0], first])[-1] == said, "a file that cannot be read is no verdict"


def test_a_place_that_turns_out_to_have_no_rows_is_no_verdict(small: Lake) -> None:
    """The next place is tried."""
    _, second, _ = samples(small.planned())
    path = small.write_file("a.parquet", 0, 0)
    empty = Piece(str(path), path.stat().st_size, "", 0, UNKNOWN, (0, 0))
    assert tried(small, same, [empty]) == [Loaded("meta"), Loaded("meta")]
    assert tried(small, refuses, [empty, second]) == [
        Loaded("meta"),
        Loaded("meta", place=1),
        f"none of the first 32 rows of {second.uri} can be scored: ValueError: not 100{AT}",
    ]


def test_rows_that_cannot_be_read_are_left_out_and_do_not_shift_the_others(lake: Lake) -> None:
    """Where none can be read, that is said, and the passes will find them."""
    lake.write_file("a.parquet", 0, 10)
    lake.to_json_lines()
    path = lake.folder / "data" / "a.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line if '"id": 3,' not in line else "no JSON\n" for line in lines))
    lake.write_model()
    lake.write_job(input={"uri": "data/", "format": "jsonl"}, retry__max_quarantined=1.0)
    seen: list[float] = []
    assert tried(lake, lambda x: (seen.extend(x), x)[1])[-1] == Loaded("meta")
    assert seen[:9] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert {*seen} == {*seen[:9]}
    (place,) = samples(lake.planned())
    found = tried(lake, refuses)[-1]
    assert found == f"none of the first 9 rows of {place.uri} can be scored: ValueError: not 0{AT}"
    path.write_text("no JSON\n" * 10)
    path.with_name("b.jsonl").write_text("".join(lines))
    (place,) = [piece for shard in lake.planned().shards() for piece in shard.pieces if piece.uri == str(path)]
    (step, told) = tried(lake, same, [place])
    assert isinstance(told, Loaded)
    assert (step, told.sample_error.startswith(f"{path}")) == (Loaded("meta"), True)


def test_a_place_whose_first_rows_cannot_be_read_is_said_if_there_is_no_other(lake: Lake) -> None:
    """The first of them; the rows behind are not looked at."""
    for name, first in (("a", 0), ("b", 100)):
        lake.write_file(f"{name}.parquet", first, 100)
    lake.to_json_lines()
    for path in (lake.folder / "data").iterdir():
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("no JSON\n" * 40 + "".join(lines))
    lake.write_model()
    lake.write_job(input={"uri": "data/", "format": "jsonl", "shard_rows": 100}, retry__max_quarantined=1.0)
    first, *_ = places = samples(lake.planned())
    assert len(places) > 1
    last = tried(lake, refuses, places)[-1]
    assert isinstance(last, Loaded)
    assert last.sample_error.startswith(f"none of 32 rows of {first.uri} can be read; the first: ")


def test_if_no_place_can_be_read_the_model_is_loaded_and_the_first_reason_said(small: Lake) -> None:
    places, loaded = samples(small.planned()), worker(small, same)
    for place in places:
        Path(place.uri).write_bytes(b"torn")
    found = list(preflight_steps(loaded, places))
    assert found[:-1] == [Loaded("meta", place=place) for place in range(3)]
    last = found[-1]
    assert isinstance(last, Loaded)
    assert last.sample_error.startswith(f"{places[0].uri}: ")
    assert last == Loaded("meta", last.sample_error)
    assert list(preflight_steps(loaded, [])) == [Loaded("meta")]


def test_without_a_place_there_is_nothing_to_try_accumulators_on(small: Lake) -> None:
    (small.folder / "figures.py").write_text("class Sum:\n    def update(self, batch): ...\n")
    small.write_job(accumulators={"sum": "figures:Sum"})
    assert list(preflight_steps(worker(small, same), [])) == [Loaded("meta")]


def test_a_device_that_is_lost_is_said_and_ends_preflight(small: Lake) -> None:
    assert tried(small, lost) == [
        Loaded("meta"),
        Loaded("meta", str(ProcessSpoilt("DeviceLost", "the device is gone"))),
    ]
    first, *_ = places = samples(small.planned())
    Path(first.uri).write_bytes(b"torn")
    assert tried(small, lost, places)[-1] == Loaded("meta", "DeviceLost: the device is gone", 1)


def test_a_sample_is_scored_by_another_scorer_if_one_is_given(small: Lake) -> None:
    table = pa.table({"x": pa.array(range(SAMPLE_ROWS), pa.float32())})
    other = worker(small, refuses)
    scored = score_sample(other, RowsRead(table), 0, [replace(other.models[0], scorer=Scorer(same))])
    assert scored.outputs["score"].to_pylist() == list(range(SAMPLE_ROWS))


def test_more_failures_than_the_budget_end_a_sample_and_name_the_rows_place_in_its_file(small: Lake) -> None:
    table = pa.table({"x": pa.array(range(4), pa.float32())})
    with pytest.raises(
        OverBudget, match=r"^1 row failed where at most 0 may \(retry\.max_quarantined\); the first is row 509: "
    ) as failed:
        other = worker(small, lambda x: refuses(x) if 3 in x else x)
        read = RowsRead(table, kept=pa.array([0, 5, 6, 9]))
        models = [replace(model, preparer=None) for model in other.models]
        drained(score_models(read.table, models, at=lambda row: 500 + read.index(row), budget=0))
    assert failed.value.row == 509


@pytest.mark.parametrize(("rows", "kept"), [("any", 4), ("all", 3)])
def test_a_row_that_one_of_several_models_loses_is_lost_in_the_sample_as_in_the_run(
    lake: Lake, rows: str, kept: int
) -> None:
    several(lake, "a", "b", output__rows=rows)
    table = pa.table({"x": pa.array(range(4), pa.float32())})
    other = ShardWorker(lake.worker_spec(), Scorer(same), Scorer(lambda x: refuses(x) if 3 in x else x))
    assert score_sample(other, RowsRead(table), 0, other.models).outputs.num_rows == kept


def test_what_memory_shows_of_a_sample_does_not_make_the_runs_batches_smaller(small: Lake) -> None:
    def short(x: np.ndarray) -> np.ndarray:
        if len(x) > 2:
            raise MemoryError
        return x

    table = pa.table({"x": pa.array(range(4), pa.float32())})
    other = worker(small, short)
    assert score_sample(other, RowsRead(table), 0, other.models).failures == ()
    assert [(each.size.most, each.size.forced) for each in other.models] == [(256, 0)]


def several(lake: Lake, *names: str, **job: Any) -> None:
    """A job with models of these names."""
    lake.write_file("a.parquet", 0, 100)
    lake.write_model()
    each = {"uses": "model:score", "features": ["x"], "outputs": {"score": "float32"}, "batch_size": 256}
    lake.write_job(model=None, models=[{**each, "name": name} for name in names], **job)


def test_notes_on_several_models_are_told_together_and_each_once(lake: Lake) -> None:
    several(lake, "a", "b", "c")
    scorers = [Scorer(lambda x: x * math.nan), Scorer(lambda x: x * math.nan), Scorer(same)]
    *_, last = preflight_steps(ShardWorker(lake.worker_spec(), *scorers), samples(lake.planned()))
    assert isinstance(last, Loaded)
    assert [note.split("'")[1] for note in last.notes] == ["a_score", "b_score"]


# ---- observed -----------------------------------------------------------------------------------------------


def test_what_is_observed_is_each_step_with_what_the_code_used_by_then(small: Lake, tmp_path: Path) -> None:
    loaded = worker(small, same)
    places = samples(small.planned())
    outside = tmp_path / "outside.json"
    outside.write_text("{}")

    def load() -> ShardWorker:
        witness.watch(Notes(str(Path(__file__).parent)))
        return loaded

    def steps(found: ShardWorker, where: Sequence[Piece]) -> Iterator[Loaded]:
        assert (found, where) == (loaded, places)
        yield Loaded("meta")
        outside.read_text()
        yield Loaded("meta", place=1)

    try:
        first, second, end = observed(loaded.spec.job, steps, load, places)
    finally:
        witness.watch(None)
    assert isinstance(first, Loaded)
    assert isinstance(second, Loaded)
    used = [[each.kind for each in found.outside if each.name == str(outside)] for found in (first, second)]
    assert used == [[], ["file"]], "read after the first step"
    assert isinstance(end, Loaded)
    assert end == replace(second, packages=end.packages)
    assert "pyarrow" in end.packages
    assert first.packages == second.packages == {}


def test_what_is_wrong_with_the_model_is_said_as_it_is(small: Lake) -> None:
    def steps(found: ShardWorker, where: Sequence[Piece]) -> Iterator[Loaded]:
        yield Loaded("meta")
        raise Unfit("it scores nothing")

    loaded = worker(small, same)
    first, wrong = observed(loaded.spec.job, steps, lambda: loaded, [])
    assert first == Loaded("meta")
    assert isinstance(wrong, JobError)
    assert str(wrong) == f"{loaded_by(loaded.spec.job)}: it scores nothing"


def test_an_error_that_may_pass_is_noted_and_another_one_refuses_the_job(small: Lake) -> None:
    def found(error: Exception) -> list[Outcome]:
        def steps(*_: object) -> Iterator[Loaded]:
            yield Loaded("meta")
            raise error

        return list(observed(loaded.spec.job, steps, lambda: loaded, []))

    loaded = worker(small, same)
    first, end = found(EndpointFailed("model.url: it answers no request"))
    assert first == Loaded("meta")
    assert isinstance(end, Loaded)
    assert end == replace(first, sample_error="model.url: it answers no request", packages=end.packages)
    assert "pyarrow" in end.packages
    for error in (EndpointRefused("model.url: it does not accept the key"), JobError("checks: no such figure")):
        first, wrong = found(error)
        assert isinstance(wrong, JobError)
        assert str(wrong) == str(error)


@pytest.mark.parametrize("key", ["model.uses", "model.options.method"])
def test_a_model_that_cannot_be_loaded_is_an_error_with_its_own_key(small: Lake, key: str) -> None:
    """An error that is none of the job is given the model's key."""
    job = small.worker_spec().job

    def load() -> ShardWorker:
        raise JobError(f"{key}: no such model")

    (found,) = observed(job, preflight_steps, load, [])
    assert isinstance(found, JobError)
    assert str(found) == f"{key}: no such model"

    def fetch() -> ShardWorker:
        raise StorageError("s3://bucket/model: 503")

    (away,) = observed(job, preflight_steps, fetch, [])
    assert str(away) == f"{loaded_by(job)}: s3://bucket/model: 503"
