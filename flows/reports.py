"""What the commands and the Python functions report: frozen records, whose fields are the keys of `--json`.

`as_data` is the one place that turns a record into JSON. `docs/json/` has the JSON Schema of each command's output,
made from these classes (`flows/cli/schemas.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nightjar.inference.ledger.endings import Ended


def as_data(report: Any) -> Any:
    """A report as JSON has it: objects, lists and plain values. Takes a record, or a list of records."""
    return [as_data(each) for each in report] if isinstance(report, list | tuple) else asdict(report)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a command failed. error: the class of the exception. job, run_id: empty until they are known.

    state: `failed`, `held` (another writer holds the run) or `interrupted`.
    """

    state: str
    error: str
    message: str
    job: str = ""
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class Seconds:
    """How long each part of a command took, in seconds. ray, prefect: until they had started, side by side."""

    total: float
    ray: float
    prefect: float
    discover: float
    score: float
    validate: float
    publish: float


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """startup_s: until the model was loaded. first_start: when the first shard was begun, in seconds since 1970.

    steady_s: from the first shard's start to the last one's end. rows_per_s: scored in that time.
    """

    startup_s: float
    first_start: float
    steady_s: float
    rows_per_s: int


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished run. rows_in = rows_out + rows_quarantined.

    state: `published`, or `validated` where it was not to be published. publication: its number, else 0. reused_shards:
    those that were committed before. again: what made shards old that had a result. notes: what a person should know of
    how it was scored. unreported: why Prefect's API does not know how the run ended. metrics: what the audit computed
    of outputs and labels. manifest: its URI.
    """

    job: str
    run_id: str
    revision: int
    state: str
    publication: int
    rows_in: int
    rows_out: int
    rows_quarantined: int
    shards: int
    reused_shards: int
    failed_attempts: int
    retries: int
    batches_cut: int
    deaths: int
    device: str
    again: tuple[str, ...]
    notes: tuple[str, ...]
    unreported: str
    metrics: Mapping[str, Any]
    manifest: str
    seconds: Seconds
    engine: EngineFigures


@dataclass(frozen=True, slots=True)
class FailedShard:
    """A shard without a result: how often it was tried, and the cause (a word) and message of the last attempt."""

    shard: str
    attempts: int
    cause: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """How a run stands, why, and what to do about it.

    state: published, rolled back (also by `unpublish`), publishing, running, silent, failed, rejected, stopped,
    limited, validated, killed, unfinished, unreadable or unknown. standing: the state with the gate or step. cause: why
    it stands so, a sentence. ended: how it ended without a publication. tried_again: how the last try ended that could
    not begin. commands: what to do, each under a word for it.
    """

    state: str
    standing: str
    cause: str
    ended: Ended | None
    tried_again: Ended | None
    commands: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus(Explained):
    """How far a run is. A run that never began has revision 0 and no shards.

    holder: who writes it now. published_revision: the one readers see, if they see one of this run. publication: the
    newest publication of the output, whatever it shows. published: the last of the runs that readers see.
    rows_out, rows_quarantined, committed: of the shards that are done. failures: the first of the failed shards.
    """

    job: str
    job_file: str
    run_id: str
    revision: int = 0
    holder: str | None = None
    published_revision: int | None = None
    publication: int = 0
    published: tuple[str, ...] = ()
    shards: int = 0
    committed: int = 0
    rows_out: int = 0
    rows_quarantined: int = 0
    summary: str = ""
    again: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    failed_shards: int = 0
    failures: tuple[FailedShard, ...] = ()
