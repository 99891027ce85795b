"""The gate on keys says how many rows share one, and passes only where they were looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightjar.inference.job.file import parse_job
from nightjar.inference.validation.gates import Evidence, Found, GateResult, Offender, Repeated, evaluate
from nightjar.inference.validation.gates.rules import gates_of

CONTENT = {
    "name": "keys",
    "input": {"uri": "in/"},
    "model": {"uses": "mine:Model", "outputs": {"score": "float32"}},
    "carry": ["id", "day"],
    "output": {"uri": "out/"},
    "checks": [{"column": "score", "min": 0}, {"unique": "id"}, {"unique": ["id", "day"]}],
}
WHERE = (Offender("s1", "f", 7, "id = 3, as row 2 of f does"),)
ADVICE = "Look whether the input has a file twice, or name all the columns that make a row."


def judged(**repeated: Repeated) -> tuple[GateResult, ...]:
    """The gates on keys of a job whose second check is on one column and whose third is on two."""
    job = parse_job(CONTENT, Path("/jobs/job.yaml"))
    places = {"one": "checks[1].unique", "two": "checks[2].unique"}
    evidence = Evidence(Found(1, 4), repeated={places[name]: found for name, found in repeated.items()})
    return evaluate(gates_of(job), evidence)[-2:]


def test_keys_that_no_two_rows_share_pass() -> None:
    one, two = judged(one=Repeated(), two=Repeated())
    says = "No two rows have the same 'id'; checks[1].unique holds."
    assert one == GateResult("id.unique", True, "0 rows repeated", "0 rows", says)
    says = "No two rows have the same 'id' and 'day'; checks[2].unique holds."
    assert two == GateResult("id+day.unique", True, "0 rows repeated", "0 rows", says)


@pytest.mark.parametrize(
    ("rows", "observed", "says"),
    [
        (1, "1 row repeated", "1 row has the 'id' of another row, which checks[1].unique forbids."),
        (2500, "2,500 rows repeated", "2,500 rows have the 'id' of another row, which checks[1].unique forbids."),
    ],
)
def test_keys_that_rows_share_are_named_with_their_rows(rows: int, observed: str, says: str) -> None:
    one, two = judged(one=Repeated(rows, WHERE), two=Repeated())
    assert one == GateResult("id.unique", False, observed, "0 rows", f"{says} {ADVICE}", WHERE)
    assert two.passed, "each check has its own keys"


def test_keys_that_were_not_compared_do_not_pass() -> None:
    one, two = judged(one=Repeated())
    assert one.passed
    says = "'id' and 'day' were not compared, so checks[2].unique cannot be judged. Run again."
    assert two == GateResult("id+day.unique", False, "not measured", "0 rows", says)
