"""As a person would: `nightjar serve`, a browser, the form, the finished run and what it shows.

The server is the session's, which is started as `nightjar serve` starts one where nothing is configured
(`test_serve_starts_its_own_server_and_takes_it_along`).

Playwright drives the system's Chromium. With NIGHTJAR_SCREENSHOTS set to a folder, the pictures of the docs are
written there.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from playwright.sync_api import Locator, Page, TimeoutError, expect

from service import Service, client, deployments, ended, service, start_run, state_of
from support import FLIGHTS, Lake, wait_until

NIGHT = dt.date.today().replace(day=15).isoformat()
"""A day of the month that the date picker opens at."""


@dataclass
class Served:
    """`nightjar serve` on a copy of the flights example, and where its pages are."""

    folder: Path
    serving: Service
    pages: str
    password: str

    def sign_in(self, page: Page) -> None:
        """Open the address that a terminal shows, which leads to the deployments."""
        page.goto(f"{self.pages}/sign-in#{quote(self.password)}")
        expect(page.get_by_text("flight-delays").first).to_be_visible(timeout=60_000)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, prefect_api: str, prefect_home: Path) -> Iterator[Served]:
    """The pages are the same whichever engine scores."""
    folder = tmp_path_factory.mktemp("served")
    job = yaml.safe_load((FLIGHTS / "job.yaml").read_text())
    job["input"]["uri"] = str(FLIGHTS / "data")
    job["model"]["path"] = str(FLIGHTS / "models" / "delay.pt2")
    (folder / "flights").mkdir()
    (folder / "flights" / "job.yaml").write_text(yaml.safe_dump(job, sort_keys=False))
    Lake(folder / "asking", "local").ready(name="asking", checks=[{"column": "score", "max": 5, "on_fail": "ask"}])
    env = {"PREFECT_HOME": str(prefect_home), "PREFECT_API_URL": prefect_api}
    with service(folder, "serve", folder, "--engine", "local", env=env) as serving:
        wait_until(lambda: serving.says("Ctrl-C ends"), 120, "it serves")
        found = re.search(r"Pages: (\S+)/deployments", serving.log.read_text())
        assert found
        yield Served(folder, serving, found[1], os.environ["PREFECT_API_AUTH_STRING"])
    with client(prefect_api) as asked:
        for each in deployments(prefect_api, "flight-delays", "asking").values():
            asked.delete_deployment(each.id)


def picture(page: Page, name: str) -> None:
    """Keep what a person sees, if asked to."""
    if folder := os.environ.get("NIGHTJAR_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")


def send(page: Page, button: Locator, request: str) -> None:
    """Click a button that sends a request, and wait for the answer: leaving the page sooner would take it back.

    The page lets the server check a form first, and sends nothing if that fails; a person would click again, and so
    where the server is busy.
    """
    answers: list[str] = []
    page.on("response", lambda answer: answers.append(f"{answer.status} {answer.url}"))
    for _ in range(3):
        try:
            with page.expect_request(f"**/{request}", timeout=30_000) as sent:
                button.click()
        except TimeoutError:
            continue
        answer = sent.value.response()
        assert answer is not None
        if answer.status == 503:  # another process writes into the same database
            continue
        assert answer.ok, answers
        assert answer.json().get("status", "ACCEPT") == "ACCEPT", answer.text()
        return
    picture(page, "not-sent")
    pytest.fail(f"{request} was never sent; the server's answers since: {answers}")


def test_a_stranger_is_asked_for_the_password(served: Served, page: Page) -> None:
    """And sees nothing without it, nor with another one."""
    page.goto(f"{served.pages}/deployments")
    expect(page.get_by_text("Login").first).to_be_visible(timeout=60_000)
    picture(page, "login")
    page.get_by_role("textbox").fill("nightjar:guessed")
    page.get_by_role("button", name="Login").click()
    expect(page.get_by_text("Authentication failed").first).to_be_visible()
    expect(page.get_by_text("flight-delays")).to_have_count(0)
    served.sign_in(page)
    assert "#" not in page.url
    picture(page, "signed-in")


def test_a_person_approves_a_night_and_retries_a_run(served: Served, page: Page, prefect_api: str) -> None:
    """*Resume* has a form, and *Retry* starts a run once more: the page gives the password with each."""
    deployment = deployments(prefect_api, "asking")["asking"]
    asks = start_run(prefect_api, deployment, date=NIGHT)
    wait_until(lambda: state_of(prefect_api, asks).is_paused(), 120, "it asks")
    served.sign_in(page)
    page.goto(f"{served.pages}/runs/flow-run/{asks.id}")
    page.get_by_role("button", name="Resume").first.click()
    form = page.get_by_role("dialog")
    expect(form.get_by_text("above checks[0].max")).to_be_visible()
    picture(page, "resume")
    form.locator(".p-select-button__control").click()
    page.keyboard.press("ArrowDown")  # a click alone may close the list again
    page.get_by_text("approve", exact=True).last.click()
    form.get_by_role("textbox").first.fill("anna")
    expect(form.locator(".p-select-button__control")).to_have_text("approve")
    send(page, form.get_by_role("button", name="Submit"), "resume")
    done = ended(prefect_api, asks)
    assert done.state is not None
    assert done.state.is_completed(), done.state.message
    assert "published as #1" in str(done.state.message)
    assert str(done.state.message).endswith(", 1 gate approved by a person")
    failed = ended(prefect_api, start_run(prefect_api, deployment, job=str(served.folder / "other.yaml")))
    assert failed.state is not None
    assert "is not served here" in str(failed.state.message)
    page.goto(f"{served.pages}/runs/flow-run/{failed.id}")
    page.get_by_role("button", name="Retry").first.click()
    send(page, page.get_by_role("dialog").get_by_role("button", name="Retry"), "set_state")
    wait_until(lambda: ended(prefect_api, failed).run_count == 2, 120, "it ran again")


def test_a_person_runs_a_night_from_the_form(served: Served, page: Page) -> None:
    """Opens the deployment, changes the date in the form, submits, and sees the finished run and its artifacts."""
    served.sign_in(page)
    page.get_by_text("flight-delays").first.click()
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_text("Custom run").click()
    expect(page.get_by_text("The night to score.")).to_be_visible()
    page.get_by_role("button", name="date", exact=True).click()
    page.get_by_text("Select date").click()
    page.get_by_role("button", name="15", exact=True).first.click()
    page.get_by_role("button", name="Apply").click()
    picture(page, "form")
    send(page, page.get_by_role("button", name="Submit"), "create_flow_run")
    page.goto(f"{served.pages}/runs")
    expect(page.get_by_text(f"flight-delays {NIGHT}").first).to_be_visible(timeout=60_000)
    page.get_by_text(f"flight-delays {NIGHT}").first.click()
    expect(page.get_by_text("published as #1: 336,776 of 336,776 rows, 24 shards").first).to_be_visible(timeout=180_000)
    expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
    picture(page, "run")
    page.get_by_text("Artifacts", exact=True).click()
    expect(page.get_by_text("flight-delays-summary").first).to_be_visible()
    # Below the run's own artifacts are those of its tasks, which Prefect's page loads when they come into view.
    page.get_by_role("heading", name="Task runs").scroll_into_view_if_needed()
    page.mouse.wheel(0, 2000)
    for key in ("summary", "shards", "gates", "retries"):
        expect(page.get_by_text(f"flight-delays-{key}").first).to_be_visible()
    page.get_by_text("flight-delays-summary").first.click()
    expect(page.get_by_text("336,776 in = 336,776 out").first).to_be_visible()
    assert page.locator("a[href$='/r1/report.html']").count() == 1
    picture(page, "summary")
