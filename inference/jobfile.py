"""From a YAML file to a `Job`: safe reading, one sentence per fault, locations made absolute."""

from __future__ import annotations

import datetime as dt
import os.path
import re
import string
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from nightjar.inference.errors import JobError
from nightjar.inference.job import ActorRange, Check, Input, Job, Model, Output, Resources, Retry, Schedule, fill
from nightjar.inference.sentences import sentences

_LATER = {
    "models": "scoring several models in one read is not supported yet; write one job per model",
    "audit": "the rescore audit is not supported yet; every run is already audited row by row",
}
_PLACES = ("input.uri", "output.uri", "model.path")

_SECTIONS: dict[str, type[BaseModel]] = {
    "": Job,
    "input": Input,
    "model": Model,
    "output": Output,
    "resources": Resources,
    "resources.actors": ActorRange,
    "retry": Retry,
    "checks": Check,
    "schedule": Schedule,
}
_CHOICES = {
    "model.batch_size": "auto or a number of rows, 1 or more",
    "resources.actors": "a number of actors, 1 or more, or {min: 1, max: 8}",
}


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key written twice instead of keeping the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} must be text; write it in quotes", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is written twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_job(path: str | Path) -> Job:
    """Read and validate a job file.

    Raises:
        JobError: one sentence per fault, naming the file and key.
    """
    path = Path(path).absolute()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise JobError(f"{path}: no such job file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{path}: cannot be read: {error}") from error
    try:
        content = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise JobError(f"{path}: {_not_yaml(error)}") from error
    if not isinstance(content, dict):
        raise JobError(f"{path}: a job file is a mapping of keys; start with `name:`")
    return parse_job(content, path)


def parse_job(content: dict[str, Any], path: Path) -> Job:
    """A job from its parsed content; `path` is the job file it would lie in."""
    if inner := sorted({"folder", "places"} & set(content)):
        raise JobError(f"{path}: unknown key {inner[0]!r}")
    for key, reason in _LATER.items():
        if key in content:
            raise JobError(f"{path}: {key}: {reason}")
    try:
        job = Job.model_validate(content)
    except ValidationError as error:
        raise JobError("\n".join(f"{path}: {fault}" for fault in sentences(error, _SECTIONS, _CHOICES))) from None
    folder = path.parent
    job = job.model_copy(
        update={
            "folder": str(folder),
            "input": job.input.model_copy(update={"uri": _absolute(job.input.uri, folder)}),
            "output": job.output.model_copy(update={"uri": _absolute(job.output.uri, folder).rstrip("/")}),
            "model": job.model.model_copy(
                update={"path": _absolute(job.model.path, folder) if job.model.path else None}
            ),
        }
    )
    local = [uri for uri in (job.input.uri, job.output.uri) if "://" not in uri]
    job = job.model_copy(update={"places": tuple(map(_fixed, local))})
    for key in _PLACES:
        section, name = key.split(".")
        value = getattr(getattr(job, section), name)
        if value:
            _check_place(value, f"{path}: {key}")
    return job


def _absolute(uri: str, folder: Path) -> str:
    if uri.startswith("file://"):
        uri = uri.removeprefix("file://")
    if "://" in uri:
        return uri
    # A trailing slash says "a folder", and is kept for the listing to see.
    return os.path.normpath(folder / Path(uri).expanduser()) + ("/" if uri.endswith("/") else "")


def _fixed(path: str) -> str:
    """The folder before the first placeholder or wildcard of a local path; all of it without one."""
    found = re.search(r"[*?\[{]", path)
    return os.path.dirname(path[: found.start()]) if found else path  # noqa: PTH120 (text, as the rest of a location)


def _not_yaml(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"not valid YAML: {' '.join(str(error).split())}"
    mark = error.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: not valid YAML: {error.problem}"


def _check_place(text: str, where: str) -> None:
    """Whether a location can be one, dates left open."""
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(text) if field is not None]
    except ValueError as error:
        raise JobError(f"{where}: {error} in {text!r}; write a brace that is meant as {{{{ or }}}}") from None
    for field in fields:
        if field != "date":
            raise JobError(f"{where}: {{{field}}} is unknown; write {{date}} or {{date:%Y/%m/%d}}")
    try:
        fill(text, dt.date(2026, 11, 19))
    except (ValueError, LookupError) as error:
        raise JobError(
            f"{where}: {text!r} cannot be filled in ({error}); write {{date}} or {{date:%Y/%m/%d}}"
        ) from None
    if "://" in text and not re.match(r"(s3|gs|az)://[^/]", text):
        raise JobError(f"{where}: {text!r} is no place; write a path, or s3://, gs:// or az:// with a bucket")
