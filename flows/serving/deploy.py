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
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments.runner import DeploymentApplyError, RunnerDeployment
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.types.entrypoint import EntrypointType

from nightjar.flows.nightly import nightly
from nightjar.flows.pages.escaping import code
from nightjar.flows.prefect_api.api import api_url
from nightjar.flows.serving.runner import PatientRunner
from nightjar.inference.engine import RAY, check_name
from nightjar.inference.errors import ClusterError, JobError
from nightjar.inference.job.file import load_job
from nightjar.inference.job.model import Job

TAG = "nightjar"
GONE = "nightjar-gone"
"""Tag of a deployment that was paused because its job file is gone: only such a one is woken when it is back."""

_OWN_KEYS = {"input", "model", "output"}
_PAGE = 200


@dataclass(frozen=True)
class Deployed:
    """What became of one deployment: created, updated, or paused (its job file is gone)."""

    name: str
    what: str
    schedule: str


def find_jobs(folder: str) -> dict[str, Job]:
    """The job files in a folder and in the folders right below it, by path; empty if there is none.

    Any other YAML is left alone: a job file is one with two of the keys that every job has. One that cannot be
    read at all counts as a job file: better one word too many than a night too few.

    Raises:
        JobError: there is no such folder, a job file is wrong, or two have the same name or output.
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
    return jobs


def _is_job(path: Path) -> bool:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return True  # `load_job` says what is wrong with it
    return isinstance(content, dict) and len(_OWN_KEYS & set(content)) >= 2


def none_found(folder: str) -> JobError:
    """Says what a job file would be."""
    keys = ", ".join(sorted(_OWN_KEYS))
    return JobError(f"{Path(folder).absolute()}: no job file in it or right below it (YAML with the keys {keys})")


def _clashes(jobs: dict[str, Job], key: str, of: Callable[[Job], str]) -> Iterator[str]:
    first: dict[str, str] = {}
    for path, job in jobs.items():
        if (other := first.setdefault(of(job), path)) != path:
            yield f"{path}: {key}: {of(job)} is that of {other}, too; two jobs may not share it"


def as_deployment(
    path: str,
    job: Job,
    before: DeploymentResponse | None,
    *,
    ray: str | None = None,
    engine: str = RAY,
    pool: str | None = None,
) -> RunnerDeployment:
    """The deployment of one job: its schedule, and one run at a time; further ones wait for their turn.

    before: what is deployed under its name now. What a person has paused, run or schedule, stays paused.

    Raises:
        JobError: the name is that of a job in another place.
    """
    other = Path(str(before.parameters.get("job", ""))) if before else Path(path)
    # By prefect.yaml it may be deployed with a path from the checkout.
    if other.is_file() and not other.samefile(path):
        raise JobError(f"{path}: name: {job.name} is deployed from {other} already; give this job another name")
    active = not (before and before.schedules) or any(schedule.active for schedule in before.schedules)
    schedule = CronSchedule(cron=job.schedule.cron, timezone=job.schedule.timezone) if job.schedule else None
    return RunnerDeployment.from_flow(
        nightly,
        name=job.name,
        schedules=[DeploymentScheduleCreate(schedule=schedule, active=active)] if schedule else [],
        parameters={"job": path, **({"ray": ray} if ray else {}), **({} if engine == RAY else {"engine": engine})},
        description=(
            f"Scores {code(job.input.uri)} with {code(job.model.path or job.model.uses)} into {code(job.output.uri)}."
        ),
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
    """A client whose failures are one sentence. What was done before it failed stays, and is done again."""
    try:
        with get_client(sync_client=True) as client:
            yield client
    except (httpx.HTTPError, PrefectException, DeploymentApplyError, OSError) as error:
        raise ClusterError(
            f"Prefect at {api_url()} did not make or pause all the deployments: {error}. Repeat the command when it "
            "answers; `nightjar doctor` shows what is wrong with it"
        ) from error


def deploy(folder: str, pool: str, ray: str | None = None, engine: str = RAY) -> list[Deployed]:
    """Make one deployment for each job file in a folder, for the workers of a pool; idempotent.

    A pool that is not there is created, of type process: its runs are processes of the worker's machine. A
    deployment whose job file is gone is paused, not deleted: its runs remain to be looked at.

    Raises:
        JobError: a job file is wrong; nothing was changed.
        ClusterError: Prefect's API said no.
    """
    check_name(engine)
    jobs = find_jobs(folder)
    with _api() as client:
        _ensure_pool(client, pool)
        known = {deployment.name: deployment for deployment in _known(client)}
        made = [
            as_deployment(path, job, known.get(job.name), ray=ray, engine=engine, pool=pool)
            for path, job in jobs.items()
        ]
        gone = _gone(folder, jobs, known)
        if not made and not gone:
            raise none_found(folder)
        for deployment in made:
            deployment.apply()
        done = [
            Deployed(job.name, "updated" if job.name in known else "created", schedule_of(job)) for job in jobs.values()
        ]
        return done + _pause(client, gone)


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


def schedule_of(job: Job) -> str:
    """When it runs, in words."""
    return f"{job.schedule.cron} ({job.schedule.timezone})" if job.schedule else "no schedule"


def _gone(folder: str, jobs: dict[str, Job], known: dict[str, DeploymentResponse]) -> list[DeploymentResponse]:
    """Deployments that came from this folder, and whose job is not there any more."""
    root, names = Path(folder).absolute(), {job.name for job in jobs.values()}

    def is_gone(deployment: DeploymentResponse) -> bool:
        path = Path(str(deployment.parameters.get("job", "")))
        ours = TAG in deployment.tags and path.is_relative_to(root)
        # A file that is there holds another job now, or it is further down than is looked.
        return ours and deployment.name not in names and (str(path) in jobs or not path.exists())

    return [deployment for deployment in known.values() if is_gone(deployment)]


def _pause(client: SyncPrefectClient, gone: list[DeploymentResponse]) -> list[Deployed]:
    for deployment in gone:
        # What a person paused before is not marked, so that it is not woken when its file is back.
        if not deployment.paused:
            client.update_deployment(deployment.id, DeploymentUpdate(paused=True, tags=[*deployment.tags, GONE]))
    return [Deployed(each.name, "paused", f"{each.parameters.get('job')} has no such job any more") for each in gone]


def serve(
    jobs: dict[str, Job],
    folder: str,
    ray: str | None = None,
    engine: str = RAY,
    limit: int | None = None,
    over: Callable[[], None] = lambda: None,
) -> tuple[PatientRunner, list[Deployed]]:
    """A runner for the jobs of a folder: `start` polls for due runs and carries each out in a process of its own.
    And the deployments that were paused, because their job is gone.

    limit: so many runs at a time. over: raises when Prefect's API, which is away, will not come back.

    Raises:
        JobError: a name is that of a job in another place.
        ClusterError: Prefect's API said no.
    """
    with _api() as client:
        known = {deployment.name: deployment for deployment in _known(client)}
        made = [as_deployment(path, job, known.get(job.name), ray=ray, engine=engine) for path, job in jobs.items()]
        # Schedules stay active while nothing serves: a night that falls due meanwhile is late, not lost.
        runner = PatientRunner(over, name=TAG, pause_on_shutdown=False, limit=limit)
        for deployment in made:
            runner.add_deployment(deployment)
        return runner, _pause(client, _gone(folder, jobs, known))
