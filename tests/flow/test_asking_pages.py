"""A served run that asks is suspended on Prefect's page; whoever answers, page and ledger agree."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from prefect.client.schemas.objects import FlowRun

from forked import forked
from nightjar import flows
from nightjar.flows.pages import standing
from service import Service, client, deployments, ended, events, service, start_run, state_of
from support import Lake, conforms, wait_until
from webhooks import Webhook, webhook

ASKS = [{"column": "score", "max": 15000, "on_fail": "ask"}]

CHANNEL = "NIGHTJAR_TEST_CHANNEL"
"""The variable with the webhook's address."""


@dataclass
class Asking:
    """A served job whose gate asks. env: of commands; only the runs and this process have the webhook's address."""

    lake: Lake
    serving: Service
    env: dict[str, str]
    told: Webhook

    def said(self, night: str) -> list[str]:
        """What was sent of this night, kind after kind. What was sent again, because no answer came in time, counts
        once.
        """
        sent = [message for message in self.told.posted if message["run_id"] == night]
        return [message["event"] for at, message in enumerate(sent) if message not in sent[:at]]

    def published(self, night: str) -> int:
        """How many events say that this night is published."""
        found = events(self.api, "nightjar.run.published")
        return sum(each.payload["run_id"] == night for each in found if each.resource.id == "nightjar.job.asking")

    @property
    def api(self) -> str:
        return self.env["PREFECT_API_URL"]

    def suspended(self, night: str) -> FlowRun:
        """A run of this night, once it waits and its process is gone."""
        run = start_run(self.api, deployments(self.api, "asking")["asking"], date=night)
        wait_until(lambda: state_of(self.api, run).is_paused(), 120, "it waits")
        wait_until(lambda: not self.serving.descendants("prefect.engine"), 60, "its process has ended")
        return run

    def reply(self, run: FlowRun, **given: str) -> FlowRun:
        """What the form on the run's page does; the run, once it has ended."""
        with client(self.api) as asked:
            asked.resume_flow_run(run.id, run_input=given)
        return ended(self.api, run)

    def status(self, night: str) -> Any:
        return standing.status(self.lake.request(date=night))


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory, api_env: dict[str, str]) -> Iterator[Asking]:
    folder = tmp_path_factory.mktemp("asking")
    lake = Lake(folder / "job", engine="local")
    with webhook() as told, pytest.MonkeyPatch.context() as patch:
        patch.setenv(CHANNEL, told.url)
        lake.ready(
            name="asking", checks=ASKS, notify={"webhook": f"${{{CHANNEL}}}", "on": ["failed", "asks", "published"]}
        )
        env = {**api_env, CHANNEL: told.url}
        with service(folder, "serve", lake.folder, "--engine", "local", env=env) as serving:
            wait_until(lambda: serving.says("Ctrl-C ends"), 90, "it serves")
            yield Asking(lake, serving, {**api_env, CHANNEL: ""}, told)


def test_a_yes_on_the_page_publishes_without_scoring(asking: Asking) -> None:
    """The form says what is asked. The input that came meanwhile does not delay the answer."""
    run = asking.suspended("2026-11-01")
    assert asking.status("2026-11-01").standing == "asks at gate score.max"
    with client(asking.api) as asked:
        keys = asked.read_flow_run(run.id).state.state_details.run_input_keyset
        told = asked.read_flow_run_input(run.id, keys["description"])
    assert "above checks\\\\[0\\\\].max = 15000" in told
    assert "counts as a no" in told
    done = asking.reply(run, decision="approve", name="anna", note="a holiday")
    assert done.state is not None
    assert done.state.is_completed()
    assert "8,000 of 8,000 rows" in str(done.state.message)
    found = asking.status("2026-11-01")
    assert found.state == "published"
    assert any(note.startswith("approved by anna at ") and note.endswith(": a holiday") for note in found.notes)
    with client(asking.api) as asked:
        tasks = [task.name for task in asked.read_task_runs() if task.flow_run_id == run.id]
    assert sorted(tasks) == ["discover", "score", "validate"], "nothing of it ran again"


def test_a_no_on_the_page_fails_the_run(asking: Asking) -> None:
    run = asking.suspended("2026-11-02")
    done = asking.reply(run, decision="reject", name="ben", note="wrong fares")
    assert done.state is not None
    assert done.state.is_failed()
    assert "rejected by ben at " in str(done.state.message)
    assert ": wrong fares. What was asked: score.max" in str(done.state.message)
    assert "2026-11-02" not in asking.lake.snapshot().runs
    assert asking.status("2026-11-02").state == "failed"
    assert asking.said("2026-11-02") == ["asks", "failed"]
    report = asking.lake.out / "runs" / "2026-11-02" / "r1" / "report.html"
    assert "rejected by ben at " in report.read_text()


def test_whoever_answers_before_the_run_is_suspended_ends_it(asking: Asking) -> None:
    """As an automation may that is told of the question: the run does not wait for a second answer. It is told once, by
    whoever answered.
    """

    answered: list[str] = []

    def answer(message: dict[str, Any]) -> None:
        if message["event"] == "asks" and "2026-11-05" not in answered:
            answered.append("2026-11-05")
            flows.approve(asking.lake.job_path, date="2026-11-05", by="a robot")

    asking.told.on_message = answer
    try:
        run = ended(asking.api, start_run(asking.api, deployments(asking.api, "asking")["asking"], date="2026-11-05"))
    finally:
        asking.told.on_message = bool
    assert run.state is not None
    assert run.state.is_completed(), run.state.message
    # The run may end while the command that answered still writes the report; then it sends the message.
    wait_until(lambda: asking.said("2026-11-05") != ["asks"], 60, "the answer is told")
    assert asking.said("2026-11-05") == ["asks", "published"]
    assert asking.lake.snapshot().runs["2026-11-05"].revision == 1


def test_a_yes_by_command_ends_the_suspended_run_too(asking: Asking) -> None:
    run = asking.suspended("2026-11-03")
    done = forked("approve", asking.lake.job_path, "2026-11-03", "--by", "cleo", "--json", env=asking.env)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    conforms(said, "approve")
    assert (said["approved"], said["by"], said["unresumed"]) == (True, "cleo", "")
    assert "2026-11-03" in asking.lake.snapshot().runs
    after = ended(asking.api, run)
    assert after.state is not None
    assert after.state.is_completed(), after.state.message
    assert asking.lake.snapshot().runs["2026-11-03"].revision == 1
    assert asking.said("2026-11-03") == ["asks", "published"], "by the run, which alone knows the webhook's address"


def test_a_yes_on_the_page_counts_after_a_no_by_command(asking: Asking) -> None:
    """The command reached no Prefect, so the run still waits."""
    run = asking.suspended("2026-11-06")
    flows.reject(asking.lake.job_path, date="2026-11-06", by="ben")
    done = asking.reply(run, decision="approve", name="anna")
    assert done.state is not None
    assert done.state.is_completed(), done.state.message
    assert "2026-11-06" in asking.lake.snapshot().runs
    assert any(note.startswith("approved by anna at ") for note in asking.status("2026-11-06").notes)
    assert asking.said("2026-11-06") == ["asks", "failed", "published"]


@pytest.mark.parametrize(("night", "answers"), [("2026-11-07", "approve"), ("2026-11-08", "reject")])
def test_an_answer_by_command_is_told_once_whoever_resumes_the_run(asking: Asking, night: str, answers: str) -> None:
    """The command reached no Prefect, and sent the message itself. Automations learn of it from the run."""
    run = asking.suspended(night)
    getattr(flows, answers)(asking.lake.job_path, date=night, by="cleo")
    told = ["asks", "published" if answers == "approve" else "failed"]
    assert asking.said(night) == told
    asking.reply(run, decision=answers, name="anna")
    if answers == "approve":
        wait_until(lambda: asking.published(night), 30, "it is an event")
    assert asking.published(night) == (answers == "approve")
    assert asking.said(night) == told


def test_an_answer_to_an_older_validation_is_refused_on_the_page(asking: Asking, api_env: dict[str, str]) -> None:
    """Somebody repeated the run by hand, which asks anew, while the page still shows the form of before."""
    run = asking.suspended("2026-11-04")
    again = forked("run", asking.lake.job_path, "--date", "2026-11-04", "--engine", "local", env=api_env)
    assert again.returncode == 5, again.stderr
    with client(asking.api) as asked:
        before = asked.read_flow_run(run.id).state.state_details.pause_key
        asked.resume_flow_run(run.id, run_input={"decision": "approve", "name": "anna"})

        def asks_anew() -> bool:
            state = asked.read_flow_run(run.id).state
            return state.is_paused() and state.state_details.pause_key != before

        wait_until(asks_anew, 120, "it asks anew")
    assert "2026-11-04" not in asking.lake.snapshot().runs
    assert asking.status("2026-11-04").state == "asks"
    done = asking.reply(run, decision="reject")
    assert "rejected by somebody on Prefect's page" in str(done.state and done.state.message)
