"""When a job runs, and what a person sees of it. The public names below are all that programs need of this package.

The functions but `nightly` do what the commands of the same names do. `nightly` is the Prefect flow of one night, to
call from a flow of your own, or to deploy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nightjar.flows.api import approve as approve
    from nightjar.flows.api import backfill as backfill
    from nightjar.flows.api import baseline as baseline
    from nightjar.flows.api import diff as diff
    from nightjar.flows.api import evaluate as evaluate
    from nightjar.flows.api import files as files
    from nightjar.flows.api import reject as reject
    from nightjar.flows.api import run as run
    from nightjar.flows.api import status as status
    from nightjar.flows.nightly_flow import nightly as nightly
    from nightjar.flows.reports import DecisionMade as DecisionMade
    from nightjar.flows.reports import Night as Night
    from nightjar.flows.reports import RunResult as RunResult
    from nightjar.flows.reports import RunStatus as RunStatus
    from nightjar.inference.history.comparison import RunsCompared as RunsCompared
    from nightjar.inference.output.nights import Files as Files
    from nightjar.inference.validation.evaluations import LateEvaluation as LateEvaluation

_NAMES = {
    "flows.api": ("approve", "backfill", "baseline", "diff", "evaluate", "files", "reject", "run", "status"),
    "flows.nightly_flow": ("nightly",),
    "flows.reports": ("DecisionMade", "Night", "RunResult", "RunStatus"),
    "inference.history.comparison": ("RunsCompared",),
    "inference.output.nights": ("Files",),
    "inference.validation.evaluations": ("LateEvaluation",),
}
"""Module → its public names. It is imported on first use, because Prefect and Ray take seconds to import."""

_MODULES = {name: f"nightjar.{module}" for module, names in _NAMES.items() for name in names}

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
