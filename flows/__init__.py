"""When a job runs, and what a person sees of it. The public names below are all that programs need of this package.

The functions but `nightly` do what the commands of the same names do. `nightly` is the Prefect flow of one night, to
call from a flow of your own, or to deploy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nightjar.flows.api import approve, backfill, baseline, diff, evaluate, files, reject, run, status
    from nightjar.flows.nightly_flow import nightly
    from nightjar.flows.reports import DecisionMade, RunResult, RunStatus
    from nightjar.flows.results import Night
    from nightjar.inference.history.comparison import RunsCompared
    from nightjar.inference.output.nights import Files
    from nightjar.inference.validation.evaluations import LateEvaluation

__all__ = [
    "DecisionMade",
    "Files",
    "LateEvaluation",
    "Night",
    "RunResult",
    "RunStatus",
    "RunsCompared",
    "approve",
    "backfill",
    "baseline",
    "diff",
    "evaluate",
    "files",
    "nightly",
    "reject",
    "run",
    "status",
]

_NAMES = {
    "flows.api": ("approve", "backfill", "baseline", "diff", "evaluate", "files", "reject", "run", "status"),
    "flows.nightly_flow": ("nightly",),
    "flows.reports": ("DecisionMade", "RunResult", "RunStatus"),
    "flows.results": ("Night",),
    "inference.history.comparison": ("RunsCompared",),
    "inference.output.nights": ("Files",),
    "inference.validation.evaluations": ("LateEvaluation",),
}
"""Module → its public names. It is imported on first use, because Prefect and Ray take seconds to import."""

_MODULES = {name: f"nightjar.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
