"""Ranking promises: any grouping and order of the rows gives the same bytes, the figures are scikit-learn's, and of
many groups a sample is kept that depends on the groups alone.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
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
from nightjar.inference.job.modeljob import scoring_keys
from nightjar.inference.jsonform import of_json, to_json
from nightjar.inference.metrics import keyhash
from nightjar.inference.metrics.figures import Bounded, Evaluation, Figures, RankedGroups, Slice, SliceFigures
from nightjar.inference.metrics.ranking import MOST_GROUPS, RankingState
from nightjar.inference.metrics.slices import Slices
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.validation.gates import Evidence, Found, evaluate
from nightjar.inference.validation.gates.rules import check_label_and_gates, gates_of, late_gates_of

ndcg_score = lazily("sklearn.metrics", "ndcg_score")

CONTENT = {
    "name": "search",
    "input": {"uri": "in/"},
    "model": {"uses": "mine:Model", "outputs": {"score": "float64"}},
    "carry": ["query", "market"],
    "label": "grade",
    "evaluation": {"task": "ranking", "group": "query", "k": 3},
    "output": {"uri": "out/"},
}


def job_of(**keys: Any) -> Job:
    return parse_job({**CONTENT, **keys}, Path("/jobs/job.yaml"))


JOB = job_of()
Row = tuple[Any, Any, Any]
"""Group, score, label."""


def state_of(rows: list[Row], k: int = 3, most: int = MOST_GROUPS) -> RankingState:
    state = RankingState("grade", "score", group="query", k=k, most=most)
    state.update(*table_of(rows))
    return state


def table_of(rows: list[Row]) -> tuple[pa.Table, pa.Array]:
    groups, scores, labels = zip(*rows, strict=True) if rows else ((), (), ())
    table = pa.table({"query": pa.array(groups, pa.string()), "score": pa.array(scores, pa.float64())})
    return table, pa.array(labels, pa.int64())


def figures(rows: list[Row], k: int = 3, most: int = MOST_GROUPS) -> Evaluation:
    return state_of(rows, k, most).results()


def value(found: Evaluation, name: str) -> float | None:
    figure = found.metrics.get(name)
    return figure.value if figure else None


def groups_of(found: Evaluation) -> RankedGroups:
    assert found.groups is not None
    return found.groups


GROUP = st.none() | st.sampled_from(["a", "b", "", "é", "null"]) | st.integers(0, 9).map(str)
SCORE = st.none() | st.sampled_from([0.5, 0.0, -0.0, math.inf, -math.inf, math.nan]) | st.floats(width=16)
GRADE = st.none() | st.integers(0, 4) | st.just(10**9)


@given(
    st.lists(st.tuples(GROUP, SCORE, GRADE), max_size=60),
    st.sampled_from([1, 2, 5]),
    st.sampled_from([1, 3, 50]),
    st.lists(st.integers(0, 60), max_size=6),
    st.data(),
)
def test_any_grouping_in_any_order_gives_the_same_bytes(
    rows: list[Row], k: int, most: int, cuts: list[int], data: st.DataObject
) -> None:
    """Whatever part a group's rows lie in, and whether all groups are kept or a sample of them."""
    shuffled = data.draw(st.permutations(rows))
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    pieces = [shuffled[low:high] for low, high in itertools.pairwise(edges)]
    parts = [Slices("ranking", {}, state_of(piece, k, most)) for piece in pieces]
    added = state_of([], k, most)
    for piece in pieces:
        added.update(*table_of(piece))
    while len(parts) > 1:  # in any nesting, too
        at = data.draw(st.integers(0, len(parts) - 2))
        merged = Slices.from_bytes(parts[at].to_bytes())
        merged.merge(Slices.from_bytes(parts.pop(at + 1).to_bytes()))
        parts[at] = merged
    whole = Slices("ranking", {}, state_of(rows, k, most))
    assert parts[0].to_bytes() == whole.to_bytes() == Slices("ranking", {}, added).to_bytes()
    assert parts[0].whole.results() == whole.whole.results()
    assert parts[0].whole.rows == sum(
        group is not None and score is not None and not math.isnan(score) and grade is not None
        for group, score, grade in rows
    )


def grouped(rows: list[Row]) -> dict[str, list[tuple[float, int]]]:
    found = defaultdict[str, list[tuple[float, int]]](list)
    for group, score, grade in rows:
        found[group].append((score, grade))
    return {group: each for group, each in found.items() if any(grade for _, grade in each)}


def in_order(of: list[tuple[float, int]]) -> list[int]:
    """The labels by falling scores, of equal ones the least relevant first."""
    return [grade for _, grade in sorted(of, key=lambda row: (-row[0], row[1]))]


def ndcg(rows: list[Row], k: int) -> float:
    each = [
        float(ndcg_score([in_order(of)], [range(len(of), 0, -1)], k=k)) if len(of) > 1 else 1.0
        for of in grouped(rows).values()
    ]
    return sum(each) / len(each)


TIED = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([0.1, 0.2, 0.3, -7.0, 1e9]), st.integers(0, 4)), min_size=1
)


@given(TIED, st.integers(1, 8))
def test_the_ndcg_is_scikit_learns_with_ties_too(rows: list[Row], k: int) -> None:
    if grouped(rows):
        assert value(figures(rows, k), "ndcg") == pytest.approx(ndcg(rows, k), rel=1e-12)


@pytest.mark.parametrize("ties", [7, 100_000])
def test_the_ndcg_of_a_night_is_scikit_learns(ties: int) -> None:
    random = np.random.default_rng(ties)
    groups, scores = random.integers(0, 100, 2000).astype(str), np.floor(random.random(2000) * ties) / ties
    rows = list(zip(groups, scores, np.floor(scores * 2 + random.random(2000)).astype(int), strict=True))
    merged = RankingState("grade", "score", group="query", k=10)
    for first in range(0, len(rows), 500):
        merged.merge(state_of(rows[first : first + 500], 10))
    found = merged.results()
    assert value(found, "ndcg") == pytest.approx(ndcg(rows, 10), rel=1e-12)
    assert (groups_of(found).groups + groups_of(found).irrelevant, groups_of(found).sampled) == (100, False)


def reciprocal(labels: list[int], k: int) -> float:
    return next((1 / rank for rank, label in enumerate(labels[:k], 1) if label), 0.0)


def average_precision(labels: list[int], k: int) -> float:
    hits = [rank for rank, label in enumerate(labels[:k], 1) if label]
    return sum(at / rank for at, rank in enumerate(hits, 1)) / min(k, sum(map(bool, labels)))


def precision(labels: list[int], k: int) -> float:
    return sum(map(bool, labels[:k])) / k


FEW = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0.1, 0.2, 0.3]), st.integers(0, 2)), max_size=8)


@given(FEW, st.integers(1, 6))
def test_of_a_tie_the_least_relevant_rows_come_first(rows: list[Row], k: int) -> None:
    found, groups = figures(rows, k), grouped(rows)
    for name, of_order in (("mrr", reciprocal), ("map", average_precision), ("precision", precision)):
        each = [of_order(in_order(of), k) for of in groups.values()]
        assert value(found, name) == (pytest.approx(np.mean(each), rel=1e-12) if each else None), name


def many(groups: int, seed: int = 1) -> list[Row]:
    random = np.random.default_rng(seed)
    names = [f"q{each}" for each in range(groups) for _ in range(3)]
    return [*zip(names, random.random(len(names)), random.integers(0, 3, len(names)).tolist(), strict=True)]


def test_of_too_many_groups_a_sample_is_kept_and_said() -> None:
    """A group is in it with all of its rows or with none, whichever night and part it is in."""
    rows = many(3000)
    state = state_of(rows, most=200)
    figured = state.results()
    found = groups_of(figured)
    assert found.sampled
    names = [group for group, _, _ in rows]
    hashed = keyhash.hashes([keyhash.comparable(pa.chunked_array([names]))], len(names))
    kept = {name for name, inside in zip(names, np.isin(hashed, state.tops.groups), strict=True) if inside}
    assert len(kept) == found.groups + found.irrelevant == 200
    alone = figures([row for row in rows if row[0] in kept])
    assert {name: each.value for name, each in alone.metrics.items()} == {
        name: each.value for name, each in figured.metrics.items()
    }
    assert not groups_of(alone).sampled
    every = groups_of(figures(rows))
    assert (state.rows, every.groups + every.irrelevant) == (9000, 3000)
    another = state_of(many(3000, seed=2), most=200)
    assert np.unique(another.tops.groups).tolist() == np.unique(state.tops.groups).tolist()
    assert state.metric("ndcg") == Bounded(value(figured, "ndcg") or 0, sampled=found.groups)
    shown = dict(evaluation_lines(Figures({}, evaluation=state.results())))["groups"]
    assert shown.endswith("; 200 groups of more were looked at")
    slices = {"market": SliceFigures((Slice("de", state.results()),))}
    shown = dict(evaluation_lines(Figures({}, state.results(), slices=slices)))["by market"]
    assert shown.endswith(f"(de, 9,000 rows, a sample of {found.groups} groups)")


@pytest.mark.parametrize(("k", "most"), [(1, 4096), (10, 4096), (16, 4096), (100, 655)])
def test_with_a_large_k_fewer_groups_are_kept_and_in_a_slice_an_eighth(k: int, most: int) -> None:
    whole = Slices.for_job(job_of(evaluation={"task": "ranking", "group": "query", "k": k})).whole
    assert isinstance(whole, RankingState)
    assert (whole.k, whole.most, whole.for_slice().most) == (k, most, most // 8)


def test_the_state_of_a_shard_stays_under_a_megabyte() -> None:
    """With float64 scores and labels up to a billion, and each place of each group filled."""
    random = np.random.default_rng(3)
    rows = 200_000
    table = pa.table({"query": random.integers(0, 10_000, rows), "score": random.random(rows)})
    state = RankingState("grade", "score", group="query", k=10)
    state.update(table, pa.array(random.integers(0, 10**9, rows)))
    assert state.cut
    assert len(Slices("ranking", {}, state).to_bytes()) < 1_000_000


@pytest.mark.parametrize(
    "groups",
    [
        pa.array([7, 7, 8, None], pa.int8()),
        pa.array([7, 7, 8, None], pa.uint64()),
        pa.array(["7", "7", "8", None]),
        pa.array(["7", "7", "8", None], pa.string_view()),
        pa.array(["7", "7", "8", None]).dictionary_encode(),
        pa.array([b"7", b"7", b"8", None], pa.large_binary()),
        pa.array([True, True, False, None]),
        pa.array([7, 7, 8, None], pa.timestamp("us", "UTC")),
        pa.array([7, 7, 8, None], pa.date32()),
    ],
    ids=lambda array: str(array.type),
)
def test_a_group_is_named_by_its_value_and_a_row_without_one_is_only_counted(groups: pa.Array) -> None:
    state = RankingState("grade", "score", group="query", k=3)
    state.check_columns({"query": groups.type, "score": pa.float32()})
    state.update(pa.table({"query": groups, "score": [0.1, 0.9, 0.5, 0.7]}), pa.array([1, 0, 2, 3]))
    found = state.results()
    assert (found.rows, groups_of(found).groups, groups_of(found).excluded_groups) == (3, 2, 1)
    assert value(found, "mrr") == (1 / 2 + 1) / 2


def test_equal_groups_of_files_that_disagree_on_the_type_are_one() -> None:
    scores = {"score": [0.5]}
    for one, other in (
        (pa.array([7], pa.int8()), pa.array([7], pa.uint32())),
        (pa.array(["7"]), pa.array(["7"], pa.large_string()).dictionary_encode()),
    ):
        state = RankingState("grade", "score", group="query")
        for groups in (one, other):
            state.update(pa.table({"query": groups, **scores}), pa.array([1]))
        assert len(np.unique(state.tops.groups)) == 1


def test_rows_that_are_not_compared_are_counted_once() -> None:
    found = state_of([("a", 0.5, 1), ("a", None, 1), ("a", math.nan, 0), ("a", None, None), (None, 0.5, 1)]).results()
    assert (found.rows, found.excluded_null_labels, found.excluded_scores) == (1, 1, 2)
    assert groups_of(found).excluded_groups == 1
    assert state_of([]).metric("ndcg") == "no row has a label, an output and a value of 'query'"
    assert state_of([("a", 0.5, 0)]).metric("mrr") == "no group of 'query' has a row with a label above 0"


def test_a_group_without_a_relevant_row_is_told_and_not_in_the_mean() -> None:
    """No order of it is better than another."""
    found = figures([("a", 0.9, 1), ("a", 0.1, 0), ("b", 0.9, 0), ("c", 0.2, 0)])
    assert (value(found, "ndcg"), groups_of(found).groups, groups_of(found).irrelevant) == (1.0, 1, 2)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (pa.array([0.5]), "label column 'grade' holds 0.5; it must be a whole number from 0 to 1,000,000,000 or null"),
        (pa.array([-1]), "holds -1; it must be a whole number"),
        (pa.array([10**9 + 1]), "holds 1000000001; it must be"),
        (pa.array([math.inf]), "holds inf; it must be"),
        (pa.array(["good"]), "label column 'grade' is string; it must be a whole number, 0 or more"),
    ],
)
def test_a_label_that_is_no_whole_number_is_refused(labels: pa.Array, message: str) -> None:
    state = RankingState("grade", "score", group="query")
    with pytest.raises(LabelInvalid, match=message):
        state.check(labels)
    with pytest.raises(LabelInvalid, match=message):
        state.update(pa.table({"query": ["a"], "score": [0.5]}), labels)
    state.check(pa.array([2.0, None, math.nan]))
    state.check(pa.nulls(3))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"evaluation": {"task": "ranking"}}, "evaluation: group: task: ranking ranks the rows of a group; name its"),
        ({"evaluation": {"task": "ranking", "group": "qury"}}, "evaluation.group: 'qury' is neither an output nor a"),
        ({"evaluation": {"task": "ranking", "group": "qury"}}, "did you mean 'query'"),
        ({"evaluation": {"group": "query"}}, "evaluation: group: is for task: ranking, and this job's is binary"),
        ({"evaluation": {"task": "regression", "k": 3}}, "evaluation: k: is for task: ranking, and this job's is reg"),
        ({"evaluation": {"task": "ranking", "group": "query", "k": 0}}, "evaluation.k"),
        ({"evaluation": {"task": "ranking", "group": "query", "k": 101}}, "evaluation.k"),
        ({"checks": [{"metric": "auroc", "min": 1}]}, "this job's is ranking, which has ndcg, mrr, map and precision"),
        ({"checks": [{"metric": "precision", "min": 1, "threshold": 0.4}]}, "threshold: is for evaluation.task: bin"),
    ],
)
def test_keys_that_make_no_sense_are_named(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        job_of(**keys)


@pytest.mark.parametrize("late", [False, True])
def test_a_group_of_a_type_that_names_none_is_refused_before_anything_is_scored(late: bool) -> None:
    schema = pa.schema([("query", pa.float32()), ("market", pa.string()), ("grade", pa.int8())])
    job = job_of(label=None, late_labels={"key": "market", "label": "grade"}) if late else JOB
    with pytest.raises(JobError, match=r"evaluation.group: 'query' is float; name a column of text, integers, bools"):
        check_label_and_gates(job, schema)


def test_the_state_lies_beside_the_parts_and_is_part_of_their_identity() -> None:
    assert JOB.states_beside
    late = job_of(label=None, late_labels={"key": "market", "label": "grade"}, checks=[])
    assert not late.states_beside
    keys = [scoring_keys(job_of(evaluation={**CONTENT["evaluation"], **more})) for more in ({}, {"k": 4})]
    assert keys[0] != keys[1]
    others = [late, late.model_copy(update={"evaluation": job_of(evaluation={"slices": ["market"]}).evaluation})]
    assert scoring_keys(others[0]) == scoring_keys(others[1]), "labels that come later change no part"


def metrics_of(state: RankingState) -> Metrics:
    return Metrics(slices=Slices("ranking", {}, state))


ROWS: list[Row] = [("a", 0.9, 1), ("a", 0.1, 2), ("b", 0.5, 0), ("b", 0.2, 1)]


def sliced(job: Job) -> Slices:
    slices = Slices.for_job(job)
    table, labels = table_of(ROWS)
    slices.update(table.append_column("market", pa.array(["de", "de", "fr", "fr"])), labels)
    return Slices.from_bytes(slices.to_bytes())


@pytest.mark.parametrize(
    ("check", "passed", "sentence"),
    [
        (
            {"metric": "mrr", "min": 0.7},
            True,
            "The mrr of 'score' against 'grade' is 0.75; checks[0].min = 0.7 holds.",
        ),
        (
            {"metric": "ndcg", "min": 0.9},
            False,
            "The ndcg of 'score' against 'grade' is 0.745324, below checks[0].min = 0.9. Look whether the model, its "
            "features or the labels have changed, or lower checks[0].min.",
        ),
        (
            {"metric": "mrr", "min": 0.7, "slices": ["market"], "min_rows": 2},
            False,
            "The mrr of 'score' against 'grade' is below checks[0].min = 0.7 in 1 of 2 slices of 'market': fr 0.5 (2 "
            "rows). Look whether the model, its features or the labels have changed there, or lower checks[0].min.",
        ),
    ],
)
def test_what_a_gate_says_at_once_and_by_labels_that_come_later(
    check: dict[str, Any], passed: bool, sentence: str
) -> None:
    job = job_of(checks=[check])
    slices = sliced(job)
    evidence = Evidence(Found(1, 4), metrics=Metrics(slices=slices))
    found = evaluate(gates_of(job), evidence)[-1]
    assert (found.passed, found.sentence) == (passed, sentence)
    later = job_of(label=None, late_labels={"key": "market", "label": "grade"}, checks=[check])
    assert [each.sentence for each in evaluate(late_gates_of(later, "grade"), evidence)] == [sentence]


def test_a_figure_is_told_in_six_digits_unless_it_would_read_like_the_limit_that_it_breaks() -> None:
    """Its mean reciprocal rank is two thirds."""
    two_thirds = state_of([("a", 0.9, 1), ("b", 0.9, 0), ("b", 0.5, 0), ("b", 0.1, 1)])
    shown = {}
    for end in ("max", "min"):
        job = job_of(checks=[{"metric": "mrr", end: 0.666667}])
        found = evaluate(gates_of(job), Evidence(Found(1, 4), metrics=metrics_of(two_thirds)))[-1]
        shown[end] = (found.passed, found.observed)
    assert shown == {"max": (True, "0.666667"), "min": (False, "0.6666666666666666")}


def test_a_gate_says_that_its_figure_is_of_a_sample() -> None:
    job = job_of(checks=[{"metric": "precision", "max": 0.1}])
    evidence = Evidence(Found(1, 4), metrics=metrics_of(state_of(many(3000), most=200)))
    found = evaluate(gates_of(job), evidence)[-1]
    assert found.observed == "0.694737 (a sample of 190 groups)"
    assert f"is {found.observed}, above checks[0].max" in found.sentence


def test_the_figures_are_those_of_the_night_survive_the_manifest_and_are_shown() -> None:
    job = job_of(evaluation={**CONTENT["evaluation"], "slices": ["market"]})
    found = Metrics(slices=sliced(job)).results()
    assert of_json(Figures, to_json(found)) == found
    assert evaluation_lines(found) == [
        ("ndcg", "0.7453 over 4 rows"),
        ("metrics", "mrr 0.7500, map 0.7500, precision 0.5000"),
        ("groups", "means over the first 3 rows of 2 groups of 'query'"),
        ("by market", "2 slices; least ndcg 0.6309 (fr, 2 rows), greatest ndcg 0.8597 (de, 2 rows)"),
    ]
    assert found.evaluation is not None
    assert list(found.evaluation.metrics) == ["ndcg", "mrr", "map", "precision"]


def test_a_slice_of_a_part_keeps_as_many_groups_as_one_of_the_night() -> None:
    """Merging into a slice that is not there yet takes over the other's, with the groups that it may keep."""
    job = job_of(evaluation={**CONTENT["evaluation"], "slices": ["market"]})
    merged = Slices.for_job(job)
    merged.merge(sliced(job))
    assert merged.to_bytes() == sliced(job).to_bytes()
    merged.merge(sliced(job))
    assert merged.columns["market"].states["fr"].rows == 4
