"""Gate promises: each verdict is exact at its limit, and each failure names the job's key to change."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar.inference.gates import GateResult, budget_rows, evaluate
from nightjar.inference.job import Job
from nightjar.inference.jobfile import parse_job
from nightjar.inference.metrics import Metrics


def job_of(max_quarantined: float = 0.001, **check: Any) -> Job:
    content = {
        "name": "delays",
        "input": {"uri": "in/"},
        "model": {"uses": "mine:Model", "outputs": {"score": "float32"}},
        "output": {"uri": "out/"},
        "retry": {"max_quarantined": max_quarantined},
        "checks": [{"column": "score", **check}] if check else [],
    }
    return parse_job(content, Path("/jobs/job.yaml"))


def gates(job: Job, metrics: dict[str, Any] | None = None, **counts: int) -> dict[str, GateResult]:
    counts = {"shards": 4, "missing": 0, "rows_in": 1000, "rows_quarantined": 0, **counts}
    return {gate.name: gate for gate in evaluate(job, metrics=metrics or {}, **counts)}


def gate(values: pa.Array, **check: Any) -> GateResult:
    """The one gate of a job with this check, on these scores."""
    job = job_of(**check)
    metrics = Metrics.for_job(job)
    metrics.update(pa.table({"score": values}), None)
    (result,) = list(gates(job, metrics.results()).values())[2:]
    return result


def test_the_order_of_gates_is_complete_then_quarantine_then_checks() -> None:
    names = list(gates(job_of(min=0, max=1, nulls=0, finite=True)))
    assert names == ["complete", "quarantine", "score.min", "score.max", "score.nulls", "score.finite"]
    assert list(gates(job_of(min=0, finite=False))) == ["complete", "quarantine", "score.min"]


def test_a_run_with_a_missing_shard_is_not_complete() -> None:
    assert gates(job_of())["complete"].passed
    result = gates(job_of(), missing=1)["complete"]
    assert not result.passed
    assert result.observed == "3 of 4 shards"
    assert "1 shard has no result" in result.sentence
    assert "retry.attempts" in result.sentence


@pytest.mark.parametrize(
    ("share", "rows", "allowed"),
    [
        (0.001, 1000, 1),
        (0.001, 999, 0),
        (0.29, 100, 29),
        (0.1, 30, 3),
        (1e-05, 100_000, 1),
        (0.0, 10, 0),
        (1.0, 7, 7),
        (0.001, 0, 0),
    ],
)
def test_the_budget_is_the_decimal_that_the_user_wrote(share: float, rows: int, allowed: int) -> None:
    assert budget_rows(share, rows) == allowed


@given(st.integers(0, 10**6), st.integers(0, 10**12))
def test_the_budget_is_the_exact_floor(millionths: int, rows: int) -> None:
    assert budget_rows(float(f"{millionths}e-6"), rows) == Fraction(millionths, 10**6) * rows // 1


def test_exactly_at_the_budget_passes_and_one_more_row_does_not() -> None:
    assert gates(job_of(0.003), rows_quarantined=3)["quarantine"].passed
    result = gates(job_of(0.003), rows_quarantined=4)["quarantine"]
    assert not result.passed
    assert (result.observed, result.limit) == ("4 of 1,000 rows", "3 rows (0.003 of the run)")
    assert "retry.max_quarantined = 0.003" in result.sentence


@pytest.mark.parametrize(
    ("values", "check", "passed"),
    [
        ([0.0, 1.0], {"min": 0}, True),
        ([0.0, 1.0], {"max": 1}, True),
        ([-0.001, 1.0], {"min": 0}, False),
        ([0.0, 1.0000001], {"max": 1}, False),
        ([0.1], {"max": 0.1}, True),
        ([0.1], {"min": 0.1}, True),
        ([None, 0.5], {"nulls": 0.5}, True),
        ([None, None, 0.5], {"nulls": 0.5}, False),
        ([None] + [0.5] * 999, {"nulls": 0.001}, True),
        ([float("nan")], {"finite": True}, False),
        ([0.5, None], {"finite": True}, True),
    ],
)
def test_a_value_exactly_at_the_limit_passes(values: list[Any], check: dict[str, Any], passed: bool) -> None:
    result = gate(pa.array(values, pa.float32()), **check)
    assert result.passed is passed
    assert f"checks[0].{next(iter(check))}" in result.sentence


def test_a_value_just_past_its_limit_never_reads_the_same_as_the_limit() -> None:
    result = gate(pa.array([1.0000000000000002]), max=1)
    assert (result.passed, result.observed, result.limit) == (False, "1.0000000000000002", "1")


def test_a_failure_says_what_was_seen_and_what_to_do() -> None:
    result = gate(pa.array([0.2, 1.25, float("inf")], pa.float32()), max=1)
    assert result.sentence == (
        "The greatest 'score' is 1.25 (1 not finite left out), above checks[0].max = 1. "
        "Mend the input or the model, or raise checks[0].max."
    )


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([], "no row was scored"),
        ([None], "every row is null"),
        ([float("nan")], "no value is finite"),
        ([None, float("inf")], "every value is null, NaN or infinite"),
    ],
)
@pytest.mark.parametrize("end", ["min", "max"])
def test_a_column_without_values_fails_min_and_max_and_says_why(values: list[Any], reason: str, end: str) -> None:
    result = gate(pa.array(values, pa.float32()), **{end: 0})
    assert not result.passed
    assert reason in result.sentence


@pytest.mark.parametrize(
    ("values", "holds"),
    [
        (pa.array([1], pa.timestamp("s")), "timestamps"),
        (pa.array(["a"]), "values that are not numbers"),
        (pa.array([[1.0]]), "lists"),
    ],
)
def test_min_and_max_of_what_is_no_number_are_an_error_not_a_pass(values: pa.Array, holds: str) -> None:
    result = gate(values, min=0)
    assert not result.passed
    assert result.sentence == f"checks[0].min compares numbers, but 'score' holds {holds}. Remove checks[0].min."


def test_finite_is_asked_of_the_items_of_a_list_and_refused_on_text() -> None:
    assert gate(pa.array([[1.0], None]), finite=True).passed
    assert not gate(pa.array([[1.0, float("nan")]]), finite=True).passed
    result = gate(pa.array(["a"]), finite=True)
    assert not result.passed
    assert "checks[0].finite asks for numbers" in result.sentence


def test_a_column_that_nobody_measured_passes_no_check() -> None:
    job = job_of(min=0, max=1, nulls=1, finite=True)
    results = list(gates(job, {"columns": {}}).values())[2:]
    assert [result.passed for result in results] == [False] * 4
    assert results[2].sentence.startswith("'score' was not measured, so checks[0].nulls cannot be judged.")
