"""When a job runs and what a person sees of it. The public names below are all that others need of this package.

`run`, `backfill`, `status` and `files` do what the commands of the same names do. `nightly` is the Prefect flow of one
night, to be called from a flow of one's own, or deployed.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nightjar.inference.lazy import public

if TYPE_CHECKING:
    from nightjar.flows.api import backfill, files, run, status
    from nightjar.flows.nightly import nightly
    from nightjar.flows.outcome import Night
    from nightjar.flows.reports import RunResult, RunStatus
    from nightjar.inference.output.reading import Files

__all__ = ["Files", "Night", "RunResult", "RunStatus", "backfill", "files", "nightly", "run", "status"]

_MODULES = {
    "Files": "nightjar.inference.output.reading",
    "Night": "nightjar.flows.outcome",
    "RunResult": "nightjar.flows.reports",
    "RunStatus": "nightjar.flows.reports",
    "backfill": "nightjar.flows.api",
    "files": "nightjar.flows.api",
    "nightly": "nightjar.flows.nightly",
    "run": "nightjar.flows.api",
    "status": "nightjar.flows.api",
}
"""Where each public name is defined. It is imported when it is asked for: Prefect and Ray take seconds."""


__getattr__ = public(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """This package: `nightly` and `backfill` are functions of it, although modules have these names, too."""

    def __setattr__(self, name: str, value: Any) -> None:
        # Python binds each module in its package when it is imported, and the name would mean the module from then on.
        if not (name in _MODULES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
