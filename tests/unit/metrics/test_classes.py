"""Promises on labels of several classes: any grouping and order gives the same bytes, and the figures are
scikit-learn's.
"""

from __future__ import annotations

import itertools
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
from nightjar.inference.metrics.classes import MOST_CLASSES, MOST_PAIRS
from nightjar.inference.metrics.columns import LONGEST
from nightjar.inference.metrics.figures import Bounded, Confused, Evaluation, Figures
from nightjar.inference.metrics.slices import Slices
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.validation.gates import Evidence, Found, evaluate
from nightjar.inference.validation.gates.rules import gates_of

accuracy_score = lazily("sklearn.metrics", "accuracy_score")
confusion_matrix = lazily("sklearn.metrics", "confusion_matrix")
precision_recall_fscore_support = lazily("sklearn.metrics", "precision_recall_fscore_support")

CONTENT = {
    "name": "kinds",
    "input": {"uri": "in/"},
    "model": {"uses": "mine:Model", "outputs": {"score": "float32", "kind": "string"}},
    "label": "truth",
    "evaluation": {"task": "multiclass"},
    "output": {"uri": "out/"},
}
TOO_MANY = f"there are more than {MOST_CLASSES} classes, or one has a name of more than {LONGEST} characters"


def job_of(**keys: Any) -> Job:
    return parse_job({**CONTENT, **keys}, Path("/jobs/job.yaml"))


JOB = job_of()


def measured(outputs: Any, labels: Any, job: Job = JOB) -> Metrics:
    found, labels = (each if isinstance(each, pa.Array) else pa.array(each, pa.string()) for each in (outputs, labels))
    metrics = Metrics.for_job(job)
    metrics.update(pa.table({"kind": found, "score": pa.nulls(len(found), pa.float32())}), labels)
    return metrics


def evaluation(outputs: Any, labels: Any) -> Evaluation:
    found = Metrics.from_bytes(measured(outputs, labels).to_bytes()).results().evaluation
    assert found is not None
    assert found.classes is not None
    return found


NAME = st.none() | st.sampled_from(["cat", "dog", "", "é", "null"]) | st.integers(0, 200).map(str)


@given(
    st.lists(st.tuples(NAME, NAME), max_size=40)
    | st.integers(120, 140).map(lambda n: [(str(i), "0") for i in range(n)]),
    st.lists(st.integers(0, 140), max_size=6),
    st.data(),
)
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


@pytest.mark.parametrize("classes", [2, 7, 30])
@pytest.mark.parametrize("rows", [1, 60, 5000])
def test_the_figures_are_scikit_learns(rows: int, classes: int) -> None:
    """Also of classes that no row has as label, or no output names."""
    random = np.random.default_rng(rows)
    labels = random.integers(0, classes, rows).astype(str)
    outputs = np.where(random.random(rows) < 0.6, labels, random.integers(0, classes + 2, rows).astype(str))
    found = evaluation(outputs, labels).classes
    assert found is not None
    assert evaluation(outputs, labels).metrics["accuracy"].value == accuracy_score(labels, outputs)
    names = sorted({*labels, *outputs})
    expected = precision_recall_fscore_support(labels, outputs, labels=names, zero_division=0)
    assert [each.name for each in found.per_class] == names
    assert np.allclose(
        [[each.precision, each.recall, each.f1, each.rows] for each in found.per_class], np.transpose(expected)
    )
    state = measured(outputs, labels).evaluation
    assert state is not None
    for average in ("macro", "weighted"):
        exact = precision_recall_fscore_support(labels, outputs, average=average, zero_division=0)[:3]
        for kind, value in zip(("precision", "recall", "f1"), exact, strict=True):
            metric = state.metric(f"{average}_{kind}")
            assert isinstance(metric, Bounded)
            assert metric.value == pytest.approx(value, rel=1e-12)
    matrix = np.diag([each.right for each in found.per_class])
    for each in found.confusion:
        matrix[names.index(each.label), names.index(each.output)] = each.rows
    assert matrix.tolist() == confusion_matrix(labels, outputs, labels=names).tolist()
    assert found.left_out == 0


def test_of_many_pairs_the_most_frequent_mistakes_are_kept_and_the_rest_is_counted() -> None:
    names = [str(index) for index in range(40)]
    pairs = [(one, other) for one in names for other in names if one != other]
    found = evaluation([other for _, other in pairs] + ["1"], [one for one, _ in pairs] + ["7"]).classes
    assert found is not None
    assert found.confusion[0] == Confused("7", "1", 2)
    assert (len(found.confusion), found.left_out) == (MOST_PAIRS, len(pairs) - MOST_PAIRS)


@pytest.mark.parametrize("names", [[str(i) for i in range(MOST_CLASSES + 1)], ["x" * (LONGEST + 1), "y"]])
def test_with_too_many_classes_the_accuracy_is_still_exact_and_the_rest_has_a_reason(names: list[str]) -> None:
    outputs = [*names[:-1], "y"]
    found = evaluation(outputs, names)
    assert found.classes is not None
    assert found.metrics["accuracy"].value == accuracy_score(names, outputs)
    assert found.missing["macro_f1"] == TOO_MANY
    assert list(found.metrics) == ["accuracy"]
    state = measured(outputs, names).evaluation
    assert state is not None
    assert state.metric("macro_f1") == TOO_MANY
    assert (len(names) < MOST_CLASSES) or not evaluation(names[:MOST_CLASSES], names[:MOST_CLASSES]).missing


@pytest.mark.parametrize(
    ("labels", "outputs"),
    [
        (pa.array([1, None, 3], pa.int8()), pa.array(["1", "2", "4"])),
        (pa.array([True, None, False]), pa.array(["true", "x", "y"])),
        (pa.array([True, None, False]), pa.array(["True", "x", "TRUE"])),
        (pa.array([True, None, False]), pa.array([0, 0, 0], pa.int8())),
        (pa.array(["True", None, "no"]), pa.array([True, False, True])),
        (pa.array(["a", None, "b"]).dictionary_encode(), pa.array(["a", "a", "a"], pa.large_string())),
        (pa.array(["a", None, "b"], pa.string_view()), pa.array(["a", "a", "a"]).dictionary_encode()),
    ],
    ids=["int8", "bool", "bool and Python's text", "bool and integer", "text and bool", "dictionary", "view"],
)
def test_a_class_is_named_by_its_text(labels: pa.Array, outputs: pa.Array) -> None:
    found = evaluation(outputs, labels)
    assert found.classes is not None
    assert (found.rows, found.excluded_null_labels, found.metrics["accuracy"].value) == (2, 1, 0.5)


def test_texts_that_look_like_bools_are_classes_of_their_own_beside_texts() -> None:
    found = evaluation(["True", "true", "1"], ["true", "true", "true"])
    assert found.classes is not None
    assert found.metrics["accuracy"].value == 1 / 3
    assert [each.name for each in found.classes.per_class] == ["1", "True", "true"]


def test_rows_without_label_or_output_are_left_out_and_counted_once() -> None:
    found = evaluation(["a", None, "b", None], ["a", "b", None, None])
    assert (found.rows, found.excluded_null_labels, found.excluded_scores) == (1, 2, 1)
    none = evaluation([None], [None])
    assert (none.metrics, none.missing["accuracy"]) == ({}, "no row has both a label and an output")
    assert evaluation(["a"], pa.nulls(1)).excluded_null_labels == 1


def test_a_float_is_no_class() -> None:
    with pytest.raises(LabelInvalid, match="label column 'truth' is double; it must be a text, an integer or a bool"):
        measured(["a"], pa.array([1.0]))
    with pytest.raises(JobError, match=r"evaluation.prediction: 'score' is float, and evaluation.task: multiclass"):
        Metrics.for_job(job_of(evaluation={"task": "multiclass", "prediction": "score"}))


def test_the_output_is_the_first_one_that_names_classes() -> None:
    state = Metrics.for_job(JOB).evaluation
    assert state is not None
    assert state.score == "kind"


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (
            {"metric": "f1", "min": 0.5},
            r"checks\[0\].metric: f1 is of evaluation.task: binary, and this job's is multi",
        ),
        (
            {"metric": "accuracy", "min": 0.5, "threshold": 0.4},
            r"checks\[0\].threshold: is for evaluation.task: binary",
        ),
    ],
)
def test_a_check_that_makes_no_sense_is_named(check: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        job_of(checks=[check])


@pytest.mark.parametrize(
    ("check", "passed", "sentence"),
    [
        (
            {"metric": "accuracy", "min": 0.5},
            True,
            "The accuracy of 'kind' against 'truth' is 0.5; checks[0].min = 0.5 holds.",
        ),
        (
            {"metric": "macro_f1", "min": 0.5},
            False,
            "The macro_f1 of 'kind' against 'truth' is 0.388889, below checks[0].min = 0.5. Look whether the model, "
            "its features or the labels have changed, or lower checks[0].min.",
        ),
        (
            {"metric": "weighted_f1", "max": 0.5},
            True,
            "The weighted_f1 of 'kind' against 'truth' is 0.416667; checks[0].max = 0.5 holds.",
        ),
    ],
)
def test_what_a_gate_says(check: dict[str, Any], passed: bool, sentence: str) -> None:
    job = job_of(checks=[check])
    state = measured(["a", "a", "b", "b"], ["a", "b", "b", "c"], job).evaluation
    found = evaluate(gates_of(job), Evidence(Found(1, 4), metrics=Metrics(slices=Slices("multiclass", {}, state))))[-1]
    assert (found.passed, found.sentence) == (passed, sentence)


def test_the_figures_survive_the_manifests_form_and_are_shown() -> None:
    found = measured(["a", "a", "b", "b"], ["a", "b", "b", "c"]).results()
    assert of_json(Figures, to_json(found)) == found
    assert evaluation_lines(found) == [
        ("accuracy", "0.5000 over 4 rows"),
        (
            "metrics",
            "macro_precision 0.3333, macro_recall 0.5000, macro_f1 0.3889, weighted_precision 0.3750, "
            "weighted_recall 0.5000, weighted_f1 0.4167",
        ),
        ("mistakes", "label → output: b → a 1, c → b 1"),
    ]
    assert found.evaluation is not None
    assert found.evaluation.brief().metrics == found.evaluation.metrics
    assert found.evaluation.brief().classes is None


def test_the_state_of_a_shard_with_the_most_classes_stays_under_60_kb() -> None:
    random = np.random.default_rng(3)
    labels, outputs = (random.integers(0, MOST_CLASSES, 20_000).astype(str) for _ in range(2))
    assert len(measured(outputs, labels).to_bytes()) < 60_000
