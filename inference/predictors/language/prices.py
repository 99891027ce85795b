"""`model.cost`: what an endpoint takes for its tokens, and what a run costs by it. It changes no output."""

from __future__ import annotations

from dataclasses import dataclass

from nightjar.inference.job.model import Job
from nightjar.inference.job.options import number, section, text
from nightjar.inference.records import Usage

_MOST = 1e9
"""The highest price that is no slip of the pen, in any currency."""

COST = section(
    "cost",
    "prices, by which a run says what its tokens cost",
    "a mapping, as {input_mtok: 0.15, output_mtok: 0.6}",
    (
        number("input_mtok", "for a million tokens of prompts", "required", 0, _MOST, required=True),
        number("output_mtok", "for a million tokens of answers", "required, but with vectors", 0, _MOST),
        number(
            "cached_mtok",
            "for a million tokens of prompts that were in the endpoint's cache",
            "`input_mtok`",
            0,
            _MOST,
        ),
        text("currency", "of these prices", "none", "[A-Za-z]{1,10}", "letters, as USD"),
    ),
)


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """Of a million tokens each. currency: '' if the job names none."""

    input_mtok: float
    output_mtok: float
    cached_mtok: float
    currency: str = ""

    def cost(self, usage: Usage) -> float:
        """Of all the tokens that were counted. Requests that failed have none."""
        fresh = usage.prompt_tokens - usage.cached_tokens
        priced = (
            fresh * self.input_mtok + usage.cached_tokens * self.cached_mtok + usage.output_tokens * self.output_mtok
        )
        return priced / 1e6


def prices_of(job: Job) -> TokenPrices | None:
    """The prices that the job gives; None if it gives none."""
    priced = not job.models and COST.name in job.model.framework.aside
    given = job.model.options.get(COST.name) if priced else None
    if given is None:
        return None
    first = given["input_mtok"]
    return TokenPrices(first, given.get("output_mtok", 0), given.get("cached_mtok", first), given.get("currency", ""))
