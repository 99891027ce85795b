"""What Prefect's automations can act on: a night published, a night failed, a shard without result.

Each event is about `nightjar.job.<name>`; Prefect adds the flow run, its deployment and its tags by itself. An API
that is away loses events, never a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prefect.events import emit_event

from nightjar.inference.errors import NightjarError, RunFailed, StorageError
from nightjar.inference.output.revisions import newest_revision, revision_uri
from nightjar.inference.run.report import lost
from nightjar.inference.run.request import RunRequest

if TYPE_CHECKING:
    from nightjar.flows.outcome import Outcome

PUBLISHED = "nightjar.run.published"
FAILED = "nightjar.run.failed"
SHARD_FAILED = "nightjar.shard.failed"

MAX_SHARDS = 50
"""So many shards of one run get an event of their own; `nightjar.run.failed` says how many there are."""


def published(outcome: Outcome) -> None:
    """A night is there to be read. A run that had nothing to do, or was not to publish, is no news."""
    publication, request = outcome.publication, outcome.request
    if not publication.number or outcome.scored.finished:
        return
    progress = outcome.scored.progress
    _emit(
        PUBLISHED,
        request,
        publication=publication.number,
        revision=publication.revision,
        rows_in=progress.rows,
        rows_out=progress.rows_out,
        rows_quarantined=progress.rows_quarantined,
        shards=progress.shards,
        data=f"{revision_uri(request.run_uri, publication.revision)}/data",
        manifest=f"{request.output}/{publication.manifest}",
    )


def failed(request: RunRequest, error: NightjarError) -> None:
    """A run ended without a publication."""
    shards = _lost(request) if isinstance(error, RunFailed) else []
    _emit(FAILED, request, error=type(error).__name__, message=str(error), shards_failed=len(shards))
    for shard in shards[:MAX_SHARDS]:
        _emit(SHARD_FAILED, request, **shard)


def refused(name: str, job: str, error: NightjarError) -> None:
    """A run could not begin: its job, or what the job names, is wrong. name: the job's; job: its path."""
    emit_event(
        FAILED,
        resource={"prefect.resource.id": f"nightjar.job.{name}", "prefect.resource.name": name},
        payload={"job": job, "error": type(error).__name__, "message": str(error)},
    )


def _lost(request: RunRequest) -> list[dict[str, Any]]:
    """The shards that failed and have no result, with the last thing said of each."""
    try:
        newest = newest_revision(request.storage, request.run_uri)
        found = lost(request.storage, newest) if newest is not None else {}
    except StorageError:
        return []  # The storage that is away is why the run failed: that is told.
    return [
        {
            "shard": shard,
            "file": said[-1].uri,
            "attempts": len(said),
            "cause": said[-1].cause,
            "message": said[-1].message,
        }
        for shard, said in found.items()
    ]


def _emit(event: str, request: RunRequest, **payload: Any) -> None:
    name = request.job.name
    emit_event(
        event,
        resource={
            "prefect.resource.id": f"nightjar.job.{name}",
            "prefect.resource.name": name,
            "nightjar.run": request.run_id,
            "nightjar.date": request.date,
        },
        payload={"job": request.job_path, "run_id": request.run_id, "date": request.date, **payload},
    )
