"""What a person sees in the terminal while a run goes on, and when it has ended."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn
from rich.progress import Progress as Bar

from nightjar.inference.errors import StorageError
from nightjar.inference.progress import Progress
from nightjar.inference.report import follow
from nightjar.inference.request import RunRequest

POLL_S = 0.5
PLAIN_EVERY_S = 10.0


def describe(progress: Progress) -> str:
    """One line: rows per second, retries, quarantined, time left."""
    parts = [f"{progress.done_shards}/{progress.shards} shards"]
    if progress.reused_shards:
        parts.append(f"{progress.reused_shards} already done")
    if progress.rows_per_s:
        parts.append(f"{progress.rows_per_s:,.0f} rows/s")
    if progress.failed_attempts or progress.retries:
        parts.append(f"{progress.failed_attempts} failed attempts, {progress.retries} retries in place")
    if progress.rows_quarantined:
        parts.append(f"{progress.rows_quarantined:,} quarantined")
    left = progress.remaining_s()
    if left is not None and progress.done_shards < progress.shards:
        parts.append(f"about {duration(left)} left")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Seconds for people: 0.4 s, 12 s, 3 min, 2 h 05 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


@contextmanager
def following(request: RunRequest, console: Console, *, quiet: bool) -> Iterator[None]:
    """Show the run's progress from its ledger for as long as the context lasts."""
    if quiet:
        yield
        return
    done = threading.Event()
    show = _live if console.is_terminal else _plain
    thread = threading.Thread(target=show, args=(request, console, done), daemon=True, name="nightjar-display")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=10)


def _steps(request: RunRequest, done: threading.Event, every_s: float) -> Iterator[Progress]:
    """The run's progress whenever it changed, and once more at the end."""
    ledger = follow(request.storage, request.run_uri)
    while True:
        last = done.wait(every_s)
        try:
            progress = next(ledger, None)
        except StorageError as error:
            # The display must not end a run that still can write; it looks again.
            print(f"progress cannot be read: {error}", file=sys.stderr)
            ledger = follow(request.storage, request.run_uri)
            progress = None
        if progress is not None:
            yield progress
        if last:
            return


def _live(request: RunRequest, console: Console, done: threading.Event) -> None:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.fields[step]}"),
        BarColumn(bar_width=30),
        TextColumn("{task.description}"),
    )
    with Bar(*columns, console=console, transient=True) as bar:
        task: TaskID = bar.add_task("starting Ray and Prefect", total=None, step=request.run_id)
        for progress in _steps(request, done, POLL_S):
            bar.update(task, total=progress.shards, completed=progress.done_shards, description=describe(progress))


def _plain(request: RunRequest, console: Console, done: threading.Event) -> None:
    shown, at = "", 0.0
    for progress in _steps(request, done, POLL_S):
        now = time.monotonic()
        text = describe(progress)
        if text != shown and (now - at >= PLAIN_EVERY_S or progress.done_shards == progress.shards):
            console.print(f"{request.run_id}: {text}", highlight=False, soft_wrap=True)
            shown, at = text, now
