"""Regression promises: any grouping gives the same figures but for rounding, and they are scikit-learn's."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazily import lazily
from nightjar.flows.pages.evaluated import evaluation_lines
from nightjar.inference.errors import JobError, LabelInvalid
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.jsonform import of_json, to_json
from nightjar.inference.metrics.figures import Bounded, Evaluation, Figures
from nightjar.inference.metrics.regression import RegressionState
from nightjar.inference.metrics.slices import Slices
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.validation.gates import Evidence, Found, GateResult, evaluate
from nightjar.inference.validation.gates.rules import gates_of

mean_absolute_error = lazily("sklearn.metrics", "mean_absolute_error")
mean_squared_error = lazily("sklearn.metrics", "mean_squared_error")
r2_score = lazily("sklearn.metrics", "r2_score")

CONTENT = {
    "name": "delays",
    "input": {"uri": "in/"},
    "model": {"uses": "mine:Model", "outputs": {"word": "string", "minutes": "float32", "hours": "float64"}},
    "label": "delay",
    "evaluation": {"task": "regression"},
    "output": {"uri": "out/"},
}


def job_of(**keys: Any) -> Job:
    return parse_job({**CONTENT, **keys}, Path("/jobs/job.yaml"))


JOB = job_of()


def measured(outputs: Any, labels: Any, job: Job = JOB) -> Metrics:
    table = pa.table({name: pa.array(outputs, pa.float64()) for name in ("minutes", "hours")})
    metrics = Metrics.for_job(job)
    metrics.update(table, labels if isinstance(labels, pa.Array) else pa.array(labels, pa.float64()))
    return metrics


def evaluation(outputs: Any, labels: Any) -> Evaluation:
    found = Metrics.from_bytes(measured(outputs, labels).to_bytes()).results().evaluation
    assert found is not None
    return found


def figures(outputs: Any, labels: Any) -> dict[str, float]:
    return {name: each.value for name, each in evaluation(outputs, labels).metrics.items()}


ANY = st.none() | st.floats(allow_infinity=False)
NEAR = st.floats(-1e6, 1e6)
ROWS = st.lists(st.tuples(st.none() | NEAR, ANY | NEAR), max_size=50)


@given(ROWS, st.lists(st.integers(0, 50), max_size=6), st.data())
def test_any_grouping_gives_the_same_figures_but_for_rounding_and_the_same_order_the_same_bytes(
    rows: list[tuple[Any, Any]], cuts: list[int], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(rows))
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    parts = [
        measured([out for out, _ in shuffled[low:high]], [label for _, label in shuffled[low:high]]).to_bytes()
        for low, high in itertools.pairwise(edges)
    ]
    merged, again = (Metrics.for_job(JOB) for _ in range(2))
    for part in parts:
        merged.merge(Metrics.from_bytes(part))
        again.merge(Metrics.from_bytes(part))
    assert merged.to_bytes() == again.to_bytes()
    whole = measured([out for out, _ in rows], [label for _, label in rows])
    one, other = (each.results().evaluation for each in (merged, whole))
    assert one is not None
    assert other is not None
    assert (one.rows, one.excluded_null_labels, one.excluded_scores) == (
        *(other.rows, other.excluded_null_labels),
        other.excluded_scores,
    )
    for name in {"rmse", "mae", "bias"} & one.metrics.keys():
        near = 1e-9 * one.metrics["mae"].value  # errors of both signs may cancel each other
        assert one.metrics[name].value == pytest.approx(other.metrics[name].value, abs=near)
    largest = max((abs(label) for _, label in rows if label is not None and not math.isnan(label)), default=0.0)
    assert isinstance(whole.evaluation, RegressionState)
    apart = math.sqrt(whole.evaluation.labels.deviations / max(1, one.rows))
    if "r2" in one.metrics and apart > 1e-4 * largest:
        assert one.metrics["r2"].value == pytest.approx(other.metrics["r2"].value, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("centre", [0.0, 1e3, -1e6])
@pytest.mark.parametrize("rows", [2, 40, 200_000])
def test_the_figures_are_scikit_learns(rows: int, centre: float) -> None:
    random = np.random.default_rng(rows)
    labels = random.normal(size=rows) * 20 + centre
    outputs = labels + random.normal(size=rows) * 5 + 0.5
    found = figures(outputs, labels)
    assert found["rmse"] == pytest.approx(math.sqrt(mean_squared_error(labels, outputs)), rel=1e-12)
    assert found["mae"] == pytest.approx(mean_absolute_error(labels, outputs), rel=1e-12)
    assert found["r2"] == pytest.approx(r2_score(labels, outputs), abs=1e-9)
    assert found["bias"] == pytest.approx(float((outputs - labels).mean()), rel=1e-9)


NO_ROW = "no row has both a label and an output"
TOO_LARGE = "an error is infinite, or the sum of their squares is too large for a float"


@pytest.mark.parametrize("parts", [1, 7])
def test_r2_loses_nothing_where_labels_are_large_and_near_to_each_other(parts: int) -> None:
    """Computed with fractions: labels of a billion that differ by a little."""
    random = np.random.default_rng(parts)
    labels = 1e9 + random.normal(size=700)
    outputs = labels + random.normal(size=700) / 3
    merged = Metrics.for_job(JOB)
    for one, other in zip(np.array_split(outputs, parts), np.array_split(labels, parts), strict=True):
        merged.merge(measured(one, other))
    mean = sum(map(Fraction, labels)) / len(labels)
    total = sum((Fraction(label) - mean) ** 2 for label in labels)
    lost = sum(Fraction(out - label) ** 2 for out, label in zip(outputs, labels, strict=True))
    assert merged.evaluation is not None
    found = merged.evaluation.metric("r2")
    assert isinstance(found, Bounded)
    assert found.value == pytest.approx(float(1 - lost / total), rel=1e-9)


@pytest.mark.parametrize(
    ("outputs", "labels", "reason", "r2_reason"),
    [
        ([], [], NO_ROW, NO_ROW),
        ([None, 1.0], [1.0, None], NO_ROW, NO_ROW),
        ([1.0, math.inf], [1.0, 2.0], TOO_LARGE, TOO_LARGE),
        ([1.0, 1e200], [1.0, 2.0], TOO_LARGE, TOO_LARGE),
        ([1.0, 2.0], [3.0, 3.0], None, "all labels are equal"),
        ([0.1, 0.2, 0.3], [0.1, 0.1, 0.1], None, "all labels are equal"),
        ([1e150, 2.0], [1e-50, 3e-50], None, "it is too large for a float"),
    ],
)
def test_a_figure_that_is_not_there_has_a_reason(
    outputs: list[Any], labels: list[Any], reason: str | None, r2_reason: str
) -> None:
    found = evaluation(outputs, labels)
    assert (found.missing.get("rmse"), found.missing["r2"]) == (reason, r2_reason)
    assert ("rmse" in found.metrics, "r2" in found.metrics) == (reason is None, False)


def test_rows_without_label_or_output_are_left_out_and_counted_once() -> None:
    """NaN is how pandas writes a null."""
    found = measured([1.0, None, math.nan, 2.0, None], [3.0, 1.0, 1.0, math.nan, None]).results().evaluation
    assert found is not None
    assert (found.rows, found.excluded_null_labels, found.excluded_scores, found.label, found.score) == (
        *(1, 2, 2),
        *("delay", "minutes"),
    )


@pytest.mark.parametrize(
    "labels",
    [
        pa.array([1, None, 3], pa.int8()),
        pa.array([1, None, 3], pa.decimal128(5, 2)),
        pa.array([1.0, None, 3.0], pa.float32()).cast(pa.float16()),
        pa.array([1.0, None, 3.0]).dictionary_encode(),
        pa.array([1.0, math.nan, 3.0]),
    ],
    ids=lambda labels: str(labels.type),
)
def test_labels_may_be_of_any_number_type(labels: pa.Array) -> None:
    assert figures([2.0, 5.0, 4.0], labels) == {"rmse": 1.0, "mae": 1.0, "bias": 1.0, "r2": 0.0}


@pytest.mark.parametrize(
    ("labels", "said"),
    [(pa.array([1.0, math.inf]), "holds inf; it must be a finite number"), (pa.array(["1", "2"]), "is string")],
)
def test_any_other_label_is_an_error(labels: pa.Array, said: str) -> None:
    with pytest.raises(LabelInvalid, match=f"label column 'delay' {said}"):
        measured([1.0, 2.0], labels)


def test_the_output_is_the_first_number_or_the_one_that_the_job_names() -> None:
    for job, name in ((JOB, "minutes"), (job_of(evaluation={"task": "regression", "prediction": "hours"}), "hours")):
        found = measured([1.0], [1.0], job).evaluation
        assert found is not None
        assert found.score == name
    with pytest.raises(JobError, match=r"evaluation.prediction: 'word' is string, and evaluation.task: regression"):
        Metrics.for_job(job_of(evaluation={"task": "regression", "prediction": "word"}))
    with pytest.raises(JobError, match="no output of the model is a number; declare one"):
        Metrics.for_job(job_of(model={"uses": "mine:Model", "outputs": {"word": "string"}}))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"evaluation": {"task": "regresion"}}, "evaluation.task"),
        ({"evaluation": {"prediction": "hour"}}, "evaluation.prediction: 'hour' is no output .* did you mean 'hours'"),
        (
            {"checks": [{"metric": "auroc", "min": 0.5}]},
            r"checks\[0\].metric: auroc is of evaluation.task: binary, and this job's is regression, which has rmse, ",
        ),
        (
            {"evaluation": {}, "checks": [{"metric": "rmse", "max": 3}]},
            r"checks\[0\].metric: rmse is of evaluation.task: regression, and this job's is binary",
        ),
    ],
)
def test_what_makes_no_sense_is_named(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        job_of(**keys)


def judged(**check: Any) -> GateResult:
    job = job_of(checks=[check])
    state = measured([1.0, 2.0, 6.0], [1.0, 2.0, 3.0], job).evaluation
    return evaluate(gates_of(job), Evidence(Found(1, 3), metrics=Metrics(slices=Slices("regression", {}, state))))[-1]


@pytest.mark.parametrize(
    ("check", "passed", "sentence"),
    [
        (
            {"metric": "rmse", "max": 2},
            True,
            "The rmse of 'minutes' against 'delay' is 1.73205; checks[0].max = 2 holds.",
        ),
        (
            {"metric": "r2", "min": 0.5},
            False,
            "The r2 of 'minutes' against 'delay' is -3.5, below checks[0].min = 0.5. Look whether the model, its "
            "features or the labels have changed, or lower checks[0].min.",
        ),
        (
            {"metric": "bias", "min": -1, "max": 1},
            True,
            "The bias of 'minutes' against 'delay' is 1; checks[0].max = 1 holds.",
        ),
        ({"metric": "mae", "max": 1}, True, "The mae of 'minutes' against 'delay' is 1; checks[0].max = 1 holds."),
    ],
)
def test_what_a_gate_says(check: dict[str, Any], passed: bool, sentence: str) -> None:
    found = judged(**check)
    assert (found.passed, found.sentence) == (passed, sentence)


def test_the_figures_survive_the_manifests_form_and_are_shown() -> None:
    found = measured([1.0, 2.0, 6.0], [1.0, 2.0, 3.0]).results()
    assert of_json(Figures, to_json(found)) == found
    assert evaluation_lines(found) == [
        ("rmse", "1.7321 over 3 rows"),
        ("metrics", "mae 1.0000, bias 1.0000, r2 -3.5000"),
    ]
