"""A run's artifacts on Prefect's pages: the progress bar, tables, and one page at the end.

They are bounded. If the API is slow or away, artifacts are lost, but never the run. Their keys contain the job's name,
so that each artifact has a history over nights.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from nightjar.flows.finished_run import FinishedRun
from nightjar.flows.pages import reportfiles
from nightjar.flows.pages.advice import Commands
from nightjar.flows.pages.ending import as_page, failure, summary
from nightjar.flows.pages.escaping import cell, code, markdown
from nightjar.flows.pages.wording import cells, describe, said_of
from nightjar.flows.prefect_api.api import API_AWAY, in_words
from nightjar.inference.errors import GateFailed, NightjarError, StorageError
from nightjar.inference.history.night import Report
from nightjar.inference.history.run_tables import Incident, ShardLine
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.run.request import RunRequest
from nightjar.inference.validation.gates import GateResult


def tables(request: RunRequest, report: Report) -> dict[str, Send]:
    """The tables of shards, of retries and quarantined rows, and of gates, by key, as functions that send them."""
    line, of = report.line, markdown(request.run_id)
    shown = f"All {line.shards:,} shards"
    if len(report.shards) < line.shards:
        shown = f"{len(report.shards):,} of {line.shards:,} shards"
    total = line.failed + line.rows_quarantined + line.rows_partial
    more = f" ({len(report.incidents):,} of {total:,})" if len(report.incidents) < total else ""
    complete = f"Complete in `shards-*.parquet` under {code(report.newest.uri)}"
    shards = f"{shown} of {of}: without result first, then retried, then slowest. {complete}"
    retries = f"Failed attempts and quarantined rows of {of}{more}; none is an empty table"
    return {
        **_table(request, "shards", [_headed(each) for each in report.shards], shards),
        **_table(request, "retries", [_headed(each) for each in report.incidents], retries),
        **gate_table(request, report.gates),
    }


def _table(request: RunRequest, name: str, lines: list[dict[str, Any]], about: str) -> dict[str, Send]:
    key = f"{request.job.name}-{name}"
    return {key: lambda: create_table_artifact(_bounded(lines), key=key, description=about)}


def _headed(record: ShardLine | Incident) -> dict[str, Any]:
    """A line of a table, keyed by headings for people."""
    return {name.replace("_", " "): value for name, value in cells(record).items()}


_PASSED = {"pass": "yes", "warn": "NO (warns)", "ask": "NO (asks)", "block": "NO"}


def gate_table(request: RunRequest, gates: tuple[GateResult, ...]) -> dict[str, Send]:
    """The table of gates, by key, as a function that sends it; nothing without a gate."""
    table = [
        {
            "gate": gate.name,
            "passed": _PASSED[gate.verdict],
            "observed": gate.observed,
            "limit": gate.limit,
            "what it means": gate.sentence,
            "where": "; ".join(said_of(offender) for offender in gate.where),
            "replay": gate.where[0].replay if gate.where else "",
        }
        for gate in gates
    ]
    return _table(request, "gates", table, f"Gates of {markdown(request.run_id)}") if table else {}


def _bounded(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Escape and shorten the cells, so that the page shows them, and the server emits the table's event.

    The page renders text in cells as Markdown; the server refuses an event above about 1.5 MB. A command stays whole.
    """
    return [
        {name: markdown(value) if name == "replay" else cell(value) for name, value in line.items()} for line in table
    ]


def show_summary(run: FinishedRun) -> None:
    """Write the report; send the tables, and the page that a person reads in the morning."""
    request = run.request
    report = reportfiles.leave(request, warn, account=None if run.scored.finished else run.account)
    state, page = summary(run, report.page if report else "")
    _deliver_all(request, page, state, tables(request, report) if report else {})
    if not run.scored.finished:
        deliver({bar(request): lambda: _complete(request, run.scored.progress)})


def show_failure(request: RunRequest, error: NightjarError, ray: str | None) -> None:
    """Write the report; send the tables, and the page of a run that failed. ray: the cluster that was named."""
    report = reportfiles.leave(request, warn)
    found = failure(Commands(request, ray=ray), error, report)
    due = tables(request, report) if report else {}
    if isinstance(error, GateFailed):
        due |= gate_table(request, error.gates)
    _deliver_all(request, as_page(found, request, str(error)), markdown(found.how), due)


def _deliver_all(request: RunRequest, page: str, state: str, more: dict[str, Send]) -> None:
    """The page comes first, as it says most."""
    key = f"{request.job.name}-summary"
    deliver({key: lambda: create_markdown_artifact(page, key=key, description=state), **more})


def bar(request: RunRequest) -> str:
    """The key of the progress bar."""
    return f"{request.job.name}-progress"


def _complete(request: RunRequest, progress: Progress) -> None:
    """Complete the bar of a run that is scored, if the API was away when scoring ended."""
    of_run, about = ArtifactFilterFlowRunId(any_=[flow_run.id]), so_far(request.run_id, progress)
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=of_run))
    bars = (each for each in found if each.key == bar(request))
    newest = max(bars, key=lambda each: str(each.created), default=None)
    if newest is None:
        create_progress_artifact(100.0, key=bar(request), description=about)
    elif newest.description != about:
        update_progress_artifact(newest.id, 100.0, description=about)


def warn(said: str) -> None:
    """Warn in the run's log; of nothing if the text is empty."""
    if said:
        get_run_logger().warning("%s", said)


EVERY_S = 2.0
"""Seconds between two updates of the bar, if it has moved."""


class ProgressArtifact:
    """A progress bar in Prefect's UI. A thread sends it, so that a slow or absent API never delays scoring."""

    def __init__(self, request: RunRequest) -> None:
        self._key = bar(request)
        self._run = request.run_id
        self._latest: Progress | None = None
        self._shown = ""
        self._artifact: Any = None
        self._done = threading.Event()
        self._thread = thread_of(self._loop)

    def __enter__(self) -> ProgressArtifact:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(PATIENCE_S)

    def show(self, progress: Progress) -> None:
        """Show this progress, which may keep changing; the thread sends it when it is due."""
        self._latest = progress

    def _loop(self) -> None:
        while True:
            last = self._done.wait(EVERY_S)
            self._send()
            if last:
                return

    def _send(self) -> None:
        progress = self._latest
        if progress is None or not progress.shards:
            return
        share, about = 100.0 * progress.done_shards / progress.shards, so_far(self._run, progress)
        if about == self._shown:
            return

        def send() -> None:
            if self._artifact is None:
                self._artifact = create_progress_artifact(share, key=self._key, description=about)
            else:
                update_progress_artifact(self._artifact, share, description=about)

        if sent({self._key: send}):
            self._shown = about


def so_far(run: str, progress: Progress) -> str:
    """The line below the bar, which says how far the run is."""
    loading = "; loading the model" if progress.step == "load" else ""
    return f"{markdown(run)}: {describe(progress)}{loading}"


PATIENCE_S = 5.0
"""Seconds that a task waits at its end until the API has taken its artifacts."""

Send = Callable[[], object]


def deliver(due: dict[str, Send]) -> None:
    """Send artifacts, by key, for at most `PATIENCE_S`. If the API is away, artifacts are lost, but never the run."""
    thread = thread_of(lambda: sent(due))
    thread.start()
    thread.join(PATIENCE_S)
    if thread.is_alive():
        get_run_logger().warning("Prefect's API took no artifact for %g s; going on: %s", PATIENCE_S, ", ".join(due))


def sent(due: dict[str, Send]) -> bool:
    """Send artifacts; those that fail are named in the run's log. Returns whether all were taken."""
    for key, send in due.items():
        try:
            send()
        # RuntimeError: the task has ended meanwhile and closed its connection.
        except (*API_AWAY, RuntimeError, StorageError) as error:
            get_run_logger().warning("the artifact %s could not be sent: %s", key, in_words(error))
            return False
    return True


def thread_of(target: Callable[[], object]) -> threading.Thread:
    """Make a thread that knows its task run."""
    context = contextvars.copy_context()
    return threading.Thread(target=lambda: context.run(target), daemon=True, name="nightjar-artifacts")
