"""Reads a `Job` from a YAML file: safely, with one sentence per fault, and with absolute locations."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from nightjar.inference.errors import JobError
from nightjar.inference.job.checks import CHECKS, Limits, RowLimits, RowsCheck
from nightjar.inference.job.input import Input, Wait
from nightjar.inference.job.locations import absolute, check_place, fixed, is_dated
from nightjar.inference.job.model import Job
from nightjar.inference.job.schedule import Schedule
from nightjar.inference.job.sections import (
    ActorRange,
    IdentityRules,
    Model,
    Output,
    Rescoring,
    Resources,
    Retry,
)
from nightjar.inference.job.sentences import sentences
from nightjar.inference.job.yamlfile import read_yaml

_LATER = {
    "models": "scoring several models in one read is not supported yet; write one job per model",
}
_PLACES = ("input.uri", "output.uri", "model.path")

_SECTIONS: dict[str, tuple[type[BaseModel], ...]] = {
    "": (Job,),
    "input": (Input,),
    "input.wait": (Wait,),
    "model": (Model,),
    "output": (Output,),
    "resources": (Resources,),
    "resources.actors": (ActorRange,),
    "retry": (Retry,),
    "rescore": (Rescoring,),
    "identity": (IdentityRules,),
    "checks": tuple(CHECKS.values()),
    "checks.rows": (RowLimits,),
    "checks.files": (Limits,),
    "schedule": (Schedule,),
}
_CHOICES = {
    "model.batch_size": "auto or a number of rows, 1 or more",
    "identity": "strict, or {strict: true, packages: [numpy]}",
    "resources.actors": "a number of actors, 1 or more, or {min: 1, max: 8}",
    "input.wait.until": "the name of a marker, as _SUCCESS, or a number of files, 1 or more",
    "checks[]": "a check on a column, on rows or on files, as {column: score, min: 0} or {rows: {min: 1000}}",
}

_LONGEST = {"name": 100, "model.uses": 200, "preprocess": 200}
"""The longest values, in characters, of keys that become names of files and pages."""


def load_job(path: str | Path) -> Job:
    """Read and validate a job file.

    Raises:
        JobError: one sentence per fault, naming the file and key.
    """
    path = Path(path).absolute()
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise JobError(f"{path}: a job file is a mapping of keys; start with `name:`")
    return parse_job(content, path)


def parse_job(content: dict[str, Any], path: Path) -> Job:
    """Make a job from its parsed content. path: of its job file.

    Raises:
        JobError: one sentence per fault, naming the file and key.
    """
    if inner := sorted({"folder", "places", "templates"} & set(content)):
        raise JobError(f"{path}: unknown key {inner[0]!r}")
    for key, reason in _LATER.items():
        if key in content:
            raise JobError(f"{path}: {key}: {reason}")
    try:
        job = Job.model_validate(content)
    except ValidationError as error:
        raise JobError("\n".join(f"{path}: {fault}" for fault in sentences(error, _SECTIONS, _CHOICES))) from None
    for key, most in _LONGEST.items():
        if len(_value(job, key) or "") > most:
            raise JobError(f"{path}: {key}: is longer than {most} characters")
    job = _placed(job, path.parent)
    _check_places(job, path)
    _check_comparisons(job, path)
    return job


def _placed(job: Job, folder: Path) -> Job:
    """The job with absolute locations, relative to its folder."""
    tables = [table.uri for table in job.output.tables]
    return job.model_copy(
        update={
            "folder": str(folder),
            "places": tuple(filter(None, (fixed(uri, folder) for uri in (job.input.uri, job.output.uri, *tables)))),
            "templates": tuple(absolute(uri, folder, pattern=True) for uri in (job.input.uri, job.output.uri)),
            "input": job.input.model_copy(update={"uri": absolute(job.input.uri, folder, pattern=True)}),
            "output": job.output.at(lambda uri: absolute(uri, folder).rstrip("/")),
            "model": job.model.model_copy(
                update={"path": absolute(job.model.path, folder) if job.model.path else None}
            ),
        }
    )


def _check_places(job: Job, path: Path) -> None:
    for key in _PLACES:
        if value := _value(job, key):
            check_place(value, f"{path}: {key}")
    for index, table in enumerate(job.output.tables):
        where = f"{path}: output.tables[{index}].{table.kind}"
        check_place(table.uri, where)
        if is_dated(table.uri) or is_dated(job.output.uri):
            key = "the table" if is_dated(table.uri) else "output.uri"
            raise JobError(f"{where}: a table shows all nights of one place; take the {{date}} out of {key}")


def _check_comparisons(job: Job, path: Path) -> None:
    """Check that each check against the last night has a night to compare with."""
    for index, check in enumerate(job.checks):
        if isinstance(check, RowsCheck) and check.rows.against and is_dated(job.output.uri):
            raise JobError(
                f"{path}: checks[{index}].rows.against: output.uri has a {{date}}, so each night is published in a "
                "place of its own and none is the last; take the {date} out of it, or compare with min and max"
            )


def _value(job: Job, key: str) -> str | None:
    """The value of a key like `model.path`."""
    value: str | None = operator.attrgetter(key)(job)
    return value
