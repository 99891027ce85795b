"""Several models in one read: columns side by side, and a row that only one of them cannot score."""

from __future__ import annotations

import io
import shlex
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import steps as run
from nightjar.inference.errors import BatchesBroken, GateFailed, JobError, OverBudget, ProcessSpoilt, QuarantineFull
from nightjar.inference.history.replay import replay_row
from nightjar.inference.history.run_tables import RunReport
from nightjar.inference.records import Crumb, Event, Failed, Receipt, RowFailure, Started
from nightjar.inference.run.failures import Underway
from nightjar.inference.scoring.assignment import Assignment, BatchSize, LoadedModel
from nightjar.inference.scoring.broken_batches import Cuts
from nightjar.inference.scoring.microbatches import Ahead, drained, score_models
from nightjar.inference.scoring.prepared_batches import Preparer, PreparingThread
from nightjar.inference.scoring.suspects import Attempt, Rows, next_attempt
from nightjar.inference.scoring.worker import ShardWorker
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.validation.manifest import read_manifest
from severalmodels import DOUBLE, MODULE, NAMED, severals
from support import NIGHT, Lake, run_steps


def totals(lake: Lake, run: str = NIGHT) -> dict[str, Any]:
    storage, output = lake.request().storage, lake.request().output
    return asdict(read_manifest(storage, output, lake.snapshot().runs[run]).totals)


# ---- whole runs ---------------------------------------------------------------------------------------------


def test_the_outputs_of_all_models_are_columns_of_one_part(lake: Lake) -> None:
    ran = severals(lake).run()
    rows = lake.published()
    assert list(rows.columns) == ["id", "name", "double_score", "named_word", "named_pair", "_file", "_row"]
    assert rows["double_score"].tolist() == [2.0 * i for i in range(8000)]
    assert rows["named_word"].tolist() == [f"row {i}" for i in range(8000)]
    assert [pair.tolist() for pair in rows["named_pair"]] == [[i, -i] for i in range(8000)]
    assert len(list((lake.revision() / "data").iterdir())) == 8
    assert (ran.scored.progress.counts.rows_out, ran.scored.progress.counts.rows_partial) == (8000, 0)
    assert not (lake.revision() / "quarantine").exists()


def test_a_row_that_one_model_cannot_score_keeps_the_outputs_of_the_other(lake: Lake) -> None:
    """3 is lost to one, 1500 to the other, 4000 to both; only the last is lost whole."""
    severals(lake, double=[3, 4000], named=[1500, 4000])
    ran = lake.run()
    rows = lake.published().set_index("id")
    assert sorted(set(range(8000)) - set(rows.index)) == [4000]
    assert rows.index[rows["double_score"].isna()].tolist() == [3]
    assert rows.index[rows["named_word"].isna()].tolist() == rows.index[rows["named_pair"].isna()].tolist() == [1500]
    assert (rows["named_word"][3], rows["double_score"][1500]) == ("row 3", 3000.0)
    lost = lake.quarantined()
    assert list(zip(lost["input"].map(lambda row: row["id"]), lost["model"], lost["error"], strict=True)) == [
        (3, "double", "ValueError"),
        (1500, "named", "KeyError"),
        (4000, "double", "ValueError"),
        (4000, "named", "KeyError"),
    ]
    progress = ran.scored.progress
    assert (progress.counts.rows_out, progress.counts.rows_quarantined, progress.counts.rows_partial) == (7999, 1, 2)
    found = totals(lake)
    assert (found["rows_in"], found["rows_out"], found["rows_quarantined"]) == (8000, 7999, 1)
    assert found["rows_partial"] == 2
    gate = next(gate for gate in ran.verdict.gates if gate.name == "quarantine")
    assert gate.observed == "3 of 8,000 rows"


def test_the_report_says_which_model_could_not_score_a_row_and_its_command_scores_it_again(lake: Lake) -> None:
    severals(lake, double=[3], named=[3, 1500]).run()
    shown = RunReport(lake.request(), 1).incidents(300)
    assert [(each.model, each.row, each.cause) for each in shown] == [
        ("double", 3, "ValueError"),
        ("named", 3, "KeyError"),
        ("named", 1500, "KeyError"),
    ]
    words = shlex.split(shown[-1].replay)
    assert words[-2:] == ["--model", "named"]
    shard = words[words.index("--shard") + 1]
    request = lake.request()
    again = replay_row(request, shard, 1500, None, pdb=False, model="named")
    assert (again.scored, again.outputs) == (False, ())
    assert "the model 'named': KeyError: 1500" in again.text
    assert replay_row(request, shard, 1500, None, pdb=False, model="double").outputs == (("double_score", "3000"),)
    both = replay_row(request, shard, 1500, None, pdb=False)
    assert not both.scored
    assert dict(both.outputs) == {"double_score": "3000", "named_word": "null", "named_pair": "null"}
    with pytest.raises(JobError, match=r"--model nmed: the job has no such model; did you mean 'named'\?"):
        replay_row(request, shard, 1500, None, pdb=False, model="nmed")


def test_where_all_must_score_a_row_it_is_lost_whole(lake: Lake) -> None:
    severals(lake, double=[3], named=[1500, 3], output={"uri": "out/", "rows": "all"})
    ran = lake.run()
    assert sorted(set(range(8000)) - set(lake.published()["id"])) == [3, 1500]
    assert lake.quarantined()["model"].tolist() == ["double", "named", "named"]
    progress = ran.scored.progress
    assert (progress.counts.rows_out, progress.counts.rows_quarantined, progress.counts.rows_partial) == (7998, 2, 0)


def test_a_row_that_cannot_be_read_is_lost_to_all_models(lake: Lake) -> None:
    severals(lake, named=[7])
    lake.to_json_lines()
    path = lake.folder / "data" / "part-00.jsonl"
    text = path.read_text().splitlines()
    at = next(index for index, line in enumerate(text) if '"id": 5,' in line)
    path.write_text("\n".join([*text[:at], "{broken", *text[at + 1 :]]) + "\n")
    ran = lake.run()
    lost = lake.quarantined()
    assert lost["model"].isna().tolist() == [True, False]
    assert lost["model"][1] == "named"
    assert "--model" not in lost["replay"][0]
    assert (ran.scored.progress.counts.rows_quarantined, ran.scored.progress.counts.rows_partial) == (1, 1)


def test_the_budget_counts_a_row_once(lake: Lake) -> None:
    """Of 8,000 rows 3 may fail; that two models fail at each of them costs no more."""
    budget = {"retry__max_quarantined": 3 / 8000}
    severals(lake, double=[3, 2500, 5000], named=[3, 2500, 5000], **budget).run()
    severals(lake, double=[3, 2500], named=[5000, 7000], **budget)
    with pytest.raises(QuarantineFull, match="4 rows are quarantined, more than the 3"):
        lake.run(date="2026-11-20")


def test_more_rows_than_the_run_may_lose_end_a_shard_whichever_models_lost_them(lake: Lake) -> None:
    severals(lake)
    loaded = [model("a", fails={1}), model("b", fails={2}), model("c", fails={2})]
    drained(score_models(table(), loaded, budget=2))
    with pytest.raises(
        OverBudget, match=r"2 rows failed where at most 1 may \(retry\.max_quarantined\); the first is row 101: "
    ):
        drained(score_models(table(), loaded, budget=1, at=lambda row: 100 + row))


def test_scoring_again_compares_every_models_outputs(lake: Lake) -> None:
    severals(lake, double=[3], named=[1500], rescore={"share": 1.0, "tolerance": 0.0})
    ran = lake.run()
    (gate,) = [gate for gate in ran.verdict.gates if gate.name == "rescore"]
    assert (gate.passed, gate.observed) == (True, "0 of 8,000 rows of 8 shards differ")
    lake.write_model(MODULE.replace("DOUBLE", "[]").replace("NAMED", "[]").replace("[each, -each]", "[each, RANDOM]"))
    text = (lake.folder / "model.py").read_text()
    (lake.folder / "model.py").write_text(
        "import random\n" + text.replace("RANDOM", "random.random() * (len(batch['id']) > 32)")
    )
    with pytest.raises(GateFailed, match="'named_pair' was"):
        lake.run(date="2026-11-20")


def test_checks_and_labels_are_of_the_prefixed_columns(lake: Lake) -> None:
    severals(
        lake,
        named=[7],
        checks=[{"column": "double_score", "min": 0}, {"column": "named_word", "nulls": 0.01}],
        label="late",
    )
    for path in (lake.folder / "data").iterdir():
        rows = pq.read_table(path)
        pq.write_table(rows.append_column("late", pa.array(np.arange(rows.num_rows) % 2)), path, row_group_size=1000)
    ran = lake.run()
    gates = {gate.name: gate.passed for gate in ran.verdict.gates}
    assert (gates["double_score.min"], gates["named_word.nulls"]) == (True, True)
    metrics = ran.verdict.metrics
    assert metrics.evaluation is not None
    assert (metrics.evaluation.score, metrics.evaluation.rows) == ("double_score", 8000)
    assert metrics.columns["named_word"].nulls == 1


def test_each_model_is_part_of_the_identity(lake: Lake) -> None:
    """A model's file that changes has the rows scored again, and the old result says which one it was."""
    (lake.folder / "words").mkdir(parents=True)
    for name in ("one", "other"):
        (lake.folder / "words" / name).write_text(name)
    both = [{**NAMED, "path": "words/one"}, {**NAMED, "name": "again", "path": "words/other"}]
    severals(lake, models=both).run()
    first = read_manifest(lake.request().storage, lake.request().output, lake.snapshot().runs[NIGHT])
    assert first.model is not None
    assert sorted(first.model.files) == ["again", "named"]
    assert set(lake.published()["named_word"].str.split().str[0]) == {"one"}
    assert set(lake.published()["again_word"].str.split().str[0]) == {"other"}
    (lake.folder / "words" / "other").write_text("new")
    ran = lake.run()
    assert ran.scored.again == ("model.path again changed: 8 of 8 shards are scored",)
    assert set(lake.published()["again_word"].str.split().str[0]) == {"new"}
    (lake.folder / "words" / "other").rename(lake.folder / "gone")
    with pytest.raises(JobError, match=r"^models\.again: model\.path: there is no file or folder "):
        lake.run()


def checked(lake: Lake) -> Any:
    request = lake.request()
    return run.check(request, run.discover(request))


def test_check_shows_the_outputs_of_all_models_and_names_the_one_that_cannot_score(lake: Lake) -> None:
    found = checked(severals(lake, named=[7]))
    assert [name for name, _ in found.columns][2:5] == ["double_score", "named_word", "named_pair"]
    assert found.sampled.names == ("id", "name", "double_score", "named_word", "named_pair")
    assert (found.sampled.rows, found.sampled.failed) == (8 * 32, 1)
    assert any("part-00.parquet, named: KeyError: 7" in said for said in found.warnings)
    severals(lake, named=list(range(8000)))
    with pytest.raises(JobError, match=r"^models: named: none of the first 32 rows of .* can be scored: KeyError: "):
        checked(lake)
    wrong = {**NAMED, "outputs": {"word": "string", "pair": "float32[3]"}}
    severals(lake, models=[DOUBLE, wrong])
    with pytest.raises(JobError, match=r"^models: named: .*pair"):
        checked(lake)


# ---- one table ----------------------------------------------------------------------------------------------


TEXT = pa.string()


class Plain:
    """A real scorer: its name's length times x; it raises for some rows, and for more rows than memory suffices for."""

    device = "cpu"

    def __init__(self, name: str, fails: set[int], fits: int, kind: pa.DataType) -> None:
        self.name, self.fails, self.fits, self.kind = name, fails, fits, kind
        self.calls: list[list[int]] = []

    def prepare(self, rows: pa.Table) -> pa.Table:
        return rows

    def score(self, rows: pa.Table) -> dict[str, pa.Array]:
        return self(rows)

    def __call__(self, rows: pa.Table) -> dict[str, pa.Array]:
        values = rows["x"].to_pylist()
        self.calls.append(values)
        if len(values) > self.fits:
            raise MemoryError
        if self.fails & set(values):
            raise ValueError(f"{self.name} takes no {min(self.fails & set(values))}")
        made = [self.name] * len(values) if pa.types.is_string(self.kind) else [[each, each] for each in values]
        if isinstance(self.kind, pa.FixedShapeTensorType):
            return {"y": pa.ExtensionArray.from_storage(self.kind, pa.array(made, self.kind.storage_type))}
        return {"y": pa.array(made, self.kind)}


def model(name: str, fails: Iterable[int] = (), fits: int = 99, size: int = 4, kind: pa.DataType = TEXT) -> LoadedModel:
    return LoadedModel(name, f"{name}_", ("x",), {"y": kind}, Plain(name, set(fails), fits, kind), BatchSize(size))


def table(rows: int = 10) -> pa.Table:
    return pa.table({"x": list(range(rows)), "more": ["a"] * rows})


def steps_of(work: Generator[Ahead, None, Any]) -> list[Ahead]:
    """What is yielded before each call of a scorer."""
    steps: list[Ahead] = []
    with pytest.raises(StopIteration):
        while True:
            steps.append(next(work))
    return steps


def plain(of: LoadedModel) -> Plain:
    assert isinstance(of.scorer, Plain)
    return of.scorer


def test_each_model_has_micro_batches_of_its_own_size() -> None:
    a, b = model("a", size=4), model("b", size=7)
    steps = steps_of(score_models(table(), [a, b]))
    assert steps == [Ahead(0, 4, "a"), Ahead(4, 4, "a"), Ahead(8, 2, "a"), Ahead(0, 7, "b"), Ahead(7, 3, "b")]


def test_memory_that_does_not_suffice_for_one_model_leaves_the_others_batches_as_they_are() -> None:
    a, b = model("a", size=8), model("b", size=8, fits=3)
    scored = drained(score_models(table(20), [a, b]))
    assert scored.outputs.num_rows == 20
    assert (a.size.most, a.size.forced, b.size.most, b.size.forced) == (8, 0, 2, 2)
    assert [len(call) for call in plain(b).calls if len(call) > 2] == [8, 4]


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.list_(pa.float32(), 2), pa.list_(pa.int8()), pa.fixed_shape_tensor(pa.float32(), [2])],
    ids=str,
)
def test_null_stands_where_a_model_has_no_output_whatever_the_type(kind: pa.DataType) -> None:
    a, b = model("a", {2, 5, 9}, kind=kind), model("b", {0, 5})
    scored = drained(score_models(table(), [a, b]))
    assert scored.kept is not None
    assert scored.kept.tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert scored.outputs.schema.types == [kind, pa.string()]
    outputs = scored.outputs["a_y"]
    assert [kept for kept, value in zip(scored.kept, outputs.is_null().to_pylist(), strict=True) if value] == [2, 9]
    if not pa.types.is_string(kind):
        assert outputs[3].as_py() is not None
        values = outputs[5].as_py()
        assert list(np.ravel(values)) == [6, 6]
    assert scored.outputs["b_y"].to_pylist() == [None, *["b"] * 8]
    assert [(failure.row, failure.model) for failure in scored.failures] == [
        (0, "b"),
        (2, "a"),
        (5, "a"),
        (5, "b"),
        (9, "a"),
    ]


def test_rows_that_are_skipped_for_all_models_have_one_failure_and_go_to_none() -> None:
    a, b = model("a"), model("b")
    unread = RowFailure(3, "InputCorrupt", "not UTF-8", "")
    died = {"b": {4: RowFailure(999, "ProcessDied", "exit", "", model="b")}}
    scored = drained(score_models(table(), [a, b], skip={3: unread}, died=died, singly={"b": range(6, 8)}))
    assert [(each.row, each.model, each.error) for each in scored.failures] == [
        (3, "", "InputCorrupt"),
        (4, "b", "ProcessDied"),
    ]
    assert plain(a).calls == [[0, 1, 2], [4, 5, 6, 7], [8, 9]]
    assert plain(b).calls == [[0, 1, 2], [5], [6], [7], [8, 9]]


def test_rows_that_are_skipped_have_one_failure_however_many_models_there_are() -> None:
    unread = RowFailure(3, "InputCorrupt", "not UTF-8", "")
    for models in ([model("a")], [model("a"), model("b"), model("c")]):
        scored = drained(score_models(table(), models, skip={3: unread}))
        assert scored.failures == (unread,)


def test_a_model_that_loses_more_rows_than_the_run_may_is_not_called_for_the_others() -> None:
    """The rows are told by their places in the file."""
    a, b = model("a", fails={2, 5}), model("b")
    with pytest.raises(OverBudget, match="the first is row 104: "):
        drained(score_models(table(40), [a, b], budget=1, at=lambda row: 100 + 2 * row))
    assert max(map(max, plain(a).calls)) < 12
    assert plain(b).calls == []


@pytest.mark.parametrize("ahead", [True, False])
def test_the_next_batch_is_prepared_while_a_model_computes_unless_that_is_not_wanted(ahead: bool) -> None:
    order: list[str] = []

    class Noting(Preparer):
        def begin(self, table: pa.Table, rows: Sequence[int]) -> None:
            order.append(f"begin {rows[0]}")
            super().begin(table, rows)

    class Noted(Plain):
        def __call__(self, rows: pa.Table) -> dict[str, pa.Array]:
            order.append(f"score {rows['x'][0]}")
            return super().__call__(rows)

    scorer = Noted("a", set(), 99, TEXT)
    one = replace(model("a"), scorer=scorer, preparer=Noting(scorer, PreparingThread()))
    drained(score_models(table(8), [one], **({} if ahead else {"ahead": False})))
    assert (order.index("begin 4") < order.index("score 0")) == ahead


def test_one_model_that_breaks_its_batches_is_named() -> None:
    class Broken(Plain):
        def __call__(self, rows: pa.Table) -> dict[str, pa.Array]:
            if rows.num_rows > 1:
                raise ValueError("one at a time")
            return super().__call__(rows)

    b = replace(model("b"), scorer=Broken("b", set(), 99, pa.string()))
    with pytest.raises(BatchesBroken, match=r"^models\.b: the predictor fails for batches of more than one row: "):
        drained(score_models(table(), [model("a"), b], cuts=partial(Cuts, 0, 0.0)))


def test_one_model_that_does_not_fit_the_job_is_named() -> None:
    class Unfit(Plain):
        def __call__(self, rows: pa.Table) -> dict[str, pa.Array]:
            raise JobError("model.features: no")

    b = replace(model("b"), scorer=Unfit("b", set(), 99, pa.string()))
    with pytest.raises(JobError, match=r"^models\.b: model\.features: no$"):
        drained(score_models(table(), [model("a"), b]))
    with pytest.raises(JobError, match=r"^model\.features: no$"):
        drained(score_models(table(), [replace(b, name="")]))


def test_preparing_ahead_gives_each_model_its_own_batches() -> None:
    made, thread = [model("a", {3}, size=4), model("b", size=3)], PreparingThread()
    ahead = [replace(each, preparer=Preparer(plain(each), thread)) for each in made]
    assert drained(score_models(table(), ahead)).outputs.equals(drained(score_models(table(), made)).outputs)


def test_one_model_is_the_case_in_which_every_failed_row_is_lost() -> None:
    one = replace(model("a", {4}), name="", prefix="")
    scored = drained(score_models(table(), [one]))
    assert scored.outputs.column_names == ["y"]
    assert {step.model for step in steps_of(score_models(table(), [one]))} == {""}
    assert [(failure.row, failure.model) for failure in scored.failures] == [(4, "")]
    assert scored.kept is not None
    assert scored.kept.tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9]


# ---- a worker -----------------------------------------------------------------------------------------------


class Scores:
    """A scorer of `severals`, without the user's module."""

    device = "cpu"

    def __init__(self, outputs: dict[str, pa.DataType], dies_at: int | None = None) -> None:
        self.outputs, self.dies_at = outputs, dies_at
        self.calls: list[list[int]] = []

    def prepare(self, rows: pa.Table) -> pa.Table:
        return rows

    def score(self, rows: pa.Table) -> dict[str, pa.Array]:
        return self(rows)

    def __call__(self, rows: pa.Table) -> dict[str, pa.Array]:
        values = [int(value) for value in rows[0].to_pylist()]
        self.calls.append(values)
        if self.dies_at in values:
            raise ProcessSpoilt("DeviceLost", "the device is gone")
        return {name: pa.nulls(len(values), kind) for name, kind in self.outputs.items()}


def suspects(lake: Lake, attempt: Attempt, dies_at: int | None = None) -> tuple[list[Event], list[Scores]]:
    """The events of one shard's attempt with two models, and the scorers, of which the second one may die."""
    spec = severals(lake).worker_spec()
    scorers = [
        Scores({"score": pa.float32()}),
        Scores({"word": pa.string(), "pair": pa.list_(pa.float32(), 2)}, dies_at),
    ]
    worker = ShardWorker(spec, scorers[0], scorers[1])
    events: list[Event] = []
    shard = next(iter(lake.planned().shards()))
    with suppress(ProcessSpoilt):
        for event in worker.process([Assignment(shard, attempt)]):
            events.append(event)
    return events, scorers


def test_a_crumb_and_a_death_name_the_model_that_had_the_rows(lake: Lake) -> None:
    events, _ = suspects(lake, Attempt(2, crumbs=True), dies_at=250)
    crumbs = [(each.model, each.row, each.rows) for each in events if isinstance(each, Crumb)]
    assert crumbs == [
        *[("double", 256 * index, min(256, 1000 - 256 * index)) for index in range(4)],
        *[("named", 100 * index, 100) for index in range(3)],
    ]
    (failed,) = [each for each in events if isinstance(each, Failed)]
    assert (failed.model, failed.row, failed.rows, failed.died) == ("named", 200, 100, True)
    assert "with the model 'named' at rows 200 to 299 of " in failed.message
    started = next(each for each in events if isinstance(each, Started))
    underway = Underway()
    for each in [started, *(each for each in events if isinstance(each, Crumb))]:
        underway.take(each)
    (death,) = underway.deaths("")
    assert (death.model, death.row, death.rows) == ("named", 200, 100)
    assert death.message.endswith(f"this shard, with the model 'named' at rows 200 to 299 of {death.uri}")


def test_a_row_that_kills_one_model_is_searched_and_skipped_for_that_model_alone(lake: Lake) -> None:
    uri = str(lake.folder / "data" / "part-00.parquet")
    blamed = Rows(uri, 210, 1, model="named")
    events, (double, named) = suspects(lake, Attempt(3, True, Rows(uri, 200, 100, model="named"), (blamed,)), 210)
    assert [len(call) for call in double.calls] == [256, 256, 256, 232]
    assert [210] not in named.calls
    assert [len(call) for call in named.calls] == [100, 100, *[1] * 99, *[100] * 7]
    (receipt,) = [each for each in events if isinstance(each, Receipt)]
    assert (receipt.rows_out, receipt.rows_quarantined, receipt.rows_partial) == (1000, 0, 1)
    assert receipt.ceilings == (), "memory has forced none"
    assert receipt.quarantine is not None
    table = pq.read_table(lake.revision() / receipt.quarantine.name)
    assert (table["model"].to_pylist(), table["error"].to_pylist()) == (["named"], ["ProcessDied"])


@pytest.mark.parametrize("budget", [3, 2])
def test_rows_that_some_or_all_models_lose_are_counted_together_and_once(lake: Lake, budget: int) -> None:
    """Of two files: 2 and 14 are lost to one model, 3 to both."""
    for name, first in (("a", 0), ("b", 10)):
        lake.write_file(f"{name}.parquet", first, 10)
    lake.write_model(MODULE.replace("set(DOUBLE)", "{2, 3, 14}").replace("set(NAMED)", "{3}"))
    lake.write_job(model=None, models=[DOUBLE, NAMED])
    worker = ShardWorker(replace(lake.worker_spec(), budget=budget))
    *_, last = worker.process([Assignment(shard) for shard in lake.planned().shards()])
    if budget == 3:
        assert isinstance(last, Receipt)
        assert (last.rows_out, last.rows_quarantined, last.rows_partial) == (19, 1, 2)
    else:
        assert isinstance(last, Failed)
        assert last.message == (
            "3 rows failed where at most 2 may (retry.max_quarantined); the first is row 2: ValueError: no double of 2 "
            "(model.py:5, in double)"
        )


def test_a_row_that_two_models_lose_keeps_its_input_of_views(lake: Lake) -> None:
    """Once for each model. Arrow cannot take rows of such a column."""
    path = lake.write_file("views.parquet", 0, 10)
    table = pq.read_table(path)
    pq.write_table(table.set_column(2, pa.field("name", pa.string_view()), table["name"].cast(pa.string_view())), path)
    lake.write_model(MODULE.replace("set(DOUBLE)", "{3, 4}").replace("set(NAMED)", "{4, 7}"))
    lake.write_job(model=None, models=[DOUBLE, NAMED])
    *_, last = ShardWorker(lake.worker_spec()).process([Assignment(each) for each in lake.planned().shards()])
    assert isinstance(last, Receipt), last
    lost = lake.quarantined()
    assert [(row["name"], model) for row, model in zip(lost["input"], lost["model"], strict=True)] == [
        ("row 3", "double"),
        ("row 4", "double"),
        ("row 4", "named"),
        ("row 7", "named"),
    ]


def test_deaths_of_two_models_at_the_same_rows_are_two_searches() -> None:
    """That one model died twice at some rows says nothing of another that died there once."""

    def died(model: str, row: int, rows: int) -> Failed:
        return Failed("s", 1, "ProcessDied", "", died=True, uri="f", row=row, rows=rows, model=model)

    one = next_attempt([died("a", 0, 8), died("a", 3, 1)], 3)
    assert isinstance(one, Attempt)
    assert one.skip == (Rows("f", 3, 1, model="a"),)
    other = next_attempt([died("a", 0, 8), died("b", 3, 1)], 3)
    assert isinstance(other, Attempt)
    assert (other.skip, other.singly) == ((), Rows("f", 3, 1, model="b"))


# ---- memory -------------------------------------------------------------------------------------------------

SMALL_MEMORY = """
import os

def double(batch):
    return seen("double", batch["x"], 10_000)

def halve(batch):
    return seen("halve", batch["x"], 300)

def seen(name, x, fits):
    with open(os.path.join(__LIVE__, f"calls-{name}"), "a") as calls:
        calls.write(f"{len(x)} ")
    if len(x) > fits:
        raise MemoryError
    return {"y": x * 2}
"""


def test_what_memory_allows_is_found_for_each_model(lake: Lake) -> None:
    """The other's batches stay as large as they were."""
    lake.write_model(SMALL_MEMORY)
    both = [
        {"name": name, "uses": f"model:{name}", "features": ["x"], "outputs": {"y": "float32"}}
        for name in ("double", "halve")
    ]
    lake.engine = "local"
    lake.ready(model=None, models=both, input__shard_rows=2000)

    def calls(name: str) -> list[int]:
        path = lake.folder / f"calls-{name}"
        found = [int(rows) for rows in path.read_text().split() if int(rows) > 32]
        path.unlink()
        return found

    ran = lake.run(date="2026-11-18")
    assert max(calls("double")) == 2000
    assert max(calls("halve")) == 2000
    assert any("more than 250 rows" in note for note in ran.scored.warnings)
    assert totals(lake, "2026-11-18")["ceilings"] == (0, 250)


# ---- one read -----------------------------------------------------------------------------------------------


def test_the_input_is_read_once_however_many_models_there_are(lake: Lake) -> None:
    """Requests and bytes are those of a job with one model that takes the same columns."""

    def read(**changes: Any) -> tuple[int, int]:
        severals(lake, **changes)
        storage = Reading()
        run_steps(lake.request(storage=storage, fresh=True))  # type: ignore[arg-type]
        return storage.opened, storage.bytes

    one = {**DOUBLE, "features": ["x", "id"]}
    opened, size = read(model={key: value for key, value in one.items() if key != "name"}, models=None)
    assert size > 0
    assert read(models=[one, NAMED]) == (opened, size)
    assert read(models=[one, NAMED, {**NAMED, "name": "again"}]) == (opened, size)


class Reading:
    """A storage that counts how often the lake's input is opened, and the bytes that are read of it."""

    def __init__(self) -> None:
        self._inner = LakeStorage()
        self.opened = self.bytes = 0

    def __getattr__(self, operation: str) -> Any:
        if operation.startswith("_"):
            raise AttributeError(operation)
        return getattr(self._inner, operation)

    def open(self, uri: str, **named: Any) -> Any:
        file = self._inner.open(uri, **named)
        if "/data/part-" not in uri or "/out/" in uri:
            return file
        self.opened += 1
        return pa.PythonFile(Counted(file, self), mode="r")


class Counted(io.RawIOBase):
    def __init__(self, file: Any, count: Reading) -> None:
        self._file, self._count = file, count

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def read(self, size: int = -1) -> bytes:
        found = bytes(self._file.read() if size < 0 else self._file.read(size))
        self._count.bytes += len(found)
        return found
