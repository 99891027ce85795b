"""The options that adapters declare are those of the docs, and what they name is there."""

from __future__ import annotations

import math
import tomllib

import pytest

from adapterspage import page
from nightjar.inference.errors import JobError
from nightjar.inference.job import options
from nightjar.inference.job.seams import FRAMEWORKS
from nightjar.inference.predictors.adapter import frameworks
from support import ROOT


def test_the_page_of_adapters_is_the_codes() -> None:
    same = (ROOT / "docs" / "adapters.md").read_text() == page()
    assert same, "run `make pages`"


def test_every_adapter_is_on_the_page_with_each_of_its_options() -> None:
    sections = page().split("\n## ")[1:]
    assert [section.partition("\n")[0] for section in sections] == list(FRAMEWORKS)
    for section, adapter in zip(sections, frameworks(), strict=True):
        for option in adapter.options or ():
            assert f"| `{option.name}` |" in section
            assert option.default
            assert option.about


def test_the_extra_of_each_adapter_can_be_installed() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {extra for adapter in frameworks() for extra in adapter.extra.split(",")} - {""} <= extras.keys()


def test_an_option_that_is_required_is_named() -> None:
    needed = options.texts("labels", "…", "required", "a list of labels", least=1, required=True)
    with pytest.raises(JobError, match=r"^model\.options\.labels: write a list of labels, not None$"):
        options.check("t", {}, (needed,))
    options.check("t", {"labels": ["a"]}, (needed,))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_option_that_is_a_number_is_finite(value: float) -> None:
    """YAML has `.nan` and `.inf`, and no comparison with NaN is true."""
    share = options.number("share", "…", "`0.5`", 0, 1)
    options.check("t", {"share": 1}, (share,))
    with pytest.raises(JobError, match=r"^model\.options\.share: write a number from 0 to 1, not -?(nan|inf)$"):
        options.check("t", {"share": value}, (share,))
