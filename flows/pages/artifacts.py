"""A run's artifacts on Prefect's pages: tables, and one page at the end. They are bounded, and never stop a run.

Their keys contain the job's name, so that each artifact has a history over nights.
"""

from __future__ import annotations

from collections.abc import Iterable

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from nightjar.flows.pages.bar import so_far
from nightjar.flows.pages.delivery import deliver
from nightjar.flows.pages.escaping import address, markdown
from nightjar.flows.pages.failure import as_page, failure
from nightjar.flows.pages.finished import as_page as finished_page
from nightjar.flows.pages.report import writing
from nightjar.flows.pages.report.charts import pictures
from nightjar.flows.pages.tables import gate_table, shard_tables
from nightjar.inference.errors import NightjarError, StorageError
from nightjar.inference.output.revisions import newest_revision
from nightjar.inference.run.account import Account
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.steps import Publication, Scored, Verdict
from nightjar.inference.validation.gates import GateResult


def show_shards(request: RunRequest) -> None:
    """Send the tables of shards, and of retries and quarantines, of the run's newest revision."""
    try:
        newest = newest_revision(request.storage, request.run_uri)
        tables = shard_tables(request, newest) if newest is not None else {}
    except StorageError as error:
        # If the storage is away or damaged, the step itself, or the next one, reports it.
        get_run_logger().warning("no tables of the shards: %s", error)
        return
    deliver(tables)


def show_gates(request: RunRequest, gates: tuple[GateResult, ...]) -> None:
    """Send the table of gates."""
    deliver(gate_table(request, gates))


def catch_up(request: RunRequest, scored: Scored, verdict: Verdict) -> None:
    """Send again what was due while the API was away."""
    name = request.job.name

    def send() -> None:
        shown = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run.id]))
        client = get_client(sync_client=True)
        known = {artifact.key: artifact for artifact in client.read_artifacts(artifact_filter=shown)}
        bar, about = known.get(f"{name}-progress"), so_far(request.run_id, scored.progress)
        if bar is None:
            create_progress_artifact(100.0, key=f"{name}-progress", description=about)
        elif bar.description != about:
            update_progress_artifact(bar.id, 100.0, description=about)
        due = {**gate_table(request, verdict.gates)}
        if not {f"{name}-shards", f"{name}-retries"} <= set(known):
            due |= shard_tables(request, scored.revision)
        for key, again in due.items():
            if key not in known:
                again()

    deliver({"what was missed": send})


def show_summary(
    request: RunRequest, scored: Scored, verdict: Verdict, publication: Publication, account: Account | None
) -> None:
    """Write the report; send the page that a person reads in the morning, and a link to the output. account: where the
    time of the run went, if it is known.
    """
    left = _leave_report(request, finished=scored.finished, account=account)
    where = f"{request.run_uri}/r{scored.revision}"
    state, page = finished_page(request, scored, verdict, publication, left.report, account)
    page += pictures(left.plots)
    name = request.job.name
    deliver(
        {
            f"{name}-summary": lambda: create_markdown_artifact(page, key=f"{name}-summary", description=state),
            f"{name}-output": lambda: create_link_artifact(
                address(where),
                link_text=markdown(where),
                key=f"{name}-output",
                description=f"Output of {markdown(request.run_id)}",
            ),
        }
    )


def _leave_report(request: RunRequest, *, finished: bool = False, account: Account | None = None) -> writing.Left:
    """Write the report of the night; why it could not be written is in the log. As `leave`."""
    warn = get_run_logger().warning
    return writing.leave(request, lambda said: warn("%s", said), finished=finished, account=account)


def show_failure(request: RunRequest, error: NightjarError, ray: str | None) -> None:
    """Write the report; send the page of a run that failed. ray: the cluster that was named."""
    left = _leave_report(request)
    found = failure(request, error, request.job_path, ray, left.report)
    key, page = f"{request.job.name}-summary", as_page(found, request, error) + pictures(left.plots)
    log_remarks(found.remarks)
    deliver({key: lambda: create_markdown_artifact(page, key=key, description=markdown(found.how))})


def log_remarks(remarks: Iterable[tuple[str, str]]) -> None:
    """Log what a person should know about how a run was scored."""
    for word, text in remarks:
        get_run_logger().info("%s: %s", word, text)
