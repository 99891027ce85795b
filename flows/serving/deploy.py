"""Makes one Prefect deployment per job file: creates or updates it, and pauses it if the file is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments.runner import DeploymentApplyError, RunnerDeployment
from prefect.exceptions import ObjectNotFound
from prefect.types.entrypoint import EntrypointType

from nightjar.flows.nightly_flow import nightly
from nightjar.flows.pages.escaping import code
from nightjar.flows.prefect_api.api import API_AWAY, api_url, in_words
from nightjar.inference.engine import RAY, check_name
from nightjar.inference.errors import ClusterError, JobError
from nightjar.inference.job.file import load_job
from nightjar.inference.job.model import Job

TAG = "nightjar"
GONE = "nightjar-gone"
"""Tag of a deployment that was paused because its job file was gone. Only such a one is resumed with its file."""

_OWN_KEYS = {"input", "model", "output"}
_PAGE = 200


@dataclass(frozen=True)
class Deployed:
    """A deployment that was changed."""

    name: str
    what: str
    """`created`, `updated`, or `paused` (its job file is gone)."""
    schedule: str


def find_jobs(folder: str) -> dict[str, Job]:
    """The jobs in a folder and in the folders directly below it, by path of their files; empty if there is none.

    A YAML file is a job file if it has two of the keys that every job has; other YAML files are ignored. A file that
    cannot be read counts as a job file, because an error message is better than a missed night.

    Raises:
        JobError: There is no such folder, a job file is wrong, or two have the same name or output.
    """
    root = Path(folder).absolute()
    if root.is_file():
        return {str(root): load_job(root)}
    if not root.is_dir():
        raise JobError(f"{root}: no such folder")
    # Hidden files are those of editors and of macOS.
    paths = sorted({*root.glob("[!.]*.y*ml"), *root.glob("[!.]*/[!.]*.y*ml")})
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
    """The error for a folder without job files, which says what a job file is."""
    keys = ", ".join(sorted(_OWN_KEYS))
    return JobError(f"{Path(folder).absolute()}: no job file in it or directly below it (YAML with the keys {keys})")


def _clashes(jobs: dict[str, Job], key: str, of: Callable[[Job], str]) -> Iterator[str]:
    first: dict[str, str] = {}
    for path, job in jobs.items():
        if (other := first.setdefault(of(job), path)) != path:
            yield f"{path}: {key}: {of(job)} belongs to {other} already; two jobs may not share it"


def as_deployment(
    path: str,
    job: Job,
    before: DeploymentResponse | None,
    *,
    ray: str | None = None,
    engine: str = RAY,
    pool: str | None = None,
    nights: str = "",
) -> RunnerDeployment:
    """The deployment of one job, with its schedule. One run goes on at a time; further runs wait.

    before: the present deployment of this name. If a person has paused it or its schedule, it stays paused. pool: None
    for none, as of a job that is served. nights: the address of the page of the job's nights, if one is served.

    Raises:
        JobError: A job file elsewhere has the same name.
    """
    other = Path(str(before.parameters.get("job", ""))) if before else Path(path)
    # A deployment made by prefect.yaml may have a path relative to the checkout.
    if other.is_file() and not other.samefile(path):
        raise JobError(f"{path}: name: {job.name} is deployed from {other} already; give this job another name")
    active = not (before and before.schedules) or any(schedule.active for schedule in before.schedules)
    schedule = CronSchedule(cron=job.schedule.cron, timezone=job.schedule.timezone) if job.schedule else None
    models = ", ".join(code(model.path or model.uses) for model in job.models)
    made = RunnerDeployment.from_flow(
        nightly,
        name=job.name,
        schedules=[DeploymentScheduleCreate(schedule=schedule, active=active)] if schedule else [],
        parameters={"job": path, **({"ray": ray} if ray else {}), **({} if engine == RAY else {"engine": engine})},
        description=f"Scores {code(job.input.shown)} with {models} into {code(job.output.uri)}."
        + (f" [Its nights and their reports]({nights})" if nights else ""),
        tags=[TAG, job.name],
        concurrency_limit=ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE),
        paused=before is not None and before.paused and GONE not in before.tags,
        work_pool_name=pool,
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    if pool is None:
        # Prefect leaves a field alone that is not set, and a deployment in a pool has runs that no `serve` starts.
        made.work_pool_name = made.work_queue_name = None
    return made


@contextmanager
def answering_api() -> Iterator[SyncPrefectClient]:
    """A client whose failures become one sentence. Changes made before a failure stay; repeating them does no harm."""
    try:
        with get_client(sync_client=True) as client:
            yield client
    except (*API_AWAY, DeploymentApplyError) as error:
        raise ClusterError(
            f"Prefect at {api_url()} did not make or pause all deployments: {in_words(error)}. Repeat the command when "
            "it answers; `nightjar doctor` shows what is wrong with it"
        ) from error


def deploy(folder: str, pool: str, ray: str | None = None, engine: str = RAY) -> list[Deployed]:
    """Make one deployment for each job file in a folder, for the workers of a pool, which is created if it is missing.

    A deployment whose job file is gone is paused, not deleted, so that its runs can still be looked at.

    Raises:
        JobError: A job file is wrong; nothing was changed.
        ClusterError: Prefect's API refused or failed.
    """
    check_name(engine)
    jobs = find_jobs(folder)
    with answering_api() as client:
        _ensure_pool(client, pool)
        known = known_deployments(client)
        made = [
            as_deployment(path, job, known.get(job.name), ray=ray, engine=engine, pool=pool)
            for path, job in jobs.items()
        ]
        gone = without_job(folder, jobs, known)
        if not made and not gone:
            raise none_found(folder)
        for deployment in made:
            deployment.apply()
        done = [
            Deployed(job.name, "updated" if job.name in known else "created", schedule_of(job)) for job in jobs.values()
        ]
        return done + pause(client, gone)


def _ensure_pool(client: SyncPrefectClient, name: str) -> None:
    try:
        client.read_work_pool(name)
    except ObjectNotFound:
        client.create_work_pool(WorkPoolCreate(name=name, type="process"))


def known_deployments(client: SyncPrefectClient) -> dict[str, DeploymentResponse]:
    """The deployments of the flow, by name, read page by page."""
    flow, known = FlowFilter(name=FlowFilterName(any_=[nightly.name])), dict[str, DeploymentResponse]()
    while True:
        page = client.read_deployments(flow_filter=flow, limit=_PAGE, offset=len(known))
        known |= {deployment.name: deployment for deployment in page}
        if len(page) < _PAGE:
            return known


def schedule_of(job: Job) -> str:
    """The job's schedule, in words."""
    return f"{job.schedule.cron} ({job.schedule.timezone})" if job.schedule else "no schedule"


def without_job(folder: str, jobs: dict[str, Job], known: dict[str, DeploymentResponse]) -> list[DeploymentResponse]:
    """Deployments made from this folder whose job does not exist any more."""
    root, names = Path(folder).absolute(), {job.name for job in jobs.values()}

    def is_gone(deployment: DeploymentResponse) -> bool:
        path = Path(str(deployment.parameters.get("job", "")))
        ours = TAG in deployment.tags and path.is_relative_to(root)
        # If the file exists, it has another job now, or it is in a deeper folder, which is not searched.
        return ours and deployment.name not in names and (str(path) in jobs or not path.exists())

    return [deployment for deployment in known.values() if is_gone(deployment)]


def pause(client: SyncPrefectClient, gone: list[DeploymentResponse]) -> list[Deployed]:
    for deployment in gone:
        # A deployment that a person paused gets no tag, so that it is not resumed when its file is back.
        if not deployment.paused:
            client.update_deployment(deployment.id, DeploymentUpdate(paused=True, tags=[*deployment.tags, GONE]))
    return [Deployed(each.name, "paused", f"{each.parameters.get('job')} has no such job any more") for each in gone]
