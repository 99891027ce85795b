"""Slices promises: any grouping and order gives the same bytes, a slice is what its rows alone would be, and a column
of many values has none.
"""

from __future__ import annotations

import datetime as dt
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar.inference.errors import JobError
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.jsonform import of_json, to_json
from nightjar.inference.metrics.columns import LONGEST
from nightjar.inference.metrics.figures import Figures
from nightjar.inference.metrics.slices import MOST_VALUES, Slices, check_slices
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.validation.audit import Audited
from nightjar.inference.validation.gates import Evidence, Found, GateResult, evaluate
from nightjar.inference.validation.gates.rules import check_label_and_gates, gates_of

CONTENT = {
    "name": "delays",
    "input": {"uri": "in/"},
    "model": {"uses": "mine:Model", "outputs": {"score": "float32"}},
    "carry": ["carrier", "day"],
    "label": "late",
    "output": {"uri": "out/"},
}


def job_of(**keys: Any) -> Job:
    return parse_job({**CONTENT, **keys}, Path("/jobs/job.yaml"))


JOB = job_of(evaluation={"slices": ["carrier"]})
Row = tuple[str | None, float | None, bool | None]


def sliced(rows: list[Row], job: Job = JOB) -> Slices:
    carriers, scores, labels = zip(*rows, strict=True) if rows else ((), (), ())
    table = pa.table({"carrier": pa.array(carriers, pa.string()), "score": pa.array(scores, pa.float32())})
    found = Slices.for_job(job)
    found.update(table, pa.chunked_array([pa.array(labels, pa.bool_())]))
    return found


ROWS = st.lists(
    st.tuples(
        st.none() | st.sampled_from(["AA", "null", "", "é"]) | st.integers(0, 90).map(str),
        st.none() | st.floats(width=32) | st.floats(0, 1, width=32),
        st.none() | st.booleans(),
    ),
    max_size=150,
)


@given(ROWS, st.lists(st.integers(0, 150), max_size=6), st.data())
def test_any_grouping_in_any_order_gives_the_same_but_for_rounding(
    rows: list[Row], cuts: list[int], data: st.DataObject
) -> None:
    """Also of columns that have too many values, which no single part need show."""
    shuffled = data.draw(st.permutations(rows))
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    merged = Slices.for_job(JOB)
    for low, high in itertools.pairwise(edges):
        merged.merge(Slices.from_bytes(sliced(list(shuffled[low:high])).to_bytes()))
    whole = sliced(rows)
    for slices in (merged, whole):  # the sum of the losses is rounded by its order
        for state in (slices.whole, *slices.columns["carrier"].states.values()):
            state.loss = round(state.loss, 6)  # type: ignore[attr-defined]
    assert merged == whole
    assert merged.results() == whole.results()


def test_blocks_that_were_audited_apart_are_merged() -> None:
    """A block without shards has none, and one of a job without slices has none, either."""
    one, other = sliced([("AA", 0.5, True), (None, 0.1, False)]), sliced([("AA", 0.2, False), ("b", 0.9, True)])
    together = Audited()
    for slices in (Slices.for_job(JOB), one, other):
        together.merge(Audited(metrics=Metrics(slices=slices)))
    one.merge(other)
    assert together.metrics.slices == one
    nothing = Audited()
    nothing.merge(Audited())
    assert nothing.metrics.slices is None


@pytest.mark.parametrize("many", [MOST_VALUES, MOST_VALUES + 1])
def test_a_column_has_slices_up_to_the_most_values_and_none_beyond(many: int) -> None:
    parts = [sliced([(f"c{index}", 0.5, True)]) for index in range(many)]
    for order in (parts, parts[::-1]):
        merged = Slices.for_job(JOB)
        for part in order:
            merged.merge(Slices.from_bytes(part.to_bytes()))
        found = merged.results()["carrier"]
        assert (len(found.slices), found.cut) == ((many, False) if many == MOST_VALUES else (0, True))


def test_a_text_is_no_category() -> None:
    assert sliced([("x" * LONGEST, 0.5, True)]).results()["carrier"].cut is False
    assert sliced([("x" * (LONGEST + 1), 0.5, True)]).results()["carrier"].cut is True


def test_a_slice_has_the_figures_of_its_rows_alone() -> None:
    random = np.random.default_rng(5)
    scores = random.random(5000).astype(np.float32)
    rows: list[Row] = [
        (str(carrier) if carrier else None, float(score), bool(late))
        for carrier, score, late in zip(random.integers(0, 7, 5000), scores, random.random(5000) < scores, strict=True)
    ]
    found = sliced(rows).results()["carrier"]
    assert {each.value for each in found.slices} == {None, *"123456"}
    assert [each.evaluation.rows for each in found.slices] == sorted(
        (each.evaluation.rows for each in found.slices), reverse=True
    )
    for each in found.slices:
        alone = Metrics.for_job(JOB)
        of = [row for row in rows if row[0] == each.value]
        columns = {"carrier": pa.array([row[0] for row in of], pa.string())}
        table = pa.table({**columns, "score": pa.array([row[1] for row in of], pa.float32())})
        alone.update(table, pa.array([row[2] for row in of]))
        whole = alone.results().evaluation
        assert whole is not None
        assert each.evaluation.metrics == whole.metrics
        assert (each.evaluation.calibration, each.called) == ((), each.value or "null")


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (pa.array([3, None, -1, 3]), {"3", "-1", None}),
        (pa.array([True, False, True, None]), {"true", "false", None}),
        (pa.array([dt.date(2026, 3, 1)] * 4), {"2026-03-01"}),
        (pa.array([20513, 3_000_000] * 2, pa.int32()).cast(pa.date32()), {"2026-03-01", "10183-09-21"}),
        (pa.array(["a", "b", None, "a"], pa.string_view()), {"a", "b", None}),
        (pa.array(["a", "b", None, "a"]).dictionary_encode(), {"a", "b", None}),
        (pa.chunked_array([pa.array(["a"]), pa.array(["b", None, "a"])]), {"a", "b", None}),
        (pa.nulls(4, pa.string()), {None}),
    ],
    ids=lambda values: str(values.type) if hasattr(values, "type") else "",
)
def test_a_value_is_named_by_its_text(values: pa.Array, names: set[str | None]) -> None:
    found = Slices.for_job(JOB)
    table = pa.table({"carrier": values, "score": pa.array([0.1, 0.2, 0.3, 0.4])})
    check_slices(JOB, {"carrier": values.type})
    found.update(table, pa.chunked_array([pa.array([0, 1, 0, 1])]))
    again = Slices.from_bytes(found.to_bytes()).results()["carrier"]
    assert {each.value for each in again.slices} == names
    assert sum(each.evaluation.rows for each in again.slices) == 4


def test_the_figures_of_slices_survive_the_manifests_form() -> None:
    figures = Figures({}, slices=sliced([("AA", 0.5, True), (None, 0.1, False)]).results())
    assert of_json(Figures, to_json(figures)) == figures


@pytest.mark.parametrize("data", [b"", b"nonsense", Slices.for_job(JOB).to_bytes()[:-3]])
def test_what_are_no_slices_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        Slices.from_bytes(data)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"evaluation": {"slices": ["carier"]}}, "evaluation.slices: 'carier' is neither .*; did you mean 'carrier'"),
        ({"evaluation": {"slices": ["day", "day"]}}, "evaluation.slices: 'day' is listed twice"),
        ({"evaluation": {"slices": "day"}}, "evaluation.slices: must be a list of columns"),
        ({"evaluation": {"slices": ["day"]}, "label": None}, "evaluation: compares outputs with labels"),
        ({"checks": [{"metric": "auroc", "min": 0.5, "slices": ["x"]}]}, r"checks\[0\].slices: 'x' is neither"),
        ({"checks": [{"metric": "auroc", "min": 0.5, "min_rows": 5}]}, "min_rows: is for slices"),
    ],
)
def test_slices_that_make_no_sense_are_named(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        job_of(**keys)


def test_a_column_whose_type_has_no_values_that_name_slices_is_refused_before_anything_is_scored() -> None:
    schema = pa.schema([("carrier", pa.float64()), ("day", pa.date32()), ("late", pa.bool_())])
    with pytest.raises(JobError, match=r"evaluation.slices: 'carrier' is double; name columns of text, integers"):
        check_label_and_gates(JOB, schema)
    check_label_and_gates(job_of(evaluation={"slices": ["day"]}), schema)


def judged(rows: list[Row], **check: Any) -> GateResult:
    job = job_of(checks=[{"metric": "auroc", "slices": ["carrier"], **check}])
    return evaluate(gates_of(job), Evidence(Found(1, 4), metrics=Metrics(slices=sliced(rows, job))))[-1]


def of(carrier: str | None, scores: list[float], labels: list[bool]) -> list[Row]:
    return [(carrier, score, label) for score, label in zip(scores, labels, strict=True)]


GOOD = of("AA", [0.1, 0.9], [False, True])
BAD = of("HA", [0.9, 0.1], [False, True])
HALF = of("OO", [0.5, 0.5], [False, True])
ONE_CLASS = of(None, [0.5, 0.5], [True, True])
FEW = of("ZZ", [0.5], [True])


@pytest.mark.parametrize(
    ("rows", "check", "passed", "observed", "sentence"),
    [
        (
            [*GOOD, *HALF],
            {"min": 0.5, "min_rows": 2},
            True,
            "OO 0.5 ± 0.5",
            "The auroc of 'score' against 'late' keeps checks[0].min = 0.5 in 2 slices of 'carrier'; the nearest is OO "
            "with 0.5 ± 0.5.",
        ),
        (
            [*GOOD, *FEW],
            {"min": 0.5, "min_rows": 2},
            True,
            "AA 1",
            "The auroc of 'score' against 'late' keeps checks[0].min = 0.5 in 1 slice of 'carrier'; the nearest is AA "
            "with 1. Left out, because fewer than 2 rows were compared: ZZ 1.",
        ),
        (
            [*GOOD, *BAD, *HALF, *ONE_CLASS, *FEW],
            {"min": 0.6, "min_rows": 2},
            False,
            "HA 0",
            "The auroc of 'score' against 'late' is below checks[0].min = 0.6 in 2 of 3 slices of 'carrier': HA 0 (2 "
            "rows), OO 0.5 ± 0.5 (2 rows). Left out, because fewer than 2 rows were compared: ZZ 1. Without a figure: "
            "null (no row has label 0). Look whether the model, its features or the labels have changed there, or "
            "lower checks[0].min.",
        ),
        (
            [*GOOD, *BAD],
            {"max": 0.9, "min_rows": 2},
            False,
            "AA 1",
            "The auroc of 'score' against 'late' is above checks[0].max = 0.9 in 1 of 2 slices of 'carrier': AA 1 (2 "
            "rows). Look whether the model, its features or the labels have changed there, or raise checks[0].max.",
        ),
        (
            [*GOOD, *ONE_CLASS],
            {"min": 0.5},
            False,
            "no figure",
            "No slice of 'carrier' can be judged by checks[0].min = 0.5. Left out, because fewer than 100 rows were "
            "compared: null 2, AA 2. Lower checks[0].min_rows if so few rows say enough. If labels come after the "
            "night, let this check warn (on_fail: warn) or remove it.",
        ),
        (
            [],
            {"min": 0.5},
            False,
            "no figure",
            "No slice of 'carrier' can be judged by checks[0].min = 0.5. No row was compared. If labels come after the "
            "night, let this check warn (on_fail: warn) or remove it.",
        ),
        (
            [(str(index), 0.5, True) for index in range(65)],
            {"min": 0.5},
            False,
            "no figure",
            "'carrier' has more than 64 values, or longer ones than a slice may have, so there are no slices for "
            "checks[0].min. Name a column with fewer values in checks[0].slices.",
        ),
    ],
)
def test_what_a_gate_on_slices_says(
    rows: list[Row], check: dict[str, Any], passed: bool, observed: str, sentence: str
) -> None:
    found = judged(rows, **check)
    (end,) = {"min", "max"} & check.keys()
    assert (found.name, found.passed, found.observed) == (f"carrier.auroc.{end}", passed, observed)
    assert (found.limit, found.sentence) == (str(check[end]), sentence)


def test_a_sentence_names_only_the_worst_slices() -> None:
    rows = [row for index in range(20) for row in of(f"c{index}", [0.9, 0.1], [False, True])]
    said = judged(rows, min=0.6, min_rows=1).sentence
    assert "in 20 of 20 slices" in said
    assert "(2 rows) and 15 more. Look" in said


def test_as_many_slices_as_a_sentence_names_are_all_there_are() -> None:
    rows = [row for index in range(5) for row in of(f"c{index}", [0.9, 0.1], [False, True])]
    said = judged(rows, min=0.6, min_rows=1).sentence
    assert "in 5 of 5 slices" in said
    assert "c4 0 (2 rows). Look" in said


def test_where_no_labels_were_compared_there_is_no_slice_to_judge() -> None:
    gate = gates_of(job_of(checks=[{"metric": "auroc", "min": 0.5, "slices": ["carrier"]}]))[-1].gate
    night = Evidence(Found(1, 4))
    found = gate.judge(night)
    assert (found.passed, found.observed) == (False, "no figure")
    assert found.sentence.startswith("No slice of 'carrier' can be judged by checks[0].min = 0.5. No row was compared.")
