"""The pages of the jobs that are served, in a real browser and from the process that serves them.

With NIGHTJAR_SCREENSHOTS set to a folder, the pictures are left there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser
from test_report_pages import SIZES

from nightjar.flows.serving.lookup import Served
from nightjar.flows.serving.siteprocess import LOCAL, pages_of, place
from nightjar.inference import engine
from nightjar.inference.errors import Unanswered
from support import NIGHT, Lake

pytestmark = pytest.mark.browser


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
    with place(LOCAL, 0) as at, pages_of(served, at, "", pytest.fail):
        yield at.address


@pytest.mark.parametrize("size", SIZES)
def test_the_pages_are_seen_whole_and_led_through(browser: Browser, address: str, pictures: Path, size: str) -> None:
    """With the headers of the server: no error in the console, nothing wider than the window, nothing that axe finds;
    from the jobs to a report, to all nights, and back, by keyboard.
    """
    for checked in (False, True):
        context = browser.new_context(**SIZES[size], bypass_csp=checked)  # axe is put into the page
        page = context.new_page()
        said: list[str] = []
        page.on("console", lambda message, said=said: said.append(message.text))
        page.on("pageerror", lambda error, said=said: said.append(str(error)))
        page.goto(address)
        page.screenshot(path=pictures / f"jobs-{size}.png", full_page=True)
        for link, where in (
            (f"{NIGHT} r1", f"/jobs/flight-delays/runs/{NIGHT}"),
            ("All nights of flight-delays", "/jobs/flight-delays/"),
            ("All jobs", "/"),
        ):
            assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size]["viewport"]["width"]
            if checked:
                found = Axe().run(page)
                assert found.violations_count == 0, found.generate_report()
            page.get_by_role("link", name=link, exact=True).last.focus()
            page.keyboard.press("Enter")
            page.wait_for_url(f"{address}{where}")
        assert "3 jobs, 2 with something for a person to do" in page.locator("h1").inner_text()
        assert said == []
        context.close()
