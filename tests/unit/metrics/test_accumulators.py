"""The user's own accumulators: what is kept of them, what is refused on a sample, and what a job may say of them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar.flows.pages.evaluated import own_lines
from nightjar.inference.history.run_status import figures_of
from nightjar.inference.identity.identity import identify
from nightjar.inference.input.plan import discover
from nightjar.inference.job.model import Job
from nightjar.inference.job.modeljob import scoring_keys
from nightjar.inference.jsonform import of_json, to_json
from nightjar.inference.metrics.accumulators import MOST_BYTES, Accumulator, Broken, Kind, encoded, try_on
from nightjar.inference.metrics.columns import ColumnState
from nightjar.inference.metrics.figures import AccumulatorFigures, Figures
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.validation.gates import Evidence, Found, GateResult, evaluate
from nightjar.inference.validation.gates.rules import gates_of
from support import ROOT, Lake

VALUES = st.lists(st.integers(-50, 50), max_size=40)


class Exact:
    """Counts values and sums them."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.sum = 0

    def update(self, rows: pa.Table) -> None:
        for value in rows["x"].to_pylist():
            self.counts[str(value)] = self.counts.get(str(value), 0) + 1
            self.sum += value

    def merge(self, state: Any) -> None:
        for value, rows in state["counts"].items():
            self.counts[value] = self.counts.get(value, 0) + rows
        self.sum += state["sum"]

    def state(self) -> Any:
        return {"counts": self.counts, "sum": np.int64(self.sum)}

    def results(self) -> dict[str, float | None]:
        rows = sum(self.counts.values())
        return {"mean": self.sum / rows if rows else None, "distinct": len(self.counts)}


def kind(make: Any = Exact) -> Kind:
    return Kind("own", f"mymetrics:{make.__name__}", cast("Callable[[], Accumulator]", make))


def rows(values: list[Any]) -> pa.Table:
    return pa.table({"x": values})


@given(VALUES, st.randoms(use_true_random=False))
def test_any_grouping_in_any_order_gives_the_same_figures(values: list[int], chance: random.Random) -> None:
    own = kind()
    whole = own.of_rows([rows(values)])
    chance.shuffle(values)
    cuts = sorted(chance.randrange(len(values) + 1) for _ in range(4))
    pieces = [values[a:b] for a, b in zip([0, *cuts], [*cuts, len(values)], strict=True)]
    states = [own.of_rows([rows(piece)]) for piece in pieces]
    chance.shuffle(states)
    assert own.results(own.of_states([own.of_states(states[:2]), *states[2:]])) == own.results(whole)
    assert own.results(own.of_states(states)) == own.results(whole)


def test_a_state_that_grows_with_the_rows_is_refused() -> None:
    with pytest.raises(Broken, match=rf"has a state of [0-9,]+ bytes, and {MOST_BYTES:,} are the most"):
        encoded(bytes(MOST_BYTES))


def changed(**methods: Any) -> Any:
    return type("Changed", (Exact,), methods)


def last_wins(self: Any, state: Any) -> None:
    self.counts = state["counts"]
    self.sum = state["sum"]


def keeps_first(self: Any, table: pa.Table) -> None:
    self.sum = self.sum or table["x"][0].as_py()


def adds_a_tenth(self: Any, table: pa.Table) -> None:
    for value in table["x"].to_pylist():
        self.sum += value * 0.1


SAMPLE = rows(list(range(1, 33)))


def test_an_exact_accumulator_is_told_with_its_figures() -> None:
    assert try_on(kind(), SAMPLE) == ("mean", "distinct")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_rows_suffice_to_try_it(count: int) -> None:
    assert try_on(kind(), SAMPLE.slice(0, count))


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ({"merge": last_wins}, "with the states of three parts of the rows merged, mean is 27.0, and not 16.5"),
        (
            {"update": keeps_first, "results": lambda self: {"sum": self.sum}},
            "three parts of the rows merged, sum is 34.0, and not 1.0",
        ),
        ({"merge": lambda self, state: None}, "three parts of the rows merged, mean is None, and not 16.5"),
        ({"results": lambda self: {}}, "returns no figure"),
        ({"results": lambda self: [1]}, "returns a list from results"),
        ({"results": lambda self: {"top": "1"}}, "returns a str as 'top'"),
    ],
)
def test_a_class_that_breaks_the_promise_is_refused_on_a_sample(methods: Any, said: str) -> None:
    with pytest.raises(Broken, match=said):
        try_on(kind(changed(**methods)), SAMPLE)


def test_sums_of_floats_may_be_rounded() -> None:
    sums = changed(update=adds_a_tenth, state=lambda self: {"counts": {}, "sum": self.sum})
    assert try_on(kind(sums), SAMPLE)


def test_a_figure_that_is_no_number_is_none() -> None:
    own = kind(changed(results=lambda self: {"a": np.float32(0.5), "b": float("nan"), "c": None, "d": np.int64(2)}))
    assert own.results(own.of_rows([SAMPLE])) == {"a": 0.5, "b": None, "c": None, "d": 2.0}


def test_a_shard_without_rows_has_the_state_of_a_new_one() -> None:
    """`update` is not called: few classes are written for no rows."""
    refuses = kind(changed(update=lambda self, table: pc.mean(table["absent"])))
    assert refuses.of_rows([rows([])]) == refuses.of_states([])


def job(**keys: Any) -> Job:
    return Job.model_validate(
        {
            "name": "own",
            "input": {"uri": "/in"},
            "output": {"uri": "/out"},
            "model": {"uses": "m:f", "outputs": {"score": "float32"}},
            "accumulators": {"lift": "mymetrics:Lift"},
            **keys,
        }
    )


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"accumulators": {"a b": "m:X"}}, "'a b' must be letters, digits and underscores"),
        ({"accumulators": {"lift": "Lift"}}, "lift must be \"module:Name\" of a class, not 'Lift'"),
        (
            {"checks": [{"metric": "lfit.top", "min": 1}]},
            r"checks\[0\].metric: lfit.top is of no accumulator that the job names; did you mean 'lift'",
        ),
        (
            {"checks": [{"metric": "lift.top", "min": 1, "slices": ["score"]}]},
            r"checks\[0\].slices: is for metrics of the labels, and lift.top is of an accumulator",
        ),
        (
            {"accumulators": {}, "checks": [{"metric": "lift.top", "min": 1}]},
            "is of no accumulator that the job names; it has none",
        ),
    ],
)
def test_a_job_that_makes_no_sense_is_refused_by_its_key(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        job(**keys)


def test_accumulators_do_not_score_and_leave_nothing_beside_the_parts() -> None:
    assert not job().states_beside
    assert scoring_keys(job()) == scoring_keys(job(accumulators={}))


FIGURES = AccumulatorFigures("mymetrics:Lift", {"top": 2.25, "none": None})


def judged(found: AccumulatorFigures | None, *checks: dict[str, Any]) -> tuple[GateResult, ...]:
    """The verdict on the accumulator, and those of the checks."""
    rules = gates_of(job(checks=list(checks)))
    return evaluate(rules, Evidence(Found(1, 1), accumulators={"lift": found} if found else {}))[2:]


@pytest.mark.parametrize(
    ("metric", "found", "said"),
    [
        ("lift.top", FIGURES, "lift.top is 2.25; checks[0].min = 2 holds."),
        ("lift.top", AccumulatorFigures("m:Lift", {"top": 1.9999999}), "1.9999999, below checks[0].min = 2"),
        ("lift.none", FIGURES, "mymetrics:Lift gives none for these rows"),
        ("lift.tpo", FIGURES, "mymetrics:Lift gives no 'tpo'; did you mean 'top'"),
        ("lift.top", AccumulatorFigures("m:Lift", reason="m:Lift failed with X"), "m:Lift failed with X. Mend"),
        ("lift.top", None, "accumulators.lift was not asked"),
    ],
)
def test_what_a_gate_on_a_figure_says(metric: str, found: AccumulatorFigures | None, said: str) -> None:
    computed, gate = judged(found, {"metric": metric, "min": 2})
    assert said in gate.sentence
    assert (gate.name, gate.passed, gate.limit) == (f"{metric}.min", said.endswith("holds."), "2")
    assert computed.verdict == ("pass" if found and not found.reason else "warn")


@pytest.mark.parametrize(
    ("check", "passed", "observed", "sentence"),
    [
        ({"min": 2.25}, True, "2.25", "lift.top is 2.25; checks[0].min = 2.25 holds."),
        ({"max": 2.25}, True, "2.25", "lift.top is 2.25; checks[0].max = 2.25 holds."),
        (
            {"min": 3},
            False,
            "2.25",
            "lift.top is 2.25, below checks[0].min = 3. Look what mymetrics:Lift counts, and whether the model or its "
            "input have changed, or lower checks[0].min.",
        ),
        (
            {"max": 2},
            False,
            "2.25",
            "lift.top is 2.25, above checks[0].max = 2. Look what mymetrics:Lift counts, and whether the model or its "
            "input have changed, or raise checks[0].max.",
        ),
    ],
)
def test_a_figure_may_be_its_limit_and_not_beyond_it(
    check: dict[str, Any], passed: bool, observed: str, sentence: str
) -> None:
    (end,) = check
    gate = judged(FIGURES, {"metric": "lift.top", **check})[-1]
    assert (gate.name, gate.passed, gate.observed, gate.limit) == (f"lift.top.{end}", passed, observed, str(check[end]))
    assert gate.sentence == sentence


def test_a_check_with_two_limits_is_two_gates() -> None:
    _, low, high = judged(FIGURES, {"metric": "lift.top", "min": 1, "max": 2})
    assert [(gate.name, gate.passed) for gate in (low, high)] == [("lift.top.min", True), ("lift.top.max", False)]


def test_a_figure_within_its_limit_is_told_in_six_digits() -> None:
    third = AccumulatorFigures("m:Lift", {"top": 1 / 3})
    _, within, beyond = judged(third, *({"metric": "lift.top", end: 0.333333} for end in ("min", "max")))
    assert (within.passed, within.observed) == (True, "0.333333")
    assert (beyond.passed, beyond.observed) == (False, "0.3333333333333333")


def test_the_name_of_a_figure_may_have_a_dot() -> None:
    found = AccumulatorFigures("m:Lift", {"recall@0.5": 0.8})
    gate = judged(found, {"metric": "lift.recall@0.5", "min": 0.7})[-1]
    assert (gate.name, gate.sentence) == ("lift.recall@0.5.min", "lift.recall@0.5 is 0.8; checks[0].min = 0.7 holds.")


def test_a_figure_that_is_not_there_is_told_with_those_that_are() -> None:
    gate = judged(FIGURES, {"metric": "lift.recall", "min": 2})[-1]
    assert (gate.passed, gate.observed, gate.limit) == (False, "no figure", "2")
    assert gate.sentence == (
        "There is no lift.recall for checks[0].min = 2: mymetrics:Lift gives no 'recall'; it gives top, none."
    )


@pytest.mark.parametrize(
    ("found", "verdict", "observed", "sentence"),
    [
        (FIGURES, "pass", "2 figures", "mymetrics:Lift gives 2 figures."),
        (AccumulatorFigures("m:Lift", {"top": None}), "pass", "1 figure", "m:Lift gives 1 figure."),
        (
            AccumulatorFigures("m:Lift", reason="m:Lift failed with X"),
            "warn",
            "no figures",
            "m:Lift failed with X. Mend m:Lift and repeat the command.",
        ),
        (None, "warn", "no figures", "accumulators.lift was not asked. Run again."),
    ],
)
def test_an_accumulator_without_figures_warns(
    found: AccumulatorFigures | None, verdict: str, observed: str, sentence: str
) -> None:
    (gate,) = judged(found)
    assert (gate.name, gate.verdict, gate.passed) == ("lift", verdict, verdict == "pass")
    assert (gate.observed, gate.limit, gate.sentence) == (observed, "figures", sentence)


def test_the_class_in_the_docs_is_one_and_its_figure_is_the_one_that_sorting_gives() -> None:
    page = (ROOT / "docs" / "gates.md").read_text()
    (source,) = (each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Lift" in each)
    space: dict[str, Any] = {}
    exec(source, space)
    random_ = np.random.default_rng(7)
    scores = random_.permutation(1000) / 1000 + 0.0005
    late = random_.random(1000) < scores**2
    night = pa.table({"id": range(1000), "score": pa.array(scores, pa.float32()), "late": late})
    own = kind(space["Lift"])
    assert try_on(own, night.slice(0, 32)) == ("at_top_decile",)
    top = late[np.argsort(scores)[-100:]].mean() / late.mean()
    assert own.results(own.of_rows([night.slice(0, 400), night.slice(400)])) == {"at_top_decile": pytest.approx(top)}
    assert own.results(own.of_rows([])) == {"at_top_decile": None}


def test_figures_are_told_wherever_metrics_are() -> None:
    """In lines for people; and as numbers for the trend, `diff` and the list of nights."""
    column = ColumnState(rows=1, nulls=0, nonfinite=0, min=1, max=2, kind="number")
    broken = AccumulatorFigures("m:Broken", reason="it failed")
    night = Figures({"x": column}, accumulators={"lift": FIGURES, "broken": broken})
    assert own_lines(night) == [("lift", "top 2.25, none none"), ("broken", "it failed")]
    assert figures_of(night) == {"lift.top": 2.25}
    assert of_json(Figures, to_json(night)) == night


def test_an_edit_of_what_judges_changes_no_identity_and_is_noticed(tmp_path: Path) -> None:
    """The code of an accumulator or of a check, and a limit."""
    lake = Lake(tmp_path / "lake")

    def found(metrics: str, checks: str, lost: float = 0.1, **limits: int) -> tuple[str, str]:
        checked = [{"call": "mychecks:fine"}, {"column": "score", **limits}]
        lake.ready(accumulators={"own": "mymetrics:Own"}, checks=checked, retry={"max_quarantined": lost})
        (lake.folder / "mymetrics.py").write_text(metrics)
        (lake.folder / "mychecks.py").write_text(checks)
        request = lake.request()
        schema = discover(LakeStorage(), request.job).schema
        return request.scoring.judging, identify(request.job, request.scoring, schema).fingerprint

    before = found("a = 1", "b = 1", max=1)
    assert found("a = 1", "b = 1", max=1) == before
    edited = [
        found("a = 2", "b = 1", max=1),
        found("a = 1", "b = 2", max=1),
        found("a = 1", "b = 1", max=2),
        found("a = 1", "b = 1", lost=0.2, max=1),
    ]
    assert len({judging for judging, _ in [before, *edited]}) == 5
    assert {scored for _, scored in edited} == {before[1]}
