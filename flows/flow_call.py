"""A call of the flow `nightly`: its parameters as a request, what its caller hands over, and how it ended."""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.runtime import deployment, flow_run
from prefect.states import Completed, Failed

from nightjar.flows.prefect_api.api import API_AWAY, in_words
from nightjar.inference.engine import RAY
from nightjar.inference.errors import ClusterError, JobError, NightjarError
from nightjar.inference.ledger.endings import utc
from nightjar.inference.process import held
from nightjar.inference.run.request import RunRequest, make_request, to_begin

if TYPE_CHECKING:
    from nightjar.flows.finished_run import FinishedRun

SERVED = "NIGHTJAR_SERVED"
"""The environment variable of a served run with the paths of the job files that are served, as JSON."""


@dataclass
class Call:
    """What a caller in the flow's own process hands over besides the parameters, and what the flow leaves for it.

    It is no parameter, because Prefect sends parameters to its API and to the workers of the tasks.
    """

    request: RunRequest | None = None
    """The run that the parameters stand for, with its code; None: the flow makes it from the parameters."""
    since: float = field(default_factory=time.monotonic)
    """When the command began, by the monotonic clock."""
    patient: bool = True
    """Whether the flow waits for its input; else it looks once, because other nights wait behind it."""
    show: Callable[[str], None] = lambda _: None
    """Called with what the run waits for, and with an empty text when it goes on."""
    verbose: bool = False
    """Whether the messages of Ray are shown."""
    ended: FinishedRun | NightjarError | None = None
    """The flow's own result or error."""
    flow_run: str = ""
    """Prefect's id of the flow run; empty until the flow has ended."""

    unreported: str = ""
    """Why Prefect's API does not know how the run ended; empty if it does."""

    def end(self, ended: FinishedRun | NightjarError) -> None:
        """For the flow, before Prefect is told."""
        self.ended, self.flow_run = ended, str(flow_run.id)

    def finished(self) -> FinishedRun:
        """The run that came to its end.

        Raises:
            NightjarError: The error that the flow raised.
        """
        if isinstance(self.ended, NightjarError):
            raise self.ended
        assert self.ended is not None
        return self.ended


_call: ContextVar[Call | None] = ContextVar("call", default=None)


def handing(call: Call) -> AbstractContextManager[None]:
    """Hand this to the flow that is called in this context."""
    return held(_call, call)


def current_call() -> Call:
    """The call of the flow that runs; a new one if nobody handed any, as for the run of a deployment."""
    return _call.get() or Call()


@contextmanager
def keeping_ending(call: Call) -> Iterator[None]:
    """Let the call say how the flow called in this context ended: a failure to report to Prefect's API is noted there,
    and not raised.
    """
    try:
        yield
    except NightjarError:
        if call.ended is None:
            raise
    except API_AWAY as error:
        # The flow's own code notes such errors; this one was raised before that code began.
        if call.ended is None:
            raise ClusterError(
                "Prefect's API went away before the run could begin, and nothing was scored; repeat the "
                f"command: {in_words(error)}"
            ) from error
        _report(call, call.ended, error)


def _report(call: Call, ended: FinishedRun | NightjarError, error: Exception) -> None:
    """Report the ending once more, if the API is back: Prefect took the API's absence for a failure of the flow."""
    failed = str(ended) if isinstance(ended, NightjarError) else "; ".join(ended.publication.tables_behind)
    state: State[object] = Failed(message=failed) if failed else Completed()
    try:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(UUID(call.flow_run), state, force=True)
    except (*API_AWAY, RuntimeError):
        call.unreported = in_words(error)


def request_of(
    job: str,
    date: dt.date | str | None = None,
    limit: int | None = None,
    fresh: bool = False,
    publish: bool = True,
    run_id: str | None = None,
    ray: str | None = None,  # a parameter, and not part of the request
    engine: str = RAY,
    make: Callable[..., RunRequest] = make_request,
) -> RunRequest:
    """The run that these parameters of the flow ask for, due when the flow run was due; without the code that scores.

    make: `make_request`, or `unrecorded_request`.

    Raises:
        JobError: The job is none of those that are served: who may start its runs must not make it run other code.
    """
    served = json.loads(os.environ.get(SERVED, "null"))
    if deployment.id and served is not None and job not in served:
        raise JobError(f"job: {job} is not served here; start `nightjar serve` on its folder")
    request = make(
        job,
        date=str(date) if date else None,
        run_id=run_id,
        limit=limit,
        fresh=fresh,
        publish=publish,
        flow_run=str(flow_run.id),
        engine=engine,
        moment=dt.datetime.fromtimestamp(flow_run.scheduled_start_time.timestamp(), dt.UTC),  # Prefect's is Pendulum's
    )
    return replace(to_begin(request), again_since=utc() if flow_run.run_count > 1 else "")


def run_name() -> str:
    """The name of the flow run that begins, for Prefect's pages."""
    given = flow_run.parameters  # Prefect has no other way to give them to this function
    try:
        request = current_call().request or request_of(**given)
    except NightjarError:
        return f"{deployment.name or Path(given['job']).stem}: could not begin"
    return f"{request.job.name} {request.run_id}"
