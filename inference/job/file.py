"""Reads a `Job` from a YAML file: safely, with one sentence per fault, and with absolute locations."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from nightjar.inference.errors import JobError
from nightjar.inference.job.checks import DriftCheck, RowsCheck
from nightjar.inference.job.input import Input
from nightjar.inference.job.locations import absolute, check_database, check_place, is_database, is_dated
from nightjar.inference.job.model import Job
from nightjar.inference.job.model_sections import NamedModel
from nightjar.inference.job.sentences import sentences
from nightjar.inference.storage.locations import check_registered, is_registered, location


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
    try:
        job = Job.model_validate(content)
    except ValidationError as error:
        raise JobError("\n".join(f"{path}: {fault}" for fault in sentences(error))) from None
    job = _placed(_with_documents(job, path.parent), path.parent)
    _check_places(job, path)
    _check_comparisons(job, path)
    return job


def _with_documents(job: Job, folder: Path) -> Job:
    """The job with the content of the files that options name, so that it is part of what scores."""

    def read(model: NamedModel) -> NamedModel:
        named = {name: model.options.get(name) for name in model.framework.documents}
        found = {name: read_yaml(folder / at, "document") for name, at in named.items() if isinstance(at, str)}
        return model.model_copy(update={"options": {**model.options, **found}}) if found else model

    return job.with_models(read)


def _placed(job: Job, folder: Path) -> Job:
    late = job.late_labels
    data = (job.input, late.input) if late and late.input else (job.input,)
    inputs = [uri for each in data for uri in ([each.list_] if each.list_ else each.uris)]
    if late and late.input:
        late = late.model_copy(update={"input": _placed_input(late.input, folder)})
    return job.with_paths(lambda path: absolute(path, folder)).model_copy(
        update={
            "folder": str(folder),
            "templates": tuple(
                location(absolute(uri, folder, pattern=True)) for uri in (*inputs, job.output.uri, *job.paths)
            ),
            "input": _placed_input(job.input, folder),
            "output": job.output.at(lambda uri: absolute(uri, folder).rstrip("/")),
            "late_labels": late,
        }
    )


def _placed_input(given: Input, folder: Path) -> Input:
    return given.at(lambda uri: absolute(uri, folder, pattern=True), lambda uri: absolute(uri, folder))


def _check_input(given: Input, where: str) -> None:
    """where: the file and the key of the section."""
    if uri := given.list_:
        check_place(uri, f"{where}.list", web=True)
        if given.format == "sql":
            raise JobError(f"{where}.list: a database is the only input of a job; name it in input.uri")
    for uri in given.within:
        check_place(uri.rstrip("/") or uri, f"{where}.within", web=True)
    for uri in given.uris:
        if not is_database(uri):
            check_place(uri, f"{where}.uri", web=True)
            continue
        check_database(uri, f"{where}.uri")
        if given.format != "sql":
            raise JobError(f"{where}.format: write sql for rows of a database")
        if len(given.uris) > 1:
            raise JobError(f"{where}.uri: a database is the only input of a job; take it out of the list")


def _check_places(job: Job, path: Path) -> None:
    _check_input(job.input, f"{path}: input")
    if job.late_labels and job.late_labels.input:
        _check_input(job.late_labels.input, f"{path}: late_labels.input")
    check_place(job.output.uri, f"{path}: output.uri")
    for key, model in job.models_by_key().items():
        if model.path:
            check = check_registered if is_registered(model.path) else check_place
            check(model.path, f"{path}: {key}.path")
    for index, table in enumerate(job.output.tables):
        where = f"{path}: output.tables[{index}].{table.kind}"
        check_place(table.uri, where)
        if is_dated(table.uri) or is_dated(job.output.uri):
            key = "the table" if is_dated(table.uri) else "output.uri"
            raise JobError(f"{where}: a table shows all nights of one place; take the {{date}} out of {key}")


def _check_comparisons(job: Job, path: Path) -> None:
    for index, check in enumerate(job.checks):
        key = "rows.against" if isinstance(check, RowsCheck) and check.rows.against else ""
        key = "against" if isinstance(check, DriftCheck) else key
        if key and is_dated(job.output.uri):
            instead = ", or compare with min and max" if key == "rows.against" else ""
            raise JobError(
                f"{path}: checks[{index}].{key}: output.uri has a {{date}}, so each night is published in a "
                "place of its own and none is the last; take the {date} out of it" + instead
            )


MAX_BYTES = 1 << 20
"""The largest job file, in bytes."""

_ADVICE = "; text with braces, brackets, `: ` or ` #` stands in quotes, and lines are indented by spaces"


def read_yaml(path: Path, what: str = "job file") -> Any:
    """Read the content of a file. what: it is, for messages.

    Raises:
        JobError: it cannot be read, is too large, or is not YAML, or not JSON as its name says.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        text = raw.decode()
    except FileNotFoundError:
        raise JobError(f"{path}: no such {what}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{path}: cannot be read: {error}") from error
    if len(raw) > MAX_BYTES:
        raise JobError(f"{path}: is no {what}: it is larger than {MAX_BYTES >> 20} MiB")
    try:
        if path.suffix == ".json":  # YAML 1.1 has other escapes and numbers
            return json.loads(text.removeprefix("\ufeff"), object_pairs_hook=_object)
        return yaml.load(text, Loader=_Loader)
    except (ValueError, OverflowError) as error:  # of YAML: an escape of no character
        raise JobError(f"{path}: not valid {'JSON' if path.suffix == '.json' else 'YAML'}: {error}") from error
    except yaml.YAMLError as error:
        raise JobError(f"{path}: {_not_yaml(error)}") from error
    except RecursionError:
        raise JobError(f"{path}: it is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; as in YAML no key may be written twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"key {key!r} is written twice")
    return found


_BOOL, _MERGE, _TEXT = (f"tag:yaml.org,2002:{name}" for name in ("bool", "merge", "str"))

_WORDS = {"on", "off", "yes", "no"}
"""Words that PyYAML takes for true and false, and YAML since 1.2 for text; as keys they are text, as in `notify.on`."""


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses duplicate keys."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            # What PyYAML raises for 2026-02-30, which looks like a date, or for `!!int x`.
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"{node.value!r:.60} is no {kind}; write text in quotes", node.start_mark
            ) from error

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Put merged keys (`<<: *other`) among a mapping's own, which win. It may be merged before it is read."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == _BOOL and key_node.value.lower() in _WORDS:
                key_node.tag = _TEXT
            key = "<<" if key_node.tag == _MERGE else self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} must be text; write it in quotes", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is written twice", key_node.start_mark
                )
            seen.add(key)
        super().flatten_mapping(node)
        node.value = [*{key_node.value: (key_node, value) for key_node, value in node.value}.values()]


# YAML 1.1, which PyYAML reads, takes 1e-4 for text: it wants a dot and a sign.
_FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, [*"-+.0123456789"])


def _not_yaml(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"not valid YAML: {' '.join(str(error).split())}"
    mark = error.problem_mark
    # The faults that are found here say what to write; most of the parser's have one of a few causes.
    advice = "" if isinstance(error, yaml.constructor.ConstructorError) else _ADVICE
    return f"line {mark.line + 1}, column {mark.column + 1}: not valid YAML: {error.problem}{advice}"
