"""The flow: discover, score, validate, publish. When it runs and what a person sees; never a row.

The four tasks run in the Ray cluster as zero-CPU tasks: they drive Ray Data there, and hold nothing it needs.
They persist no results and cache nothing: the ledger is the memory, so a task repeated continues the run.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from prefect import Task, flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Failed
from prefect_ray.context import remote_options

from nightjar.flows import artifacts
from nightjar.flows.display import describe
from nightjar.flows.ending import note_ending
from nightjar.inference import run as steps
from nightjar.inference.discovery import Discovery
from nightjar.inference.errors import GateFailed, NightjarError, RunFailed, StorageError
from nightjar.inference.request import RunRequest, make_request
from nightjar.inference.revisions import newest_revision
from nightjar.inference.run import Publication, Scored, Verdict


@dataclass(frozen=True)
class Outcome:
    """A finished run."""

    request: RunRequest
    scored: Scored
    verdict: Verdict
    publication: Publication
    discover_s: float = 0.0


def _worth_repeating(_: Task[Any, Any], __: TaskRun, state: State[Any]) -> bool:
    """Only what may pass by itself: storage and Ray. What a person must change is not tried again."""
    error = state.result(raise_on_failure=False)
    return type(error) is RunFailed or isinstance(error, StorageError)


@task(name="discover", task_run_name="discover", cache_policy=NO_CACHE, persist_result=False)
def discover_task(request: RunRequest) -> Discovery:
    """Tonight's files and their row counts."""
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
    try:
        with artifacts.ProgressArtifact(request) as progress:
            scored = steps.score(request, discovery, progress)
            progress(scored.progress)
    except RunFailed:
        newest = newest_revision(request.storage, request.run_uri)
        if newest is not None:
            artifacts.show_shards(request, newest.number)
        raise
    artifacts.show_shards(request, scored.revision)
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
    try:
        verdict = steps.validate(request, scored, discovery, lambda _: None)
    except GateFailed as error:
        artifacts.show_gates(request, error.gates)
        raise
    artifacts.show_gates(request, verdict.gates)
    return verdict


@task(name="publish", task_run_name="publish", cache_policy=NO_CACHE, persist_result=False)
def publish_task(request: RunRequest, scored: Scored, verdict: Verdict) -> Publication:
    """One atomic publication."""
    publication = steps.publish_run(request, scored, verdict)
    artifacts.catch_up(request, scored, verdict)
    artifacts.show_summary(request, scored, verdict, publication)
    return publication


def _run_name() -> str:
    given = flow_run.parameters
    request = make_request(given["job"], date=given["date"], run_id=given["run_id"], limit=given["limit"])
    return f"{request.job.name} {request.run_id}"


@flow(name="nightly", flow_run_name=_run_name, persist_result=False)
def nightly(
    job: str,
    date: str | None = None,
    run_id: str | None = None,
    limit: int | None = None,
    fresh: bool = False,
    publish: bool = True,
) -> Outcome | State[Any]:
    """Score one job for one logical date, check it, and publish it all or nothing.

    job: path of the job file. date: the logical date, as 2026-11-19; default today (UTC). run_id: a name for
    the run; default the date. limit: only about so many rows, never published. fresh: score again what is
    done already. publish: false stops after the gates.

    Raises:
        NightjarError: with the message a person should read; its class tells the exit code.
    """
    try:
        request = make_request(
            job,
            date=date,
            run_id=run_id,
            limit=limit,
            fresh=fresh,
            publish=publish,
            invocation=str(flow_run.id),
        )
        outcome = _four_steps(request)
    except NightjarError as error:
        note_ending(error)
        # The run's page shows the message alone; calling the flow still raises the error.
        return Failed(message=str(error), data=error)
    note_ending(outcome)
    return outcome


def _four_steps(request: RunRequest) -> Outcome:
    with remote_options(num_cpus=0, max_retries=0):
        began = time.monotonic()
        # Handed on as a future: the listing goes from worker to worker, not through here.
        found: Any = discover_task.submit(request)
        _result(found)
        discover_s = time.monotonic() - began
        scored = _result(score_task.submit(request, found))
        get_run_logger().info("scored: %s", describe(scored.progress))
        verdict = _result(validate_task.submit(request, scored, found))
        publication = _result(publish_task.submit(request, scored, verdict))
        get_run_logger().info("publication %s; manifest %s", publication.number or "left out", publication.manifest)
    return Outcome(request, scored, verdict, publication, discover_s)


def _result(future: Any) -> Any:
    """A task's result, waited for in a thread: a signal that arrives inside Ray's own wait is lost.

    Raises:
        RunFailed: the task's process was lost.
    """
    done = threading.Event()

    def wait() -> None:
        try:
            future.wait()
        finally:
            done.set()

    threading.Thread(target=wait, daemon=True, name="nightjar-wait").start()
    done.wait()
    if future.state.is_crashed():
        raise RunFailed(f"a task's process was lost: {str(future.state.message).splitlines()[0]}")
    return future.result()
