"""`notify`: a webhook is told how a night ended, within seconds or not at all, and nobody sees its address."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nightjar import flows
from nightjar.flows import notifying
from nightjar.flows.finished_run import FinishedRun
from nightjar.flows.reports import DecisionMade
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import GateFailed, Held, JobError, RunFailed, Unanswered
from support import NIGHT, Lake
from webhooks import HANG, SECRET, Webhook, webhook


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path, LOCAL)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less time, where it is not the time that is tried."""
    monkeypatch.setattr(notifying, "PATIENCE_S", 1.0)
    monkeypatch.setattr(notifying, "_TRY_S", 0.3)


def told(lake: Lake, hook: Webhook, **changes: Any) -> str:
    """What is said when a run of this job failed."""
    lake.ready(notify={"on": ["failed"], "webhook": hook.url}, **changes)
    return notifying.failed(lake.request(), RunFailed("2 of 8 shards have no result"))


def finished(lake: Lake) -> FinishedRun:
    ran = lake.run()
    return FinishedRun(lake.request(), ran.scored, ran.verdict, ran.publication)


@pytest.mark.parametrize(("says", "event"), [(flows.approve, "published"), (flows.reject, "failed")])
def test_an_answer_to_what_was_asked_is_told(lake: Lake, says: Callable[..., DecisionMade], event: str) -> None:
    """No flow run is there to tell it. The record says who answered, and what came of it."""
    with webhook() as hook:
        asks = [{"column": "score", "max": 1, "on_fail": "ask"}]
        lake.ready(notify={"on": ["published", "failed"], "webhook": hook.url}, checks=asks)
        with pytest.raises(Unanswered):
            lake.run()
        made = says(lake.job_path, date=NIGHT, by="anna", note="a holiday")
    assert (made.approved, made.by, made.note) == (event == "published", "anna", "a holiday")
    assert made.publication == (1 if made.approved else 0)
    (body,) = hook.posted
    assert (body["event"], body["run_id"]) == (event, NIGHT)
    if not made.approved:
        assert "rejected by anna at" in body["cause"]
        assert body["command"] == f"nightjar show {lake.job_path} {NIGHT}"
    assert (lake.revision() / "report.html").exists()


def test_a_failed_night_is_told_with_its_verdict_cause_and_command(lake: Lake) -> None:
    with webhook() as hook:
        assert told(lake, hook) == ""
    (body,) = hook.posted
    command = f"nightjar show {lake.job_path} {NIGHT}"
    assert body == {
        "event": "failed",
        "job": "lake",
        "run_id": NIGHT,
        "date": NIGHT,
        "verdict": "failed",
        "cause": "2 of 8 shards have no result",
        "command": command,
        "link": "",
        "text": f"lake {NIGHT}: failed\n2 of 8 shards have no result\n`{command}`",
    }
    assert hook.headers[0]["Content-Type"] == "application/json"


def test_a_value_of_the_input_mentions_nobody(lake: Lake) -> None:
    """A chat takes `<!channel>` for all of its people. The other fields have the value as it is."""
    with webhook() as hook:
        lake.ready(notify={"on": ["failed"], "webhook": hook.url})
        assert notifying.failed(lake.request(), RunFailed("'carrier' has the new values '<!channel>' & 'x'")) == ""
    (body,) = hook.posted
    assert body["cause"] == "'carrier' has the new values '<!channel>' & 'x'"
    assert "'&lt;!channel&gt;' &amp; 'x'" in body["text"]
    assert "<" not in body["text"]


def test_a_gate_that_blocks_is_the_verdict_and_its_sentence_the_cause(lake: Lake) -> None:
    with webhook() as hook:
        lake.ready(notify={"on": ["failed"], "webhook": hook.url}, checks=[{"column": "score", "max": 5}])
        with pytest.raises(GateFailed) as caught:
            lake.run()
        assert notifying.failed(lake.request(), caught.value) == ""
    assert hook.posted[0]["verdict"] == "failed at gate score.max"
    assert "The greatest 'score' is 15998, above checks[0].max = 5." in hook.posted[0]["cause"]


def test_wrong_options_of_a_command_are_no_failed_night(lake: Lake) -> None:
    """The name of a baseline would make a note beside it."""
    with webhook() as hook:
        lake.ready(notify={"on": ["failed"], "webhook": hook.url})
        with pytest.raises(JobError, match="--run-id baseline: is the name of"):
            notifying.request_to_begin(lake.job_path, run_id="baseline", engine=LOCAL)
    assert hook.posted == []
    assert not (lake.out / "runs").exists()


def test_a_published_night_is_told_once_with_its_warnings(lake: Lake) -> None:
    with webhook() as hook:
        lake.ready(
            notify={"on": ["published"], "webhook": hook.url},
            checks=[{"column": "score", "max": 5, "on_fail": "warn"}],
        )
        assert notifying.published(finished(lake)) == ""
        assert notifying.published(finished(lake)) == "", "nothing to score, so no news"
        assert notifying.failed(lake.request(), RunFailed("not asked for")) == ""
    (body,) = hook.posted
    assert (body["event"], body["verdict"]) == (
        "published",
        "published as #1: 8,000 of 8,000 rows, 8 shards, 1 gate warned",
    )
    assert body["cause"].startswith("score.max: The greatest 'score' is 15998, above")
    assert body["command"] == f"nightjar files {lake.job_path} {NIGHT}"


def test_a_run_that_is_not_to_be_published_or_that_another_holds_is_no_news(lake: Lake) -> None:
    with webhook() as hook:
        lake.ready(notify={"on": ["published", "failed"], "webhook": hook.url})
        ran = lake.run(publish=False)
        assert notifying.published(FinishedRun(lake.request(), ran.scored, ran.verdict, ran.publication)) == ""
        assert notifying.failed(lake.request(), Held("another goes on")) == ""
    assert hook.posted == []


@pytest.mark.parametrize("passing", [500, 503, 429])
def test_a_message_that_is_refused_for_a_moment_is_sent_again(lake: Lake, passing: int) -> None:
    with webhook(passing, passing, 200) as hook:
        assert told(lake, hook) == ""
    assert len(hook.posted) == 3
    first, second, third = hook.at
    assert third - second > 1.5 * (second - first), "the pauses grow"


def test_a_webhook_that_hangs_delays_a_night_by_seconds_and_is_a_warning(lake: Lake) -> None:
    with webhook(HANG) as hook:
        lake.ready(notify={"on": ["failed"], "webhook": hook.url})
        request = lake.request()
        began = time.monotonic()
        problem = notifying.failed(request, RunFailed("why"))
        assert time.monotonic() - began < notifying.PATIENCE_S + 1
    assert len(hook.posted) >= 2, "and it was tried again"
    assert problem.startswith("notify.webhook: nobody was told: ReadTimeout")


@pytest.mark.parametrize("answer", [404, 302, 400])
def test_what_is_refused_for_good_is_not_sent_again(lake: Lake, answer: int) -> None:
    with webhook(answer) as hook:
        problem = told(lake, hook)
    assert len(hook.posted) == 1
    assert problem == f"notify.webhook: nobody was told: the webhook answered {answer} (tried 1 times in 5 s at most)"


@pytest.mark.usefixtures("impatient")
def test_a_webhook_that_always_fails_or_is_not_there_is_a_warning_without_its_address(lake: Lake) -> None:
    with webhook(500) as hook:
        problem = told(lake, hook)
    assert "the webhook answered 500" in problem
    gone = told(lake, hook)
    assert "nobody was told: ConnectError [Errno 111] Connection refused" in gone
    assert SECRET not in problem + gone


def test_no_log_has_the_address(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"), webhook() as hook:
        assert told(lake, hook) == ""
    assert "POST" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.usefixtures("impatient")
def test_an_address_that_answers_with_no_http_is_a_warning(lake: Lake) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        lake.ready(notify={"on": ["failed"], "webhook": f"https://127.0.0.1:{server.getsockname()[1]}/{SECRET}"})
        server.settimeout(0)
        problem = notifying.failed(lake.request(), RunFailed("why"))
    assert problem.startswith("notify.webhook: nobody was told: ")
    assert SECRET not in problem


def test_the_address_may_be_in_a_variable_where_the_flow_is(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.ready(notify={"on": ["failed"], "webhook": "${CHANNEL}"})
    for wrong in ("", "no address", "https://"):
        monkeypatch.setenv("CHANNEL", wrong)
        assert notifying.failed(lake.request(), RunFailed("why")) == (
            "notify.webhook: its variable has no address where this run's flow is, so nobody was told; set it there"
        )
    with webhook() as hook:
        monkeypatch.setenv("CHANNEL", f"{hook.url}\n")
        assert notifying.failed(lake.request(), RunFailed("why")) == ""
    assert len(hook.posted) == 1


def test_an_error_that_has_the_address_is_told_without_it(lake: Lake) -> None:
    with webhook() as hook:
        lake.ready(notify={"on": ["failed"], "webhook": hook.url})
        assert notifying.failed(lake.request(), RunFailed(f"cannot post to {hook.url}")) == ""
    assert SECRET not in hook.posted[0]["cause"]


@pytest.mark.parametrize(
    ("notify", "said"),
    [
        ({"on": ["failed"]}, r"notify\.webhook: is required"),
        ({"on": [], "webhook": "${A}"}, r"notify\.on: must be a list of failed, asks, published"),
        (
            {"on": ["asked"], "webhook": "${A}"},
            r"notify\.on: must be a list of .*, not \['asked'\]",
        ),
        (f"https://h/{SECRET}", r"notify: must be a mapping with the keys on, webhook"),
        ({"webhook": "${A}"}, r"notify\.on: is required"),
        ({"on": ["failed"], "webhok": f"https://h/{SECRET}"}, r"unknown key 'notify\.webhok'; did you mean"),
        *(
            ({"on": ["failed"], "webhook": wrong}, r"notify\.webhook: must be an address as https://hooks")
            for wrong in (f"ftp://{SECRET}/x", SECRET, [f"https://h/{SECRET}"], {"a": SECRET}, f"https://h/a {SECRET}")
        ),
    ],
)
def test_a_wrong_section_is_refused_and_no_message_has_the_address(lake: Lake, notify: Any, said: str) -> None:
    lake.ready(notify=notify)
    with pytest.raises(JobError, match=said) as caught:
        lake.request()
    assert SECRET not in str(caught.value)


def test_the_address_is_in_no_picture_of_the_job(lake: Lake) -> None:
    with webhook() as hook:
        request = lake.ready(notify={"on": ["failed"], "webhook": hook.url}).request()
    assert SECRET not in repr(request) + str(request.job) + request.job.model_dump_json()
    lake.run()
    kept = [path for path in lake.out.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert kept == []


def test_the_key_on_is_text_as_the_job_file_has_it(lake: Lake) -> None:
    """PyYAML takes it for true."""
    lake.ready()
    with lake.job_path.open("a") as file:
        file.write("notify:\n  on: [failed, published]\n  webhook: ${CHANNEL}\n")
    notify = lake.request().job.notify
    assert notify is not None
    assert notify.on == ("failed", "published")
