"""What a person sees in the terminal while a run goes on."""

from __future__ import annotations

import datetime as dt
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

from nightjar.flows.pages.wording import describe, details, shards_done
from nightjar.inference.errors import StorageError
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.run.report import follow
from nightjar.inference.run.request import RunRequest

POLL_S = 0.5
PLAIN_EVERY_S = 10.0
_STEPS = {
    "plan": "planning",
    "load": "loading the model",
    "score": "scoring",
    "validate": "validating",
    "publish": "publishing",
}


class _Watch:
    """What is going on: a word of the command's until its flow writes the run's ledger, from then on what that says."""

    def __init__(self, request: RunRequest) -> None:
        self.name = f"{request.job.name} {request.run_id}"
        self.doing = "starting Ray and Prefect"
        self.flowing = threading.Event()
        self.done = threading.Event()
        self._request = request

    def flow_begins(self, waiting: str = "") -> None:
        """Ray and Prefect are there; or the flow waits for its input, and its ledger has nothing to say yet."""
        self.doing = waiting or "looking for input"
        self.flowing.clear() if waiting else self.flowing.set()

    def steps(self) -> Iterator[tuple[str, Progress | None]]:
        """What is being done and how far it is, every `POLL_S`, and once more at the end."""
        ledger = follow(self._request.storage, self._request.run_uri)
        before = self._writer_before(ledger)
        progress: Progress | None = None
        while True:
            last = self.done.wait(POLL_S)
            try:
                progress = next(ledger) if self.flowing.is_set() else None
                # What an earlier command left is not what this one does.
                progress = progress if progress and progress.writer != before else None
            except StorageError as error:
                # The display must not end a run that still can write; it looks again.
                print(f"progress cannot be read: {error}", file=sys.stderr)
                ledger = follow(self._request.storage, self._request.run_uri)
            yield (_STEPS[progress.step] if progress and progress.step else self.doing), progress
            if last:
                return

    def _writer_before(self, ledger: Iterator[Progress | None]) -> str:
        """Who wrote the run last before this command did."""
        with suppress(StorageError):
            found = next(ledger)
            return found.writer if found else ""
        return ""


class _Clock(ProgressColumn):
    """The time since the command began. Rich's own stands still where all shards are done: some steps follow then."""

    def render(self, task: Task) -> Text:
        return Text(str(dt.timedelta(seconds=int(task.elapsed or 0))), style="progress.elapsed")


@contextmanager
def following(request: RunRequest, console: Console, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show the run for as long as the context lasts; call what it gives when the flow begins.

    It takes what the flow waits for, empty if for nothing.
    """
    watch = _Watch(request)
    if quiet:
        yield watch.flow_begins
        return
    show = _live if console.is_terminal else _plain
    thread = threading.Thread(target=show, args=(watch, console), daemon=True, name="nightjar-display")
    thread.start()
    try:
        yield watch.flow_begins
    finally:
        watch.done.set()
        thread.join(timeout=10)


def _live(watch: _Watch, console: Console) -> None:
    """Two lines that stay in place and are gone at the end: a bar, and the figures below it."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[shards]}"),
        _Clock(),
    )
    bar = Bar(*columns, console=console)
    task: TaskID = bar.add_task(watch.doing, total=None, shards="")
    figures = Text(no_wrap=True, overflow="ellipsis", style="dim")
    with Live(Group(bar, figures), console=console, transient=True):
        for doing, progress in watch.steps():
            if progress is None:
                bar.update(task, description=doing)
                continue
            figures.plain = "  " + ", ".join(details(progress, True))
            bar.update(
                task,
                description=doing,
                total=progress.shards,
                completed=progress.done_shards,
                shards=shards_done(progress),
            )


def _plain(watch: _Watch, console: Console) -> None:
    """A line when the step changes, and every `PLAIN_EVERY_S` when the figures have."""
    step, shown, at = "", "", 0.0
    for doing, progress in watch.steps():
        now = time.monotonic()
        text = f"{doing}: {describe(progress, running=True)}" if progress else doing
        complete = progress is not None and progress.done_shards == progress.shards
        if text != shown and (doing != step or complete or now - at >= PLAIN_EVERY_S):
            console.print(f"{watch.name}: {text}", highlight=False, markup=False, soft_wrap=True)
            step, shown, at = doing, text, now
