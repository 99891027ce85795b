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
    from nightjar.inference.engine.protocol import Engine
    from nightjar.inference.errors import (
        ClusterError,
        GateFailed,
        Held,
        Interrupted,
        JobError,
        NightjarError,
        RunFailed,
        StorageError,
        TablesBehind,
    )
    from nightjar.inference.input.sources.protocol import Description, Source
    from nightjar.inference.input.sources.rows import RowsRead
    from nightjar.inference.job.file import load_job
    from nightjar.inference.job.model import Job
    from nightjar.inference.metrics.accumulators import Accumulator
    from nightjar.inference.output.targets import Target
    from nightjar.inference.predictors.adapter import Adapter, Predictor
    from nightjar.inference.storage.protocol import Storage
    from nightjar.inference.validation.judging import Judgement, NightEvidence

__all__ = [
    "Accumulator",
    "Adapter",
    "ClusterError",
    "Description",
    "Engine",
    "GateFailed",
    "Held",
    "Interrupted",
    "Job",
    "JobError",
    "Judgement",
    "NightEvidence",
    "NightjarError",
    "Predictor",
    "RowsRead",
    "RunFailed",
    "Source",
    "Storage",
    "StorageError",
    "TablesBehind",
    "Target",
    "load_job",
]

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
    "validation.judging": ("Judgement", "NightEvidence"),
}
"""The public names of each module, which is imported on first use: importing one module does not load the others."""

_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
