"""`on_fail: ask`: a run that a person must approve holds nothing, and a yes publishes it as it was validated."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import steps
from nightjar.flows.pages.advice import Commands
from nightjar.flows.pages.ending import after_failure
from nightjar.flows.pages.standing import status
from nightjar.inference.errors import GateFailed, JobError, TakenBack, Unanswered
from nightjar.inference.history.run_status import Standing, stands
from nightjar.inference.output import revisions as revs
from nightjar.inference.output import visibility
from nightjar.inference.run import approving
from nightjar.inference.run.approving import Answered, answer, carried_out
from nightjar.inference.run.request import RunRequest
from support import Lake
from writers import BEFORE_SNAPSHOT, BEFORE_SUCCESS, Point, die_answering

ASKS = [{"column": "score", "max": 15000, "on_fail": "ask"}]
"""Twice 7999 is above it."""

AFTER_ANSWER = Point("between the answer and the intent", "publish", "create", "*/ledger/*", 3)


def asked(lake: Lake, **options: object) -> RunRequest:
    """A run that asks; its request."""
    request = lake.ready(checks=ASKS).request(**options)
    with pytest.raises(Unanswered, match=r"The greatest 'score' is 15998, above checks\[0\].max = 15000"):
        lake.run(**options)
    return request


def stands_at(lake: Lake) -> Standing:
    """How the newest revision of the night stands."""
    request = lake.request()
    newest = revs.newest_revision(request.storage, request.run_uri)
    assert newest is not None
    shown = lake.snapshot().runs.get(request.run_id)
    return stands(request, newest, shown)


def yes(lake: Lake, **more: object) -> Answered:
    return answer(lake.request(), approved=True, by="anna", **more)


def no(lake: Lake, **more: object) -> Answered:
    return answer(lake.request(), approved=False, by="ben", **more)


def test_what_was_published_already_is_taken_back_where_it_lies(lake: Lake) -> None:
    """Where each night has an output of its own, the name of a run alone would be looked for in that of today."""
    lake.engine = "local"
    lake.ready(checks=ASKS, output__uri="out/{date}/")
    with pytest.raises(Unanswered):
        lake.run(run_id="repair", date="2026-11-18")
    request = lake.request(run_id="repair", date="2026-11-18")
    answer(request, approved=True, by="anna")
    with pytest.raises(JobError, match="; `nightjar unpublish JOB repair --date 2026-11-18` takes it back"):
        answer(request, approved=False, by="ben")


def test_a_run_that_asks_waits_and_holds_nothing(lake: Lake) -> None:
    """Everything is scored and validated, nothing is published, and its ledger is free."""
    request = asked(lake)
    newest = revs.newest_revision(request.storage, request.run_uri)
    assert newest is not None
    assert newest.state.holder is None
    assert lake.snapshot().number == 0
    found = stands_at(lake)
    assert found.words == "asks at gate score.max"
    assert "above checks[0].max = 15000" in found.cause
    assert "counts as a no" in found.cause


def test_whoever_is_asked_is_told_of_the_gates_that_only_warn(lake: Lake) -> None:
    lake.ready(checks=[{"column": "score", "max": 15000, "on_fail": "ask"}, {"rows": {"min": 9000}, "on_fail": "warn"}])
    with pytest.raises(Unanswered) as caught:
        lake.run()
    request = lake.request()
    assert "warning    rows.min: The input has 8,000 rows" in after_failure(request, caught.value)
    (said,) = status(request).warnings
    assert said.startswith("rows.min: The input has 8,000 rows")


def test_a_yes_publishes_what_was_validated_and_scores_nothing(lake: Lake) -> None:
    """Also where input and code have changed meanwhile: what was looked at is what is published."""
    request = asked(lake)
    question = approving.asked(request)
    assert question is not None
    parts = sorted((lake.revision() / "data").iterdir())
    lake.write_file("part-09.parquet", 9000, 1000)
    lake.write_model("def score(batch):\n    raise SystemExit('it was scored')\n")
    done = yes(lake, note="it is a holiday")
    assert done.publication is not None
    assert (done.publication.number, done.publication.manifest) == (1, question.published.manifest)
    assert sorted((lake.revision() / "data").iterdir()) == parts
    assert lake.published()["id"].to_list() == list(range(8000))
    assert stands_at(lake).state == "published"
    assert done.decision.words.startswith("approved by anna at ")
    assert done.decision.words.endswith(": it is a holiday")
    assert done.decision.words in done.scored.warnings
    with pytest.raises(JobError, match="; `nightjar unpublish JOB 2026-11-19` takes it back"):
        no(lake)


def test_a_no_leaves_readers_what_they_see_and_may_become_a_yes(lake: Lake) -> None:
    lake.ready().run(date="2026-11-18")
    asked(lake)
    done = no(lake, note="wrong fares")
    assert done.publication is None
    assert sorted(lake.snapshot().runs) == ["2026-11-18"]
    found = stands_at(lake)
    assert found.state == "failed"
    assert "rejected by ben at " in found.cause
    assert ": wrong fares. What was asked: score.max: The greatest 'score'" in found.cause
    with pytest.raises(JobError, match="was rejected by ben"):
        no(lake)
    assert yes(lake).publication is not None
    assert sorted(lake.snapshot().runs) == ["2026-11-18", "2026-11-19"]


def test_without_an_answer_in_time_it_is_a_no(lake: Lake) -> None:
    lake.ready(checks=ASKS, approval={"deadline_h": 1e-9})
    with pytest.raises(Unanswered):
        lake.run()
    found = stands_at(lake)
    assert found.state == "failed"
    assert "nobody approved it until " in found.cause
    again = "`nightjar run JOB --run-id 2026-11-19 --engine local` validates it once more"
    with pytest.raises(JobError, match=rf"waited until .*deadline_h\), which counts as a no; {again}"):
        yes(lake)
    assert lake.snapshot().number == 0


def test_an_answer_to_what_is_no_longer_there_is_refused(lake: Lake) -> None:
    """Another revision, or another validation of the same one."""
    request = asked(lake)
    before = approving.asked(request)
    assert before is not None
    with pytest.raises(Unanswered) as now:
        lake.run()
    assert now.value.question != before.name
    assert pickle.loads(pickle.dumps(now.value)).question == now.value.question
    for word in ("approve", "reject"):
        command = Commands(request, job="job.yaml").of_standing(stands_at(lake))[word]
        assert command == f"nightjar {word} job.yaml 2026-11-19 --question {now.value.question}"
    with pytest.raises(
        JobError, match=f"asked: the question is now {now.value.question}, not {before.name}; look at it"
    ):
        yes(lake, name=before.name)
    asked(lake, fresh=True)
    with pytest.raises(JobError, match=f"lake 2026-11-19 r2 was validated again .*, not {now.value.question}; look"):
        yes(lake, name=now.value.question)
    assert lake.snapshot().number == 0


def test_gates_that_are_judged_anew_void_what_was_asked(lake: Lake) -> None:
    """A later no of a gate that blocks must not be passed over by a yes to what was asked before it."""
    asked(lake)
    lake.write_job(checks=[{"column": "score", "max": 15000}])
    with pytest.raises(GateFailed) as failed:
        lake.run()
    assert not isinstance(failed.value, Unanswered)
    with pytest.raises(JobError, match="asks nothing: no gate of its newest revision says on_fail: ask"):
        yes(lake)
    lake.write_job(checks=[{"column": "score", "max": 16000, "on_fail": "ask"}])
    assert lake.run().publication.number == 1, "all gates pass: nobody is asked"


def test_new_results_void_what_was_asked(lake: Lake) -> None:
    """A command that scores more, and is killed before it validates."""
    request = asked(lake)
    lake.write_file("part-09.parquet", 9000, 1000)
    steps.score(lake.request(), steps.discover(lake.request()))
    assert approving.asked(request) is None


def test_nothing_is_published_before_the_yes(lake: Lake) -> None:
    """Whoever calls the steps."""
    lake.ready(checks=ASKS)
    request = lake.request()
    found = steps.discover(request)
    scored = steps.score(request, found)
    verdict = steps.validate(request, scored, found)
    assert verdict.question is not None
    with pytest.raises(Unanswered):
        steps.publish_run(request, scored, verdict)
    assert lake.snapshot().number == 0


def test_a_run_that_is_not_to_be_published_asks_nobody(lake: Lake) -> None:
    ran = lake.ready(checks=ASKS).run(publish=False)
    assert ran.verdict.question is None
    assert [gate.verdict for gate in ran.verdict.gates if gate.name == "score.max"] == ["ask"]
    assert stands_at(lake).state == "validated"


def test_a_yes_that_was_cut_off_is_carried_out_by_the_next_command(lake: Lake, tmp_path: Path) -> None:
    """Killed between the answer and the publication: the next run publishes it, without asking or scoring again."""
    die_answering(asked(lake), BEFORE_SNAPSHOT, tmp_path)
    assert lake.snapshot().number == 0
    ran = lake.run()
    assert ran.publication.number == 1
    assert ran.scored.progress.reused_shards == 8
    assert len(lake.published()) == 8000


@pytest.mark.parametrize(
    ("point", "told"),
    [
        (AFTER_ANSWER, "not published yet: `nightjar approve JOB 2026-11-19` ends that; then"),
        (BEFORE_SNAPSHOT, "was published already;"),
        (BEFORE_SUCCESS, "was published already;"),
    ],
    ids=["answered", "unseen", "seen"],
)
def test_a_yes_that_was_cut_off_is_carried_out_by_the_next_yes(
    lake: Lake, tmp_path: Path, point: Point, told: str
) -> None:
    """As it is by a suspended flow run, which finds the answer in the ledger; a no comes too late."""
    request = asked(lake)
    die_answering(request, point, tmp_path)
    with pytest.raises(JobError, match=f"{told} `nightjar unpublish JOB 2026-11-19` takes it back"):
        no(lake)
    again = carried_out(request)
    assert again is not None
    assert again.publication is not None
    assert (again.publication.number, again.decision.approved) == (1, True)
    assert len(lake.published()) == 8000


def test_a_retry_of_an_approved_run_that_was_taken_back_says_so(lake: Lake) -> None:
    """As Prefect's page offers one: it must not say, nor tell others, that the night is published."""
    request = asked(lake)
    assert yes(lake).publication is not None
    assert carried_out(request) is not None
    visibility.unpublish(request.storage, request.output, request.run_id)
    with pytest.raises(TakenBack, match=r"^r1 of the run '2026-11-19' was published before and rolled back or unpub"):
        carried_out(request)


def test_after_a_yes_to_results_that_were_taken_back_a_no_is_possible(lake: Lake) -> None:
    lake.engine = "local"
    lake.ready(reuse="shards", checks=[{"column": "score", "max": 16000}]).run(date="2026-11-18")
    lake.write_job(checks=ASKS, reuse="shards")
    request = lake.request()
    with pytest.raises(Unanswered):
        lake.run()
    visibility.unpublish(request.storage, request.output, "2026-11-18")
    with pytest.raises(TakenBack, match="2026-11-18"):
        yes(lake)
    assert no(lake).publication is None
    assert not lake.snapshot().runs


def test_a_yes_that_was_cut_off_may_be_repeated(lake: Lake, tmp_path: Path) -> None:
    die_answering(asked(lake), BEFORE_SUCCESS, tmp_path)
    done = yes(lake)
    assert done.publication is not None
    assert done.publication.number == lake.snapshot().number == 1
    with pytest.raises(JobError, match="was published already"):
        yes(lake)
