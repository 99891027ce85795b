"""The options that sources declare are those of the docs and of the JSON Schema, and those that they take."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import jobschema
import sourcespage
from nightjar.inference.errors import JobError
from nightjar.inference.input.sources.reading import source_named
from nightjar.inference.job.seams import SOURCES
from support import ROOT

OPTIONS = [(name, option) for name in SOURCES for option in source_named(name).options]


def test_the_page_of_sources_is_the_codes() -> None:
    same = (ROOT / "docs" / "sources.md").read_text() == sourcespage.page()
    assert same, "run `make pages`"


def test_every_source_is_on_the_page_with_each_of_its_options() -> None:
    sections = sourcespage.page().split("\n## ")[1:]
    assert [section.partition("\n")[0] for section in sections] == list(SOURCES)
    for section, name in zip(sections, SOURCES, strict=True):
        for option in source_named(name).options:
            assert f"| `{option.name}` |" in section
            assert option.default
            assert option.about


def test_the_extra_of_each_source_can_be_installed() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {source_named(name).extra for name in SOURCES} - {""} <= extras.keys()


def judged(name: str, options: dict[str, Any]) -> tuple[bool, bool]:
    """Whether the schema takes these options of a format, and whether the source does."""
    job = {
        "name": "t",
        "input": {"uri": "in/", "format": name, "options": options},
        "model": {"uses": "m:f", "outputs": {"y": "float32"}},
        "output": {"uri": "out/"},
    }
    try:
        source_named(name).with_options(options)
        taken = True
    except JobError:
        taken = False
    return Draft202012Validator(jobschema.job_schema()).is_valid(job), taken


@pytest.mark.parametrize(("name", "option"), OPTIONS, ids=[f"{name} {option.name}" for name, option in OPTIONS])
def test_schema_and_source_judge_each_option_alike(name: str, option: Any) -> None:
    values = [True, 0, 1, 7, 0.5, -1, "", ",", "any", "RGB", "folder", [], ["a"], [4, 5], [4, 4], [0, 5], {}, {"a": 1}]
    verdicts = {judged(name, {option.name: value}) for value in [*values, "2026-11-19T06:00:00Z", "cp1252"]}
    assert verdicts == {(True, True), (False, False)}


@pytest.mark.parametrize("name", SOURCES)
def test_an_option_that_a_source_does_not_know_is_refused_by_both(name: str) -> None:
    assert judged(name, {"nonsense": 1}) == (False, False)
