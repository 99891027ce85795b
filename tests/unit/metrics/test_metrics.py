"""Metrics promises: merging is exact whatever the grouping, AUC is right within its bound, log loss is right."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazily import lazily
from nightjar.inference.arrow_types import arrow_type
from nightjar.inference.errors import JobError, LabelInvalid
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.jsonform import to_json
from nightjar.inference.metrics.binary import _bins
from nightjar.inference.metrics.columns import ColumnState, floats
from nightjar.inference.metrics.figures import Bounded, Evaluation
from nightjar.inference.metrics.states import Metrics, nonfinite_notes

accuracy_score = lazily("sklearn.metrics", "accuracy_score")
average_precision_score = lazily("sklearn.metrics", "average_precision_score")
brier_score_loss = lazily("sklearn.metrics", "brier_score_loss")
confusion_matrix = lazily("sklearn.metrics", "confusion_matrix")
f1_score = lazily("sklearn.metrics", "f1_score")
log_loss = lazily("sklearn.metrics", "log_loss")
precision_score = lazily("sklearn.metrics", "precision_score")
recall_score = lazily("sklearn.metrics", "recall_score")
roc_auc_score = lazily("sklearn.metrics", "roc_auc_score")


def job_of(outputs: dict[str, str], label: str | None = "late", checks: tuple[str, ...] = ()) -> Job:
    content = {
        "name": "delays",
        "input": {"uri": "in/"},
        "model": {"uses": "mine:Model", "outputs": outputs},
        "output": {"uri": "out/"},
        "checks": [{"column": column, "nulls": 0} for column in checks],
        "carry": [column for column in checks if column not in outputs],
        **({"label": label} if label else {}),
    }
    return parse_job(content, Path("/jobs/job.yaml"))


SCORED = job_of({"score": "float32"}, checks=("score",))


def measured(scores: Any, labels: Any, job: Job = SCORED) -> Metrics:
    metrics = Metrics.for_job(job)
    metrics.update(pa.table({"score": scores}), labels if labels is None else pa.array(labels))
    return metrics


def evaluation(scores: Any, labels: Any) -> dict[str, Any]:
    result: dict[str, Any] = to_json(measured(scores, labels).results())["evaluation"]
    return result


def value(found: dict[str, Any], name: str) -> float | None:
    return found["metrics"].get(name, {}).get("value")


def column(values: pa.Array | pa.ChunkedArray) -> dict[str, Any]:
    metrics = Metrics.for_job(job_of({"word": "string"}, None, ("value",)))
    metrics.update(pa.table({"value": values}), None)
    again = Metrics.from_bytes(metrics.to_bytes())
    assert again.results() == metrics.results()
    json.dumps(to_json(again.results()), allow_nan=False)
    result: dict[str, Any] = to_json(again.results())["columns"]["value"]
    return result


ANY_SCORE = st.none() | st.floats(width=32)
PROBABILITY = st.floats(0, 1, width=32)
ANY_LABEL = st.none() | st.booleans()


def pairs(scores: st.SearchStrategy[Any], labels: Any = ANY_LABEL, most: int = 60) -> Any:
    return st.lists(st.tuples(scores, labels), max_size=most)


def table(rows: list[tuple[Any, Any]]) -> tuple[pa.Array, pa.Array]:
    scores, labels = zip(*rows, strict=True) if rows else ((), ())
    return pa.array(scores, pa.float32()), pa.array(labels, pa.bool_())


@given(pairs(ANY_SCORE | PROBABILITY), st.lists(st.integers(0, 60), max_size=6), st.data())
def test_any_split_in_any_order_merges_to_the_whole_but_for_the_rounding_of_sums(
    rows: list[tuple[Any, Any]], cuts: list[int], data: st.DataObject
) -> None:
    edges = [0, *sorted(cuts), len(rows)]
    parts = [measured(*table(rows[low:high])).to_bytes() for low, high in itertools.pairwise(edges)]
    ordered, shuffled = (merged_of(each) for each in (parts, data.draw(st.permutations(parts))))
    assert merged_of(parts).to_bytes() == ordered.to_bytes(), "in the same order, the same bytes"
    whole = measured(*table(rows))
    for merged in (ordered, shuffled):
        assert merged.evaluation is not None
        assert whole.evaluation is not None
        assert merged.evaluation.loss == pytest.approx(whole.evaluation.loss)  # type: ignore[attr-defined]
        merged.evaluation.loss = whole.evaluation.loss  # type: ignore[attr-defined]
        assert merged.to_bytes() == whole.to_bytes()
        assert merged.results() == whole.results()


def merged_of(parts: list[bytes]) -> Metrics:
    merged = Metrics.for_job(SCORED)
    for part in parts:
        merged.merge(Metrics.from_bytes(part))
    return merged


@given(pairs(st.floats(-1e6, 1e6, width=32) | PROBABILITY | st.sampled_from([0.0, 0.5, 1.0]), st.booleans()))
def test_auc_is_within_its_bound_of_the_exact_one(rows: list[tuple[float, bool]]) -> None:
    scores, labels = table(rows)
    found = evaluation(scores, labels)
    if len(set(labels.to_pylist())) < 2:
        assert value(found, "auroc") is None
        assert found["missing"]["auroc"].startswith("no row has ")
        return
    exact = roc_auc_score(labels.to_pylist(), scores.to_pylist())
    assert abs(value(found, "auroc") - exact) <= found["metrics"]["auroc"]["bound"] + 1e-12


@pytest.mark.parametrize("scale", ["probability", "logit"])
def test_the_bound_is_small_on_real_shapes_of_scores(scale: str) -> None:
    random = np.random.default_rng(7)
    labels = random.random(50_000) < 0.2
    logits = random.normal(size=50_000) + labels
    scores = (logits if scale == "logit" else 1 / (1 + np.exp(-logits))).astype(np.float32)
    found = evaluation(scores, labels)
    assert found["metrics"]["auroc"]["bound"] < 0.001
    assert abs(value(found, "auroc") - roc_auc_score(labels, scores)) <= found["metrics"]["auroc"]["bound"]


@pytest.mark.parametrize("centre", [-9, -7, -3, 0, 3, 12])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_scores_of_rare_events_and_of_nearly_sure_models_are_told_apart(centre: float, kind: type[np.floating]) -> None:
    random = np.random.default_rng(3)
    logits = random.normal(centre, 2, 400_000)
    labels = random.random(len(logits)) < 1 / (1 + np.exp(-logits))
    scores = (1 / (1 + np.exp(-logits))).astype(kind).astype(float)
    found = as_evaluated(scores.astype(kind), labels).metrics
    assert found["auroc"].bound < 1e-3
    assert found["average_precision"].bound < 1e-3
    for name, measure in (("auroc", roc_auc_score), ("average_precision", average_precision_score)):
        assert abs(found[name].value - measure(labels, scores)) <= found[name].bound + 1e-12


def as_evaluated(scores: Any, labels: Any) -> Evaluation:
    found = measured(pa.array(scores), labels).results().evaluation
    assert found is not None
    return found


SHAPES = {
    "flat": lambda random, rows: random.random(rows),
    "skewed": lambda random, rows: random.beta(0.3, 3, rows),
    "few": lambda random, rows: random.integers(0, 4, rows) / 3,
    "ends": lambda random, rows: random.choice([0.0, 1.0, 0.5], rows),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [3, 40, 5000])
def test_metrics_of_labels_are_within_their_bounds_of_scikit_learns(shape: str, rows: int) -> None:
    random = np.random.default_rng(rows)
    for _ in range(20):
        scores = SHAPES[shape](random, rows).astype(np.float32).astype(float)  # scikit-learn adds in its type
        labels = random.random(rows) < 0.1 + 0.8 * scores
        if labels.all() or not labels.any():
            continue
        found = as_evaluated(scores.astype(np.float32), labels)
        exact = {
            "average_precision": average_precision_score(labels, scores),
            "brier": brier_score_loss(labels, scores),
            "ece": ece(labels, scores),
        }
        for name, expected in exact.items():
            assert abs(found.metrics[name].value - expected) <= found.metrics[name].bound + 1e-12
        assert found.metrics["brier"].bound < 2.5e-4
        predicted, at = scores >= 0.5, found.predictions
        assert at is not None
        assert [[at.true_negatives, at.false_positives], [at.false_negatives, at.true_positives]] == confusion_matrix(
            labels, predicted, labels=[False, True]
        ).tolist()
        assert found.metrics["accuracy"].value == accuracy_score(labels, predicted)
        assert found.metrics["recall"].value == recall_score(labels, predicted)
        assert found.metrics["f1"].value == pytest.approx(f1_score(labels, predicted))
        if predicted.any():
            assert found.metrics["precision"].value == precision_score(labels, predicted)
        else:
            assert "precision" in found.missing


def ece(labels: np.ndarray, scores: np.ndarray) -> float:
    """Expected calibration error as it is defined."""
    bins = np.minimum((scores * 16).astype(int), 15)
    return float(
        sum(abs(scores[bins == b].sum(dtype=float) - labels[bins == b].sum()) for b in range(16)) / len(scores)
    )


def test_the_bounds_are_small_on_real_shapes_of_scores() -> None:
    random = np.random.default_rng(7)
    scores = random.beta(1, 4, 50_000).astype(np.float32)
    found = as_evaluated(scores, random.random(50_000) < scores)
    assert (found.metrics["average_precision"].bound < 0.005, found.metrics["ece"].bound < 2e-4) == (True, True)
    assert found.metrics["ece"].value < 0.02  # these scores are the probabilities
    assert [each.rows for each in found.calibration] == [
        rows for rows in np.histogram(scores, 16, (0, 1))[0].tolist() if rows
    ]


@pytest.mark.parametrize("threshold", [0.25, 0.3, 0.0001, 0.9999])
def test_a_threshold_is_rounded_to_the_nearest_edge_of_the_bins(threshold: float) -> None:
    scores = np.random.default_rng(1).random(20_000).astype(np.float32)
    labels = scores > 0.6
    state = measured(pa.array(scores), labels).evaluation
    assert state is not None
    edge = min(max(round(threshold * 4096), 1), 4095) / 4096
    for name, metric in (("precision", precision_score), ("recall", recall_score), ("f1", f1_score)):
        found = state.metric(name, threshold)
        assert isinstance(found, Bounded)
        assert found.value == pytest.approx(metric(labels, scores >= edge))


@pytest.mark.parametrize(
    ("scores", "labels", "name", "reason"),
    [
        ([], [], "brier", "no row has both a label and a score"),
        ([0.1], [True], "average_precision", "no row has label 0"),
        ([0.1, 1.5], [True, False], "ece", "1 scores lie outside [0, 1]"),
        ([0.1, 0.2], [True, False], "precision", "no row is predicted 1"),
        ([0.1, 0.2], [False, False], "recall", "no row has label 1"),
        ([0.1, 0.2], [False, False], "f1", "no row has label 1 or is predicted 1"),
    ],
)
def test_a_metric_that_is_not_there_has_a_reason(
    scores: list[float], labels: list[bool], name: str, reason: str
) -> None:
    state = measured(pa.array(scores, pa.float32()), pa.array(labels, pa.bool_())).evaluation
    assert state is not None
    assert state.metric(name) == reason


def test_auc_is_exact_where_no_bin_mixes_labels_and_ties_count_half() -> None:
    found = evaluation(pa.array([0.1, 0.4, 0.35, 0.8], pa.float32()), [0, 0, 1, 1])
    assert (value(found, "auroc"), found["metrics"]["auroc"]["bound"]) == (0.75, 0.0)
    found = evaluation(pa.array([0.5] * 4, pa.float32()), [0, 1, 0, 1])
    assert (value(found, "auroc"), found["metrics"]["auroc"]["bound"]) == (0.5, 0.5)


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=50))
def test_bins_are_in_the_order_of_the_scores(scores: list[float]) -> None:
    bins = _bins(np.sort(np.array(scores)))
    assert (np.diff(bins) >= 0).all()


@given(st.lists(st.floats(width=16, allow_nan=False), min_size=1), st.lists(st.floats(width=16), max_size=5))
def test_a_scores_bin_depends_neither_on_its_float_type_nor_on_its_neighbours(
    scores: list[float], others: list[float]
) -> None:
    alone = [int(_bins(np.array([score]))[0]) for score in scores]
    together = pa.array(scores + [other for other in others if not math.isnan(other)], pa.float64())
    for type_ in (pa.float16(), pa.float32(), pa.float64()):
        values = floats(pa.chunked_array([together.cast(type_)]))
        assert _bins(values)[: len(scores)].tolist() == alone


@given(pairs(PROBABILITY, st.booleans()))
def test_log_loss_is_the_textbook_one(rows: list[tuple[float, bool]]) -> None:
    scores, labels = table(rows)
    found = evaluation(scores, labels)
    if not rows:
        assert value(found, "log_loss") is None
        assert "no row" in found["missing"]["log_loss"]
        return
    clipped = np.clip(np.array(scores, np.float64), 1e-7, 1 - 1e-7)
    assert value(found, "log_loss") == pytest.approx(log_loss(labels.to_pylist(), clipped, labels=[0, 1]), abs=1e-9)
    assert "log_loss" not in found.get("missing", {})


def test_log_loss_of_scores_that_are_no_probabilities_is_null_with_its_reason() -> None:
    found = evaluation(pa.array([0.2, 1.5, -3.0], pa.float32()), [0, 1, 0])
    assert value(found, "log_loss") is None
    assert found["missing"]["log_loss"] == "2 scores lie outside [0, 1]"
    assert value(found, "auroc") == 1.0


def test_rows_without_label_or_score_are_left_out_and_counted_once() -> None:
    scores = pa.array([0.1, None, float("nan"), 0.9, None], pa.float32())
    found = evaluation(scores, pa.array([0, 1, 1, None, None]))
    counts = {key: found[key] for key in ("rows", "excluded_null_labels", "excluded_scores", "positives")}
    assert counts == {"rows": 1, "excluded_null_labels": 2, "excluded_scores": 2, "positives": 0}
    assert (found["label"], found["score"]) == ("late", "score")


@pytest.mark.parametrize(
    "labels",
    [
        pa.array([False, True, None]),
        pa.array([0, 1, None], pa.int8()),
        pa.array([0, 1, None], pa.uint64()),
        pa.array([0.0, 1.0, None], pa.float64()),
        pa.array([0.0, 1.0, None], pa.float16()),
        pa.array([0.0, 1.0, float("nan")], pa.float32()),
        pa.array([0.0, 1.0, float("nan")], pa.float16()),
        pa.array([0, 1, None]).dictionary_encode(),
        pa.chunked_array([pa.array([0]), pa.array([1, None])]),
    ],
    ids=lambda labels: str(labels.type),
)
def test_labels_may_be_bools_or_zeros_and_ones_of_any_number_type(labels: pa.Array) -> None:
    """Null is no label, nor is NaN, as which pandas writes a null."""
    metrics = Metrics.for_job(SCORED)
    metrics.update(pa.table({"score": pa.array([0.1, 0.9, 0.5], pa.float32())}), labels)
    found = to_json(metrics.results())["evaluation"]
    assert (found["rows"], found["positives"], value(found, "auroc")) == (2, 1, 1.0)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (pa.array([0, 2]), "holds 2"),
        (pa.array([0.5, 1.0]), "holds 0.5"),
        (pa.array(["0", "1"]), "is string"),
    ],
)
def test_any_other_label_is_an_error_that_names_the_value(labels: pa.Array, said: str) -> None:
    with pytest.raises(LabelInvalid, match=f"label column 'late' {said}"):
        measured(pa.array([0.1, 0.2], pa.float32()), labels)


NO_LABEL_YET = [pa.null(), pa.string(), pa.int64(), pa.date32(), pa.timestamp("us"), pa.list_(pa.int8()), pa.binary(2)]


@pytest.mark.parametrize("kind", NO_LABEL_YET, ids=str)
def test_a_column_of_null_labels_is_all_excluded(kind: pa.DataType) -> None:
    """Also one that a format without types, as CSV, reads as text."""
    found = evaluation(pa.array([0.1, 0.2], pa.float32()), pa.nulls(2, kind))
    assert (found["rows"], found["excluded_null_labels"], value(found, "auroc")) == (0, 2, None)


@pytest.mark.parametrize("type_", [pa.float16(), pa.float32(), pa.float64()])
def test_scores_of_any_float_type_are_evaluated(type_: pa.DataType) -> None:
    scores = pa.array([0.25, None, 0.75], pa.float32()).cast(type_)
    found = evaluation(scores, [0, 0, 1])
    assert (found["rows"], found["excluded_scores"], value(found, "auroc")) == (2, 1, 1.0)


def test_the_score_is_the_first_float_output_and_a_label_without_one_is_an_error() -> None:
    assert Metrics.for_job(job_of({"word": "string", "p": "float64", "q": "float32"})).evaluation is not None
    metrics = Metrics.for_job(job_of({"word": "string", "p": "float64", "q": "float32"}))
    assert to_json(metrics.results())["evaluation"]["score"] == "p"
    with pytest.raises(JobError, match=r"label: 'late' needs a score .* model\.outputs"):
        Metrics.for_job(job_of({"word": "string", "embedding": "float32[8]"}))


def test_a_misaligned_label_is_an_error() -> None:
    scores = pa.array([0.5], pa.float32())
    with pytest.raises(ValueError, match="2 labels for 1 rows"):
        measured(scores, [0, 1])


@pytest.mark.parametrize(
    ("values", "low", "high", "kind"),
    [
        (pa.array([3, None, -1], pa.int64()), -1, 3, "number"),
        (pa.array([2**64 - 1], pa.uint64()), 2**64 - 1, 2**64 - 1, "number"),
        (pa.array([True, None]), 1, 1, "number"),
        (pa.array([0.1, None, -0.0], pa.float32()), 0.0, 0.1, "number"),
        (pa.array([0.1, 0.2], pa.float64()), 0.1, 0.2, "number"),
        (pa.array([0.1, 0.2], pa.float16()), 0.1, 0.2, "number"),
        (pa.array([decimal.Decimal("0.10"), None], pa.decimal128(5, 2)), 0.1, 0.1, "number"),
        (pa.array([decimal.Decimal("3.00")], pa.decimal64(9, 2)), 3, 3, "number"),
        (pa.array([decimal.Decimal("1.50"), decimal.Decimal("9007199254740993")]), 1.5, 9007199254740993, "number"),
        (pa.array([5, 7, None]).dictionary_encode(), 5, 7, "number"),
        (pa.array([dt.date(2026, 3, 1)]), None, None, "other"),
        (pa.array(["a", None]), None, None, "other"),
        (pa.nulls(2), None, None, ""),
        (pa.array([], pa.float32()), None, None, "number"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_each_type_has_its_least_and_greatest(values: pa.Array, low: Any, high: Any, kind: str) -> None:
    found = column(values)
    assert (found["min"], found["max"], found["kind"]) == (low, high, kind)
    assert (found["rows"], found["nulls"], found["nonfinite"]) == (len(values), values.null_count, 0)


@pytest.mark.parametrize("type_", [pa.float16(), pa.float32(), pa.float64()])
def test_what_is_not_finite_is_counted_and_left_out_of_min_and_max(type_: pa.DataType) -> None:
    values = pa.array([1.0, float("nan"), float("inf"), None, -float("inf"), 0.5], pa.float32()).cast(type_)
    assert column(values) == {
        "rows": 6,
        "nulls": 1,
        "nonfinite": 3,
        "plus_inf": 1,
        "minus_inf": 1,
        "min": 0.5,
        "max": 1.0,
        "kind": "number",
    }


@pytest.mark.parametrize("type_", [pa.list_(pa.float32()), pa.list_(pa.float32(), 2), pa.list_(pa.float64())])
def test_items_of_lists_that_are_not_finite_are_counted(type_: pa.DataType) -> None:
    found = column(pa.array([[1.0, float("nan")], None, [float("inf"), 2.0]], type_))
    assert (found["nonfinite"], found["nulls"], found["min"], found["kind"]) == (2, 1, None, "list")


def test_items_of_nested_lists_and_tensors_are_counted_too() -> None:
    nested = pa.array([[[1.0], [float("nan")]], []], pa.list_(pa.list_(pa.float32())))
    assert column(nested)["nonfinite"] == 1
    storage = pa.array([[1.0, float("nan")]], pa.list_(pa.float32(), 2))
    tensor = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), [1, 2]), storage)
    assert column(tensor)["nonfinite"] == 1


def merged(*values: pa.Array) -> dict[str, Any]:
    states = []
    for one in values:
        metrics = Metrics.for_job(job_of({"word": "string"}, None, ("value",)))
        metrics.update(pa.table({"value": one}), None)
        states.append(metrics)
    functools.reduce(lambda left, right: left.merge(right) or left, states)
    result: dict[str, Any] = to_json(states[0].results())["columns"]["value"]
    return result


@pytest.mark.parametrize("spread", ["probability", "logit", "every magnitude"])
def test_the_state_of_a_shard_of_20000_rows_stays_under_60_kb(spread: str) -> None:
    random = np.random.default_rng(3)
    scores = {
        "probability": random.random(20_000),
        "logit": random.normal(size=20_000) * 5,
        "every magnitude": np.exp2(random.uniform(-16, 64, 20_000)) * random.choice([-1, 1], 20_000),
    }[spread]
    metrics = measured(scores, random.random(20_000) < 0.5)
    assert len(metrics.to_bytes()) < 60_000


@pytest.mark.parametrize(
    "data", [b"", b"nonsense", b"[]", b"{}", b'{"v":0}', b'{"v":1,"columns":{"x":[1,2,3,4,5,6,7,8,9]}}']
)
def test_what_is_not_a_state_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        Metrics.from_bytes(data)


def outputs(values: pa.Array, type_: str) -> Mapping[str, ColumnState]:
    """What is counted of an output without any check."""
    metrics = Metrics.for_job(job_of({"score": type_}, None))
    metrics.update(pa.table({"score": values}), None)
    return Metrics.from_bytes(metrics.to_bytes()).results().columns


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("values", "type_", "nonfinite"),
    [
        ([0.5, 1.0], "float32", 0),
        ([0.5, None, NAN, INF, -INF], "float32", 3),
        ([INF, -INF], "float64", 2),
        ([NAN], "float16", 1),
        ([60000.0] * 1000, "float16", 0),  # their sum is infinite
        ([1e308, 1e308], "float64", 0),
        ([[0.5, NAN], [INF], [], None], "list<float32>", 2),
        ([[0.5, NAN], None, [1.0, 2.0]], "float32[2]", 1),
        ([], "float32", 0),
    ],
)
def test_what_is_not_finite_in_a_float_output_is_counted_without_any_check(
    values: list[Any], type_: str, nonfinite: int
) -> None:
    column = pa.array(values, pa.float32() if type_ == "float16" else arrow_type(type_)).cast(arrow_type(type_))
    found = outputs(column, type_)["score"]
    assert (found.rows, found.nonfinite) == (len(values), nonfinite)
    assert bool(nonfinite_notes(outputs(column, type_))) is bool(nonfinite)


def test_a_label_and_float_outputs_are_all_there_is_to_measure_without_checks() -> None:
    metrics = Metrics.for_job(job_of({"word": "string", "score": "float32"}, None))
    metrics.update(pa.table({"score": pa.array([0.5], pa.float32())}), None)
    counted = {"rows": 1, "nulls": 0, "nonfinite": 0, "min": 0.5, "max": 0.5, "kind": "number"}
    assert to_json(Metrics.from_bytes(metrics.to_bytes()).results()) == {
        "columns": {"score": counted},
        "evaluation": None,
        "profile": {},
        "slices": {},
        "accumulators": {},
    }
