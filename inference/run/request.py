"""What a run is asked to do, and everything about it that can be refused before anything starts."""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from nightjar.inference.engine import ENGINES, RAY
from nightjar.inference.errors import AlreadyExists, JobError, Missing
from nightjar.inference.identity.identity import (
    NO_CODE,
    Identity,
    ScoringSet,
    fix,
    identify,
)
from nightjar.inference.identity.ownstate import CACHE
from nightjar.inference.identity.unpacking import place_model
from nightjar.inference.input.discovery import (
    first_schema,
    input_folder,
    takes_in,
    usual_schema,
)
from nightjar.inference.job.file import load_job
from nightjar.inference.job.model import Job, budget_rows, fill, is_dated
from nightjar.inference.ledger.ledger import LEASE_S
from nightjar.inference.messages import nearest
from nightjar.inference.output import publications as publish
from nightjar.inference.output.parts import output_schema
from nightjar.inference.predictors import input_columns
from nightjar.inference.predictors.archive import inspect_program
from nightjar.inference.scoring.assignment import WorkerSpec, read_schema
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Storage, is_local, join
from nightjar.inference.validation.contradictions import check_label_and_gates

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_LIMITED = re.compile(r"-limit-\d+$")
"""What the name of a limited run has after its date."""


@dataclass(frozen=True)
class RunRequest:
    """One run of one job for one logical date; sent whole to whoever carries out its steps.

    job: with its dates filled in. scoring: code and model as they were when the run began. cache: where each node
    keeps what it was sent of them. invocation: the Prefect flow run, or any id
    unique to this command; the steps of one invocation succeed each other.
    shards: score no others (of those that are missing); empty for all.
    lease_s: how long another writer must be silent before this one replaces it.
    dated: output.uri has {date}, so that each night has publications of its own.
    engine: where shards are scored and audited: a name in `engine.ENGINES`.
    """

    job: Job
    job_path: str
    run_id: str
    date: str
    storage: Storage
    invocation: str
    scoring: ScoringSet = NO_CODE
    limit: int | None = None
    fresh: bool = False
    publish: bool = True
    shards: tuple[str, ...] = ()
    cache: str = str(CACHE)
    lease_s: float = LEASE_S
    dated: bool = False
    engine: str = RAY

    @property
    def output(self) -> str:
        """Where the job's output lies."""
        return self.job.output.uri

    @property
    def named(self) -> list[str]:
        """The options that mean this run, for every command that has them."""
        said_by_name = _LIMITED.sub("", self.run_id) == self.date
        return ["--run-id", self.run_id, *([] if said_by_name else ["--date", self.date])]

    @property
    def again(self) -> list[str]:
        """The options of `nightjar run` that ask for this run once more; what is done of it stays."""
        how = [] if self.engine == RAY else ["--engine", self.engine]
        if self.limit:
            return [*self.named, "--limit", str(self.limit), *how]
        return [*self.named, *([] if self.publish else ["--no-publish"]), *how]

    @property
    def place(self) -> list[str]:
        """The options that name the place of this run's publications, where each night has one of its own."""
        return ["--date", self.date] if self.dated else []

    @property
    def words(self) -> tuple[str, ...]:
        """This run as the commands take it that are about one run: its name, and its place if that must be said."""
        return (self.run_id, *self.place)

    @property
    def run_uri(self) -> str:
        """Where this run's revisions lie."""
        return join(self.output, "runs", self.run_id)


def make_request(
    job_path: str | Path,
    *,
    date: str | None = None,
    run_id: str | None = None,
    limit: int | None = None,
    fresh: bool = False,
    publish: bool = True,
    invocation: str | None = None,
    storage: Storage | None = None,
    scores: bool = True,
    moment: dt.datetime | None = None,
    shards: tuple[str, ...] = (),
    engine: str = RAY,
) -> RunRequest:
    """Read the job file and settle which run of it is meant.

    date: the logical date. moment: when the run was due, with time zone; without a date, its date in the job's
    time zone is the logical date, and without a moment it is now. limit: score only the first shards that hold
    so many rows; such a run has an id of its own and is never published. scores: false for what only reads
    earlier runs, which must work while the user's code is broken.

    Raises:
        JobError: the job file, date or run id is wrong.
    """
    if engine not in ENGINES:
        raise JobError(f"--engine {engine!r}: choose one of {', '.join(ENGINES)}" + nearest(engine, ENGINES))
    path = Path(job_path).absolute()
    job = load_job(path)
    storage = storage or LakeStorage.from_environment(job.input.uri, job.output.uri, job.model.path or "")
    if run_id is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", run_id):
        raise JobError(f"--run-id {run_id!r}: use letters, digits, dots, dashes and underscores")
    if limit is not None and limit < 1:
        raise JobError(f"--limit {limit}: must be at least 1 row")
    day, meant = _date(date), _date(_LIMITED.sub("", run_id or ""), strict=False)
    if day and meant and day != meant:
        raise JobError(f"--run-id {run_id}: that is the name of another night than --date {day}; leave one of them out")
    day = day or meant
    record = _recorded(storage, job, run_id, day)
    # A limited run stays one, whoever continues it: it is never published.
    limit = limit or record.get("limit")
    day = day or _date(record.get("date")) or job.date_of(moment or dt.datetime.now(dt.UTC))
    if run_id is None:
        run_id = day.isoformat() + (f"-limit-{limit}" if limit else "")
    tonight = job.at(day)
    return RunRequest(
        job=tonight,
        job_path=str(path),
        run_id=run_id,
        date=day.isoformat(),
        storage=storage,
        invocation=invocation or uuid.uuid4().hex,
        scoring=fix(storage, tonight) if scores else NO_CODE,
        limit=limit,
        fresh=fresh,
        publish=publish and not limit,
        shards=shards,
        dated=is_dated(job.output.uri),
        engine=engine,
    )


def _date(text: str | None, strict: bool = True) -> dt.date | None:
    # Python would also read 2026-W47 and 20261119, which are good names of runs.
    if text and _DATE.fullmatch(text):
        with suppress(ValueError):
            return dt.date.fromisoformat(text)
    if text and strict:
        raise JobError(f"--date {text!r}: write a date as 2026-11-19")
    return None


def _recorded(storage: Storage, job: Job, run_id: str | None, day: dt.date | None) -> dict[str, Any]:
    """What a named run began with: continuing it after midnight must not move its date. day: if it is known."""
    if run_id is None or (is_dated(job.output.uri) and day is None):
        return {}
    try:
        output = fill(job.output.uri, day or dt.date.min)
        record: dict[str, Any] = json.loads(storage.read(join(output, "runs", run_id, "run.json")))
    except Missing:
        return {}
    return record


def record_run(request: RunRequest) -> None:
    """Note the run's logical date beside its revisions.

    Raises:
        JobError: the run exists with another date, or was limited.
    """
    uri = join(request.run_uri, "run.json")
    try:
        record = {"run_id": request.run_id, "date": request.date, "limit": request.limit}
        request.storage.create(uri, json.dumps(record).encode())
    except AlreadyExists:
        _check_same_run(request)


def _check_same_run(request: RunRequest) -> None:
    """Whether the run, if it exists (else Missing), is of the request's date, and as whole as the request."""
    before = json.loads(request.storage.read(join(request.run_uri, "run.json")))
    if before["date"] != request.date:
        raise JobError(
            f"--date {request.date}: the run {request.run_id!r} is of {before['date']}; choose another --run-id"
        )
    if (limit := before.get("limit")) and not request.limit:
        raise JobError(
            f"--run-id {request.run_id}: that run began with --limit {limit}, and such a run is never published; give "
            "the limit again, or choose another --run-id"
        )


def check_request(request: RunRequest) -> pa.Schema:
    """Refuse what can be refused without scoring; returns the input's columns.

    Raises:
        JobError: as `check_without_input`; or the input is empty, a column is missing or clashes.
    """
    check_without_input(request)
    job = request.job
    schema = first_schema(request.storage, job)
    try:
        check_columns(job, schema)
    except JobError:
        # The first file may be the odd one, which costs only itself.
        schema = usual_schema(request.storage, job) or schema
        check_columns(job, schema)
    return schema


def check_without_input(request: RunRequest) -> None:
    """Refuse what can be refused while the input is still to come.

    Raises:
        JobError: the output is another job's or inside the input, or the model cannot be read or would run code when
            loaded.
    """
    _check_places(request)
    publish.check_owner(request.storage, request.output, request.job.name)
    with suppress(Missing):
        _check_same_run(request)
    check_model(request)


def check_columns(job: Job, schema: pa.Schema) -> None:
    """Whether the input has every column the job names, of a type that serves what it is named for."""
    features = input_columns(job, schema)
    for key, names in (("carry", job.carry), ("label", (job.label,) if job.label else ())):
        for name in names:
            if name not in schema.names:
                known = nearest(name, schema.names) or f"; it has {', '.join(schema.names[:30])}"
                raise JobError(f"{key}: {name!r} is not a column of the input{known}")
    if job.label and not _is_label(schema.field(job.label).type):
        raise JobError(f"label: {job.label!r} is {schema.field(job.label).type}; a label is bool, or 0 and 1")
    if job.model.uses == "torch" and job.preprocess is None:
        for name in features:
            if not _is_numeric(kind := schema.field(name).type):
                raise JobError(
                    f"model.features: {name!r} is {kind}, and the torch adapter takes numbers only; list the columns "
                    "the model takes, or make numbers of it in a preprocess"
                )
    for name in {*features, *job.carry, *([job.label] if job.label else [])}:
        if schema.names.count(name) > 1:
            raise JobError(f"input.uri: the column {name!r} is there twice; which one is meant nobody can tell")
    output_schema(job, schema)
    check_label_and_gates(job, schema)


def _is_numeric(kind: pa.DataType) -> bool:
    """Numbers, or lists of them."""
    while (inner := getattr(kind, "storage_type", None) or getattr(kind, "value_type", None)) is not None:
        kind = inner
    return bool(pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_label(kind: pa.DataType) -> bool:
    return bool(pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def check_model(request: RunRequest) -> None:
    """Look at the model's file.

    Raises:
        JobError: it cannot be read, or loading it would run code and the job does not allow that.
    """
    model = request.job.model
    if model.uses == "torch" and model.path is not None:
        local = model.path  # looked at where a person finds it; whoever loads its copy looks again
        if not is_local(local):
            local, _ = place_model(request.storage, request.scoring.model, Path(request.cache), local)
        inspect_program(local, model.allow_pickle)


def identity_of(request: RunRequest, schema: pa.Schema) -> Identity:
    """What this request's shards are scored by. schema: all columns of the input."""
    return identify(request.job, request.scoring, schema)


def _check_places(request: RunRequest) -> None:
    source, target = request.job.input.uri, request.output
    folders = (f"runs/{request.run_id}/r1", "latest", f"dates/{request.date}")
    if any(takes_in(source, join(target, folder, "data", "part.parquet")) for folder in folders):
        raise JobError(
            f"output.uri: {target} lies inside input.uri {source}: the next run would score its own predictions"
        )
    if (input_folder(source) + "/").startswith(target + "/"):
        raise JobError(f"input.uri: {source} lies inside output.uri {target}; keep them apart")
    with suppress(Missing):
        request.storage.stat(target)
        raise JobError(f"output.uri: {target} is a file; write a folder")


def worker_spec(
    request: RunRequest,
    schema: pa.Schema,
    *,
    revision: str = "",
    epoch: int = 0,
    segment: int = 0,
    rows: int = 0,
) -> WorkerSpec:
    """What a request's workers are sent. Without a revision nothing can be written, only scored.

    schema: all columns of the input. rows: of the whole run, from which its budget of lost rows follows.
    """
    return WorkerSpec(
        job=request.job,
        job_path=request.job_path,
        run=request.words,
        revision=revision,
        storage=request.storage,
        schema=read_schema(request.job, schema),
        epoch=epoch,
        segment=segment,
        budget=budget_rows(request.job.retry.max_quarantined, rows),
        scoring=request.scoring,
        cache=request.cache,
    )
