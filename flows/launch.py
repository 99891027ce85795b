"""One run for a command: starts Prefect and Ray as needed, calls the flow, and stops both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console

from nightjar.flows.cluster import check_reports, named
from nightjar.flows.finished_run import Launched
from nightjar.flows.flow_call import Call, handing, keeping_ending
from nightjar.flows.nightly_flow import nightly
from nightjar.flows.notifying import could_not_begin
from nightjar.flows.pages.display import following
from nightjar.flows.pages.ending import after_failure
from nightjar.flows.prefect_api.api import api_url, home, worker_env
from nightjar.flows.prefect_api.server import reporting_to, start_api
from nightjar.inference import predictors
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import NightjarError, RunFailed
from nightjar.inference.ledger.endings import stopped_by
from nightjar.inference.process import seldom_collected
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.resume import may_be_idle, was_published


@contextmanager
def cluster_of(request: RunRequest, address: str | None, verbose: bool, *, needed: bool = True) -> Iterator[bool]:
    """Connect to the cluster of a run, if its engine is Ray. Yields whether it did. needed: whether the run certainly
    needs it; else the flow connects later.
    """
    if request.engine == LOCAL or not needed:
        yield False
        return
    with seldom_collected():
        from nightjar.flows.cluster.connection import cluster

    with cluster(address, request.job, worker_env(), verbose):
        yield True


def launch(
    request: RunRequest, address: str | None, console: Console | None, *, since: float, waits: bool, verbose: bool
) -> Launched:
    """Run the flow for `request` on the cluster at `address`, or on one of its own.

    console: where the run is shown; None for nowhere. since: when the command began, by the monotonic clock. waits:
    whether its input is still to come.

    Raises:
        NightjarError: whatever the flow raised; a failed run's with a note of what to do next.
    """
    call = Call(request, since, verbose=verbose)
    try:
        check_reports(address, api_url())
        # A run that waits for its input needs the cluster only when the input is there; one that was published before
        # needs it only if something is left to score, and with `reuse` no run starts one before that is known.
        published = was_published(request)
        later = waits or published or (named(address) is None and may_be_idle(request.job))
        # Prefect's server starts in its own process while Ray starts in this one.
        api = start_api()
        with (
            reporting_to(api, verbose),
            following(request, console) as tell,
            cluster_of(request, address, verbose, needed=not later) as on_ray,
        ):
            if not on_ray:
                tell("starting Prefect")
            if request.engine == LOCAL and not published:
                predictors.warm(request.job)
            api.wait()
            if on_ray:
                tell("")
            call.show = tell
            with keeping_ending(call), handing(call):
                nightly(
                    job=request.job_path,
                    date=request.date,
                    run_id=request.run_id,
                    limit=request.limit,
                    fresh=request.fresh,
                    publish=request.publish,
                    ray=address,
                    engine=request.engine,
                )
        return Launched(call.finished(), "" if api.own else home(), call.unreported, address)
    except KeyboardInterrupt as signal:
        stopped = stopped_by(signal)
    except NightjarError as error:
        if not call.flow_run:
            could_not_begin(request, error, "start")
        if isinstance(error, RunFailed):
            error.add_note(after_failure(replace(request, flow_run=call.flow_run), error, address))
        raise
    # Raised here, so that the interrupted servers and cluster are released before the process ends.
    stopped.add_note(after_failure(replace(request, flow_run=call.flow_run), stopped, address))
    raise stopped
