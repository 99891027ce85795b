"""The request for a run: which job, which night and where; and what follows from it for the steps and the workers."""

from __future__ import annotations

import datetime as dt
import os
import re
import uuid
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from nightjar.inference.engine import RAY, check_name
from nightjar.inference.errors import AlreadyExists, JobError, Missing
from nightjar.inference.identity.identity import Identity, fix, identify
from nightjar.inference.input.files import own_places, with_list
from nightjar.inference.job.checks import BASELINE, RUN_ID
from nightjar.inference.job.file import load_job
from nightjar.inference.job.input import named_input
from nightjar.inference.job.locations import fill, is_dated
from nightjar.inference.job.model import Job
from nightjar.inference.job.sections import budget_rows
from nightjar.inference.job.times import Days, given_time, is_day, parsed
from nightjar.inference.jsonform import of_bytes, to_bytes
from nightjar.inference.ledger.endings import utc
from nightjar.inference.ledger.epochs import LEASE_S
from nightjar.inference.output.owner import check_owner
from nightjar.inference.output.revisions import run_folder
from nightjar.inference.output.rowindex import RowReuse
from nightjar.inference.scoring.assignment import OfRun, WorkerSpec, read_schema
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.locations import location
from nightjar.inference.storage.protocol import Storage, join, read_control
from nightjar.inference.storage.registries import pinned

_LIMITED = re.compile(r"-limit-\d+$")
"""The end of a limited run's name, after its date."""


@dataclass(frozen=True, kw_only=True)
class RunRequest(OfRun):
    """One run of one job for one logical time. It is sent as a whole to the processes that carry out its steps.

    `job` has its dates filled in.
    """

    run_id: str
    """The name of the run, which names the folder of its revisions."""

    date: str
    """The logical time, of `job.times`: a day as `2026-11-28`, or an instant in UTC as `2026-11-28T0530`."""

    flow_run: str
    """Prefect's id, or any id unique to this command; the steps of one flow run may follow each other at once."""

    again_since: str = ""
    """When Prefect began this flow run once more, in UTC, as ISO 8601; empty for its first try."""

    limit: int | None = None
    """Score only the first shards that together have at least this many rows, and never publish; None for all."""

    fresh: bool = False
    """Whether everything is scored again, by `--fresh`."""

    publish: bool = True
    """Whether a run that passes its gates is published; False by `--no-publish`, and with a `limit`."""

    lease_s: float = LEASE_S
    """The seconds without a segment after which another writer may be replaced."""

    dated: bool = False
    """Whether output.uri has {date}, so that each night has publications of its own."""

    engine: str = RAY
    """Where shards are scored and audited: a name in `engine.ENGINES`."""

    inputs: tuple[str, ...] = ()
    """The inputs of `nightjar baseline`, in place of the job's own; empty for other commands."""

    @property
    def command(self) -> str:
        """The command that scores this run, and that continues it."""
        return BASELINE if self.run_id == BASELINE else "run"

    @property
    def output(self) -> str:
        """The URI of the job's output."""
        return self.job.output.uri

    @property
    def again(self) -> list[str]:
        """The options of `command` that continue this run."""
        if self.command == BASELINE:
            return [*(word for uri in self.inputs or ("URI",) for word in ("--input", uri)), *self.how]
        said_by_name = _LIMITED.sub("", self.run_id) == self.date
        named = ["--run-id", self.run_id, *([] if said_by_name else ["--date", self.date])]
        if self.limit:
            return [*named, "--limit", str(self.limit), *self.how]
        return [*named, *([] if self.publish else ["--no-publish"]), *self.how]

    @property
    def how(self) -> list[str]:
        """The options that say where to score."""
        return [] if self.engine == RAY else ["--engine", self.engine]

    @property
    def place(self) -> list[str]:
        """The options that name the output of this run's publications, if each night has an output of its own."""
        return ["--date", self.date] if self.dated else []

    @property
    def words(self) -> tuple[str, ...]:
        """The arguments for commands about one run: its name, and its output's date if that is needed."""
        return (self.run_id, *self.place)

    @property
    def run_uri(self) -> str:
        """The URI of the folder with this run's revisions."""
        return run_folder(self.output, self.run_id)

    def check_owner(self) -> str | None:
        """As `output.owner.check_owner`, for this job and its output."""
        return check_owner(self.storage, self.output, self.job.name)


def make_request(
    job_path: str | Path,
    *,
    date: str | None = None,
    run_id: str | None = None,
    limit: int | None = None,
    fresh: bool = False,
    publish: bool = True,
    flow_run: str | None = None,
    storage: Storage | None = None,
    moment: dt.datetime | None = None,
    engine: str = RAY,
    inputs: tuple[str, ...] = (),
) -> RunRequest:
    """Read the job file and decide which run is meant.

    date: the logical time. moment: when the run was due, with time zone; default: now. Without `date`, the logical time
    is the moment's, as the job's schedule has it. limit: score only the first shards that together have at least this
    many rows; such a run has an id of its own and is never published. inputs: of a training set, to be described and
    not published.

    The user's code and the model are not looked at, as in `fixed`: a run can be read while they are broken.

    Raises:
        JobError: The job file, date or run id is wrong.
    """
    check_name(engine)
    path = Path(job_path).absolute()
    job = _for_training(load_job(path), inputs) if inputs else load_job(path)
    storage = storage or storage_of(job)
    run_id, day, limit = _which(storage, job, run_id, date, limit, moment)
    return RunRequest(
        job=job.at(day),
        job_path=str(path),
        run_id=run_id,
        date=day,
        storage=storage,
        flow_run=flow_run or uuid.uuid4().hex,
        limit=limit,
        fresh=fresh,
        publish=publish and not limit,
        dated=is_dated(job.output.uri),
        engine=engine,
        inputs=tuple(map(location, job.input.uris)) if inputs else (),
    )


def unrecorded_request(job_path: str | Path, **given: Any) -> RunRequest:
    """The same for a run whose folder cannot be read. The folder has its date and limit; if neither the options nor the
    name have the date, the run counts as new. Its storage is of no settings, which may be what is wrong.
    """
    name = given.get("run_id") or ""
    alone = {**given, "run_id": None, "date": given.get("date") or date_named(name)}
    found = make_request(job_path, **alone, storage=LakeStorage())
    return replace(found, run_id=name or found.run_id)


def storage_of(job: Job) -> LakeStorage:
    """The storage for a job's places."""
    labels = job.late_labels.input if job.late_labels else None
    inputs = own_places(job.input)  # also of what a list will name
    places = (*inputs, *(own_places(labels) if labels else ()))
    anonymous = inputs if job.input.anonymous else ()
    return LakeStorage.from_environment(*places, job.output.uri, *job.paths, anonymous=anonymous, web=places)


def date_named(run_id: str) -> str | None:
    """The logical time that is the name of a run; None if its name is another one."""
    return parsed(_LIMITED.sub("", run_id))


def is_run_id(name: str) -> bool:
    """Whether a run can have this name."""
    return re.fullmatch(RUN_ID, name) is not None


def run_ids(storage: Storage, output: str) -> list[str]:
    """The names of the runs in an output, sorted. A folder of another name is none that a run made."""
    return [name for name in storage.subfolders(join(output, "runs")) if is_run_id(name)]


def _for_training(job: Job, inputs: tuple[str, ...]) -> Job:
    """The job of `nightjar baseline`: the same columns of another input, which no check of the job judges. inputs: of
    the command line, so relative to the current folder.

    Raises:
        JobError: The job describes no columns, or an input is no place.
    """
    if not job.profiling:
        raise JobError(
            "profile: a baseline is what columns look like, and the job describes none; write `profile: all`, or a "
            "check on drift as {drift: all, against: baseline}"
        )
    if is_dated(job.output.uri):
        raise JobError(
            "output.uri: has a {date}, so each night is in a place of its own, where no other run is found to compare "
            "with; take the {date} out of it"
        )
    given = named_input(job.input, inputs, "--input").model_copy(update={"wait": None})
    # The input of nights is no code of this run either.
    templates = (*job.templates, *map(location, given.uris))
    return job.model_copy(update={"input": given, "templates": templates, "judged": False})


def _which(
    storage: Storage, job: Job, run_id: str | None, date: str | None, limit: int | None, moment: dt.datetime | None
) -> tuple[str, str, int | None]:
    """Which run is meant: its id, its logical time, and its limit of rows."""
    if run_id is not None and not is_run_id(run_id):
        raise JobError(
            f"--run-id {run_id!r}: begin with a letter or digit; at most 100 letters, digits, dots, dashes, underscores"
        )
    if limit is not None and limit < 1:
        raise JobError(f"--limit {limit}: must be at least 1 row")
    times = job.times
    day, meant = given_time(date, "--date") if date else None, date_named(run_id or "")
    if meant and not is_day(meant) and isinstance(times, Days):
        meant = None  # any name will do for a run of a day
    if run_id is not None and meant is not None:
        run_id = parsed(run_id) or run_id  # an instant has one text
    if day and meant and day != meant:
        raise JobError(
            f"--run-id {run_id}: that is the name of another night than --date {day}; leave out one of the two"
        )
    option, day = "--date" if day else "--run-id" if meant else "", day or meant
    before = _recorded(storage, job, run_id, day)
    # A limited run stays limited, whoever continues it: it is never published.
    limit = limit or (before.limit if before else None)
    if day is None:
        day = given_time(before.date, "--date") if before else times.of(moment or dt.datetime.now(dt.UTC))
    if run_id is None:
        run_id = day + (f"-limit-{limit}" if limit else "")
    if option:
        try:
            times.check(day, option)
        except JobError:
            # A run that began before the schedule was changed keeps its time.
            if (before or _recorded(storage, job, run_id, day)) is None:
                raise
    return run_id, day, limit


def to_begin(request: RunRequest) -> RunRequest:
    """The request, for a command that begins or continues the run.

    Raises:
        JobError: The name of the run is kept for a baseline.
    """
    if request.run_id == BASELINE and not request.inputs:
        raise JobError(
            f"--run-id {BASELINE}: is the name of what `nightjar baseline JOB --input URI` makes of a training set; "
            "use that command, or choose another name"
        )
    return request


def fixed(request: RunRequest) -> RunRequest:
    """The request with a snapshot of code and model as they are now, and the variables that this process has.

    A branch of the Hub and an alias of MLflow are asked for now: from here on the job names a commit or a version.

    Raises:
        JobError: One of them does not exist.
    """
    job = request.job.with_paths(pinned)
    environment = job.resources.runtime_env.variables(os.environ)
    scoring = fix(request.storage, with_list(request.storage, job))
    return replace(request, job=job, scoring=scoring, environment=environment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What a run began with, from `run.json`: its first file, also if it waits, or fails before it scores."""

    run_id: str = ""
    """The name of the run."""

    date: str
    """Its logical time."""

    limit: int | None = None
    """The most rows that are scored; None for all."""

    at: str = ""
    """When it began, in UTC, as ISO 8601."""


def _recorded(storage: Storage, job: Job, run_id: str | None, day: str | None) -> Begun | None:
    """What a named run began with, because continuing it after midnight must not change its date. day: if it is
    known.
    """
    if run_id is None or (is_dated(job.output.uri) and day is None):
        return None
    try:
        return begun(storage, run_folder(fill(job.output.uri, day or ""), run_id))
    except Missing:
        return None


def begun(storage: Storage, run_uri: str) -> Begun:
    """What a run began with.

    Raises:
        Missing: It never began.
    """
    return read_control(
        storage,
        join(run_uri, "run.json"),
        partial(of_bytes, Begun),
        "the beginning of a run",
        "delete it, and run this night again with the --date and the --limit that it had: that writes it again",
    )


def record_run(request: RunRequest) -> None:
    """Note the run's logical time beside its revisions.

    Raises:
        JobError: the run exists with another date, or was limited.
    """
    uri = join(request.run_uri, "run.json")
    try:
        record = Begun(run_id=request.run_id, date=request.date, limit=request.limit, at=utc())
        request.storage.create(uri, to_bytes(record))
    except AlreadyExists:
        check_same_run(request)


def check_same_run(request: RunRequest) -> None:
    """Check that the run, if it exists (else Missing is raised), has the request's date, and the same limit."""
    before = begun(request.storage, request.run_uri)
    if before.date != request.date:
        raise JobError(
            f"--date {request.date}: the run {request.run_id!r} is of {before.date}; choose another --run-id"
        )
    if (limit := before.limit) and not request.limit:
        raise JobError(
            f"--run-id {request.run_id}: that run began with --limit {limit}, and such a run is never published; give "
            "the limit again, or choose another --run-id"
        )


def identity_of(request: RunRequest, schema: pa.Schema) -> Identity:
    """The identity of this request's results. schema: all columns of the input."""
    return identify(request.job, request.scoring, schema)


def worker_spec(
    request: RunRequest,
    schema: pa.Schema,
    *,
    revision: str = "",
    epoch: int = 0,
    segment: int = 0,
    rows: int | None = 0,
    described: float = 1.0,
    reuse: RowReuse | None = None,
) -> WorkerSpec:
    """The spec for the workers of a request. Without a revision they can score, but not write.

    schema: all columns of the input. rows: of the whole run, which decide the most rows that may be quarantined; None
    if they are not known before they are read. described: the share of the rows whose columns are described. reuse: how
    outputs of rows are taken from an earlier night.
    """
    of_run = {name: getattr(request, name) for name in OfRun.__dataclass_fields__}
    return WorkerSpec(
        **{**of_run, "job": request.job.describing(described)},
        run=request.words,
        revision=revision,
        schema=read_schema(request.job, schema),
        epoch=epoch,
        segment=segment,
        reuse=reuse,
        budget=None if rows is None else budget_rows(request.job.retry.max_quarantined, rows),
    )
