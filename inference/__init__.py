"""How a job is scored. Programs may build on the public names below.

`Job` is the model of a job file, and `load_job` reads one. `Storage`, `Source`, `Engine`, `Adapter`, `Predictor` and
`Target` are the seams: a new storage, format, engine, framework or kind of table is a class with these methods. A
check of your own is given a `NightEvidence`, and may return a `Judgement`. The functions of `nightjar.flows` raise the
errors.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nightjar.inference.engine.protocol import Engine as Engine
    from nightjar.inference.errors import ClusterError as ClusterError
    from nightjar.inference.errors import GateFailed as GateFailed
    from nightjar.inference.errors import Held as Held
    from nightjar.inference.errors import Interrupted as Interrupted
    from nightjar.inference.errors import JobError as JobError
    from nightjar.inference.errors import NightjarError as NightjarError
    from nightjar.inference.errors import RunFailed as RunFailed
    from nightjar.inference.errors import StorageError as StorageError
    from nightjar.inference.errors import TablesBehind as TablesBehind
    from nightjar.inference.input.sources.protocol import Description as Description
    from nightjar.inference.input.sources.protocol import Source as Source
    from nightjar.inference.input.sources.rows import RowsRead as RowsRead
    from nightjar.inference.job.file import load_job as load_job
    from nightjar.inference.job.model import Job as Job
    from nightjar.inference.metrics.accumulators import Accumulator as Accumulator
    from nightjar.inference.output.targets import Target as Target
    from nightjar.inference.predictors.adapter import Adapter as Adapter
    from nightjar.inference.predictors.adapter import Predictor as Predictor
    from nightjar.inference.storage.protocol import Storage as Storage
    from nightjar.inference.validation.gates import Judgement as Judgement
    from nightjar.inference.validation.gates import NightEvidence as NightEvidence

_NAMES = {
    "engine.protocol": ("Engine",),
    "errors": (
        *("ClusterError", "GateFailed", "Held", "Interrupted", "JobError"),
        *("NightjarError", "RunFailed", "StorageError", "TablesBehind"),
    ),
    "input.sources.protocol": ("Description", "Source"),
    "input.sources.rows": ("RowsRead",),
    "job.file": ("load_job",),
    "job.model": ("Job",),
    "metrics.accumulators": ("Accumulator",),
    "output.targets": ("Target",),
    "predictors.adapter": ("Adapter", "Predictor"),
    "storage.protocol": ("Storage",),
    "validation.gates": ("Judgement", "NightEvidence"),
}
"""The public names of each module, which is imported on first use: importing one module does not load the others."""

_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
