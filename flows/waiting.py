"""Waits for a run's input; says what a run waits for on the terminal, in the run's log and on its page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from prefect.artifacts import create_progress_artifact
from prefect.logging import get_run_logger

from nightjar.flows.pages import artifacts
from nightjar.flows.pages.delivery import deliver
from nightjar.flows.pages.escaping import markdown
from nightjar.inference.errors import GateFailed
from nightjar.inference.held import held
from nightjar.inference.output.owner import leave_unowned
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.waiting import Awaited, await_input
from nightjar.inference.run.waits import keeping


def _silent(_: str) -> None:
    """Nobody is watching."""


_show: ContextVar[Callable[[str], None]] = ContextVar("show", default=_silent)


def showing(show: Callable[[str], None]) -> AbstractContextManager[None]:
    """Make the flow called in this context show what it waits for; with an empty text when it does not wait any
    more.
    """
    return held(_show, show)


_once: ContextVar[bool] = ContextVar("once", default=False)


def looking_once() -> AbstractContextManager[None]:
    """Make the flows called in this context look for their input only once: other nights wait behind them."""
    return held(_once, True)


def wait_for_input(request: RunRequest, *, patient: bool) -> bool:
    """Return when the input that the job waits for is there. Returns whether the run had to wait.

    patient: False to look only once, as `looking_once` says, too.

    Raises:
        GateFailed: The input did not come in time; its page shows the gate.
    """

    with waiting(request) as tell:

        def told(now: Awaited) -> None:
            tell(now.sentence)

        try:
            waited = await_input(request.storage, request.job, told, patient=patient and not _once.get())
        except GateFailed as error:
            artifacts.show_gates(request, error.gates)
            raise
    if waited:
        get_run_logger().info("the input is there")
    return waited


@contextmanager
def waiting(request: RunRequest) -> Iterator[Callable[[str], None]]:
    """Say what the run waits for until the end of the block, each time that it is told: on the terminal, in its log, on
    its page, and beside its revisions for `nightjar status`.
    """
    key = f"{request.job.name}-progress"
    try:
        with keeping(request) as keep:

            def tell(sentence: str) -> None:
                about = f"{markdown(request.run_id)}: {markdown(sentence)}"
                _show.get()(sentence)
                get_run_logger().info("%s", sentence)
                keep(sentence)
                deliver({key: lambda: create_progress_artifact(0.0, key=key, description=about)})

            yield tell
            _show.get()("")  # only of a run that goes on: of another the last sentence stays
    except BaseException:
        # The first night of a job may have owned nothing yet: then it leaves nothing.
        leave_unowned(request.storage, request.output, request.run_uri, request.job.name)
        raise
