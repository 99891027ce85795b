"""What gates say of a part of the night: that the night cannot pass, or that the part tells nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nightjar.inference.job.file import parse_job
from nightjar.inference.metrics.columns import ColumnState
from nightjar.inference.metrics.profile import Profile
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.records import Usage
from nightjar.inference.validation.gates import (
    Baseline,
    Evidence,
    Found,
    Gate,
    GateResult,
    Offender,
    asking,
    told,
    warnings,
)
from nightjar.inference.validation.gates.rules import gates_of

CONTENT: dict[str, Any] = {
    "name": "parts",
    "input": {"uri": "in/"},
    "model": {"uses": "mine:Model", "outputs": {"score": "float64"}},
    "carry": ["id"],
    "output": {"uri": "out/"},
}
ASKS = {"model": {"uses": "vllm", "path": "m", "prompt": "{x}", "outputs": {"a": "string"}}}
NAN, INF = math.nan, math.inf


def gate_of(check: dict[str, Any] | None = None, **changes: Any) -> Gate:
    """The gate of the only check, or the one on the quarantine."""
    job = parse_job({**CONTENT, **changes, "checks": [check] if check else []}, Path("/jobs/job.yaml"))
    return gates_of(job)[-1].gate


def said(gate: Gate, **evidence: Any) -> tuple[bool, bool]:
    """Whether it refuses any row, and whether it can judge the part."""
    states = {name: evidence.pop(name) for name in ("columns", "profile", "slices") if name in evidence}
    given = Evidence(Found(1, 4), metrics=Metrics(**states), **evidence)
    refuses, can_judge = gate.refuses_any(given), gate.can_judge(given)
    assert (type(refuses), type(can_judge)) == (bool, bool)
    return refuses, can_judge


@pytest.mark.parametrize(
    ("check", "values", "expected"),
    [
        ({"min": 0}, [1.0, None], (False, True)),
        ({"min": 0}, [1.0, -1.0], (True, True)),
        ({"min": 0}, [1.0, NAN], (True, True)),
        ({"max": 1}, [1.0, INF], (True, True)),
        ({"max": 1}, [None, None], (False, False)),
        ({"max": 1}, [], (False, False)),
        ({"finite": True}, [1.0, INF], (True, True)),
        ({"finite": True}, [1.0, 2.0], (False, True)),
        ({"nulls": 0}, [1.0, None], (True, True)),
        ({"nulls": 0}, [1.0, NAN], (True, True)),
        ({"nulls": 0}, [1.0], (False, True)),
        ({"nulls": 0.1}, [None, None], (False, True)),
        ({"nulls": 0.1}, [], (False, False)),
    ],
)
def test_one_row_breaks_a_limit_of_a_column(
    check: dict[str, Any], values: list[float | None], expected: tuple[bool, bool]
) -> None:
    """A share of nulls is broken by one null only if none is allowed."""
    state = ColumnState()
    state.update(pa.chunked_array([pa.array(values, pa.float64())]))
    assert said(gate_of({"column": "score", **check}), columns={"score": state}) == expected


def test_one_row_in_quarantine_breaks_a_limit_of_none() -> None:
    none, some = (gate_of(retry={"max_quarantined": share}) for share in (0, 0.001))
    assert said(none, rows_in=9) == (False, True)
    assert said(none, rows_in=9, rows_quarantined=1) == (True, True)
    assert said(some, rows_in=9, rows_quarantined=9) == (False, True)
    assert said(some) == (False, False)
    assert said(some, rows_in=1) == (False, True)


def test_one_cut_answer_breaks_a_limit_of_none() -> None:
    none, some = (gate_of({"answers": {"cut": share}}, **ASKS) for share in (0, 0.1))
    assert said(none, usage=Usage(requests=9)) == (False, True)
    assert said(none, usage=Usage(requests=9, cut=1)) == (True, True)
    assert said(some, usage=Usage(requests=9, cut=9)) == (False, True)
    assert said(some, usage=Usage(requests=1)) == (False, True)
    assert said(some, usage=Usage(requests=9, retries=9)) == (False, False)


@pytest.mark.parametrize(
    ("labels", "can_judge"), [(None, False), ([True, True], False), ([None, None], False), ([True, False], True)]
)
def test_a_metric_needs_labels_of_both_kinds_and_no_row_breaks_it(labels: list[Any] | None, can_judge: bool) -> None:
    gate = gate_of({"metric": "auroc", "min": 0.9}, label="late")
    metrics = Metrics.for_job(parse_job({**CONTENT, "label": "late"}, Path("/jobs/job.yaml")))
    if labels is not None:
        metrics.update(pa.table({"score": [0.1, 0.2]}), pa.array(labels, pa.bool_()))
    assert said(gate, slices=None if labels is None else metrics.slices) == (False, can_judge)


@pytest.mark.parametrize("against", ["last", "baseline"])
def test_drift_needs_both_profiles_and_no_row_breaks_it(against: str) -> None:
    gate = gate_of({"drift": "score", "against": against})
    near, far = Profile.empty(["score"]), Profile.empty(["score"])
    near.update(pa.table({"score": [1.0] * 1000}))
    far.update(pa.table({"score": [9.0] * 1000}))
    both, neither = {against: Baseline("a night", near)}, {against: Baseline("a night", None, "none")}
    assert said(gate, profile=far, baselines=both) == (False, True)
    assert said(gate, profile=None, baselines=both) == (False, False)
    assert said(gate, profile=far, baselines=neither) == (False, False)


@pytest.mark.parametrize(
    "check", [{"unique": "id"}, {"call": "mychecks:allowed"}, {"rows": {"min": 1}}, {"files": {"min": 1}}]
)
def test_other_gates_judge_no_part(check: dict[str, Any]) -> None:
    job = parse_job({**CONTENT, "checks": [check]}, Path("/jobs/job.yaml"))
    for gate in (gates_of(job)[-1].gate, gates_of(job)[0].gate):
        assert said(gate) == (False, False)


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
