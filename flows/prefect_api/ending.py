"""What a flow run came to, kept for the command that started it: an API that is away must not hide it."""

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
    from nightjar.flows.outcome import Outcome


@dataclass
class Ending:
    """How the flow's own code ended. unreported: why Prefect's API does not know it, empty if it does."""

    of_code: Outcome | NightjarError | None = None
    flow_run: str = ""
    unreported: str = ""

    def outcome(self) -> Outcome:
        """The outcome.

        Raises:
            NightjarError: as the flow did.
        """
        if isinstance(self.of_code, NightjarError):
            raise self.of_code
        assert self.of_code is not None
        return self.of_code


_ending: ContextVar[Ending | None] = ContextVar("ending", default=None)


def note_ending(of_code: Outcome | NightjarError) -> None:
    """For the flow, before Prefect is told."""
    if ending := _ending.get():
        ending.of_code, ending.flow_run = of_code, str(flow_run.id)


@contextmanager
def keeping_ending(ending: Ending) -> Iterator[None]:
    """Keep how the flow called within ends; not being able to tell Prefect's API is noted, not raised."""
    token = _ending.set(ending)
    try:
        yield
    except NightjarError:
        if ending.of_code is None:
            raise
    except (httpx.HTTPError, PrefectException, OSError) as error:
        # What the flow's own code meets of these it notes: this one came before.
        if ending.of_code is None:
            raise ClusterError(
                f"Prefect's API went away before the run could begin, nothing was scored; repeat the command: {error}"
            ) from error
        _report(ending, error)
    finally:
        _ending.reset(token)


def _report(ending: Ending, error: Exception) -> None:
    """Tell the API once more, if it is back: meanwhile Prefect took its absence for the flow's failure."""
    code = ending.of_code
    state: State[object] = Failed(message=str(code)) if isinstance(code, NightjarError) else Completed()
    try:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(UUID(ending.flow_run), state, force=True)
    except (httpx.HTTPError, PrefectException, OSError, RuntimeError):
        ending.unreported = str(error) or type(error).__name__
