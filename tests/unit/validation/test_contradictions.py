"""A gate that could only fail, and a label that nothing can be compared with, are refused before anything starts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.metrics.columns import ColumnState
from nightjar.inference.metrics.profile import Profile
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.validation.gates import Baseline, Evidence, Found
from nightjar.inference.validation.gates.rules import check_label_and_gates, column_gates_of, gates_of

SCHEMA = pa.schema(
    [
        ("number", pa.int32()),
        ("decimal", pa.decimal128(9, 2)),
        ("text", pa.string()),
        ("category", pa.dictionary(pa.int32(), pa.string())),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us", "UTC")),
        ("vector", pa.list_(pa.float32())),
        ("counts", pa.list_(pa.int64())),
        ("empty", pa.null()),
        ("flag", pa.bool_()),
    ]
)
VALUES: dict[str, list[Any]] = {
    "number": [1],
    "decimal": [1],
    "text": ["a"],
    "category": ["a"],
    "day": [1],
    "moment": [1],
    "vector": [[1.0]],
    "counts": [[1]],
    "score": [1.0],
    "flag": [True],
}


def job(check: dict[str, Any], **changes: Any) -> Job:
    return Job.model_validate(
        {
            "name": "j",
            "input": {"uri": "in/"},
            "model": {"uses": "model:score", "outputs": {"score": "float32"}},
            "carry": SCHEMA.names,
            "output": {"uri": "out/"},
            "checks": [check],
            **changes,
        }
    )


@pytest.mark.parametrize("asked", [{"min": 0}, {"max": 1e9}, {"nulls": 1}, {"finite": True}], ids=str)
@pytest.mark.parametrize("column", VALUES)
def test_refused_is_exactly_what_the_gate_could_only_refuse(column: str, asked: dict[str, Any]) -> None:
    """Whatever the gates can judge passes here, too: these values satisfy every check."""
    its = job({"column": column, **asked})
    state = ColumnState()
    kind = pa.float32() if column == "score" else SCHEMA.field(column).type
    state.update(pa.chunked_array([pa.array(VALUES[column], kind)]))
    evidence = Evidence(Found(files=1, rows=1), metrics=Metrics({column: state}))
    judged = [gate.judge(evidence) for gate in column_gates_of(its)]
    try:
        check_label_and_gates(its, SCHEMA)
    except JobError as error:
        assert str(error).startswith(f"checks[0].{next(iter(asked))}: ")
        assert str(error).endswith(f", but {column!r} is {kind}; remove it, or check another column")
        assert not all(gate.passed for gate in judged)
    else:
        assert all(gate.passed for gate in judged)


def test_a_contradiction_behind_a_check_on_the_input_is_found() -> None:
    """It is named by its place among all checks."""
    checks = [{"rows": {"min": 1}}, {"column": "text", "max": 1}]
    with pytest.raises(JobError, match=r"^checks\[1\]\.max: "):
        check_label_and_gates(job({}, checks=checks), SCHEMA)


def test_a_column_of_nulls_and_a_check_that_is_off_are_not_refused() -> None:
    """What the nulls of tonight would be, nobody knows."""
    check_label_and_gates(job({"column": "empty", "min": 0, "finite": True}), SCHEMA)
    check_label_and_gates(job({"column": "text", "finite": False, "nulls": 0}), SCHEMA)


@pytest.mark.parametrize(
    ("limits", "refused"), [({}, True), ({"psi": 0.1, "nulls": 0}, True), ({"nulls": 0}, False)], ids=str
)
@pytest.mark.parametrize("column", VALUES)
def test_refused_is_exactly_the_drift_that_could_not_be_compared(
    column: str, limits: dict[str, float], refused: bool
) -> None:
    """Of two nights that are the same, whatever can be compared passes."""
    kind = pa.float32() if column == "score" else SCHEMA.field(column).type
    refused = refused and column not in {"text", "category", "flag", "number", "decimal", "score"}
    its = job({"drift": column, **limits})
    profile = Profile.empty([column])
    profile.update(pa.table({column: pa.array(VALUES[column], kind)}))
    evidence = Evidence(Found(1, 1), metrics=Metrics(profile=profile), baselines={"last": Baseline("a night", profile)})
    gate = gates_of(its)[-1].gate
    assert gate.judge(evidence).passed == (not refused)
    check_label_and_gates(job({"drift": "all", **limits}), SCHEMA)
    if not refused:
        check_label_and_gates(its, SCHEMA)
        return
    with pytest.raises(JobError) as told:
        check_label_and_gates(its, SCHEMA)
    assert str(told.value) == (
        f"checks[0].drift: compares numbers, text and bools, but {column!r} is {kind}; limit only nulls, as nulls: "
        "0.1, or check another column"
    )


def test_of_several_columns_the_one_whose_drift_cannot_be_compared_is_named() -> None:
    """By the place of its check among all. Of a column of nulls nobody knows what it will hold."""
    checks = [{"drift": ["number", "empty"]}, {"drift": ["number", "vector"]}]
    with pytest.raises(JobError, match=r"^checks\[1\]\.drift: compares numbers, text and bools, but 'vector' is "):
        check_label_and_gates(job({}, checks=checks), SCHEMA)


def test_a_label_needs_an_output_that_is_a_float() -> None:
    with pytest.raises(JobError, match=r"^label: 'number' needs a score to be compared with, but no output of the mo"):
        check_label_and_gates(
            job(
                {"column": "klass", "nulls": 0},
                label="number",
                carry=[],
                model={"uses": "model:score", "outputs": {"klass": "int64", "odds": "list<float32>"}},
            ),
            SCHEMA,
        )


def test_a_label_that_comes_later_needs_an_output_that_is_a_float_too() -> None:
    klass = {"uses": "model:score", "outputs": {"klass": "int64"}}
    with pytest.raises(JobError, match=r"^late_labels\.label: 'late' needs a score to be compared with"):
        check_label_and_gates(
            job({"column": "klass", "nulls": 0}, model=klass, late_labels={"key": ["number"], "label": "late"}), SCHEMA
        )
