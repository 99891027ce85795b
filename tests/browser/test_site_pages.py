"""The pages of the jobs that are served, in a real browser and from the process that serves them.

With NIGHTJAR_SCREENSHOTS set to a folder, the pictures are left there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page
from test_report_pages import SIZES

from nightjar.flows.prefect_api.ownserver import passwords
from nightjar.flows.serving.lookup import Served
from nightjar.flows.serving.site import LOCAL, pages_of, place
from nightjar.inference import engine
from nightjar.inference.errors import Unanswered
from nightjar.inference.process import environment
from support import NIGHT, Lake


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the pages of three jobs are: one asks, the file of one is broken, and one is published."""
    folder = tmp_path_factory.mktemp("served")
    flights = Lake(folder / "flights", engine.LOCAL).ready(name="flight-delays")
    for day in (17, 18, 19):
        flights.run(date=f"2026-11-{day}")
    churn = Lake(folder / "churn", engine.LOCAL)
    churn.ready(name="churn", checks=[{"column": "score", "max": 5, "on_fail": "ask"}])
    with pytest.raises(Unanswered):
        churn.run()
    broken = Lake(folder / "broken").ready(name="broken", input__shard_rows="many")
    served = [
        Served(name, str(lake.job_path), "0 2 * * * (UTC)", f"http://127.0.0.1:4200/deployments/deployment/{name}")
        for name, lake in (("flight-delays", flights), ("churn", churn), ("broken", broken))
    ]
    with environment({"PREFECT_HOME": str(folder)}), place(LOCAL, 0) as at, pages_of(served, at):
        yield at.address.replace("//", f"//{passwords()['Reports']}@")


@pytest.mark.parametrize("size", SIZES)
def test_the_page_of_all_jobs_is_seen_whole(browser: Browser, address: str, pictures: Path, size: str) -> None:
    """Nothing is wider than the window, and axe finds nothing; of the other pages `test_report_pages` says so."""
    context = browser.new_context(**SIZES[size], bypass_csp=True)  # axe is put into the page
    page = context.new_page()
    page.goto(address)
    page.screenshot(path=pictures / f"jobs-{size}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size]["viewport"]["width"]
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    context.close()


def test_the_pages_lead_to_each_other_by_keyboard(page: Page, address: str) -> None:
    """From the jobs to a report, to all nights, and back; with the headers of the server, without an error."""
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(address)
    for link, where in (
        (f"{NIGHT} r1", f"/jobs/flight-delays/runs/{NIGHT}"),
        ("All nights of flight-delays", "/jobs/flight-delays/"),
        ("All jobs", "/"),
    ):
        page.get_by_role("link", name=link, exact=True).last.focus()
        page.keyboard.press("Enter")
        page.wait_for_url(f"{address}{where}")
    assert "3 jobs, 2 with something for a person to do" in page.locator("h1").inner_text()
    assert said == []
