"""The flow's four tasks: a step of the run each, and what a person sees of it.

They persist no results and cache nothing: the ledger is the memory, so a task repeated continues the run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.runtime import task_run

from nightjar.flows.pages import artifacts
from nightjar.flows.pages.artifacts import ProgressArtifact
from nightjar.flows.prefect_api.logs import expect_failures
from nightjar.inference.errors import GateFailed, NightjarError, RunFailed
from nightjar.inference.input.discovery import Discovery
from nightjar.inference.run import steps
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.steps import Publication, Scored, Verdict


def _worth_repeating(_: Task[Any, Any], __: TaskRun, state: State[Any]) -> bool:
    """Only what may pass by itself. What a person must change is not tried again."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, NightjarError) and error.repeatable


_TWICE: dict[str, Any] = {"retries": 1, "retry_delay_seconds": 5, "retry_condition_fn": _worth_repeating}
"""Options of a task that is tried a second time if its error may pass by itself."""


@task(name="discover", task_run_name="discover", cache_policy=NO_CACHE, persist_result=False)
def discover_task(request: RunRequest) -> Discovery:
    """Tonight's files and their row counts."""
    expect_failures()
    return steps.discover(request)


@task(name="score", task_run_name="score", cache_policy=NO_CACHE, persist_result=False, **_TWICE)
def score_task(request: RunRequest, discovery: Discovery) -> Scored:
    """Every shard the ledger does not have."""
    expect_failures()
    try:
        with ProgressArtifact(request) as progress:
            scored = steps.score(request, discovery, [progress])
            progress.progress(scored.progress)
    except RunFailed as error:
        if isinstance(error, GateFailed):
            artifacts.show_gates(request, error.gates)
        artifacts.show_shards(request)
        raise
    artifacts.show_shards(request)
    return replace(scored, tries=task_run.run_count)


@task(name="validate", task_run_name="validate", cache_policy=NO_CACHE, persist_result=False, **_TWICE)
def validate_task(request: RunRequest, scored: Scored, discovery: Discovery) -> Verdict:
    """The audit and the gates."""
    expect_failures()
    try:
        verdict = steps.validate(request, scored, discovery)
    except GateFailed as error:
        artifacts.show_gates(request, error.gates)
        raise
    artifacts.show_gates(request, verdict.gates)
    return replace(verdict, tries=task_run.run_count)


@task(name="publish", task_run_name="publish", cache_policy=NO_CACHE, persist_result=False)
def publish_task(request: RunRequest, scored: Scored, verdict: Verdict) -> Publication:
    """One atomic publication."""
    expect_failures()
    return steps.publish_run(request, scored, verdict)
