"""The JSON Schema of the job file says what the job file takes: it is the code's, and judges as the code does."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import BaseModel

import jobschema
from nightjar.inference.errors import JobError
from nightjar.inference.job import options
from nightjar.inference.job.checks import CHECKS
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.job.seams import FRAMEWORKS, SOURCES
from support import ROOT

JOB: dict[str, Any] = {
    "name": "delays",
    "input": {"uri": "data/", "wait": {"for": "2h", "until": "_SUCCESS"}},
    "model": {"uses": "mine:score", "outputs": {"score": "float32"}},
    "carry": ["id"],
    "output": {"uri": "out/", "tables": [{"delta": "table/"}]},
    "resources": {"actors": {"min": 1, "max": 4}, "gpus": 0.5},
    "identity": "strict",
    "checks": [{"column": "score", "min": 0}, {"rows": {"min": 1}}, {"files": {"max": 9}}],
    "schedule": {"cron": "0 2 * * *"},
}

REQUIRED: dict[str, dict[str, Any]] = {
    "zero-shot": {"labels": ["cat", "dog"]},
    "openai": {"url": "http://here/v1", "served_model": "m"},
    "vllm": {"prompt": "{text}"},
    "ray.data.llm": {"config": "summarise:config"},
}
"""The options that an adapter cannot do without."""


def model_of(uses: str, **given: Any) -> dict[str, Any]:
    """The section of a model with these options, where the adapter has them."""
    framework = FRAMEWORKS[uses]
    path = {"path": "m"} if framework.model else {}
    held = {**REQUIRED.get(uses, {}), **given}
    return {
        "uses": uses,
        **path,
        "outputs": {"score": "float32"},
        **(held if framework.own_keys else {"options": held}),
    }


def judged(job: dict[str, Any]) -> tuple[bool, bool]:
    """Whether the schema takes a job, and whether the code does."""
    try:
        model = parse_job(copy.deepcopy(job), Path("/jobs/job.yaml")).models[0]
        if model.uses in FRAMEWORKS:
            options.check(model.uses, model.options, options_of(model.uses))
        taken = True
    except JobError:
        taken = False
    return validator().is_valid(job), taken


@cache
def validator() -> Draft202012Validator:
    """Made once: that takes longer than to judge a job."""
    return Draft202012Validator(jobschema.job_schema())


def options_of(uses: str) -> tuple[options.Option, ...]:
    """What an adapter declares."""
    declared: tuple[options.Option, ...] = FRAMEWORKS[uses].adapter().options
    return declared


def changed(path: str, value: Any) -> dict[str, Any]:
    """The job with one key set; None takes it out."""
    job = copy.deepcopy(JOB)
    *parents, last = path.split(".")
    held = job
    for name in parents:
        held = held[name]
    held.pop(last, None) if value is None else held.update({last: value})
    return job


def test_the_schema_in_the_docs_is_the_codes() -> None:
    Draft202012Validator.check_schema(jobschema.job_schema())
    same = (ROOT / "docs" / "job.schema.json").read_text() == jobschema.text()
    assert same, "run `make pages`"


def keys(section: Any) -> Iterator[str]:
    """The keys of a section, and of the sections in it."""
    for part in get_args(section):
        yield from keys(part)
    if isinstance(section, type) and issubclass(section, BaseModel):
        for name, field in section.model_fields.items():
            if not field.exclude:
                yield field.alias or name
                yield from keys(field.annotation)


def test_the_reference_has_every_key() -> None:
    page = re.sub(r"```.*?```", "", (ROOT / "docs" / "job-file.md").read_text(), flags=re.DOTALL)
    named = {word for code in re.findall(r"`([^`]+)`", page) for word in re.findall(r"\w+", code)}
    assert {key for section in (Job, *CHECKS.values()) for key in keys(section)} - named == set()


@pytest.mark.parametrize("path", [*ROOT.glob("examples/*/*.yaml"), *ROOT.glob("deployments/**/*job*.yaml")], ids=str)
def test_every_job_of_the_project_conforms(path: Path) -> None:
    faults = validator().iter_errors(yaml.safe_load(path.read_text()))
    assert [fault.message for fault in faults] == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "delays"),
        *[("input.format", name) for name in SOURCES],
        ("input.options", {"size": [224, 224]}),
        ("input.partitions", {"country": "string"}),
        ("input.schema", {"zip": "string", "v": "float32[3]"}),
        ("carry", "all"),
        ("late_labels", {"key": "id", "label": "late"}),
        ("late_labels", {"key": ["id"], "label": "late"}),
        ("checks", [{"unique": "id"}]),
        ("input.uri", ["data/", "more/"]),
        ("resources.runtime_env", {"pip": ["a==1"], "env_vars": {"A": "${B}"}}),
        ("carry", ["id", "geo_*"]),
        ("model.batch_size", 7),
        ("input", {"list": "s3://lake/{date}.txt"}),
        ("model.options", {"any": [1, {"thing": None}]}),
        ("resources.actors", 3),
        ("identity", {"strict": True, "packages": ["numpy"]}),
        ("input.wait", {"for": "90s", "until": 12}),
        ("checks", []),
        ("retry", {"attempts": 20, "backoff_s": 0}),
        ("rescore", {"share": 0.5}),
    ],
)
def test_both_take_it(path: str, value: Any) -> None:
    assert judged(changed(path, value)) == (True, True)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_both_take_each_framework(framework: str) -> None:
    assert judged(changed("model", model_of(framework))) == (True, True)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_both_judge_each_option_alike(framework: str) -> None:
    """Values of every kind, for every option of every adapter: some are taken and some are not, by both."""
    texts = ["", "any", "mean", "net:build", "http://here/v1", "about {}"]
    prices = [{"input_mtok": 1, "output_mtok": 0.5}]
    values = [True, 0, 1, 7, 0.5, -1, *texts, [], ["a"], ["a", "a"], ["a", "b"], [0, 5], {}, {"a": 1}, *prices]
    for option in options_of(framework):
        verdicts = set()
        for value in values:
            if isinstance(value, str) and option.name in FRAMEWORKS[framework].documents:
                continue  # the name of a file that is not there
            found = judged(changed("model", model_of(framework, **{option.name: value})))
            assert found[0] == found[1], (option.name, value)
            verdicts.add(found[0])
        assert verdicts == {True, False} or "enum" in option.schema, option.name
        for value in option.schema.get("enum", ()):
            assert judged(changed("model", model_of(framework, **{option.name: value}))) == (True, True)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_both_refuse_an_option_that_an_adapter_does_not_know(framework: str) -> None:
    assert judged(changed("model", model_of(framework, nonsense=1))) == (False, False)


@pytest.mark.parametrize("framework", [uses for uses, each in FRAMEWORKS.items() if each.own_keys])
def test_both_refuse_the_keys_of_one_adapter_with_another_and_their_other_place(framework: str) -> None:
    own = model_of(framework)
    assert judged(changed("model", {**own, "options": {}})) == (False, False)
    assert judged(changed("model", {**own, "uses": "torch", "path": "m"})) == (False, False)
    assert judged(changed("model", {**own, "uses": "mine:score"})) == (False, False)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("nme", "delays"),
        ("name", None),
        ("folder", "/jobs"),
        ("input.uri", None),
        ("input.uri", 3),
        ("input.list", "names.txt"),
        ("input", {"list": ["a.txt"]}),
        ("input.lines", [1]),
        ("input.format", "xlsx"),
        ("input.shard_rows", 0),
        ("input.partitions", ["country"]),
        ("input.schema", {"zip": 1}),
        ("input.declared", {"zip": "string"}),
        ("model.uses", "pytorch"),
        ("model.outputs", {}),
        ("model.batch_size", "many"),
        ("output.tables", [{"hudi": "table/"}]),
        ("output.tables", [{}]),
        ("resources.actors", {"min": 0, "max": 1}),
        ("retry", {"attempts": 21}),
        ("checks", [{"clumn": "score", "min": 0}]),
        ("identity", "lax"),
        ("schedule", {}),
    ],
)
def test_both_refuse_it(path: str, value: Any) -> None:
    assert judged(changed(path, value)) == (False, False)
