"""Ledger → Prefect artifacts: what a person sees of a run. Bounded, and never a reason to stop scoring.

Keys carry the job's name, so that each has a history over nights.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

import httpx
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger

from nightjar.inference.gates import GateResult
from nightjar.inference.progress import Progress
from nightjar.inference.report import MAX_LINES, RunReport
from nightjar.inference.request import RunRequest
from nightjar.inference.run import Publication, Scored, Verdict

EVERY_S = 2.0
_CELL = 300


class ProgressArtifact:
    """A progress bar in Prefect's UI, fed from a thread: an API that is slow or away never delays scoring."""

    def __init__(self, request: RunRequest) -> None:
        self._key = f"{request.job.name}-progress"
        self._run = request.run_id
        self._latest: Progress | None = None
        self._shown: tuple[int, int] | None = None
        self._artifact: Any = None
        self._done = threading.Event()
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=lambda: context.run(self._loop), daemon=True, name="nightjar-progress")

    def __enter__(self) -> ProgressArtifact:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(timeout=30)

    def __call__(self, progress: Progress) -> None:
        """Take note; the thread sends it when it is due."""
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
        now = (progress.done_shards, progress.shards)
        if now == self._shown:
            return
        share = 100.0 * progress.done_shards / progress.shards
        about = (
            f"{self._run}: {progress.done_shards} of {progress.shards} shards, {progress.rows_out:,} rows scored, "
            f"{progress.rows_quarantined:,} quarantined, {progress.failed_attempts} failed attempts"
        )

        def send() -> None:
            if self._artifact is None:
                self._artifact = create_progress_artifact(share, key=self._key, description=about)
            else:
                update_progress_artifact(self._artifact, share, description=about)

        if _tolerant("the progress artifact", send):
            self._shown = now


def show_shards(request: RunRequest, revision: int) -> None:
    """The tables of shards, and of retries and quarantines."""
    report = RunReport(request, revision)
    shards = report.shards()
    total = len(report.plan)
    shown = f"All {total} shards" if len(shards) == total else f"{len(shards)} of {total} shards"
    _tolerant(
        "the shard table",
        lambda: create_table_artifact(
            _bounded(shards),
            key=f"{request.job.name}-shards",
            description=f"{shown} of {request.run_id}: without result first, then retried, then slowest. "
            f"Complete in `shards-*.parquet` under {report.uri}",
        ),
    )
    incidents = report.incidents()
    more = f" (the first {MAX_LINES})" if len(incidents) == MAX_LINES else ""
    _tolerant(
        "the table of retries",
        lambda: create_table_artifact(
            _bounded(incidents),
            key=f"{request.job.name}-retries",
            description=f"Failed attempts and quarantined rows of {request.run_id}{more}; none is an empty table",
        ),
    )


def show_gates(request: RunRequest, gates: tuple[GateResult, ...]) -> None:
    """The table of gates."""
    table = [
        {
            "gate": gate.name,
            "passed": "yes" if gate.passed else "NO",
            "observed": gate.observed,
            "limit": gate.limit,
            "what it means": gate.sentence,
        }
        for gate in gates
    ]
    _tolerant(
        "the gates",
        lambda: create_table_artifact(
            _bounded(table), key=f"{request.job.name}-gates", description=f"Gates of {request.run_id}"
        ),
    )


def show_summary(request: RunRequest, scored: Scored, verdict: Verdict, publication: Publication) -> None:
    """The page a person reads in the morning, and links to the output."""
    progress = scored.progress
    where = f"{request.run_uri}/r{scored.revision}"
    state = f"published as #{publication.number}" if publication.number else "not published"
    lines = [
        f"# {request.job.name} {request.run_id}: {state}",
        "",
        "| | |",
        "|---|---|",
        f"| rows in | {progress.rows:,} |",
        f"| rows out | {progress.rows_out:,} |",
        f"| quarantined | {progress.rows_quarantined:,} |",
        f"| shards | {progress.shards:,} ({progress.reused_shards:,} taken over) |",
        f"| failed attempts | {progress.failed_attempts:,} |",
        f"| gates | {sum(gate.passed for gate in verdict.gates)} of {len(verdict.gates)} passed |",
        *[f"| {name} | {value} |" for name, value in evaluation_lines(verdict.metrics)],
        f"| output | `{where}/data` |",
        f"| manifest | `{request.output}/{publication.manifest}` |",
        "",
        f"The exact files: `nightjar files {request.job_path} --run-id {request.run_id}`",
    ]
    _tolerant(
        "the summary",
        lambda: create_markdown_artifact("\n".join(lines), key=f"{request.job.name}-summary", description=state),
    )
    _tolerant(
        "the link to the output",
        lambda: create_link_artifact(
            _link(where), link_text=where, key=f"{request.job.name}-output", description=f"Output of {request.run_id}"
        ),
    )


def evaluation_lines(metrics: dict[str, Any]) -> list[tuple[str, str]]:
    """The evaluation as (name, value), empty without a label."""
    found = metrics.get("evaluation")
    if not found:
        return []
    lines = []
    if found["auc_roc"] is not None:
        lines.append(("AUC-ROC", f"{found['auc_roc']:.4f} ± {found['auc_bound']:.4f} over {found['rows']:,} rows"))
    if found["log_loss"] is not None:
        lines.append(("log loss", f"{found['log_loss']:.4f}"))
    return lines


def _link(uri: str) -> str:
    return uri if "://" in uri else f"file://{uri}"


def _bounded(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cells short enough that the server also emits its event, which it refuses above about 1.5 MB."""
    return [
        {
            name: value[:_CELL] + "…" if isinstance(value, str) and len(value) > _CELL else value
            for name, value in line.items()
        }
        for line in table
    ]


def _tolerant(what: str, send: Callable[[], object]) -> bool:
    """Send; an API that does not take it costs the artifact, not the run."""
    try:
        send()
    except (httpx.HTTPError, PrefectException, OSError) as error:
        get_run_logger().warning("%s could not be sent: %s", what, error)
        return False
    return True
