"""The report of a night and the page of all nights in a real browser: what is seen, printed, and reached by keyboard.

With NIGHTJAR_SCREENSHOTS set to a folder, the pictures are left there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from nightjar.flows.pages.reportfiles import write
from nightjar.flows.pages.reportpage import by_date, history_page
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import GateFailed, RunFailed
from nightjar.inference.history.run_status import list_runs
from support import Lake

PAGES = ("good", "warned", "refused", "failed", "history")
SECTIONS = ["verdict", "different", "gates", "metrics", "time", "shards", "quarantine", "origin"]
SIZES: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
    "narrow-dark": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
    "tablet": {"viewport": {"width": 768, "height": 1024}, "color_scheme": "dark"},
    "wide": {"viewport": {"width": 1920, "height": 1080}, "color_scheme": "light"},
}

WIDER = """[...document.querySelectorAll('body *')]
    .filter(each => !each.closest('svg, pre, .skip, thead') && each.checkVisibility())
    .filter(each => each.getBoundingClientRect().right > document.documentElement.clientWidth + 1
        || each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).display !== 'inline')
    .map(each => each.outerHTML.slice(0, 90))"""
"""The elements that are wider than the page, or than their own place."""

MODEL = """
def score(batch):
    if 1400 in batch["x"]:
        raise ValueError("not this <b>row</b>")
    return {"score": batch["x"] / 8000}
"""


def tonight(lake: Lake, shift: float) -> None:
    """The input of a night: labels that the score tells a little of, and a column that may drift."""
    rng = np.random.default_rng(7)
    for index in range(4):
        ids = np.arange(index * 2000, (index + 1) * 2000)
        table = pa.table(
            {
                "id": ids,
                "x": ids.astype(np.float32),
                "name": [("north", "south", "east", "a <script> of a place")[int(i + shift) % 4] for i in ids],
                "amount": rng.gamma(2 + shift, 30, len(ids)),
                "late": rng.random(len(ids)) < 0.2 + ids / 16_000,
            }
        )
        path = lake.folder / "data" / f"part-{index:02d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, row_group_size=1000)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Name of a page → its address: published nights, with a warning and without, one that a gate refused, one that
    failed, and all of them.
    """
    lake = Lake(tmp_path_factory.mktemp("pages"), LOCAL)
    lake.write_model(MODEL)
    options: dict[str, Any] = {"profile": "all", "label": "late", "carry": ["id", "name", "amount"]}
    lake.write_job(retry__max_quarantined=0.01, checks=[{"drift": "all", "on_fail": "warn"}], **options)
    for day, shift in ((16, 0.0), (17, 0.1), (18, 2.0)):
        tonight(lake, shift)
        lake.run(date=f"2026-11-{day}")
    lake.write_job(
        retry__max_quarantined=0.01,
        checks=[{"drift": "all"}, {"column": "score", "max": 0.5}, {"metric": "auroc", "min": 0.1}],
        **options,
    )
    tonight(lake, 9.0)
    with pytest.raises(GateFailed):
        lake.run(date="2026-11-19")
    lake.write_job(retry__max_quarantined=0, retry__attempts=1, **options)
    with pytest.raises(RunFailed):
        lake.run(date="2026-11-20")
    request = lake.request()
    found = by_date(list_runs(request))
    history = lake.folder / "history.html"
    history.write_text(history_page(request.job.name, request.output, found))
    made = {
        "good": write(lake.request(date="2026-11-17")).page,
        "warned": write(lake.request(date="2026-11-18")).page,
        "refused": write(lake.request(date="2026-11-19")).page,
        "failed": write(lake.request(date="2026-11-20")).page,
        "history": str(history),
    }
    return {name: Path(path).as_uri() for name, path in made.items()}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_seen_whole_and_without_an_error(
    browser: Browser, pages: dict[str, str], pictures: Path, name: str, size: str
) -> None:
    """No error in the console, no request to anywhere, nothing wider than the window."""
    context = browser.new_context(**SIZES[size])
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(pages[name])
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size]["viewport"]["width"]
    assert page.evaluate(WIDER) == [], "nor is a table cut"
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = false)")
    assert page.locator("figure").count() >= (0 if name == "failed" else 3)
    picture = pictures / f"report-{name}-{size}.png"
    page.screenshot(path=picture, full_page=True)
    assert picture.stat().st_size > 10_000
    assert (said, asked) == ([], [pages[name]])
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_printed(page: Page, pages: dict[str, str], pictures: Path, name: str) -> None:
    page.goto(pages[name])
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator(".skip").is_visible()
    printed = pictures / f"report-{name}.pdf"
    page.pdf(path=printed, format="A4")
    page.screenshot(path=pictures / f"report-{name}-printed.png", full_page=True)
    assert printed.read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(browser: Browser, pages: dict[str, str], name: str, size: str) -> None:
    """The rules of WCAG and the best practices of axe-core, also in the tables that are folded."""
    context = browser.new_context(**SIZES[size], bypass_csp=True)  # axe is put into the page
    page = context.new_page()
    page.goto(pages[name])
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    context.close()


FOCUSED = "[document.activeElement.tagName, document.activeElement.getAttribute('aria-label') || '']"
SEEN = "[...document.querySelectorAll({!r})].filter(each => each.checkVisibility()).length"


@pytest.mark.parametrize("name", ["warned", "refused"])
def test_every_section_is_reached_by_keyboard(page: Page, pages: dict[str, str], name: str) -> None:
    """The skip link comes first and leads to the verdict; each link leads to its section; each table can be scrolled,
    and each folded table opened.
    """
    page.goto(pages[name])
    page.keyboard.press("Tab")
    assert page.locator(".skip").evaluate("each => each === document.activeElement")
    assert page.locator(".skip").is_visible()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.goto(pages[name])
    shown = page.evaluate("[...document.querySelectorAll('section > h2')].map(each => each.id)")
    assert shown == SECTIONS
    for section in SECTIONS[1:]:
        page.locator(f"nav a[href='#{section}']").focus()
        page.keyboard.press("Enter")
        assert page.locator(f"#{section}").is_visible()
        assert page.evaluate("location.hash") == f"#{section}"
    page.goto(pages[name])
    reached = []
    for _ in range(page.evaluate(SEEN.format("a[href], summary, [tabindex='0']"))):
        page.keyboard.press("Tab")
        reached.append(tuple(page.evaluate(FOCUSED)))
        if reached[-1][0] == "SUMMARY":
            page.keyboard.press("Enter")
            page.keyboard.press("Enter")
    assert "BODY" not in {tag for tag, _ in reached}
    regions = page.evaluate(
        "[...document.querySelectorAll('[role=region]')].filter(each => each.checkVisibility()).length"
    )
    assert sum(tag in ("DIV", "PRE") for tag, _ in reached) == regions
