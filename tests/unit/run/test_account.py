"""Where the time of a run went."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nightjar.flows.pages.wording import where_time_went
from nightjar.inference.errors import StorageError
from nightjar.inference.job.resources import Cost, Resources
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.ledger.ledger import State
from nightjar.inference.ledger.lines import Published
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.output.revisions import Revision
from nightjar.inference.records import Failed, Started
from nightjar.inference.run.account import Account, account_of, keep, kept
from nightjar.inference.run.failures import Underway
from nightjar.inference.run.results import Publication, Scored, Verdict
from nightjar.inference.stopwatch import Stopwatch
from nightjar.inference.storage.protocol import join
from nightjar.inference.usage import Spent
from support import Lake


def test_what_was_done_before_may_count_for_something_else() -> None:
    watch = Stopwatch("score", clock=iter([0.0, 2.0, 3.0, 7.0]).__next__)
    watch.count_as("again", "score")  # at 2, while it goes on
    watch.turn_to("end")
    assert watch.claim() == {"again": 2.0, "score": 1.0, "end": 4.0}


def ticking(*moments: float) -> Stopwatch:
    """A stopwatch whose clock shows these moments, one at each look."""
    shown = iter(moments)
    return Stopwatch("rest", clock=lambda: next(shown))


def test_every_second_counts_for_one_thing() -> None:
    watch = ticking(0, 1, 3, 6, 10, 15)  # made, read begins, predict begins in it, both end, asked
    with watch.during("read"), watch.during("predict"):
        pass
    assert watch.claim() == {"rest": 1 + 5, "read": 2 + 4, "predict": 3}


def test_what_was_claimed_is_not_claimed_again() -> None:
    watch = ticking(0, 2, 5)
    assert watch.claim() == {"rest": 2}
    assert watch.claim() == {"rest": 3}


def test_what_raises_ends_what_was_done() -> None:
    watch = ticking(0, 1, 3, 7)
    with pytest.raises(ValueError, match="bad"), watch.during("predict"):
        raise ValueError("bad")
    assert watch.claim() == {"rest": 1 + 4, "predict": 2}


@given(st.lists(st.tuples(st.sampled_from(["read", "predict", "write"]), st.integers(0, 9)), max_size=20))
def test_the_parts_add_up_to_the_time_that_has_passed(turns: list[tuple[str, int]]) -> None:
    moments = list(itertools.accumulate((pause for _, pause in turns), initial=0))
    watch = ticking(*moments, moments[-1])
    for doing, _ in turns:
        watch.turn_to(doing)
    assert sum(watch.claim().values()) == moments[-1]


def test_workers_are_those_that_began_a_shard() -> None:
    underway = Underway()
    for event in (Started("a", 1, "one"), Started("b", 1, "two"), Started("c", 1, "one")):
        underway.take(event)
    underway.take(Failed("d", 1, "ProcessDied", "", worker=""))
    assert underway.workers == {"one", "two"}


FLOW = {"start": 5.0, "discover": 1.0, "flow": 0.5, "score": 20.0, "validate": 3.0, "publish": 1.0}
SCORED = Scored(
    1,
    1,
    Progress(spent=Spent(read=4.0, predict=20.0), failed_s=2.0),
    workers=2,
    took={"plan": 1.0, "load": 2.0, "actors": 1.0, "score": 14.0, "wait": 1.0},
)
VERDICT = Verdict(Published(1, "", "", ""), 1, (), None, "", took={"audit": 2.0, "gates": 0.5})  # type: ignore[arg-type]
PUBLICATION = Publication(1, 1, "", seconds=0.75)


def test_the_account_of_a_run_has_every_second_once() -> None:
    made = account_of(FLOW, SCORED, VERDICT, PUBLICATION)
    assert made.parts == {
        "start": 5.0,
        "discover": 1.0,
        "plan": 1.0,
        "load": 2.0,
        "actors": 1.0,
        "score": 14.0,
        "wait": 1.0,
        "audit": 2.0,
        "gates": 0.5,
        "publish": 0.75,
        "tasks": 0.5 + 1.0 + 0.5 + 0.25,
    }
    assert made.wall_s == sum(FLOW.values()) == sum(made.parts.values())
    assert made.workers == 2
    assert made.worker_s == 2 * (1.0 + 14.0 + 1.0)


def test_scoring_that_prefect_repeated_is_not_what_prefect_takes() -> None:
    """What the first try took is counted as scoring, and its workers are paid."""
    made = account_of({**FLOW, "score": FLOW["score"] + 3600}, replace(SCORED, tries=2), VERDICT, PUBLICATION)
    once = account_of(FLOW, SCORED, VERDICT, PUBLICATION)
    assert made.parts["again"] == pytest.approx(3600 + 1.0)
    assert made.parts["tasks"] == pytest.approx(once.parts["tasks"] - 1.0)
    assert made.worker_s == pytest.approx(once.worker_s + 2 * 3601)
    assert sum(made.parts.values()) == pytest.approx(made.wall_s)


def test_an_audit_that_was_repeated_is_an_audit() -> None:
    made = account_of({**FLOW, "validate": FLOW["validate"] + 60}, SCORED, replace(VERDICT, tries=2), PUBLICATION)
    assert made.parts["audit"] == pytest.approx(62.5)
    assert "again" not in made.parts


def test_a_run_that_a_gate_refused_has_an_account_of_what_it_did() -> None:
    flow = {name: seconds for name, seconds in FLOW.items() if name != "publish"}
    made = account_of(flow, SCORED)
    assert made.parts["audit"] == FLOW["validate"]
    assert "publish" not in made.parts
    assert sum(made.parts.values()) == pytest.approx(made.wall_s) == pytest.approx(sum(flow.values()))


def scored_by(epoch: int, uri: str) -> Revision:
    """A revision that a command of this epoch scored."""
    scored = this_holder("score")
    return Revision(1, uri, None, State(openers=[(epoch, scored)]), None)  # type: ignore[arg-type]


def test_a_damaged_account_is_named(tmp_path: Path) -> None:
    request = Lake(tmp_path, "local").ready().request()
    revision = join(request.run_uri, "r1")
    for content in (b"{", b'{"wall_s": 1}', b"[]"):
        request.storage.delete([join(revision, "account-00000007.json")])
        request.storage.create(join(revision, "account-00000007.json"), content)
        with pytest.raises(StorageError, match=r"account-00000007\.json: not an account that this version can read"):
            kept(request.storage, scored_by(7, revision))


def test_scoring_is_divided_by_what_its_workers_did() -> None:
    made = account_of(FLOW, SCORED, VERDICT, PUBLICATION)
    assert made.scoring == {
        "read": 2.0,
        "prepare": 0.0,
        "predict": 10.0,
        "write": 0.0,
        "rest": 0.0,
        "failed": 1.0,
        "idle": 1.0,
    }
    assert sum(made.scoring.values()) == made.parts["score"]


def test_scoring_is_not_divided_where_rows_of_several_shards_are_asked_for_at_once() -> None:
    assert account_of(FLOW, replace(SCORED, progress=Progress()), VERDICT, PUBLICATION).scoring == {}


def test_an_account_is_read_back(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "local").ready()
    request = lake.request()
    storage, revision, made = (
        request.storage,
        join(request.run_uri, "r1"),
        account_of(FLOW, SCORED, VERDICT, PUBLICATION),
    )
    assert kept(storage, scored_by(1, revision)) is None
    keep(storage, revision, 1, made)
    keep(storage, revision, 1, made)  # sent again
    assert kept(storage, scored_by(1, revision)) == made


def test_a_run_costs_what_its_workers_were_held_for() -> None:
    """Four CPUs and half a GPU each, for two hours together."""
    prices = Cost(cpu_hour=0.05, gpu_hour=3, currency="EUR")
    assert prices.of(Resources(cpus=4, gpus=0.5), 7200.0) == pytest.approx(2 * (4 * 0.05 + 0.5 * 3))
    with pytest.raises(ValidationError, match="give cpu_hour, gpu_hour or both"):
        Cost(currency="EUR")


def test_people_read_the_longest_parts_first() -> None:
    parts = {"start": 10.0, "score": 80.0, "audit": 9.0, "gates": 1.0}
    made = Account(wall_s=100.0, parts=parts, workers=2, scoring={"predict": 60.0, "idle": 19.0, "read": 1.0})
    said = "score 80 s (75% predict, 24% idle), start 10 s, audit 9.0 s, the rest 1.0 s"
    assert where_time_went(made) == said
