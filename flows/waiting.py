"""A run that waits for its input: it says so on the terminal, in its log and on its page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from prefect.artifacts import create_progress_artifact
from prefect.logging import get_run_logger

from nightjar.flows.pages import artifacts
from nightjar.flows.pages.escaping import markdown
from nightjar.inference.errors import GateFailed
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.waiting import Awaited, await_input


def _silent(_: str) -> None:
    """Nobody is watching."""


_show: ContextVar[Callable[[str], None]] = ContextVar("show", default=_silent)


@contextmanager
def showing(show: Callable[[str], None]) -> Iterator[None]:
    """For the flow called within: where to show what it waits for; an empty text once it waits no more."""
    token = _show.set(show)
    try:
        yield
    finally:
        _show.reset(token)


def wait_for_input(request: RunRequest, *, patient: bool) -> bool:
    """Return once the input that the job waits for is there; whether it had to be waited for.

    patient: false to look once only.

    Raises:
        GateFailed: it was not there in time; its gate is on the page then.
    """
    show, key = _show.get(), f"{request.job.name}-progress"

    def tell(now: Awaited) -> None:
        about = f"{markdown(request.run_id)}: {markdown(now.sentence)}"
        show(now.sentence)
        get_run_logger().info("%s", now.sentence)
        artifacts.deliver({key: lambda: create_progress_artifact(0.0, key=key, description=about)})

    try:
        waited = await_input(request.storage, request.job, tell, patient=patient)
    except GateFailed as error:
        artifacts.show_gates(request, error.gates)
        raise
    if waited:
        get_run_logger().info("the input is there")
    show("")
    return waited
