"""The flow: discover, score, validate, publish. When it runs and what a person sees; never a row.

On Ray the four tasks run in the cluster (`cluster.tasks`); on the local engine, and where nothing is left to score, in
this process, which then has nothing to do with Ray. They persist no results and cache nothing: the ledger is the
memory, so a task repeated continues the run.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Protocol
from uuid import UUID

import httpx
from prefect import Task, flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import PrefectException, TerminationSignal
from prefect.logging import get_run_logger
from prefect.runtime import deployment, flow_run
from prefect.states import Completed, Failed
from pydantic import Field

from nightjar.flows.cluster import ClusterRunner, is_connected
from nightjar.flows.outcome import Outcome
from nightjar.flows.pages import artifacts
from nightjar.flows.pages.advice import check_tables
from nightjar.flows.pages.wording import describe
from nightjar.flows.prefect_api import events
from nightjar.flows.prefect_api.api import (
    is_away,
    lacks_limit,
    no_such_limit,
    was_cancelled,
    worker_env,
)
from nightjar.flows.prefect_api.ending import note_ending
from nightjar.flows.prefect_api.runlogs import expect_failures
from nightjar.flows.waiting import wait_for_input
from nightjar.inference.engine import LOCAL, RAY
from nightjar.inference.errors import (
    AuditFailed,
    ClusterError,
    GateFailed,
    Held,
    Interrupted,
    JobError,
    NightjarError,
    RunFailed,
)
from nightjar.inference.input.discovery import Discovery
from nightjar.inference.ledger.endings import stopped_by
from nightjar.inference.run import reasons, steps
from nightjar.inference.run.report import worded
from nightjar.inference.run.request import RunRequest, fixed, make_request
from nightjar.inference.run.steps import Publication, Scored, Verdict

_ASK_S = 10.0
"""How often a slot is asked for while Prefect's API is away."""

_AWAY_S = 1800.0
"""So long a run that waits for its turn goes on asking an API that is away."""

_KEEP_S = 10.0
"""So long a run that ends waits for its reason to be kept."""

CANCELLED = "cancelled in Prefect, on its page or by its command"
"""Why a run was stopped that somebody cancelled: who it was, Prefect does not keep."""

_NOTICED_S = 600.0
"""A question that lasted longer was asked of an API that was there: it is noticed sooner that nobody answers."""


def _worth_repeating(_: Task[Any, Any], __: TaskRun, state: State[Any]) -> bool:
    """Only what may pass by itself. What a person must change is not tried again."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, NightjarError) and error.repeatable


@task(name="discover", task_run_name="discover", cache_policy=NO_CACHE, persist_result=False)
def discover_task(request: RunRequest) -> Discovery:
    """Tonight's files and their row counts."""
    expect_failures()
    return steps.discover(request)


@task(
    name="score",
    task_run_name="score",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=1,
    retry_delay_seconds=5,
    retry_condition_fn=_worth_repeating,
)
def score_task(request: RunRequest, discovery: Discovery) -> Scored:
    """Every shard the ledger does not have."""
    expect_failures()
    try:
        with artifacts.ProgressArtifact(request) as progress:
            scored = steps.score(request, discovery, [progress])
            progress.progress(scored.progress)
    except RunFailed as error:
        if isinstance(error, GateFailed):
            artifacts.show_gates(request, error.gates)
        artifacts.show_shards(request)
        raise
    artifacts.show_shards(request)
    return scored


@task(
    name="validate",
    task_run_name="validate",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=1,
    retry_delay_seconds=5,
    retry_condition_fn=_worth_repeating,
)
def validate_task(request: RunRequest, scored: Scored, discovery: Discovery) -> Verdict:
    """The audit and the gates."""
    expect_failures()
    try:
        verdict = steps.validate(request, scored, discovery)
    except GateFailed as error:
        artifacts.show_gates(request, error.gates)
        raise
    artifacts.show_gates(request, verdict.gates)
    return verdict


@task(name="publish", task_run_name="publish", cache_policy=NO_CACHE, persist_result=False)
def publish_task(request: RunRequest, scored: Scored, verdict: Verdict) -> Publication:
    """One atomic publication."""
    expect_failures()
    publication = steps.publish_run(request, scored, verdict)
    artifacts.catch_up(request, scored, verdict)
    artifacts.show_summary(request, scored, verdict, publication)
    return publication


_handed: ContextVar[RunRequest | None] = ContextVar("handed", default=None)
_named: dict[str, RunRequest] = {}
"""The request that the running flow run was named for, by its id, until the flow itself takes it."""


@contextmanager
def handing(request: RunRequest) -> Iterator[None]:
    """For the flow called within: the request that its parameters stand for, which need not be made again."""
    token = _handed.set(request)
    try:
        yield
    finally:
        _handed.reset(token)


def _request(given: dict[str, Any]) -> RunRequest:
    """The run that these parameters of the flow ask for, with the code it is scored with."""
    if (handed := _handed.get()) is not None:
        return replace(handed, flow_run=str(flow_run.id))
    named = str(flow_run.id)
    return fixed(_named.pop(named) if named in _named else _asked(given))


def _asked(given: dict[str, Any]) -> RunRequest:
    """The run that these parameters of the flow ask for, due when the flow run was due."""
    date = given.get("date")
    return make_request(
        given["job"],
        date=str(date) if date else None,
        run_id=given.get("run_id"),
        limit=given.get("limit"),
        fresh=bool(given.get("fresh")),
        publish=given.get("publish", True),
        flow_run=str(flow_run.id),
        shards=tuple(given.get("shards") or ()),
        engine=given.get("engine") or RAY,
        moment=flow_run.scheduled_start_time,
        scores=False,
    )


def _run_name() -> str:
    _named.clear()
    try:
        request = _handed.get() or _asked(flow_run.parameters)
    except JobError:
        return f"{_job_name(flow_run.parameters)}: the job is wrong"
    except NightjarError:
        return f"{_job_name(flow_run.parameters)}: could not begin"
    _named[str(flow_run.id)] = request
    return f"{request.job.name} {request.run_id}"


def _job_name(given: dict[str, Any]) -> str:
    """The job's name as far as it can be known: that of its file, of its deployment, or the file's own."""
    try:
        return _asked(given).job.name
    except NightjarError:
        return str(deployment.name or Path(given["job"]).stem)


@flow(name="nightly", flow_run_name=_run_name, persist_result=False, task_runner=ClusterRunner())
def nightly(
    job: str,
    date: dt.date | None = None,
    limit: Annotated[int, Field(ge=1)] | None = None,
    fresh: bool = False,
    publish: bool = True,
    run_id: str | None = None,
    shards: list[str] | None = None,
    ray: str | None = None,
    engine: str = RAY,
) -> State[Any]:
    """Score one job for one logical date, check it, and publish it all or nothing.

    A run that was interrupted is continued: only what has no committed result is scored.

    Args:
        job: Path of the job file, where the run's process sees it.
        date: The night to score. Default: the day the run was scheduled for, in the job's time zone.
        limit: Only the first shards that hold so many rows; never published.
        fresh: Score everything again, as a new revision, whatever is done already.
        publish: Off: stop after the gates.
        run_id: A name for the run; a run of this name is continued. Default: its logical date.
        shards: Score no others of those that are missing. Default: all of them.
        ray: The Ray cluster, host:port or ray://host:port. Default: NIGHTJAR_RAY, or one of the run's own.
        engine: Where shards are scored: on Ray, or in the run's own process (small nights; a row that kills a process
            kills the run).
    """
    expect_failures()
    request: RunRequest | None = None
    try:
        request = _request(flow_run.parameters)
        # Before there is a cluster, which would stand idle; where there is one, others need it.
        if wait_for_input(request, patient=not is_connected()):
            request = fixed(_asked(flow_run.parameters))  # with the job and the code of now
        outcome = _four_steps(request, _Here()) if request.engine == LOCAL else _on_ray(request, ray)
    except (NightjarError, OSError, httpx.HTTPError, PrefectException) as given:
        error = given if isinstance(given, NightjarError) else RunFailed(f"{type(given).__name__}: {given}")
        note_ending(error)
        if request is None:
            events.refused(_job_name(flow_run.parameters), job, error)
        else:
            _keep_reason(request, error)
            if not isinstance(error, Held):  # the page of who holds the run says how it stands
                artifacts.show_failure(request, error, ray)
            events.failed(request, error)
        # The run's page shows the message alone; calling the flow still raises the error.
        return Failed(message=str(error), data=error)
    except (KeyboardInterrupt, TerminationSignal) as signal:
        stopped = _stopped(signal)
        note_ending(stopped)
        if request is not None:
            _keep_reason(request, stopped)
        raise
    note_ending(outcome)
    events.published(outcome)
    return Completed(message=outcome.sentence)


def _stopped(signal: BaseException) -> Interrupted:
    """Who stopped this run. A run that is cancelled in Prefect is sent SIGTERM, as others are: the API knows which."""
    if isinstance(signal, TerminationSignal) and was_cancelled(UUID(flow_run.id)):
        return Interrupted(CANCELLED)
    return stopped_by(signal)


def _keep_reason(request: RunRequest, error: NightjarError) -> None:
    """For whoever asks once the terminal is closed. Storage that hangs must not hold up the end of the run."""
    step = "start" if isinstance(error, ClusterError) else "discover"
    thread = threading.Thread(target=reasons.keep, args=(request, error, step), daemon=True, name="nightjar-reason")
    thread.start()
    thread.join(_KEEP_S)


class _Tasks(Protocol):
    """How the flow's tasks are carried out."""

    def done(self, task: Task[Any, Any], *given: Any) -> Any:
        """The task, done: its result, or what stands for it as a task's argument."""

    def result(self, done: Any) -> Any:
        """The result itself."""


class _Here:
    """In this thread."""

    def done(self, task: Task[Any, Any], *given: Any) -> Any:
        return task(*given)

    def result(self, done: Any) -> Any:
        return done


def _on_ray(request: RunRequest, address: str | None) -> Outcome:
    """The four steps on a cluster; without one where discovery finds nothing to score, in a run published before."""
    began, found = time.monotonic(), None
    if not is_connected() and steps.was_published(request):
        found = discover_task(request)
        if steps.nothing_to_score(request, found):
            return _further_steps(request, _Here(), found, time.monotonic() - began)
    # Imported only now: importing Ray takes a while.
    from nightjar.flows.cluster.tasks import on_cluster

    with on_cluster(address, request, worker_env()) as tasks:
        if found is not None:
            return _further_steps(request, tasks, found, time.monotonic() - began)
        return _four_steps(request, tasks)


def _four_steps(request: RunRequest, tasks: _Tasks) -> Outcome:
    began = time.monotonic()
    found = tasks.done(discover_task, request)
    return _further_steps(request, tasks, found, time.monotonic() - began)


def _further_steps(request: RunRequest, tasks: _Tasks, found: Any, discover_s: float) -> Outcome:
    """Those after discovery. found: what it left, as the tasks take it."""
    try:
        scored, verdict = _scored_and_validated(request, tasks, found)
    except AuditFailed as error:
        if not error.revoked:
            raise
        # Parts were damaged where they lie. Scoring these shards again mends it; if not, a person is needed.
        get_run_logger().warning("%s", error)
        scored, verdict = _scored_and_validated(request, tasks, found)
    publication: Publication = tasks.result(tasks.done(publish_task, request, scored, verdict))
    artifacts.log_remarks(worded(scored.again, scored.warnings))
    get_run_logger().info("publication %s; manifest %s", publication.number or "left out", publication.manifest)
    check_tables(request, publication.tables_behind)
    return Outcome(request, scored, verdict, publication, discover_s)


def _scored_and_validated(request: RunRequest, tasks: _Tasks, found: Any) -> tuple[Scored, Verdict]:
    with _turn(request.job.resources.concurrency_limit):
        scored: Scored = tasks.result(tasks.done(score_task, request, found))
    get_run_logger().info("scored: %s", describe(scored.progress))
    # Validating needs what the limit counts only if it scores, too.
    with _turn(request.job.resources.concurrency_limit if request.job.rescore.share else None):
        verdict: Verdict = tasks.result(tasks.done(validate_task, request, scored, found))
    return scored, verdict


@contextmanager
def _turn(limit: str | None) -> Iterator[None]:
    """Wait for a slot of Prefect's global concurrency limit, and hold it: jobs that share GPUs take turns."""
    if limit is None:
        yield
        return
    get_run_logger().info("waiting for a slot of the concurrency limit %s", limit)
    slot = _slot(limit)
    try:
        yield
    finally:
        try:
            slot.close()
        except (httpx.HTTPError, PrefectException, OSError) as error:
            # Its lease ends by itself; what was scored must not be lost for it.
            get_run_logger().warning("the slot of %s could not be given back: %s", limit, error)


def _slot(limit: str) -> ExitStack:
    """A slot, once there is one. An API that is away meanwhile is asked again: Prefect itself gives up after seconds.

    Raises:
        JobError: there is no such limit.
        RunFailed: the API said no, or was away for `_AWAY_S`.
    """
    lost: float | None = None
    while True:
        asked = time.monotonic()
        with ExitStack() as held:
            try:
                held.enter_context(concurrency(limit, strict=True, raise_on_lease_renewal_failure=False))
                return held.pop_all()
            except ConcurrencySlotAcquisitionError as error:
                if not is_away(error.__cause__) and lacks_limit(limit):
                    raise no_such_limit(limit) from error
                why, now = f"{error}: {error.__cause__}", time.monotonic()
                lost = now if lost is None or now - asked > _NOTICED_S else lost
                if not is_away(error.__cause__) or now - lost > _AWAY_S:
                    raise RunFailed(f"no slot of the concurrency limit {limit!r} could be had: {why}") from error
                get_run_logger().warning("Prefect's API is away, asking again: %s", why)
        time.sleep(_ASK_S)
