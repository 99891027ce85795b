"""The progress bar of a run in Prefect's UI."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from prefect.artifacts import create_progress_artifact, update_progress_artifact

from nightjar.flows.pages.delivery import PATIENCE_S, sent, thread_of
from nightjar.flows.pages.escaping import markdown
from nightjar.flows.pages.wording import partly
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.messages import counted
from nightjar.inference.records import Event
from nightjar.inference.run.listeners import Listener
from nightjar.inference.run.request import RunRequest

EVERY_S = 2.0
"""Seconds between two updates of the bar, if it has moved."""


class ProgressArtifact(Listener):
    """A progress bar in Prefect's UI. A thread sends it, so that a slow or absent API never delays scoring."""

    def __init__(self, request: RunRequest) -> None:
        self._key = f"{request.job.name}-progress"
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

    def progress(self, progress: Progress) -> None:
        """Note the progress; the thread sends it when it is due."""
        self._latest = progress

    def events(self, events: Sequence[Event]) -> None:
        """Do nothing: the bar shows only totals."""

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
    return (
        f"{markdown(run)}: {progress.done_shards:,} of {progress.shards:,} shards, {progress.rows_out:,} rows scored, "
        f"{progress.rows_quarantined:,} quarantined, {partly(progress)}"
        f"{counted(progress.failed_attempts, 'failed attempt')}"
        + ("; loading the model" if progress.step == "load" else "")
    )
