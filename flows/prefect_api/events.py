"""Events for Prefect's automations: a night was published, failed, or asks a person; a table is behind.

Each event is about `nightjar.job.<name>`; Prefect adds the flow run, its deployment and its tags. If the API is away,
events are lost, but never a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prefect.events import emit_event

from nightjar.inference.errors import NightjarError, RunFailed, StorageError
from nightjar.inference.history.run_tables import lost
from nightjar.inference.output.revisions import newest_revision, revision_uri
from nightjar.inference.run.request import RunRequest

if TYPE_CHECKING:
    from nightjar.flows.results import FinishedRun

PUBLISHED = "nightjar.run.published"
FAILED = "nightjar.run.failed"
ASKS = "nightjar.run.asks"
TABLES_BEHIND = "nightjar.tables.behind"


def published(finished: FinishedRun) -> None:
    """A night is there to be read. A run that had nothing to do, or was not to publish, is no news.

    That tables of the job do not show it is an event of its own, after the other.
    """
    publication, request = finished.publication, finished.request
    if publication.number and not finished.scored.finished:
        _published(finished)
    if publication.tables_behind:
        _emit(TABLES_BEHIND, request, publication=publication.number, message="; ".join(publication.tables_behind))


def _published(finished: FinishedRun) -> None:
    publication, request = finished.publication, finished.request
    progress, counts = finished.scored.progress, finished.scored.progress.counts
    _emit(
        PUBLISHED,
        request,
        publication=publication.number,
        revision=publication.revision,
        rows_in=counts.rows_in,
        rows_out=counts.rows_out,
        rows_quarantined=counts.rows_quarantined,
        rows_partial=counts.rows_partial,
        shards=progress.shards,
        data=f"{revision_uri(request.run_uri, publication.revision)}/data",
        manifest=f"{request.output}/{publication.manifest}",
    )


def failed(request: RunRequest, error: NightjarError) -> None:
    """Send the event of a run that ended without a publication."""
    shards = _lost(request) if isinstance(error, RunFailed) else 0
    _emit(FAILED, request, error=type(error).__name__, message=str(error), shards_failed=shards)


def asks(request: RunRequest, error: NightjarError) -> None:
    """Send the event of a run that a person must approve before it is published."""
    _emit(ASKS, request, message=str(error))


def refused(name: str, job: str, error: NightjarError) -> None:
    """Send the event of a run that could not begin, because the job is wrong. name: of the job. job: the file's
    path.
    """
    _send(FAILED, name, {}, job=job, error=type(error).__name__, message=str(error))


def _lost(request: RunRequest) -> int:
    """The number of failed shards without a result."""
    try:
        newest = newest_revision(request.storage, request.run_uri)
        return len(lost(newest)) if newest is not None else 0
    except StorageError:
        return 0  # The run failed because the storage is away, and the event says so.


def _emit(event: str, request: RunRequest, **payload: Any) -> None:
    run = {"run_id": request.run_id, "date": request.date}
    about = {"nightjar.run": request.run_id, "nightjar.date": request.date}
    _send(event, request.job.name, about, job=request.job_path, **run, **payload)


def _send(event: str, name: str, about: dict[str, str], **payload: Any) -> None:
    resource = {"prefect.resource.id": f"nightjar.job.{name}", "prefect.resource.name": name, **about}
    emit_event(event, resource=resource, payload=payload)
