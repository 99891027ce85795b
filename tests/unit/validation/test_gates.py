"""Gate promises: each verdict is exact at its limit, and each failure names the job's key to change."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar.inference.errors import GateFailed, JobError
from nightjar.inference.history.run_status import warnings
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.job.sections import budget_rows
from nightjar.inference.jsonform import of_json, to_json
from nightjar.inference.messages import counted
from nightjar.inference.metrics.columns import ColumnState
from nightjar.inference.metrics.figures import Figures
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.usage import NO_USAGE, Usage
from nightjar.inference.validation.gates import (
    Evidence,
    Found,
    GateResult,
    NightEvidence,
    Offender,
    asking,
    enforce,
    evaluate,
    told,
)
from nightjar.inference.validation.gates.rules import gates_of, input_gates
from nightjar.inference.validation.rescore import Rescored

JOB = Path("/jobs/job.yaml")
CONTENT = {
    "name": "delays",
    "input": {"uri": "in/"},
    "model": {"uses": "mine:Model", "outputs": {"score": "float32"}},
    "output": {"uri": "out/"},
}
INF, NAN = math.inf, math.nan


def job_of(max_quarantined: float = 0.001, **check: Any) -> Job:
    checks = [{"column": "score", **check}] if check else []
    return parse_job({**CONTENT, "retry": {"max_quarantined": max_quarantined}, "checks": checks}, JOB)


def gates(job: Job, columns: dict[str, ColumnState] | None = None, **counts: int) -> dict[str, GateResult]:
    counts = {"shards": 4, "rows_in": 1000, **counts}
    evidence = Evidence(Found(files=4, rows=1000), metrics=Metrics(columns or {}), **counts)
    return {gate.name: gate for gate in evaluate(gates_of(job), evidence)}


def gate(values: pa.Array, **check: Any) -> GateResult:
    """The one gate of a job with this check, on these scores."""
    state = ColumnState()
    state.update(pa.chunked_array([values]))
    (result,) = list(gates(job_of(**check), {"score": state}).values())[2:]
    return result


def test_the_order_of_gates_is_complete_then_quarantine_then_checks() -> None:
    names = list(gates(job_of(min=0, max=1, nulls=0, finite=True)))
    assert names == ["complete", "quarantine", "score.min", "score.max", "score.nulls", "score.finite"]
    assert list(gates(job_of(min=0, finite=False))) == ["complete", "quarantine", "score.min"]


def test_where_checks_are_not_judged_only_what_every_run_needs_is() -> None:
    job = job_of(min=0, max=1)
    assert list(gates(job.model_copy(update={"judged": False}))) == ["complete", "quarantine"]
    assert len(gates_of(job)) == 4


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
    assert gates(job_of(0.003), rows_quarantined=1, rows_partial=2)["quarantine"].passed
    assert not gates(job_of(0.003), rows_quarantined=2, rows_partial=2)["quarantine"].passed
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
        ([0.5, INF], {"max": 1}, False),
        ([0.5, -INF], {"max": 1}, True),
        ([0.5, NAN], {"max": 1}, False),
        ([0.5, -INF], {"min": 0}, False),
        ([0.5, INF], {"min": 0}, True),
        ([0.5, NAN], {"min": 0}, False),
        ([0.5, NAN], {"nulls": 0}, False),
        ([0.5, NAN, None, 0.5], {"nulls": 0.5}, True),
        ([0.5, INF], {"nulls": 0}, True),
    ],
)
def test_a_value_exactly_at_the_limit_passes(values: list[Any], check: dict[str, Any], passed: bool) -> None:
    result = gate(pa.array(values, pa.float32()), **check)
    assert result.passed is passed
    assert f"checks[0].{next(iter(check))}" in result.sentence


def test_a_value_just_past_its_limit_never_reads_the_same_as_the_limit() -> None:
    result = gate(pa.array([1.0000000000000002]), max=1)
    assert (result.passed, result.observed, result.limit) == (False, "1.0000000000000002", "1")


BIG = 2**53 + 4


@pytest.mark.parametrize(
    ("values", "least", "beyond", "shown"),
    [
        (pa.array([BIG]), BIG, BIG - 1, "9007199254740996"),
        (pa.array([2**64 - 1], pa.uint64()), 2**64 - 1, 2**64 - 2, "18446744073709551615"),
        (pa.array([Decimal(BIG)], pa.decimal128(38, 2)), BIG, BIG - 1, "9007199254740996"),
        (pa.array([Decimal("0.10")]), 0.1, 0.09999999999999999, "0.1"),
        (pa.array([BIG]), float(BIG), float(BIG - 2), "9007199254740996"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_a_number_of_any_size_is_compared_as_it_is_written(
    values: pa.Array, least: float, beyond: float, shown: str
) -> None:
    passes, fails = gate(values, max=least), gate(values, max=beyond)
    assert (passes.passed, fails.passed) == (True, False)
    assert (passes.limit, fails.limit, fails.observed) == (str(least), str(beyond), shown)


def test_a_number_is_shown_as_short_as_is_exact() -> None:
    assert gate(pa.array([3e6]), max=5e6).observed == "3000000"
    assert gate(pa.array([0.1 + 0.2]), max=0.3).observed == "0.30000000000000004"


@pytest.mark.parametrize(
    ("values", "check", "observed", "said"),
    [
        (
            [0.2, 1.25, None],
            {"max": 1},
            "1.25",
            "The greatest 'score' is 1.25, above checks[0].max = 1. Mend the input or the model, or raise "
            "checks[0].max.",
        ),
        (
            [0.2, -INF, 0.1],
            {"min": 0},
            "-inf",
            "The smallest 'score' is -inf, below checks[0].min = 0. Mend the input or the model, or lower "
            "checks[0].min.",
        ),
        (
            [0.2, NAN, NAN],
            {"max": 1},
            "0.2, 2 NaN",
            "'score' is NaN in 2 rows, and checks[0].max = 1 does not allow NaN. Mend the input or the "
            "model, or remove checks[0].max.",
        ),
        (
            [INF, NAN],
            {"max": 1},
            "inf, 1 NaN",
            "The greatest 'score' is inf, above checks[0].max = 1. 'score' is NaN in 1 row, and "
            "checks[0].max = 1 does not allow NaN. Mend the input or the model, or raise checks[0].max.",
        ),
        (
            [None, NAN, 0.5],
            {"nulls": 0.1},
            "2 of 3 rows",
            "'score' is null or NaN in 2 rows, more than the 0 that checks[0].nulls = 0.1 allows. Mend the input or "
            "the model, or raise checks[0].nulls.",
        ),
    ],
)
def test_a_failure_says_what_was_seen_and_what_to_do(
    values: list[Any], check: dict[str, Any], observed: str, said: str
) -> None:
    result = gate(pa.array(values, pa.float32()), **check)
    assert (result.passed, result.observed, result.sentence) == (False, observed, said)


def test_seen_8_what_is_infinite_or_nan_passes_neither_min_nor_max_nor_nulls() -> None:
    """500 values of +inf, 500 of -inf and 500 NaN of 10,000 were published, 5 of 5 gates green."""
    job = job_of(min=0, max=1, nulls=0)
    metrics = Metrics.for_job(job)
    scores = [0.5] * 8500 + [INF] * 500 + [-INF] * 500 + [NAN] * 500
    metrics.update(pa.table({"score": pa.array(scores, pa.float32())}), None)
    found = gates(job, Metrics.from_bytes(metrics.to_bytes()).columns)
    assert [found[f"score.{name}"].passed for name in ("min", "max", "nulls")] == [False] * 3
    assert [found[f"score.{name}"].observed for name in ("min", "max", "nulls")] == [
        "-inf, 500 NaN",
        "inf, 500 NaN",
        "500 of 10,000 rows",
    ]


def test_a_state_of_before_the_kinds_were_told_apart_passes_no_gate_that_any_of_them_fails() -> None:
    state = ColumnState("number", 10, 0, 5, 0.1, 0.9)
    found = gates(job_of(min=0, max=1, nulls=0), {"score": state})
    assert not any(found[f"score.{name}"].passed for name in ("min", "max", "nulls"))


@pytest.mark.parametrize("value", [123_456_792, 1_234_567_936, 16_777_216, -123_456_792])
def test_a_whole_number_is_judged_as_it_is_in_floats_of_32_bits(value: int) -> None:
    """The shortest text that reads back as this float32 has other last digits."""
    scores = pa.array([float(value)], pa.float32())
    assert gate(scores, max=value).passed and gate(scores, min=value).passed
    assert not gate(scores, max=value - 1).passed and not gate(scores, min=value + 1).passed


@pytest.mark.parametrize("value", [0.1, 1e16, 1e20, -1e20, 3.4e38])
def test_a_float_of_32_bits_is_judged_as_it_is_written(value: float) -> None:
    scores = pa.array([value], pa.float32())
    assert gate(scores, max=value).passed and gate(scores, min=value).passed


def test_a_night_without_rows_is_judged_by_complete_alone() -> None:
    """`rows: {min: 0}` allows such a night, and no other check of it needs to be taken out."""
    found = gates(job_of(min=0, max=1, nulls=0, finite=True), {"score": ColumnState()}, rows_in=0, shards=0)
    assert [name for name, gate in found.items() if not gate.passed] == ["complete"]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([], "no finite value in 0 rows"),
        ([None], "no finite value in 1 row"),
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
        (pa.array([1], pa.timestamp("s")), "values that are not numbers"),
        (pa.array(["a"]), "values that are not numbers"),
        (pa.array([[1.0]]), "lists"),
    ],
)
def test_min_and_max_of_what_is_no_number_are_an_error_not_a_pass(values: pa.Array, holds: str) -> None:
    result = gate(values, min=0)
    assert not result.passed
    assert result.sentence == f"checks[0].min asks for numbers, but 'score' holds {holds}. Remove checks[0].min."


def test_finite_is_asked_of_the_items_of_a_list_and_refused_on_text() -> None:
    assert gate(pa.array([[1.0], None]), finite=True).passed
    assert not gate(pa.array([[1.0, float("nan")]]), finite=True).passed
    result = gate(pa.array(["a"]), finite=True)
    assert not result.passed
    assert "checks[0].finite asks for numbers" in result.sentence


def test_a_column_that_nobody_measured_passes_no_check() -> None:
    job = job_of(min=0, max=1, nulls=1, finite=True)
    results = list(gates(job, {}).values())[2:]
    assert [result.passed for result in results] == [False] * 4
    assert results[2].sentence.startswith("'score' was not measured, so checks[0].nulls cannot be judged.")


def last_night(run_id: str, date: str, rows: int) -> NightEvidence:
    return NightEvidence(job="j", run_id=run_id, date=date, shards=1, rows_in=rows, metrics=Figures({}))


NIGHT = last_night("2026-11-18", "2026-11-18", 50_000)


def input_gate(check: dict[str, Any], rows: int, files: int = 1, last: NightEvidence | None = None) -> GateResult:
    """The one gate on the input of a job with this check."""
    job = parse_job({**CONTENT, "checks": [check]}, JOB)
    (result,) = evaluate(input_gates(job), Evidence(Found(files, rows, 0, last)))
    assert result == evaluate(gates_of(job), Evidence(Found(files, rows, 0, last)))[-1]
    return result


@pytest.mark.parametrize(
    ("check", "rows", "files", "name", "passed"),
    [
        ({"rows": {"min": 50_000}}, 50_000, 1, "rows.min", True),
        ({"rows": {"min": 50_000}}, 49_999, 1, "rows.min", False),
        ({"rows": {"max": 50_000}}, 50_000, 1, "rows.max", True),
        ({"rows": {"max": 50_000}}, 50_001, 1, "rows.max", False),
        ({"files": {"min": 5}}, 1, 5, "files.min", True),
        ({"files": {"min": 5}}, 1, 4, "files.min", False),
        ({"files": {"max": 5}}, 1, 5, "files.max", True),
        ({"files": {"max": 5}}, 1, 6, "files.max", False),
        ({"rows": {"against": "last", "change": 0.3}}, 35_000, 1, "rows.last", True),
        ({"rows": {"against": "last", "change": 0.3}}, 34_999, 1, "rows.last", False),
        ({"rows": {"against": "last", "change": 0.3}}, 65_000, 1, "rows.last", True),
        ({"rows": {"against": "last", "change": 0.3}}, 65_001, 1, "rows.last", False),
        ({"rows": {"against": "last", "change": 0}}, 50_000, 1, "rows.last", True),
        ({"rows": {"against": "last", "change": 2}}, 0, 1, "rows.last", True),
    ],
)
def test_how_much_input_there_is_passes_exactly_at_the_limit(
    check: dict[str, Any], rows: int, files: int, name: str, passed: bool
) -> None:
    result = input_gate(check, rows, files, NIGHT)
    assert (result.name, result.passed) == (name, passed)
    assert "checks[0]." in result.sentence


@pytest.mark.parametrize(
    ("check", "rows", "passed"),
    [
        ({"rows": {"min": 50_000}}, 0, True),
        ({"rows": {"min": 50_000}}, 50_000, True),
        ({"rows": {"max": 50_000}}, 50_000, True),
        ({"rows": {"max": 50_000}}, 50_001, False),
        ({"rows": {"against": "last", "change": 0.3}}, 0, True),
        ({"rows": {"against": "last", "change": 0.3}}, 65_001, False),
        ({"files": {"min": 5}}, 1, False),
    ],
)
def test_rows_that_are_not_counted_yet_fail_no_gate_that_they_might_pass(
    check: dict[str, Any], rows: int, passed: bool
) -> None:
    """Before anything is scored; the verdict that counts is that of the run's end, when all are."""
    (rule,) = input_gates(parse_job({**CONTENT, "checks": [check]}, JOB))
    result = rule.gate.judge(Evidence(Found(4, rows, 0, NIGHT, uncounted=2)))
    assert result.passed == passed
    assert result.sentence.startswith(f"The input has {rows:,} row")
    if "rows" in check:
        assert "and those of 2 files not counted yet in 4 files" in result.sentence


def test_too_little_input_says_how_much_there_is_and_what_to_do() -> None:
    assert input_gate({"rows": {"min": 50_000}}, 10_000).sentence == (
        "The input has 10,000 rows in 1 file, less than checks[0].rows.min = 50,000. Run again when the rest of it is "
        "there (input.wait waits for it), or lower checks[0].rows.min."
    )
    result = input_gate({"rows": {"against": "last", "change": 0.3}}, 10_000, last=NIGHT)
    assert (result.observed, result.limit) == ("10,000 rows", "35,000 to 65,000 rows")
    assert result.sentence == (
        "The input has 10,000 rows in 1 file, after the 50,000 rows of 2026-11-18 (2026-11-18), the last published "
        "night: checks[0].rows.change = 0.3 allows 35,000 to 65,000 rows. Check that the input is complete and "
        "has nothing twice, or raise checks[0].rows.change."
    )


def test_the_first_night_has_nothing_to_be_compared_with_and_says_so() -> None:
    result = input_gate({"rows": {"against": "last", "change": 0.3}}, 1)
    assert result.passed
    assert result.sentence == (
        "No earlier night is published, so checks[0].rows.change has nothing to compare with and passes."
    )


def test_enforcing_raises_with_every_verdict_or_hands_them_on() -> None:
    job = job_of(min=0)
    passed = tuple(gates(job, {"score": ColumnState("number", 1, 0, 0, 0.5, 0.5)}).values())
    assert enforce(passed) == passed
    with pytest.raises(GateFailed, match="was not measured") as failed:
        enforce(tuple(gates(job).values()))
    assert [gate.passed for gate in failed.value.gates] == [True, True, False]


def test_a_verdict_of_an_earlier_versions_manifest_is_read() -> None:
    record = {"name": "complete", "passed": True, "observed": "4 of 4 shards", "limit": "all", "sentence": "All."}
    assert of_json(GateResult, record) == GateResult("complete", True, "4 of 4 shards", "all", "All.")


# ---- every verdict, as it is shown and said -----------------------------------------------------------------

INPUT = Found(4, 1000)
WHERE = (Offender("s1", "a.parquet", 3, "-1.5", "nightjar replay …"),)


def verdict(job: Job, evidence: Evidence, name: str) -> tuple[bool, str, str, str]:
    """Of the gate of that name: whether it passed, what was observed, its limit, and its sentence."""
    (found,) = [gate for gate in evaluate(gates_of(job), evidence) if gate.name == name]
    return found.passed, found.observed, found.limit, found.sentence


@pytest.mark.parametrize(
    ("shards", "expected"),
    [
        (1200, (True, "1,200 of 1,200 shards", "all", "All 1,200 shards are done.")),
        (1, (True, "1 of 1 shards", "all", "The only shard is done.")),
    ],
)
def test_what_complete_says(shards: int, expected: tuple[bool, str, str, str]) -> None:
    assert verdict(job_of(), Evidence(INPUT, shards=shards, rows_in=1), "complete") == expected


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("x = 'DE'", "no row that was read matches input.where (x = 'DE')"),
        (None, "the input has no row"),
    ],
)
def test_a_night_without_rows_is_complete_only_where_the_job_allows_it(where: str | None, why: str) -> None:
    def complete(*checks: dict[str, Any]) -> tuple[bool, str, str, str]:
        given = {**CONTENT, "input": {"uri": "in/", "where": where}, "checks": list(checks)}
        return verdict(parse_job(given, JOB), Evidence(Found(4, 0), shards=4), "complete")

    assert complete() == (
        False,
        "4 of 4 shards, 0 rows",
        "all, 1 row or more",
        f"All 4 shards are done. But {why}, so that readers would see a night without rows. Mend it, or allow such a "
        "night with the check `rows: {min: 0}`.",
    )
    assert not complete({"rows": {"max": 10}})[0]
    allowed = {"rows": {"min": 0}}
    assert complete({"rows": {"max": 10}}, allowed) == (True, "4 of 4 shards", "all", "All 4 shards are done.")


@pytest.mark.parametrize(
    ("lost", "passed", "sentence"),
    [
        (1, True, "1 row in quarantine; 2,000 are allowed."),
        (2000, True, "2,000 rows in quarantine; 2,000 are allowed."),
        (
            2001,
            False,
            "2,001 rows in quarantine, more than the 2,000 that retry.max_quarantined = 0.5 allows. Replay one with "
            "the command that the quarantine prints, mend the input or the model, or raise retry.max_quarantined.",
        ),
    ],
)
def test_what_quarantine_says(lost: int, passed: bool, sentence: str) -> None:
    evidence = Evidence(INPUT, rows_in=4000, rows_quarantined=lost)
    expected = (passed, f"{lost:,} of 4,000 rows", "2,000 rows (0.5 of the run)", sentence)
    assert verdict(job_of(0.5), evidence, "quarantine") == expected


LEFT_OUT = " (1,500 left out: their input has changed since)"


@pytest.mark.parametrize(
    ("found", "passed", "observed", "sentence"),
    [
        (None, True, "no rows", "There was no row."),
        (
            Rescored(2000, 3000, 0, 0.00123),
            True,
            "0 of 3,000 rows of 2,000 shards differ",
            "Scored again, 3,000 rows of 2,000 shards came out the same, within 0.0012.",
        ),
        (
            Rescored(1, 1, changed=1500),
            True,
            f"0 of 1 row of 1 shard differ{LEFT_OUT}",
            f"Scored again, 1 row of 1 shard came out the same, within 0{LEFT_OUT}.",
        ),
        (
            Rescored(2000, 3000, 1500, 0.5, "row 3 of a.parquet: 1.0", 1500),
            False,
            f"1,500 of 3,000 rows of 2,000 shards differ{LEFT_OUT}",
            "Scored again, 1,500 of 3,000 rows of 2,000 shards came out different; row 3 of a.parquet: 1.0. A device "
            "may be computing wrongly, or the model answers differently each time, or beside other rows (model.rows). "
            "Score everything again with --fresh, on other machines if you suspect one worker; if the model is that "
            "inexact, raise rescore.tolerance or, where whole answers differ, rescore.differing.",
        ),
    ],
)
def test_what_rescore_says(found: Rescored | None, passed: bool, observed: str, sentence: str) -> None:
    job = parse_job({**CONTENT, "rescore": {"share": 0.1, "tolerance": 0.01}}, JOB)
    expected = (passed, observed, "0 (tolerance 0.01)", sentence)
    assert verdict(job, Evidence(INPUT, rescored=found), "rescore") == expected


@pytest.mark.parametrize(
    ("differing", "passed", "sentence"),
    [
        (30, True, "Scored again, 30 of 3,000 rows of 2 shards came out different, and 30 may."),
        (31, False, "Scored again, 31 of 3,000 rows of 2 shards came out different, more than 30; row 3. A device may"),
    ],
)
def test_so_many_rows_may_differ_as_the_job_says(differing: int, passed: bool, sentence: str) -> None:
    """A language model may answer otherwise the second time."""
    job = parse_job({**CONTENT, "rescore": {"share": 0.1, "differing": 0.01}}, JOB)
    nothing = verdict(job, Evidence(INPUT), "rescore")
    assert nothing == (True, "no rows", "1.00% (tolerance 1e-05)", "There was no row.")
    found = verdict(job, Evidence(INPUT, rescored=Rescored(2, 3000, differing, 0.0, "row 3")), "rescore")
    assert found[:3] == (passed, f"{differing} of 3,000 rows of 2 shards differ", "30 (tolerance 1e-05)")
    assert found[3].startswith(sentence)


DAY = pa.array([1], pa.date32())
TEXT = pa.array(["a"])


@pytest.mark.parametrize(
    ("check", "values", "passed", "observed", "limit", "sentence"),
    [
        ({"min": 0}, [0.25, 0.5], True, "0.25", "0", "The smallest 'score' is 0.25; checks[0].min = 0 holds."),
        ({"max": 1}, [0.25, 0.5], True, "0.5", "1", "The greatest 'score' is 0.5; checks[0].max = 1 holds."),
        (
            {"max": 0},
            [NAN] * 2000,
            False,
            "2,000 NaN",
            "0",
            "'score' is NaN in 2,000 rows, and checks[0].max = 0 does not allow NaN. Mend the input or the "
            "model, or remove checks[0].max.",
        ),
        (
            {"min": 0.5},
            [None, INF],
            False,
            "no value",
            "0.5",
            "'score' has no finite value in 2 rows to compare with checks[0].min = 0.5. Mend the "
            "input or the model, or remove checks[0].min.",
        ),
        (
            {"max": 0.5},
            [-INF, NAN],
            False,
            "1 NaN",
            "0.5",
            "'score' is NaN in 1 row, and checks[0].max = 0.5 does not allow NaN. Mend the input or the "
            "model, or remove checks[0].max.",
        ),
        (
            {"min": 0},
            [INF],
            False,
            "no value",
            "0",
            "'score' has no finite value in 1 row to compare with checks[0].min = 0. Mend the input or the model, "
            "or remove checks[0].min.",
        ),
        (
            {"min": 0},
            pa.nulls(3),
            False,
            "no value",
            "0",
            "'score' has no finite value in 3 rows to compare with checks[0].min = 0. Mend the input or the model, "
            "or remove checks[0].min.",
        ),
        (
            {"max": 0},
            TEXT,
            False,
            "values that are not numbers",
            "0",
            "checks[0].max asks for numbers, but 'score' holds values that are not numbers. Remove checks[0].max.",
        ),
        (
            {"nulls": 0.5},
            [None, 0.5],
            True,
            "1 of 2 rows",
            "1 rows (0.5)",
            "'score' is null in 1 row; checks[0].nulls = 0.5 holds.",
        ),
        (
            {"nulls": 0.25},
            [None, NAN] * 2000,
            False,
            "4,000 of 4,000 rows",
            "1,000 rows (0.25)",
            "'score' is null or NaN in 4,000 rows, more than the 1,000 that checks[0].nulls = 0.25 allows. Mend the "
            "input or the model, or raise checks[0].nulls.",
        ),
        (
            {"nulls": 0.5},
            pa.array([[NAN], None]),
            True,
            "1 of 2 rows",
            "1 rows (0.5)",
            "'score' is null in 1 row; checks[0].nulls = 0.5 holds.",
        ),
        (
            {"finite": True},
            [NAN] * 2000 + [INF],
            False,
            "2,001 not finite",
            "0",
            "'score' is NaN or infinite in 2,001 values, which checks[0].finite forbids. Mend the input or the model, "
            "or remove checks[0].finite.",
        ),
        (
            {"finite": True},
            TEXT,
            False,
            "values that are not numbers",
            "0",
            "checks[0].finite asks for numbers, but 'score' holds values that are not numbers. Remove "
            "checks[0].finite.",
        ),
    ],
)
def test_what_each_gate_on_a_column_says(
    check: dict[str, Any], values: Any, passed: bool, observed: str, limit: str, sentence: str
) -> None:
    """And one that does not pass has the rows that speak against it, if any were found."""
    state = ColumnState()
    state.update(pa.chunked_array([values if isinstance(values, pa.Array) else pa.array(values, pa.float32())]))
    (asked,) = check
    offenders = {f"checks[0].{asked}": WHERE, "checks[1].min": ()}
    judged = evaluate(
        gates_of(job_of(**check)), Evidence(INPUT, metrics=Metrics({"score": state}), offenders=offenders)
    )[-1]
    where = () if passed or "asks for numbers" in sentence else WHERE
    assert judged == GateResult(f"score.{asked}", passed, observed, limit, sentence, where)
    without = evaluate(gates_of(job_of(**check)), Evidence(INPUT, metrics=Metrics({"score": state})))[-1]
    assert without.where == ()


def test_a_column_that_was_not_measured_says_what_its_limit_is() -> None:
    job = job_of(min=0.5, max=1, nulls=0.25, finite=True)
    found = [(gate.name, gate.observed, gate.limit) for gate in evaluate(gates_of(job), Evidence(INPUT))[2:]]
    assert found == [
        ("score.min", "not measured", "0.5"),
        ("score.max", "not measured", "1"),
        ("score.nulls", "not measured", "0.25 of the rows"),
        ("score.finite", "not measured", "0"),
    ]


CHANGE = {"rows": {"against": "last", "change": 0.3}}
BEFORE = last_night("trial", "2026-11-18", 4000)
AFTER = "after the 4,000 rows of 2026-11-18 (trial), the last published night"


@pytest.mark.parametrize(
    ("check", "found", "name", "passed", "observed", "limit", "sentence"),
    [
        (
            {"rows": {"min": 5000}},
            Found(1, 5000),
            "rows.min",
            True,
            "5,000 rows",
            "5,000",
            "The input has 5,000 rows in 1 file; checks[0].rows.min = 5,000 holds.",
        ),
        (
            {"rows": {"max": 5000}},
            Found(2, 5001, 3),
            "rows.max",
            False,
            "5,001 rows",
            "5,000",
            "The input has 5,001 rows in 2 files (3 files that cannot be read not counted), more than "
            "checks[0].rows.max = 5,000. Mend the input, or raise checks[0].rows.max.",
        ),
        (
            {"files": {"max": 5000}},
            Found(6000, 1),
            "files.max",
            False,
            "6,000 files",
            "5,000",
            "The input has 1 row in 6,000 files, more than checks[0].files.max = 5,000. Mend the input, or raise "
            "checks[0].files.max.",
        ),
        (
            CHANGE,
            Found(1, 1000),
            "rows.last",
            True,
            "1,000 rows",
            "no earlier night",
            "No earlier night is published, so checks[0].rows.change has nothing to compare with and passes.",
        ),
        (
            CHANGE,
            Found(1, 5000, last=BEFORE),
            "rows.last",
            True,
            "5,000 rows",
            "2,800 to 5,200 rows",
            f"The input has 5,000 rows in 1 file, {AFTER}; checks[0].rows.change = 0.3 holds.",
        ),
        (
            CHANGE,
            Found(1, 2000, 1, BEFORE),
            "rows.last",
            False,
            "2,000 rows",
            "2,800 to 5,200 rows",
            f"The input has 2,000 rows in 1 file (1 file that cannot be read not counted), {AFTER}: "
            "checks[0].rows.change = 0.3 allows 2,800 to 5,200 rows. Check that the input is complete and has "
            "nothing twice, or raise checks[0].rows.change.",
        ),
        (
            CHANGE,
            Found(1, 2000, last=last_night("trial", "2026-11-18", 0)),
            "rows.last",
            False,
            "2,000 rows",
            "0 to 0 rows",
            "The input has 2,000 rows in 1 file, after the 0 rows of 2026-11-18 (trial), the last published night: "
            "checks[0].rows.change allows none after an empty night, however large it is. Let the check warn or ask "
            "(on_fail) until a night with rows is published, or take the empty one back with `nightjar unpublish JOB "
            "trial`.",
        ),
        (
            CHANGE,
            Found(1, 0, last=last_night("trial", "2026-11-18", 0)),
            "rows.last",
            True,
            "0 rows",
            "0 to 0 rows",
            "The input has 0 rows in 1 file, after the 0 rows of 2026-11-18 (trial), the last published night; "
            "checks[0].rows.change = 0.3 holds.",
        ),
    ],
)
def test_what_each_gate_on_the_input_says(
    check: dict[str, Any], found: Found, name: str, passed: bool, observed: str, limit: str, sentence: str
) -> None:
    assert judged_input(check, found) == GateResult(name, passed, observed, limit, sentence)


LATER = "is judged when the other rows are read"


@pytest.mark.parametrize(
    ("check", "found", "name", "observed", "limit", "said"),
    [
        ({"files": {"min": 2}}, Found(3, 4000, uncounted=2), "files.min", "3 files", "2", "= 2 holds"),
        ({"rows": {"min": 5000}}, Found(3, 4000, uncounted=1), "rows.min", "at least 4,000 rows", "5,000", LATER),
        ({"rows": {"min": 5000}}, Found(3, 5000, uncounted=1), "rows.min", "5,000 rows", "5,000", "= 5,000 holds"),
        ({"rows": {"max": 5000}}, Found(3, 5000, uncounted=1), "rows.max", "at least 5,000 rows", "5,000", LATER),
        (CHANGE, Found(3, 5200, 0, BEFORE, 1), "rows.last", "at least 5,200 rows", "2,800 to 5,200 rows", LATER),
    ],
)
def test_what_is_decided_before_all_rows_are_counted_says_so(
    check: dict[str, Any], found: Found, name: str, observed: str, limit: str, said: str
) -> None:
    """Nothing is refused that the rows of the other files could still mend."""
    rows = f"{found.rows:,} rows and those of {counted(found.uncounted, 'file')} not counted yet"
    key = name.replace("last", "change")
    sentence = f"The input has {rows} in 3 files; checks[0].{key} {said}."
    assert judged_input(check, found) == GateResult(name, True, observed, limit, sentence)


def judged_input(check: dict[str, Any], found: Found) -> GateResult:
    (rule,) = input_gates(parse_job({**CONTENT, "checks": [check]}, JOB))
    return rule.gate.judge(Evidence(found))


def test_what_is_enforced_says_every_failure_once_and_the_first_row_of_each() -> None:
    row = Offender("s2", "b.parquet", 5, "inf")
    failed = [
        GateResult("a.min", False, "-1", "0", "Too low.", (*WHERE, row)),
        GateResult("a.max", False, "inf", "1", "Too high.", (row,)),
        GateResult("complete", False, "1 of 2", "all", "One is missing."),
    ]
    with pytest.raises(GateFailed) as raised:
        enforce((*failed, GateResult("b.min", True, "1", "0", "Fine.")))
    assert str(raised.value) == (
        "Too low. Row 3 of a.parquet (shard s1) holds -1.5: nightjar replay …; "
        "Too high. Row 5 of b.parquet (shard s2) holds inf.; One is missing."
    )


def test_a_verdict_is_read_back_with_its_rows() -> None:
    result = GateResult("a.min", False, "-1", "0", "Too low.", WHERE)
    assert of_json(GateResult, to_json(result)) == result


ASKS = {"uses": "openai", "url": "http://here/v1", "served_model": "m", "prompt": "{x}"}


def answers_gate(usage: Usage, share: float, outputs: dict[str, str]) -> GateResult:
    """The one gate of a job with a check on answers."""
    checks = [{"answers": {"cut": share}}]
    job = parse_job({**CONTENT, "model": {**ASKS, "outputs": outputs}, "checks": checks}, JOB)
    evidence = Evidence(Found(files=1, rows=1000), shards=1, rows_in=1000, usage=usage)
    *_, result = evaluate(gates_of(job), evidence)
    return result


def test_as_many_answers_as_allowed_may_be_cut_and_no_more() -> None:
    """A repeated request is no further answer."""
    at = answers_gate(Usage(requests=1050, retries=50, cut=10), 0.01, {"a": "string"})
    assert (at.name, at.passed, at.observed, at.limit) == (
        "answers.cut",
        True,
        "10 of 1,000 answers",
        "10 answers (0.01)",
    )
    past = answers_gate(Usage(requests=1050, retries=50, cut=11), 0.01, {"a": "string"})
    assert not past.passed
    assert past.sentence == (
        "11 of 1,000 answers were cut at the most tokens that an answer may have, more than the 10 that "
        "checks[0].answers.cut = 0.01 allows. Raise max_tokens in model.sampling, which asks for all answers again, or "
        "raise checks[0].answers.cut."
    )
    assert (past.name, past.observed, past.limit) == ("answers.cut", "11 of 1,000 answers", "10 answers (0.01)")
    assert past.passed is False
    assert at.sentence == (
        "10 of 1,000 answers were cut at the most tokens that an answer may have; checks[0].answers.cut = 0.01 holds."
    )
    one = answers_gate(Usage(requests=1, cut=1), 0, {"a": "string"})
    assert one.sentence.startswith("1 of 1 answers was cut at the most tokens")
    assert answers_gate(Usage(requests=2, cut=2), 0, {"a": "string"}).sentence.startswith("2 of 2 answers were cut")
    assert answers_gate(NO_USAGE, 0, {"a": "string"}).passed


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"checks": [{"answers": {"cut": 0.1}}]},
            r"answers: is for language models .model.uses: vllm, ray.data.llm or openai.",
        ),
        ({"checks": [{"answers": {}}], "model": ASKS | {"outputs": {"a": "string"}}}, r"checks\[0\].answers.cut"),
        ({"checks": [{"answer": {"cut": 0}}]}, "did you mean 'answers'"),
    ],
)
def test_a_check_on_answers_that_makes_no_sense_is_named(content: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        parse_job(CONTENT | content, JOB)


LABELLED = {**CONTENT, "label": "late"}


def metric_gate(check: dict[str, Any], scores: list[float], labels: list[bool]) -> GateResult:
    job = parse_job({**LABELLED, "checks": [check]}, JOB)
    metrics = Metrics.for_job(job)
    metrics.update(pa.table({"score": pa.array(scores, pa.float32())}), pa.array(labels, pa.bool_()))
    return evaluate(gates_of(job), Evidence(Found(1, 4), metrics=metrics))[-1]


@pytest.mark.parametrize(
    ("check", "name", "passed", "sentence"),
    [
        (
            {"metric": "f1", "max": 0.5, "threshold": 0.75},
            "f1.max",
            False,
            "The f1 at 0.75 of 'score' against 'late' is 0.666667, above checks[0].max = 0.5. Look whether the model, "
            "its features or the labels have changed, or raise checks[0].max.",
        ),
        (
            {"metric": "accuracy", "max": 0.75},
            "accuracy.max",
            True,
            "The accuracy at 0.5 of 'score' against 'late' is 0.75; checks[0].max = 0.75 holds.",
        ),
        (
            {"metric": "auroc", "min": 0.75},
            "auroc.min",
            True,
            "The auroc of 'score' against 'late' is 0.75; checks[0].min = 0.75 holds.",
        ),
        (
            {"metric": "auroc", "min": 0.76},
            "auroc.min",
            False,
            "The auroc of 'score' against 'late' is 0.75, below checks[0].min = 0.76. Look whether the model, its "
            "features or the labels have changed, or lower checks[0].min.",
        ),
        (
            {"metric": "brier", "max": 0.1},
            "brier.max",
            False,
            "The brier of 'score' against 'late' is 0.158144 ± 8.2e-05, above checks[0].max = 0.1. Look whether the "
            "model, its features or the labels have changed, or raise checks[0].max.",
        ),
        (
            {"metric": "recall", "min": 0.5, "threshold": 0.25},
            "recall.min",
            True,
            "The recall at 0.25 of 'score' against 'late' is 1; checks[0].min = 0.5 holds.",
        ),
        (
            {"metric": "precision", "min": 0.5, "threshold": 0.9},
            "precision.min",
            False,
            "There is no precision at 0.9 for checks[0].min = 0.5: no row is predicted 1. If labels come after the "
            "night, write `late_labels` in place of `label`, let this check warn (on_fail: warn) or remove it.",
        ),
    ],
)
def test_what_each_gate_on_a_metric_says(check: dict[str, Any], name: str, passed: bool, sentence: str) -> None:
    found = metric_gate(check, [0.1, 0.4, 0.35, 0.8], [False, False, True, True])
    assert (found.name, found.passed, found.sentence) == (name, passed, sentence)
    assert found.limit == str(check.get("min", check.get("max")))
    figure = sentence.partition("'late' is ")[2].replace(",", ";").partition(";")[0]
    assert found.observed == (figure or "no figure")


def test_a_metric_just_past_its_limit_never_reads_the_same_as_the_limit() -> None:
    found = metric_gate({"metric": "accuracy", "min": 1}, [0.9] * 9_999_999 + [0.1], [True] * 10_000_000)
    assert (found.passed, found.observed) == (False, "0.9999999")


@pytest.mark.parametrize(("negatives", "error"), [(1000, " ± 5e-07"), (1001, "")])
def test_an_error_is_told_if_it_is_half_of_the_sixth_digit_or_more(negatives: int, error: str) -> None:
    """Of a thousand positive rows one has the score of a negative one: half a pair may be wrong."""
    scores, labels = [0.1] * (negatives - 1) + [0.5, 0.5] + [0.9] * 999, [False] * negatives + [True] * 1000
    found = metric_gate({"metric": "auroc", "min": 0.5}, scores, labels)
    assert (found.passed, found.observed) == (True, f"1{error}")


def test_a_metric_that_nobody_measured_passes_no_check() -> None:
    job = parse_job({**LABELLED, "checks": [{"metric": "auroc", "min": 0.5}]}, JOB)
    found = evaluate(gates_of(job), Evidence(Found(1, 4)))[-1]
    assert (found.passed, found.observed) == (False, "no figure")
    assert found.sentence.startswith("There is no auroc for checks[0].min = 0.5: the labels were not compared. If ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {**CONTENT, "checks": [{"metric": "auroc", "min": 0.5}]},
            r"checks\[0\].metric: auroc compares scores with labels",
        ),
        ({**LABELLED, "checks": [{"metric": "auroc"}]}, "asks nothing: give min or max"),
        ({**LABELLED, "checks": [{"metric": "auc", "min": 0.5}]}, r"checks\[0\].*auroc"),
        ({**LABELLED, "checks": [{"metric": "f1", "min": 0.5, "max": 0.4}]}, "min 0.5 is more than max 0.4"),
        ({**LABELLED, "checks": [{"metric": "ece", "max": 0.5, "threshold": 0.4}]}, "threshold: ece needs none"),
        ({**LABELLED, "checks": [{"metric": "f1", "min": 0.5, "threshold": 1.0}]}, "less than 1"),
        ({**LABELLED, "checks": [{"metric": "f1", "min": 0.5, "on_fail": "wran"}]}, "on_fail"),
    ],
)
def test_a_check_on_a_metric_that_makes_no_sense_is_named(content: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        parse_job(content, JOB)


@pytest.mark.parametrize(
    "check", [{"column": "score", "min": 5}, {"rows": {"min": 500}}, {"files": {"max": 0}}, {"metric": "f1", "min": 1}]
)
def test_a_check_that_warns_does_not_block_and_says_what_it_would_have_said(check: dict[str, Any]) -> None:
    state = ColumnState()
    state.update(pa.chunked_array([pa.array([0.5], pa.float32())]))
    evidence = Evidence(Found(1, 4), rows_in=4, metrics=Metrics({"score": state}))

    def judged(**more: Any) -> tuple[GateResult, ...]:
        return evaluate(gates_of(parse_job({**LABELLED, "checks": [{**check, **more}]}, JOB)), evidence)

    *_, block = judged()
    *_, warn = judged(on_fail="warn")
    assert (block.verdict, warn.verdict, replace(warn, on_fail="block")) == ("block", "warn", block)
    with pytest.raises(GateFailed):
        enforce(judged())
    assert enforce(judged(on_fail="warn"))
    assert (warnings(judged()), warnings(judged(on_fail="warn"))) == ([], [f"{warn.name}: {warn.sentence}"])


def test_what_is_enforced_names_only_what_blocks() -> None:
    job = parse_job({**CONTENT, "checks": [{"rows": {"min": 5}, "on_fail": "warn"}, {"files": {"max": 0}}]}, JOB)
    with pytest.raises(GateFailed) as raised:
        enforce(evaluate(gates_of(job), Evidence(Found(1, 4), rows_in=4)))
    assert str(raised.value).startswith("The input has 4 rows in 1 file, more than checks[1].files.max = 0.")
    assert "checks[0]" not in str(raised.value)
    assert [gate.verdict for gate in raised.value.gates[2:]] == ["warn", "block"]


def test_what_asks_also_warns_and_passes_for_neither() -> None:
    """A verdict that passes asks nobody; a warning names the first row."""
    where = (Offender("s1", "f", 7, "-1.0", "nightjar replay"), Offender("s2", "f", 9, "-2.0"))
    results = [
        GateResult("one", False, "", "", "It asks.", where, "ask"),
        GateResult("two", True, "", "", "It passes.", (), "ask"),
        GateResult("three", False, "", "", "It warns.", (), "warn"),
        GateResult("four", False, "", "", "It blocks."),
    ]
    assert [each.verdict for each in results] == ["ask", "pass", "warn", "block"]
    assert asking(results) == (results[0],)
    assert told(results[0]) == "It asks. Row 7 of f (shard s1) holds -1.0: nightjar replay"
    assert told(results[3]) == "It blocks."
    assert warnings(results) == [f"one: {told(results[0])}", "three: It warns."]
