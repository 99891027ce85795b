"""The steps of a run, and what looks at it before, by one name."""

from __future__ import annotations

from nightjar.inference.run.checking import Checked, check, check_input
from nightjar.inference.run.publishing import publish_run, validate
from nightjar.inference.run.results import Publication, RunPlan, Scored, Verdict
from nightjar.inference.run.resume import plan, was_published
from nightjar.inference.run.scoring import discover, score

__all__ = [
    "Checked",
    "Publication",
    "RunPlan",
    "Scored",
    "Verdict",
    "check",
    "check_input",
    "discover",
    "plan",
    "publish_run",
    "score",
    "validate",
    "was_published",
]
