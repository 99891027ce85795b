"""What the commands and the Python functions report: frozen records, whose fields are the keys of `--json`.

The commands print them with `options.emit`. `docs/json/` has the JSON Schema of each command's output, made from these
classes by `tests/json_schemas.py`.
"""

from __future__ import annotations

from nightjar.flows.reports.ahead import CheckReport, Column, Estimate, PlanReport, Sample, TokenEstimate
from nightjar.flows.reports.ran import (
    DecisionMade,
    EngineFigures,
    LogLine,
    Problem,
    PublicationListed,
    RolledBack,
    RunResult,
    Seconds,
    UsageFigures,
)
from nightjar.flows.reports.stands import (
    Explained,
    FailedShard,
    NightListed,
    ReportWritten,
    RunListed,
    RunShown,
    RunStatus,
)

__all__ = [
    "CheckReport",
    "Column",
    "DecisionMade",
    "EngineFigures",
    "Estimate",
    "Explained",
    "FailedShard",
    "LogLine",
    "NightListed",
    "PlanReport",
    "Problem",
    "PublicationListed",
    "ReportWritten",
    "RolledBack",
    "RunListed",
    "RunResult",
    "RunShown",
    "RunStatus",
    "Sample",
    "Seconds",
    "TokenEstimate",
    "UsageFigures",
]
