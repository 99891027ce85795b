"""`model.cost`: what an endpoint takes for its tokens, or a GPU for an hour, and what a run costs by it. It changes no
output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.job.options import number, section, text
from nightjar.inference.job.seams import FRAMEWORKS
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

GPU_COST = section(
    "cost",
    "the price of a GPU, by which a run says what scoring cost",
    "a mapping, as {gpu_hour: 2.5}",
    (
        number("gpu_hour", "for an hour of one GPU", "required", 0, _MOST, required=True),
        text("currency", "of this price", "none", "[A-Za-z]{1,10}", "letters, as USD"),
    ),
)


class Prices(Protocol):
    """What a job says of prices. currency: '' if it names none. said: where a cost comes from, for people."""

    @property
    def currency(self) -> str: ...

    @property
    def said(self) -> str: ...

    def cost(self, usage: Usage, workers: int, seconds: float) -> float:
        """What was used, and by so many workers in so many seconds."""


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """Of a million tokens each."""

    input_mtok: float
    output_mtok: float
    cached_mtok: float
    currency: str = ""
    said: str = "by the prices in model.cost"

    def cost(self, usage: Usage, workers: int, seconds: float) -> float:
        """Of all the tokens that were counted. Requests that failed have none."""
        fresh = usage.prompt_tokens - usage.cached_tokens
        priced = (
            fresh * self.input_mtok + usage.cached_tokens * self.cached_mtok + usage.output_tokens * self.output_mtok
        )
        return priced / 1e6


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """Of an hour of one GPU. gpus: of a worker. actors: the most workers at once; more are there if some were lost."""

    gpu_hour: float
    gpus: float
    actors: int
    currency: str = ""
    said: str = "for its GPUs, by the price in model.cost"

    def cost(self, usage: Usage, workers: int, seconds: float) -> float:
        """Of the GPUs of all workers for all the time."""
        return self.gpu_hour * self.gpus * min(workers, self.actors) * seconds / 3600


def prices_of(job: Job) -> Prices | None:
    """The prices that the job gives; None if it gives none."""
    framework = None if job.models else FRAMEWORKS.get(job.model.uses)
    given = job.model.options.get(COST.name) if framework and COST.name in framework.aside else None
    if given is None:
        return None
    currency = given.get("currency", "")
    if "gpu_hour" in given:
        return GpuPrice(given["gpu_hour"], job.resources.gpus, max(1, job.resources.max_actors), currency)
    first = given["input_mtok"]
    return TokenPrices(first, given.get("output_mtok", 0), given.get("cached_mtok", first), currency)


def check_gpu_cost(job: Job) -> None:
    """Check that what the run will say of its cost is all of it.

    Raises:
        JobError: It would not be. Names the key.
    """
    given: Mapping[str, Any] | None = job.model.options.get(COST.name)
    if given is None:
        return
    if job.model.called:
        raise JobError("model.cost: the GPUs of several models are the same ones; leave it out")
    if job.resources.gpus == 0:
        raise JobError("model.cost.gpu_hour: resources.gpus is 0, so there is nothing to pay for; leave out model.cost")
