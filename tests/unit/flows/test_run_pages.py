"""What the pages of a run say, before Prefect is given them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from test_report import BAD_ROW, scored

from faults import FaultyStorage, fail
from nightjar.flows.pages.advice import Commands
from nightjar.flows.pages.artifacts import _bounded, _headed
from nightjar.flows.pages.ending import after_failure, failure
from nightjar.flows.pages.reportfiles import write
from nightjar.flows.pages.wording import left_out, money
from nightjar.inference.errors import GateFailed, JobError, ShardsFailed
from nightjar.inference.history.run_tables import RunReport
from nightjar.inference.output.owner import claim_output
from nightjar.inference.run import waiting
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.validation.gates import GateResult
from runpages import failed_page
from support import NIGHT, Lake


@pytest.fixture
def far(tmp_path: Path) -> Lake:
    """A night with a quarantined row, in a folder whose path alone is longer than a cell."""
    lake = Lake(tmp_path / ("a" * 200) / ("b" * 200)).ready()
    scored(lake)
    return lake


def test_rows_that_were_left_out_are_those_for_which_the_whole_condition_is_not_true() -> None:
    assert left_out(131, "x < 120 AND id <> 5") == "131 more rows read and left out: not (x < 120 AND id <> 5)"


@pytest.mark.parametrize(
    ("cost", "currency", "said"),
    [
        (1234.5, "USD", "1,234.50 USD"),
        (1, "", "1.00"),
        (0.00312, "EUR", "0.0031 EUR"),
        (1e-6, "USD", "under 0.0001 USD"),
        (0, "USD", "0.0000 USD"),
    ],
)
def test_a_small_sum_of_money_has_more_digits(cost: float, currency: str, said: str) -> None:
    assert money(cost, currency) == said


def test_a_night_of_which_nothing_was_begun_offers_nothing_that_looks_at_it(lake: Lake) -> None:
    """No command would find it, and nothing is scored that a repetition could leave out."""
    request = lake.ready().request()
    late = GateFailed("Waited 1s for data/", (GateResult("input.wait", False, "", "", "Waited 1s for data/"),))
    found = failure(Commands(request, job="job.yaml"), late)
    assert (found.how, found.seen) == (
        "failed at gate input.wait",
        "Nothing was scored and nothing new was published.",
    )
    assert found.commands == {
        "try": f"nightjar check job.yaml --date {NIGHT}",
        "repeat": f"nightjar run job.yaml --run-id {NIGHT}",
    }
    claim_output(request.storage, request.output, "lake")
    waiting.keep_failure(request, late, "discover")
    found = failure(Commands(request, job="job.yaml"), late)
    assert list(found.commands) == ["look", "repeat"], "its reason is kept now, and `show` has it"
    away = FaultyStorage(LakeStorage(), [fail("*", nth=None)])
    found = failure(Commands(replace(request, storage=away), job="job.yaml"), late)
    assert "could not be looked up" in found.seen
    assert list(found.commands) == ["look", "repeat"]


def test_the_terminal_names_the_report_of_a_run_that_failed(lake: Lake) -> None:
    request = lake.ready().request()
    lost = ShardsFailed("7 of 8 shards have no result")
    assert "  report     " not in after_failure(request, lost)
    scored(lake)
    assert "  report     " not in after_failure(request, lost)
    made = write(request)
    assert f"\n  report     {made.page}\n" in after_failure(request, lost)


def test_the_page_of_a_rejected_run_leads_to_check(lake: Lake) -> None:
    """It calls the run what `status` calls it, and offers the command that tries the change."""
    page = failed_page(lake.ready().request(), JobError("model.uses: no module 'xgb'"))
    assert page.startswith("# lake 2026-11-19: rejected\n")
    assert f"| try | `nightjar check {lake.job_path} --date 2026-11-19` |" in page
    assert f"`nightjar run {lake.job_path} --run-id 2026-11-19`" in page


def test_a_quarantined_row_has_its_whole_command_in_the_table(far: Lake) -> None:
    """However long its path is."""
    (line,) = _bounded([_headed(each) for each in RunReport(far.request(), 1).incidents(300)])
    assert len(line["replay"]) > 400
    assert line["replay"].startswith(f"nightjar replay {far.job_path} 2026-11-19 --shard ")
    assert line["replay"].endswith(f" --row {BAD_ROW}")
