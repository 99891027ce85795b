"""Job files → Prefect deployments, one each: what is there is created or updated, what is gone is paused."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.client.schemas.responses import DeploymentResponse
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.runner import Runner
from prefect.schedules import Cron
from prefect.types.entrypoint import EntrypointType

from nightjar.flows.nightly import nightly
from nightjar.inference.errors import ClusterError, JobError
from nightjar.inference.job import Job, load_job

TAG = "nightjar"
GONE = "nightjar-gone"
"""Tag of a deployment that was paused because its job file is gone: only such a one is woken when it is back."""

_PAGE = 200


@dataclass(frozen=True)
class Deployed:
    """What became of one deployment: created, updated, or paused (its job file is gone)."""

    name: str
    what: str
    schedule: str


def find_jobs(folder: str) -> dict[str, Job]:
    """The job files in a folder and in the folders right below it, by path.

    Any other YAML is left alone: a job file is one with the keys `input` and `model`.

    Raises:
        JobError: there is none, one of them is wrong, or two have the same name or output.
    """
    root = Path(folder).absolute()
    if root.is_file():
        return {str(root): load_job(root)}
    if not root.is_dir():
        raise JobError(f"{root}: no such folder")
    paths = sorted({*root.glob("*.y*ml"), *root.glob("[!.]*/*.y*ml")})
    problems: list[str] = []
    jobs: dict[str, Job] = {}
    for path in filter(_is_job, paths):
        try:
            jobs[str(path)] = load_job(path)
        except JobError as error:
            problems.append(str(error))
    problems += _clashes(jobs, "name", lambda job: job.name)
    problems += _clashes(jobs, "output.uri", lambda job: job.output.uri)
    if problems:
        raise JobError("\n".join(problems))
    if not jobs:
        raise JobError(f"{root}: no job file in it or right below it (a YAML file with `input` and `model`)")
    return jobs


def _is_job(path: Path) -> bool:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        # It may have been meant as one: `load_job` says what is wrong with it.
        return path.stem == "job"
    return isinstance(content, dict) and "input" in content and ("model" in content or "models" in content)


def _clashes(jobs: dict[str, Job], key: str, of: Callable[[Job], str]) -> Iterator[str]:
    first: dict[str, str] = {}
    for path, job in jobs.items():
        if (other := first.setdefault(of(job), path)) != path:
            yield f"{path}: {key}: {of(job)} is that of {other}, too; two jobs may not share it"


def as_deployment(
    path: str, job: Job, before: DeploymentResponse | None, *, ray: str | None = None, pool: str | None = None
) -> RunnerDeployment:
    """The deployment of one job: its schedule, and one run at a time; further ones wait for their turn.

    before: what is deployed under its name now. What a person has paused stays paused.
    """
    return RunnerDeployment.from_flow(
        nightly,
        name=job.name,
        schedule=Cron(job.schedule.cron, timezone=job.schedule.timezone) if job.schedule else None,
        parameters={"job": path, **({"ray": ray} if ray else {})},
        description=f"Scores `{job.input.uri}` with `{job.model.path or job.model.uses}` into `{job.output.uri}`.",
        tags=[TAG, job.name],
        version=_git_revision(Path(path).parent),
        concurrency_limit=ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE),
        paused=before is not None and before.paused and GONE not in before.tags,
        work_pool_name=pool,
        entrypoint_type=EntrypointType.MODULE_PATH,
    )


def _git_revision(folder: Path) -> str | None:
    """The commit the job file is at, `-dirty` with changes; None outside a repository."""
    try:
        found = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None


@contextmanager
def _api() -> Iterator[SyncPrefectClient]:
    """A client whose failures are one sentence."""
    try:
        with get_client(sync_client=True) as client:
            yield client
    except (httpx.HTTPError, PrefectException, OSError) as error:
        raise ClusterError(f"Prefect's API did not do it: {error}") from error


def deploy(folder: str, pool: str, ray: str | None = None) -> list[Deployed]:
    """Make one deployment for each job file in a folder, for the workers of a pool; idempotent.

    A pool that is not there is created, of type process: its runs are processes of the worker's machine. A
    deployment whose job file is gone is paused, not deleted: its runs remain to be looked at.

    Raises:
        JobError: a job file is wrong; nothing was changed.
        ClusterError: Prefect's API said no.
    """
    jobs = find_jobs(folder)
    with _api() as client:
        _ensure_pool(client, pool)
        known = {deployment.name: deployment for deployment in _known(client)}
        done = []
        for path, job in jobs.items():
            before = known.get(job.name)
            as_deployment(path, job, before, ray=ray, pool=pool).apply()
            done.append(Deployed(job.name, "updated" if before else "created", _schedule(job)))
        return done + _pause_gone(client, folder, jobs, known)


def _ensure_pool(client: SyncPrefectClient, name: str) -> None:
    try:
        client.read_work_pool(name)
    except ObjectNotFound:
        client.create_work_pool(WorkPoolCreate(name=name, type="process"))


def _known(client: SyncPrefectClient) -> Iterator[DeploymentResponse]:
    """Deployments of the flow, a page at a time."""
    offset = 0
    while True:
        page = client.read_deployments(
            flow_filter=FlowFilter(name=FlowFilterName(any_=[nightly.name])), limit=_PAGE, offset=offset
        )
        yield from page
        if len(page) < _PAGE:
            return
        offset += _PAGE


def _schedule(job: Job) -> str:
    return f"{job.schedule.cron} ({job.schedule.timezone})" if job.schedule else "no schedule"


def _pause_gone(
    client: SyncPrefectClient, folder: str, jobs: dict[str, Job], known: dict[str, DeploymentResponse]
) -> list[Deployed]:
    """Deployments that came from this folder, and whose job file is not there any more."""
    root, names = Path(folder).absolute(), {job.name for job in jobs.values()}
    paused = []
    for name, deployment in known.items():
        path = Path(str(deployment.parameters.get("job", "")))
        if TAG not in deployment.tags or name in names or not path.is_relative_to(root):
            continue
        if GONE not in deployment.tags:
            client.update_deployment(deployment.id, DeploymentUpdate(paused=True, tags=[*deployment.tags, GONE]))
        paused.append(Deployed(name, "paused", f"{path} is gone"))
    return paused


def serve(folder: str, ray: str | None = None, limit: int | None = None) -> Runner:
    """A runner for the jobs of a folder: `start` polls for due runs and carries each out in a process of its own.

    limit: so many runs at a time.

    Raises:
        JobError: a job file is wrong.
        ClusterError: Prefect's API said no.
    """
    jobs = find_jobs(folder)
    with _api() as client:
        known = {deployment.name: deployment for deployment in _known(client)}
        # Schedules stay active while nothing serves: a night that falls due meanwhile is late, not lost.
        runner = Runner(name=TAG, pause_on_shutdown=False, limit=limit)
        for path, job in jobs.items():
            runner.add_deployment(as_deployment(path, job, known.get(job.name), ray=ray))
        _pause_gone(client, folder, jobs, known)
    return runner
