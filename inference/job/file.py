"""From a YAML file to a `Job`: safe reading, one sentence per fault, locations made absolute."""

from __future__ import annotations

import datetime as dt
import itertools
import operator
import os.path
import re
import string
import unicodedata
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import (
    CHECKS,
    ActorRange,
    IdentityRules,
    Input,
    Job,
    Limits,
    Model,
    Output,
    Rescoring,
    Resources,
    Retry,
    RowLimits,
    RowsCheck,
    Schedule,
    Wait,
    fill,
    is_dated,
)
from nightjar.inference.job.sentences import sentences
from nightjar.inference.messages import clip

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


MAX_BYTES = 1 << 20
"""Of a job file."""

_MAX_VALUES, _MAX_LEVELS = 100_000, 50
"""Of a job file with its aliases written out: ten short lines of YAML can stand for more values than memory holds."""

_LONGEST = {"name": 100, "model.uses": 200, "preprocess": 200}
"""Characters of names that become names of files and pages."""

_PLACE_BYTES = 800
"""Keys of object storage end at 1,024 bytes; what a run writes below its place takes less than 200."""

_PART_BYTES = 255
"""Of a name in a file system."""


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key written twice instead of keeping the last, and values of no bounded size."""

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None:
            _weigh(node, {})
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            # What PyYAML raises for 2026-02-30, which looks like a date, or for `!!int x`.
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"{node.value!r:.60} is no {kind}; write text in quotes", node.start_mark
            ) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
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


def _weigh(node: yaml.Node, known: dict[yaml.Node, tuple[int, int]]) -> tuple[int, int]:
    """How many values a node stands for with its aliases written out, and how deep they lie in each other.

    Raises:
        ConstructorError: too many, too deep, or without end.
    """
    if node in known:
        return known[node]
    # Until it is weighed, an alias of the node inside itself finds it too deep.
    known[node] = (0, _MAX_LEVELS)
    inner = itertools.chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
    values, levels = 1, 0
    for child in inner if isinstance(node, yaml.CollectionNode) else ():
        more, depth = _weigh(child, known)
        values, levels = values + more, max(levels, depth)
    known[node] = values, levels + 1
    if values > _MAX_VALUES or levels + 1 > _MAX_LEVELS:
        most = f"{_MAX_VALUES:,} values" if values > _MAX_VALUES else f"{_MAX_LEVELS} levels"
        raise yaml.constructor.ConstructorError(
            None, None, f"with its aliases written out it has more than {most}", node.start_mark
        )
    return known[node]


def load_job(path: str | Path) -> Job:
    """Read and validate a job file.

    Raises:
        JobError: one sentence per fault, naming the file and key.
    """
    path = Path(path).absolute()
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        text = raw.decode()
    except FileNotFoundError:
        raise JobError(f"{path}: no such job file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{path}: cannot be read: {error}") from error
    if len(raw) > MAX_BYTES:
        raise JobError(f"{path}: is no job file: it is larger than {MAX_BYTES >> 20} MiB")
    try:
        content = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise JobError(f"{path}: {_not_yaml(error)}") from error
    except RecursionError:
        raise JobError(f"{path}: not valid YAML: it is nested too deeply") from None
    if not isinstance(content, dict):
        raise JobError(f"{path}: a job file is a mapping of keys; start with `name:`")
    return parse_job(content, path)


def parse_job(content: dict[str, Any], path: Path) -> Job:
    """A job from its parsed content; `path` is the job file it would lie in."""
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
    folder = path.parent
    tables = [table.uri for table in job.output.tables]
    job = job.model_copy(
        update={
            "folder": str(folder),
            "places": tuple(filter(None, (_fixed(uri, folder) for uri in (job.input.uri, job.output.uri, *tables)))),
            "templates": tuple(absolute(uri, folder, pattern=True) for uri in (job.input.uri, job.output.uri)),
            "input": job.input.model_copy(update={"uri": absolute(job.input.uri, folder, pattern=True)}),
            "output": job.output.at(lambda uri: absolute(uri, folder).rstrip("/")),
            "model": job.model.model_copy(
                update={"path": absolute(job.model.path, folder) if job.model.path else None}
            ),
        }
    )
    for key in _PLACES:
        if value := _value(job, key):
            _check_place(value, f"{path}: {key}")
    for index, table in enumerate(job.output.tables):
        where = f"{path}: output.tables[{index}].{table.kind}"
        _check_place(table.uri, where)
        if is_dated(table.uri) or is_dated(job.output.uri):
            key = "the table" if is_dated(table.uri) else "output.uri"
            raise JobError(f"{where}: a table shows all nights of one place; take the {{date}} out of {key}")
    for index, check in enumerate(job.checks):
        if isinstance(check, RowsCheck) and check.rows.against and is_dated(job.output.uri):
            raise JobError(
                f"{path}: checks[{index}].rows.against: output.uri has a {{date}}, so each night is published in a "
                "place of its own and none is the last; take the {date} out of it, or compare with min and max"
            )
    return job


def _value(job: Job, key: str) -> str | None:
    """What stands under a key like `model.path`."""
    value: str | None = operator.attrgetter(key)(job)
    return value


def absolute(uri: str, folder: Path, *, pattern: bool = False) -> str:
    """A location as written, from the job's folder on; what its name holds is no placeholder, nor part of a pattern."""
    uri = uri.removeprefix("file://")
    if "://" in uri:
        return uri
    base = str(folder).replace("{", "{{").replace("}", "}}")
    base = re.sub(r"[*?\[]", r"[\g<0>]", base) if pattern else base
    # A trailing slash says "a folder", and is kept for the listing to see.
    return os.path.normpath(Path(base) / Path(uri).expanduser()) + ("/" if uri.endswith("/") else "")


def _fixed(uri: str, folder: Path) -> str:
    """The folder before the first placeholder or wildcard of a local path; all of it without one. Else empty."""
    uri = uri.removeprefix("file://")
    if "://" in uri:
        return ""
    found = re.search(r"[*?\[{]", uri)
    fixed = os.path.dirname(uri[: found.start()]) if found else uri  # noqa: PTH120 (text, as the rest of a location)
    return os.path.normpath(folder / Path(fixed).expanduser())


def _not_yaml(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"not valid YAML: {' '.join(str(error).split())}"
    mark = error.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: not valid YAML: {error.problem}"


def _check_place(text: str, where: str) -> None:
    """Whether a location can be one, dates left open."""
    try:
        fields = [
            (field + (f"!{conversion}" if conversion else ""), spec or "")
            for _, field, spec, conversion in string.Formatter().parse(text)
            if field is not None
        ]
    except ValueError as error:
        raise JobError(f"{where}: {error} in {text!r}; write a brace that is meant as {{{{ or }}}}") from None
    for field, spec in fields:
        # A spec may hold fields of its own, whose attributes nobody has checked.
        if field != "date" or "{" in spec:
            name = f"{field}:{spec}" if spec and field == "date" else field
            raise JobError(f"{where}: {{{name}}} is unknown; write {{date}} or {{date:%Y/%m/%d}}")
    try:
        filled = fill(text, dt.date(2026, 11, 19))
    except (ValueError, LookupError) as error:
        raise JobError(
            f"{where}: {text!r} cannot be filled in ({error}); write {{date}} or {{date:%Y/%m/%d}}"
        ) from None
    if "://" in text and not re.match(r"(s3|gs|az)://[^/]", filled):
        raise JobError(f"{where}: {text!r} is no place; write a path, or s3://, gs:// or az:// with a bucket")
    if problem := _no_place(filled):
        raise JobError(f"{where}: {clip(repr(text))} is no place: {problem}")


def _no_place(filled: str) -> str:
    """Why a location names nothing, or something else than it says; empty if it is sound."""
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in filled):
        return "it holds a control character"
    if len(filled.encode()) > _PLACE_BYTES:
        return f"it is longer than {_PLACE_BYTES} bytes"
    parts = filled.partition("://")[2].split("/")[1:] if "://" in filled else filled.split("/")[1:]
    inner = parts[:-1] if parts and not parts[-1] else parts
    if {"", ".", ".."} & set(inner):
        return "no part of it may be empty, '.' or '..'"
    if "://" not in filled and any(len(part.encode()) > _PART_BYTES for part in parts):
        return f"a part of it is longer than {_PART_BYTES} bytes"
    return ""
