"""Keeps how a flow run ended for the command that started it, in case Prefect's API is away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from nightjar.inference.errors import ClusterError, NightjarError

if TYPE_CHECKING:
    from nightjar.flows.results import FinishedRun


@dataclass
class Ending:
    """How a flow run ended. of_code: the flow's own result or error. unreported: why Prefect's API does not know, or
    ''.
    """

    of_code: FinishedRun | NightjarError | None = None
    flow_run: str = ""
    unreported: str = ""

    def finished(self) -> FinishedRun:
        """The run that came to its end.

        Raises:
            NightjarError: The error that the flow raised.
        """
        if isinstance(self.of_code, NightjarError):
            raise self.of_code
        assert self.of_code is not None
        return self.of_code


_ending: ContextVar[Ending | None] = ContextVar("ending", default=None)


def note_ending(of_code: FinishedRun | NightjarError) -> None:
    """For the flow, before Prefect is told."""
    if ending := _ending.get():
        ending.of_code, ending.flow_run = of_code, str(flow_run.id)


@contextmanager
def keeping_ending(ending: Ending) -> Iterator[None]:
    """Keep how the flow called in this context ends. A failure to report to Prefect's API is noted, not raised."""
    token = _ending.set(ending)
    try:
        yield
    except NightjarError:
        if ending.of_code is None:
            raise
    except (httpx.HTTPError, PrefectException, OSError) as error:
        # The flow's own code notes such errors; this one was raised before that code began.
        if ending.of_code is None:
            raise ClusterError(
                "Prefect's API went away before the run could begin, and nothing was scored; repeat the "
                f"command: {error}"
            ) from error
        _report(ending, error)
    finally:
        _ending.reset(token)


def _report(ending: Ending, error: Exception) -> None:
    """Report the ending once more, if the API is back: Prefect took the API's absence for a failure of the flow."""
    code = ending.of_code
    assert code is not None
    failed = str(code) if isinstance(code, NightjarError) else "; ".join(code.publication.tables_behind)
    state: State[object] = Failed(message=failed) if failed else Completed()
    try:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(UUID(ending.flow_run), state, force=True)
    except (httpx.HTTPError, PrefectException, OSError, RuntimeError):
        ending.unreported = str(error) or type(error).__name__
