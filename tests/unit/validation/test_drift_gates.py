"""The gates on drift: what each says, and that small nights do not cry wolf."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nightjar.inference.history.night import beside
from nightjar.inference.job.file import parse_job
from nightjar.inference.metrics.profile import Profile
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.validation.gates import Baseline, Evidence, Found, GateResult, evaluate
from nightjar.inference.validation.gates.rules import gates_of

CONTENT = {
    "name": "delays",
    "input": {"uri": "in/"},
    "model": {"uses": "mine:Model", "outputs": {"score": "float64"}},
    "carry": ["carrier"],
    "output": {"uri": "out/"},
}
NIGHT = "2026-11-18, the last published night"


def described(**columns: Any) -> Profile:
    profile = Profile.empty(columns)
    profile.update(*(pa.table({name: pa.array(values)}) for name, values in columns.items()))
    return profile


def judged(check: dict[str, Any], now: Profile | None, other: Baseline, rows_in: int = 4) -> list[GateResult]:
    job = parse_job({**CONTENT, "checks": [check]}, Path("/jobs/job.yaml"))
    baselines = {check.get("against", "last"): other}
    evidence = Evidence(Found(1, 4), rows_in=rows_in, metrics=Metrics(profile=now), baselines=baselines)
    return list(evaluate(gates_of(job), evidence))[2:]


def against(before: Profile) -> Baseline:
    return Baseline(NIGHT, before)


CARRIERS = {"UA": 500, "AA": 300, "DL": 200}


def carriers(**counts: int) -> list[str]:
    return [carrier for carrier, count in (CARRIERS | counts).items() for _ in range(count)]


BEFORE = described(carrier=carriers(), score=np.arange(1000.0))


def test_a_column_as_before_passes_with_its_figures() -> None:
    (gate,) = judged({"drift": "carrier", "psi": 0.1, "nulls": 0}, BEFORE, against(BEFORE))
    assert (gate.name, gate.passed, gate.observed, gate.limit) == (
        "carrier.drift",
        True,
        "psi 0, nulls 0",
        "psi 0.1, nulls 0",
    )
    assert gate.sentence == f"'carrier' is as in {NIGHT}, within checks[0]."


def test_a_column_that_differs_and_passes_is_not_called_the_same() -> None:
    """The report counts the columns that differ by more than chance explains: so does the gate beside it."""
    now = described(carrier=carriers(UA=900), score=np.arange(1000.0))
    assert beside("", BEFORE, now).beyond == 1
    (gate,) = judged({"drift": "carrier", "psi": 0.9}, now, against(BEFORE))
    differs = f"differs by more than chance explains from {NIGHT}, but is within checks[0]."
    assert (gate.passed, gate.sentence) == (True, f"'carrier' {differs}")
    (gate,) = judged({"drift": "all", "psi": 0.9}, now, against(BEFORE))
    assert gate.passed
    assert gate.sentence == (
        f"1 of 2 columns differ by more than chance explains from {NIGHT}; all are within checks[0]."
    )


def test_a_column_that_has_drifted_says_how_far_and_where_and_what_to_do() -> None:
    now = described(carrier=carriers(DL=0) + ["Delta"] * 150 + ["XX"] * 50, score=np.arange(1000.0))
    (gate,) = judged({"drift": "carrier", "psi": 0.25}, now, against(BEFORE))
    assert (gate.name, gate.passed, gate.observed, gate.limit) == ("carrier.drift", False, "psi 2.28", "psi 0.25")
    assert gate.sentence == (
        f"'carrier' has drifted from {NIGHT}: its population stability index is 2.28, where checks[0].psi = 0.25 "
        "allows 0.295 between 1,000 and 1,000 rows. Most changed: DL, from 20.0% of the rows to 0.0%. New: 'Delta', "
        "'XX'. Gone: 'DL'. Look at what makes the values, or raise checks[0].psi if tonight is right."
    )


def test_each_limit_that_is_exceeded_is_told() -> None:
    now = described(carrier=[*carriers(UA=0, AA=0), *[None] * 800], score=np.arange(1000.0) + 5000)
    one, other = judged({"drift": ["carrier", "score"], "psi": 0.2, "nulls": 0.1}, now, against(BEFORE))
    assert (
        "its change of the share of rows without a value is 0.8, where checks[0].nulls = 0.1 allows 0.18"
        in one.sentence
    )
    assert " rows; its change of the share of rows without a value is 0.8, where checks[0].nulls" in one.sentence
    assert one.sentence.endswith("or raise checks[0].psi or checks[0].nulls if tonight is right.")
    assert not one.passed
    assert not other.passed
    assert "its change of the share" not in other.sentence
    (any_,) = judged({"drift": "all", "psi": 1, "nulls": 0.1}, now, against(BEFORE))
    assert "its change of the share" not in any_.sentence  # of each column only the first


def test_fewer_rows_without_a_value_are_a_change_too() -> None:
    before = described(score=pa.array([None, 1.0] * 500))
    (gate,) = judged({"drift": "score", "nulls": 0.1}, described(score=[1.0] * 1000), against(before))
    assert (gate.passed, gate.observed) == (False, "nulls -0.5")


@pytest.mark.parametrize("rows", [20, 200, 2000])
def test_a_small_night_is_given_what_chance_makes_of_it(rows: int) -> None:
    """The same job judges nights of any size: with 20 rows a fifth of the index is nothing."""
    random = np.random.default_rng(rows)
    failed = 0
    for _ in range(100):
        before, now = (described(score=random.normal(size=rows)) for _ in range(2))
        failed += not judged({"drift": "score", "psi": 0}, now, against(before))[0].passed
    assert failed <= 2


@pytest.mark.parametrize(
    ("other", "check", "passed", "sentence"),
    [
        (
            Baseline("last", None, "no earlier night is published"),
            {"drift": "score"},
            True,
            "checks[0].drift has nothing to compare with and passes: no earlier night is published.",
        ),
        (
            Baseline("one", None, "readers see no run 'one'"),
            {"drift": "score", "against": "one"},
            False,
            "checks[0].drift has nothing to compare with: readers see no run 'one'. Name another published run in "
            "checks[0].against, or write `last`.",
        ),
        (
            against(described(carrier=["UA"])),
            {"drift": "score"},
            True,
            f"checks[0].drift has nothing to compare with and passes: {NIGHT} has no profile of 'score'.",
        ),
    ],
)
def test_nothing_to_compare_with(other: Baseline, check: dict[str, Any], passed: bool, sentence: str) -> None:
    for drift in ("score", "all"):
        (gate,) = judged({**check, "drift": drift}, BEFORE, other)
        assert gate.passed == passed
        if drift == "score" or other.profile is None:
            assert (gate.observed, gate.sentence) == ("nothing to compare with", sentence)
    (gate,) = judged(check, None, other)
    assert (gate.passed, gate.observed) == (False, "not measured")
    assert gate.sentence == "The columns of tonight were not described, so checks[0].drift cannot be judged. Run again."


@pytest.mark.parametrize(
    ("name", "passed", "said"),
    [
        ("last", True, "compare with and passes: it is not there."),
        (
            "baseline",
            False,
            "compare with: it is not there. Make it of the training set: `nightjar baseline JOB --input URI`.",
        ),
    ],
)
def test_without_an_earlier_night_a_check_passes_and_without_a_training_set_a_baseline_does_not(
    name: str, passed: bool, said: str
) -> None:
    job = parse_job({**CONTENT, "checks": [{"drift": "score", "against": name}]}, Path("/jobs/job.yaml"))
    evidence = Evidence(
        Found(1, 4), metrics=Metrics(profile=BEFORE), baselines={name: Baseline(name, None, "it is not there")}
    )
    gate = evaluate(gates_of(job), evidence)[-1]
    assert (gate.passed, gate.observed) == (passed, "nothing to compare with")
    assert gate.sentence == f"checks[0].drift has nothing to {said}"


@pytest.mark.parametrize(
    ("asked", "passed", "sentence"),
    [
        (
            "last",
            True,
            "checks[0].drift has nothing to compare with and passes: the other night has no profile of 'score'.",
        ),
        (
            "baseline",
            False,
            "checks[0].drift has nothing to compare with: the other night has no profile of 'score'. Make it of the "
            "training set: `nightjar baseline JOB --input URI`.",
        ),
        (
            "one",
            False,
            "checks[0].drift has nothing to compare with: the other night has no profile of 'score'. Name another "
            "published run in checks[0].against, or write `last`.",
        ),
    ],
)
def test_a_column_that_a_fixed_run_lacks_does_not_pass(asked: Any, passed: bool, sentence: str) -> None:
    """The next night is compared with this one, but a run that is named stays as it is."""
    gate = gate_against(asked, {"drift": "score"}, described(carrier=["UA"]))
    assert (gate.passed, gate.observed, gate.sentence) == (passed, "nothing to compare with", sentence)


def gate_against(name: str, check: dict[str, Any], before: Profile) -> GateResult:
    """The verdict of a check against the other night, whichever it is."""
    job = parse_job({**CONTENT, "checks": [{**check, "against": name}]}, Path("/jobs/job.yaml"))
    evidence = Evidence(
        Found(1, 4), metrics=Metrics(profile=BEFORE), baselines={name: Baseline("the other night", before)}
    )
    return evaluate(gates_of(job), evidence)[-1]


UNTIL = (
    "Let the check warn or ask (checks[0].on_fail) until a night with rows is published, or take the empty one back "
    "with `nightjar unpublish JOB RUN`."
)


@pytest.mark.parametrize(
    ("asked", "remedy"),
    [
        ("last", UNTIL),
        ("baseline", "Make it of the training set: `nightjar baseline JOB --input URI`."),
        ("one", "Name another published run in checks[0].against, or write `last`."),
    ],
)
def test_after_a_night_without_rows_it_is_said_what_helps(asked: Any, remedy: str) -> None:
    empty = described(carrier=pa.array([], pa.string()), score=pa.array([], pa.float64()))
    gate = gate_against(asked, {"drift": "score"}, empty)
    assert (gate.passed, gate.observed) == (False, "cannot be compared")
    assert gate.sentence == (
        f"checks[0].drift cannot compare 'score' with the other night: the other night has no rows. {remedy}"
    )
    gate = gate_against(asked, {"drift": "all"}, empty)
    assert (gate.passed, gate.observed) == (False, "nothing to compare")
    assert gate.sentence == f"checks[0].drift found no column that it could compare with the other night. {remedy}"


def test_a_column_of_another_type_cannot_be_compared() -> None:
    now = described(carrier=[1, 2, 3], score=np.arange(1000.0))
    (gate,) = judged({"drift": "carrier"}, now, against(BEFORE))
    assert (gate.passed, gate.observed) == (False, "cannot be compared")
    assert gate.sentence == f"checks[0].drift cannot compare 'carrier' with {NIGHT}: it holds numbers and held text."
    (gate,) = judged({"drift": "all"}, now, against(BEFORE))
    assert (gate.name, gate.passed, gate.observed) == ("drift", False, "1 of 2 columns")
    assert gate.sentence == (
        f"1 of 2 columns drifted from {NIGHT}: 'carrier': it holds numbers and held text. Look at what makes the "
        "values, or raise checks[0].psi if tonight is right."
    )
    (again,) = judged({"drift": "all"}, described(score=np.arange(1000.0), carrier=[1, 2, 3]), against(BEFORE))
    assert again == gate, "in whatever order the columns are"


def test_all_columns_are_judged_together_and_the_first_are_named() -> None:
    now = described(carrier=["ZZ"] * 1000, score=np.arange(1000.0) * 50, new=[1] * 1000)
    (gate,) = judged({"drift": "all"}, now, against(BEFORE))
    assert (gate.name, gate.passed, gate.observed, gate.limit) == ("drift", False, "2 of 2 columns", "psi 0.2")
    assert gate.sentence.startswith(
        f"2 of 2 columns drifted from {NIGHT}: 'carrier': its population stability index is "
    )
    assert " New: 'ZZ'. Gone: 'UA', 'AA', 'DL'. 'score': its " in gate.sentence
    (gate,) = judged({"drift": "all"}, BEFORE, against(BEFORE))
    assert (gate.passed, gate.sentence) == (True, f"2 columns as in {NIGHT}, within checks[0].")
    assert gate.observed == "0 of 2 columns"
    many = {f"c{index}": np.arange(1000.0) for index in range(8)}
    far = {name: values + 9000 for name, values in many.items()}
    five = dict(list(many.items())[:5])
    (gate,) = judged({"drift": "all"}, described(**{name: far[name] for name in five}), against(described(**five)))
    assert gate.observed == "5 of 5 columns"
    assert "more." not in gate.sentence
    (gate,) = judged({"drift": "all"}, described(**far), against(described(**many)))
    assert gate.observed == "8 of 8 columns"
    assert gate.sentence.count("its population stability index") == 5
    assert " And 3 more. Look at " in gate.sentence


LISTS = [[1.0], None] * 500


def test_rows_without_a_value_are_judged_of_every_type() -> None:
    """But not where the check asks for more than that."""
    before, same, fewer = (described(carrier=values) for values in (LISTS, LISTS, [[1.0]] * 1000))
    for columns in ("carrier", "all"):
        (passed,) = judged({"drift": columns, "nulls": 0.05}, same, against(before))
        assert passed.passed, passed.sentence
        (failed,) = judged({"drift": columns, "nulls": 0.05}, fewer, against(before))
        assert not failed.passed
        assert (
            "its change of the share of rows without a value is -0.5, where checks[0].nulls = 0.05" in failed.sentence
        )
    for more in ({}, {"psi": 0.1}, {"psi": 0.1, "nulls": 0.05}):
        (both,) = judged({"drift": "carrier", **more}, same, against(before))
        assert (both.passed, both.observed) == (False, "cannot be compared")
        assert both.sentence.endswith("it holds neither numbers nor text nor bools.")


@pytest.mark.parametrize("now", [described(carrier=[]), described(origin=["JFK"])])
def test_all_columns_do_not_pass_if_none_is_compared(now: Profile) -> None:
    """Tonight has no rows, or other columns."""
    (found,) = judged({"drift": "all"}, now, against(BEFORE))
    assert (found.passed, found.observed) == (False, "nothing to compare")
    assert found.sentence == f"checks[0].drift found no column that it could compare with {NIGHT}."


@pytest.mark.parametrize("columns", ["all", "carrier"])
def test_a_night_without_rows_has_not_drifted(columns: str) -> None:
    """Whether there may be such a night the gate `complete` says. A night all of whose rows are lost has drifted."""
    assert judged({"drift": columns}, described(carrier=[]), against(BEFORE), rows_in=0)[0].passed
    assert not judged({"drift": columns}, described(carrier=[]), against(BEFORE), rows_in=4)[0].passed


def test_more_values_than_a_sentence_holds_are_counted() -> None:
    now = described(carrier=[f"N{index}" for index in range(7)] * 100, score=[1.0])
    (gate,) = judged({"drift": "carrier"}, now, against(BEFORE))
    assert "New: 'N0', 'N1', 'N2', 'N3', 'N4' and 2 more. Gone: 'UA', 'AA', 'DL'." in gate.sentence
    now = described(carrier=[f"N{index}" for index in range(5)] * 100, score=[1.0])
    (gate,) = judged({"drift": "carrier"}, now, against(BEFORE))
    assert "New: 'N0', 'N1', 'N2', 'N3', 'N4'. Gone: " in gate.sentence


def test_what_is_allowed_for_chance_is_divided_among_all_columns() -> None:
    """Of two hundred columns one more will differ by chance than of one."""
    names = [f"c{index}" for index in range(200)]
    before, now = np.random.default_rng(3).normal(size=(2, 400))
    one = judged({"drift": ["c0"], "psi": 0}, described(c0=now * 9), against(described(c0=before)))[0]
    many = described(**dict.fromkeys(names, now * 9))
    every = judged({"drift": "all", "psi": 0}, many, against(described(**dict.fromkeys(names, before))))[0]
    allowed = [float(gate.sentence.partition("allows ")[2].partition(" ")[0]) for gate in (one, every)]
    assert allowed[1] > 1.2 * allowed[0]
