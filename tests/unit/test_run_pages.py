"""What the pages of a run say, before Prefect is given them."""

from __future__ import annotations

from nightjar.flows.artifacts import _failure
from nightjar.inference.errors import JobError
from support import Lake


def test_the_page_of_a_rejected_run_leads_to_check(lake: Lake) -> None:
    """It calls the run what `status` calls it, and offers the command that tries the change."""
    how, page = _failure(lake.ready().request(), JobError("model.uses: no module 'xgb'"), None)
    assert how == "rejected"
    assert page.startswith("# lake 2026-11-19: rejected\n")
    assert f"- try: `nightjar check {lake.job_path} --date 2026-11-19`" in page
    assert f"`nightjar run {lake.job_path} --run-id 2026-11-19`" in page
