"""The flow: discover, score, validate, publish. It decides when a job runs and what people see, and never touches a
row.

`discover` runs in this process. On Ray the other tasks run in the cluster (`cluster.tasks`); on the local engine, and
if nothing is left to score, they run in this process, too. Tasks persist no results and cache nothing: the ledger is
the memory, so a task repeated continues the run.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from prefect import Task, flow, task
from prefect.artifacts import create_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.exceptions import TerminationSignal
from prefect.logging import get_run_logger
from prefect.runtime import deployment, flow_run, task_run
from prefect.states import Failed
from pydantic import Field, WithJsonSchema

from nightjar.flows import outcome
from nightjar.flows.cluster import ClusterRunner, check_reports, is_connected, named
from nightjar.flows.finished_run import FinishedRun
from nightjar.flows.flow_call import Call, current_call, request_of, run_name
from nightjar.flows.pages import artifacts
from nightjar.flows.pages.escaping import markdown
from nightjar.flows.pages.wording import describe
from nightjar.flows.prefect_api.api import API_AWAY, api_url, worker_env
from nightjar.flows.prefect_api.server import expect_failures
from nightjar.inference.engine import LOCAL, RAY
from nightjar.inference.errors import AuditFailed, GateFailed, NightjarError, RunFailed, StorageError
from nightjar.inference.input.plan import Discovery
from nightjar.inference.ledger.endings import stopped_by
from nightjar.inference.output.revisions import revision_uri
from nightjar.inference.process import seldom_collected
from nightjar.inference.run.account import AGAIN, AUDIT, SCORE, VALIDATE, Account, account_of, keep
from nightjar.inference.run.publishing import publish_run, unanswered, validate
from nightjar.inference.run.request import RunRequest, fixed, unrecorded_request
from nightjar.inference.run.results import Publication, Scored, Verdict
from nightjar.inference.run.resume import needs_cluster
from nightjar.inference.run.scoring import discover, score
from nightjar.inference.run.waiting import Awaited, await_input, keeping
from nightjar.inference.stopwatch import Stopwatch
from nightjar.inference.storage.locations import without_password


def _worth_repeating(_: Task[Any, Any], __: TaskRun, state: State[Any]) -> bool:
    """Whether the error may pass by itself. What a person must change is not tried again."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, NightjarError) and error.repeatable


_TWICE: dict[str, Any] = {"retries": 1, "retry_delay_seconds": 5, "retry_condition_fn": _worth_repeating}
"""Options of a task that is tried a second time if its error may pass by itself."""


@task(name="discover", task_run_name="discover", cache_policy=NO_CACHE, persist_result=False)
def discover_task(request: RunRequest) -> Discovery:
    """Tonight's files and their row counts."""
    expect_failures()
    return discover(request)


@task(name="score", task_run_name="score", cache_policy=NO_CACHE, persist_result=False, **_TWICE)
def score_task(request: RunRequest, discovery: Discovery) -> Scored:
    """Every shard the ledger does not have."""
    expect_failures()
    with artifacts.ProgressArtifact(request) as progress:
        scored = score(request, discovery, progress.show)
        progress.show(scored.progress)
    return replace(scored, tries=task_run.run_count)


@task(name="validate", task_run_name="validate", cache_policy=NO_CACHE, persist_result=False, **_TWICE)
def validate_task(request: RunRequest, scored: Scored, discovery: Discovery) -> Verdict:
    """The audit and the gates."""
    expect_failures()
    return replace(validate(request, scored, discovery), tries=task_run.run_count)


@task(name="publish", task_run_name="publish", cache_policy=NO_CACHE, persist_result=False)
def publish_task(request: RunRequest, scored: Scored, verdict: Verdict) -> Publication:
    """One atomic publication."""
    expect_failures()
    return publish_run(request, scored, verdict)


_FORESEEN = (NightjarError, *API_AWAY)
"""Errors whose message says enough. Any other one is a fault of the code."""


Date = Annotated[dt.date | str, WithJsonSchema({"type": "string", "format": "date"})]
"""A logical time. The form in Prefect has a calendar for it; an instant may be given as `run_id` there."""


@flow(name="nightly", flow_run_name=run_name, persist_result=False, task_runner=ClusterRunner())
def nightly(
    job: str,
    date: Date | None = None,
    limit: Annotated[int, Field(ge=1)] | None = None,
    fresh: bool = False,
    publish: bool = True,
    run_id: str | None = None,
    ray: str | None = None,
    engine: str = RAY,
) -> State[Any]:
    """Score one job for one logical time, check it, and publish it all or nothing.

    A run that was interrupted is continued: only what has no committed result is scored.

    Args:
        job: Path of the job file, where the run's process sees it.
        date: The night to score. Default: the day the run was scheduled for, in the job's time zone, or the instant, of
            a job that is due several times a day. Write such an instant as run_id: 2026-11-19T05.
        limit: Score only the first shards with at least this many rows; never published.
        fresh: Score everything again, as a new revision, whatever is done already.
        publish: Off: stop after the gates.
        run_id: A name for the run; a run of this name is continued. Default: its logical time.
        ray: The Ray cluster, host:port or ray://host:port. Default: NIGHTJAR_RAY, or one of the run's own.
        engine: Where shards are scored: on Ray, or in one process on the run's own machine, for small nights.
    """
    make = partial(request_of, job, date, limit, fresh, publish, run_id, engine=engine)
    return _run(make, ray, current_call())


def _run(make: Callable[..., RunRequest], ray: str | None, call: Call) -> State[Any]:
    """make: makes the request for which the flow's parameters stand, as `request_of`."""
    expect_failures()
    request: RunRequest | None = None
    watch = Stopwatch("start", call.since)
    try:
        if call.request is not None:
            request = replace(call.request, flow_run=str(flow_run.id))
        else:
            request = make()  # before the code is read: then a failure can be notified
            if deployment.id and (answered := outcome.answered(request, ray)) is not None:
                return answered
            request = fixed(request)
        # Wait before there is a cluster, which would be idle. A cluster that exists is needed by others.
        with watch.during("input"):
            waited = wait_for_input(request, patient=call.patient and not is_connected())
        if waited:
            request = fixed(make())  # with the job and the code of now
        finished = outcome.pruned(_four_steps(request, ray, watch))
    except Exception as raised:
        said = f"{type(raised).__name__}: {without_password(str(raised))}"
        error = raised if isinstance(raised, NightjarError) else RunFailed(said)
        call.end(error)
        if request is None and isinstance(raised, StorageError):
            with suppress(NightjarError):
                request = make(make=unrecorded_request)  # so that a run whose folder cannot be read is told, too
        ended = outcome.failed(request, error, ray) if request is not None else Failed(message=str(error), data=error)
        if not isinstance(raised, _FORESEEN):
            raise  # with its traceback, for whoever mends the code
        return ended
    except (KeyboardInterrupt, TerminationSignal) as signal:
        stopped = stopped_by(signal)
        call.end(stopped)
        if request is not None:
            outcome.keep_reason(request, stopped)
        raise
    call.end(finished)
    return outcome.completed(finished)


def wait_for_input(request: RunRequest, *, patient: bool) -> bool:
    """Wait for the job's input, and say so on the terminal, in the run's log, on its page, and in `nightjar status`.

    Returns whether the run had to wait. patient: False to look only once.

    Raises:
        GateFailed: The input did not come in time; its page shows the gate.
    """
    key, show = artifacts.bar(request), current_call().show
    with keeping(request) as keep_wait:

        def tell(now: Awaited) -> None:
            about = f"{markdown(request.run_id)}: {markdown(now.sentence)}"
            show(now.sentence)
            get_run_logger().info("%s", now.sentence)
            keep_wait(now.sentence)
            artifacts.deliver({key: lambda: create_progress_artifact(0.0, key=key, description=about)})

        waited = await_input(request.storage, request.job, tell, patient=patient)
        show("")  # only of a run that goes on: of another the last sentence stays
    if waited:
        get_run_logger().info("the input is there")
    return waited


def _four_steps(request: RunRequest, address: str | None, watch: Stopwatch) -> FinishedRun:
    """Discover here, and score, validate and publish on a cluster if there is something for it to do."""
    with watch.during("discover"):
        found = discover_task(request)
    with watch.during("plan"):
        there = is_connected() or named(address) is not None
        here = request.engine == LOCAL or not needs_cluster(request, found, there=there)
    if here:
        return _further_steps(request, lambda task, *given: task(*given), found, watch)
    check_reports(address, api_url())
    # Imported only now: importing Ray takes a while.
    with seldom_collected():
        from nightjar.flows.cluster.connection import on_cluster

    call = current_call()
    if not is_connected():
        call.show("connecting to Ray")
    with on_cluster(address, request, worker_env(), call.verbose) as run:
        call.show("")
        return _further_steps(request, run, found, watch)


def _further_steps(request: RunRequest, run: Callable[..., Any], found: Discovery, watch: Stopwatch) -> FinishedRun:
    """run: called with a task and its arguments; runs it, and returns its result."""
    watch.turn_to("flow")
    try:
        scored, verdict = _scored_and_validated(request, run, found, watch)
    except AuditFailed as error:
        if not error.revoked:
            raise
        # Parts were damaged where they lie. Scoring these shards again mends it; if not, a person is needed.
        get_run_logger().warning("%s", error)
        watch.count_as(AGAIN, SCORE)
        watch.count_as(AUDIT, VALIDATE)
        scored, verdict = _scored_and_validated(request, run, found, watch)
    if verdict.question is not None:
        _keep_account(request, scored, account_of(watch.claim(), scored, verdict))
        raise unanswered(verdict)
    with watch.during("publish"):
        publication: Publication = run(publish_task, request, scored, verdict)
    get_run_logger().info("publication %s; manifest %s", publication.number or "left out", publication.manifest)
    account = account_of(watch.claim(), scored, verdict, publication)
    _keep_account(request, scored, account)
    return FinishedRun(request, scored, verdict, publication, account)


def _keep_account(request: RunRequest, scored: Scored, made: Account) -> None:
    """Keep where the time of the run went. The night's end is known, so a failure of the storage is only a warning."""
    if scored.finished:
        return
    try:
        keep(request.storage, revision_uri(request.run_uri, scored.revision), scored.epoch, made)
    except StorageError as error:
        get_run_logger().warning("where the time of this run went could not be kept: %s", error)


def _scored_and_validated(
    request: RunRequest, run: Callable[..., Any], found: Discovery, watch: Stopwatch
) -> tuple[Scored, Verdict]:
    with watch.during(SCORE):
        scored: Scored = run(score_task, request, found)
    get_run_logger().info("scored: %s", describe(scored.progress))
    try:
        with watch.during(VALIDATE):
            verdict: Verdict = run(validate_task, request, scored, found)
    except GateFailed:
        _keep_account(request, scored, account_of(watch.claim(), scored))
        raise
    return scored, verdict
