"""Regression promises: any grouping and order gives the same bytes, and the figures are scikit-learn's."""

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
from nightjar.inference.metrics.figures import Figures, RegressionFigures
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.validation.gates import Evidence, Found, GateResult, evaluate, gates_of

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


def figures(outputs: Any, labels: Any) -> RegressionFigures:
    found = Metrics.from_bytes(measured(outputs, labels).to_bytes()).results().evaluation
    assert found is not None
    assert found.numbers is not None
    return found.numbers


ANY = st.none() | st.floats(allow_infinity=False)
ROWS = st.lists(st.tuples(st.none() | st.floats(), ANY), max_size=50)


@given(ROWS, st.lists(st.integers(0, 50), max_size=6), st.data())
def test_any_grouping_in_any_order_gives_the_same_bytes(
    rows: list[tuple[Any, Any]], cuts: list[int], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(rows))
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    merged = Metrics.for_job(JOB)
    for low, high in itertools.pairwise(edges):
        part = shuffled[low:high]
        merged.merge(Metrics.from_bytes(measured([out for out, _ in part], [label for _, label in part]).to_bytes()))
    whole = measured([out for out, _ in rows], [label for _, label in rows])
    assert merged.to_bytes() == whole.to_bytes()
    assert merged.results() == whole.results()


@pytest.mark.parametrize("centre", [0.0, 1e3, -1e6])
@pytest.mark.parametrize("rows", [2, 40, 200_000])
def test_the_figures_are_scikit_learns(rows: int, centre: float) -> None:
    random = np.random.default_rng(rows)
    labels = random.normal(size=rows) * 20 + centre
    outputs = labels + random.normal(size=rows) * 5 + 0.5
    found = figures(outputs, labels)
    assert found.rmse == pytest.approx(math.sqrt(mean_squared_error(labels, outputs)), rel=1e-12)
    assert found.mae == pytest.approx(mean_absolute_error(labels, outputs), rel=1e-12)
    assert found.r2 == pytest.approx(r2_score(labels, outputs), abs=1e-9)
    assert found.bias == pytest.approx(float((outputs - labels).mean()), rel=1e-9)


NUMBERS = st.lists(st.tuples(*[st.floats(-1e9, 1e9, width=32)] * 2), min_size=2, max_size=30)


@given(NUMBERS)
def test_r2_is_rounded_once_however_near_the_labels_are_to_each_other(rows: list[tuple[float, float]]) -> None:
    """Computed with fractions; labels of a billion that differ by a little lose nothing."""
    outputs, labels = [out for out, _ in rows], [1e9 + label / 1e9 for _, label in rows]
    mean = sum(map(Fraction, labels)) / len(labels)
    total = sum((Fraction(label) - mean) ** 2 for label in labels)
    found = figures(outputs, labels)
    if not total:
        assert (found.r2, found.r2_reason) == (None, "all labels are equal")
        return
    lost = sum(Fraction(out - label) ** 2 for out, label in zip(outputs, labels, strict=True))
    assert found.r2 == pytest.approx(float(1 - lost / total), rel=1e-12)


@pytest.mark.parametrize(
    ("outputs", "labels", "reason", "r2_reason"),
    [
        ([], [], "no row has both a label and an output", None),
        ([None, 1.0], [1.0, None], "no row has both a label and an output", None),
        ([1.0, math.inf], [1.0, 2.0], "1 errors are infinite, or too large to be squared", None),
        ([1.0, 1e200], [1.0, 2.0], "1 errors are infinite, or too large to be squared", None),
        ([1.0, 2.0], [3.0, 3.0], None, "all labels are equal"),
        ([1e150, 2.0], [1e-50, 3e-50], None, "the labels are nearly equal, and the errors far larger"),
    ],
)
def test_a_figure_that_is_not_there_has_a_reason(
    outputs: list[Any], labels: list[Any], reason: str | None, r2_reason: str | None
) -> None:
    found = figures(outputs, labels)
    assert (found.reason, found.r2_reason) == (reason, r2_reason)
    assert (found.rmse is None, found.r2) == (reason is not None, None)


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
    assert figures([2.0, 5.0, 4.0], labels) == RegressionFigures(rmse=1.0, mae=1.0, bias=1.0, r2=0.0)


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
    return evaluate(gates_of(job), Evidence(Found(1, 3), evaluation=state))[-1]


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
    assert evaluation_lines(found) == [("RMSE", "1.73205, MAE 1, bias +1 over 3 rows"), ("R2", "-3.5000")]


def test_metrics_of_other_tasks_do_not_merge() -> None:
    other = job_of(evaluation={})
    with pytest.raises(ValueError, match="different jobs"):
        Metrics.for_job(JOB).merge(Metrics.for_job(other))
