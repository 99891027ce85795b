"""The steps of a run: `discover`, `score`, `validate`, `publish_run`; and `plan`, `check`, `check_input`, which
write nothing that stays.

Each step that writes opens an epoch, does its part, and stops. The flow's tasks call these, and so may a plain script.
They hand each other small frozen records; whatever matters is in the ledger, so that any step may be repeated, by
anybody, at any time.
"""

from __future__ import annotations

from nightjar.inference.run.checking import Checked, check, check_input
from nightjar.inference.run.planning import discover, plan
from nightjar.inference.run.publishing import publish_run
from nightjar.inference.run.results import Publication, RunPlan, Scored, Verdict
from nightjar.inference.run.scoring import nothing_to_score, score, was_published
from nightjar.inference.run.validating import validate

__all__ = [
    "Checked",
    "Publication",
    "RunPlan",
    "Scored",
    "Verdict",
    "check",
    "check_input",
    "discover",
    "nothing_to_score",
    "plan",
    "publish_run",
    "score",
    "validate",
    "was_published",
]
