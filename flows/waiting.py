"""Waits for a run's input; says what a run waits for on the terminal, in the run's log and on its page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from prefect.artifacts import create_progress_artifact
from prefect.logging import get_run_logger

from nightjar.flows.pages import artifacts
from nightjar.flows.pages.delivery import deliver
from nightjar.flows.pages.escaping import markdown
from nightjar.inference.errors import GateFailed
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.waiting import Awaited, await_input


def _silent(_: str) -> None:
    """Nobody is watching."""


_show: ContextVar[Callable[[str], None]] = ContextVar("show", default=_silent)


@contextmanager
def showing(show: Callable[[str], None]) -> Iterator[None]:
    """Make the flow called in this context show what it waits for; with an empty text when it does not wait any
    more.
    """
    token = _show.set(show)
    try:
        yield
    finally:
        _show.reset(token)


_once: ContextVar[bool] = ContextVar("once", default=False)


@contextmanager
def looking_once() -> Iterator[None]:
    """Make the flows called in this context look for their input only once: other nights wait behind them."""
    token = _once.set(True)
    try:
        yield
    finally:
        _once.reset(token)


def wait_for_input(request: RunRequest, *, patient: bool) -> bool:
    """Return when the input that the job waits for is there. Returns whether the run had to wait.

    patient: False to look only once, as `looking_once` says, too.

    Raises:
        GateFailed: The input did not come in time; its page shows the gate.
    """

    def tell(now: Awaited) -> None:
        tell_waiting(request, now.sentence)

    try:
        waited = await_input(request.storage, request.job, tell, patient=patient and not _once.get())
    except GateFailed as error:
        artifacts.show_gates(request, error.gates)
        raise
    if waited:
        get_run_logger().info("the input is there")
    over()
    return waited


def tell_waiting(request: RunRequest, sentence: str) -> None:
    """Say what the run waits for: on the terminal, in its log and on its page."""
    key, about = f"{request.job.name}-progress", f"{markdown(request.run_id)}: {markdown(sentence)}"
    _show.get()(sentence)
    get_run_logger().info("%s", sentence)
    deliver({key: lambda: create_progress_artifact(0.0, key=key, description=about)})


def over() -> None:
    """Show no more that the run waits."""
    _show.get()("")
