"""The display in the terminal while a run goes on."""

from __future__ import annotations

import datetime as dt
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

from nightjar.flows.pages.escaping import line
from nightjar.flows.pages.wording import describe, details, shards_done
from nightjar.inference.errors import StorageError
from nightjar.inference.history.run_tables import follow
from nightjar.inference.ledger.progress import Progress
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
    """What the run is doing: a word from the command until its flow writes the ledger, then what the ledger says."""

    def __init__(self, request: RunRequest) -> None:
        self.name = f"{request.job.name} {request.run_id}"
        self.doing = "starting Ray and Prefect"
        self.flowing = threading.Event()
        self.done = threading.Event()
        self._request = request
        self._ledger = follow(request.storage, request.run_uri)

    def tell(self, waiting: str = "") -> None:
        """Show what the run waits for. An empty text: the flow begins or goes on, and the ledger says what it does."""
        self.doing = line(waiting) or "looking for input"
        self.flowing.clear() if waiting else self.flowing.set()

    def steps(self) -> Iterator[tuple[str, Progress | None]]:
        """Yield what is being done and the progress, every `POLL_S`, and once more at the end."""
        found = self._progress()
        before = found.writer if found else ""  # the last one before this command
        while True:
            last = self.done.wait(POLL_S)
            found = self._progress() if self.flowing.is_set() else None
            # Progress of an earlier command is not this one's.
            progress = found if found and found.writer != before else None
            yield (_STEPS.get(progress.step, self.doing) if progress else self.doing), progress
            if last:
                return

    def _progress(self) -> Progress | None:
        """The progress by the ledger; None if there is none, or if it cannot be read: the run may still write."""
        try:
            return next(self._ledger)
        except StorageError as error:
            print(f"progress cannot be read: {error}", file=sys.stderr)
            self._ledger = follow(self._request.storage, self._request.run_uri)  # an iterator that raised has ended
            return None


class _Clock(ProgressColumn):
    """The time since the command began. Rich's own clock stops when all shards are done, but some steps follow then."""

    def render(self, task: Task) -> Text:
        return Text(str(dt.timedelta(seconds=int(task.elapsed or 0))), style="progress.elapsed")


@contextmanager
def following(request: RunRequest, console: Console | None) -> Iterator[Callable[[str], None]]:
    """Show the run during this context. Call the yielded function with what the run waits for, and with an empty text
    when its flow goes on.
    """
    watch = _Watch(request)
    if console is None:
        yield watch.tell
        return
    show = _live if console.is_terminal else _plain
    thread = threading.Thread(target=show, args=(watch, console), daemon=True, name="nightjar-display")
    thread.start()
    try:
        yield watch.tell
    finally:
        watch.done.set()
        thread.join(timeout=10)


def _live(watch: _Watch, console: Console) -> None:
    """Show two lines that stay in place and vanish at the end: a bar, and the figures below it."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[shards]}", markup=False),
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
    """Print a line when the step changes, and every `PLAIN_EVERY_S` if the figures have changed."""
    step, shown, at = "", "", 0.0
    for doing, progress in watch.steps():
        now = time.monotonic()
        text = f"{doing}: {describe(progress, running=True)}" if progress else doing
        complete = progress is not None and progress.done_shards == progress.shards
        if text != shown and (doing != step or complete or now - at >= PLAIN_EVERY_S):
            console.print(f"{watch.name}: {text}", highlight=False, markup=False, soft_wrap=True)
            step, shown, at = doing, text, now
