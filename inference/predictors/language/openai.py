"""`uses: openai`: a language model behind an endpoint that speaks OpenAI's API, as vLLM's and llama.cpp's servers do.

A request for each row, under the job's limits. What the endpoint says is wrong with a row costs that row; what it says
is wrong with all, ends the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from nightjar.inference.errors import JobError
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.job.options import keywords, number, text, whole
from nightjar.inference.predictors.adapter import Predictor, check_cpu, missing
from nightjar.inference.predictors.language.answers import CHAT, EMBEDDINGS, KEY_ENV
from nightjar.inference.predictors.language.languagemodel import ASKED, COST, FORMS, LanguageModel


class OpenAI(LanguageModel):
    """The `Adapter` of such endpoints. The model computes elsewhere, and `model.version` says which one it is."""

    libraries = ("openai",)
    extra = "openai"
    options = (
        text("url", "where the endpoint is", "required", "https?://.+", "a URL, as http://host:8000/v1", required=True),
        text("served_model", "the model's name there", "required", required=True),
        *ASKED,
        keywords("extra_body", "goes with each request, for what only this endpoint knows", "none", "a mapping"),
        whole("requests_in_flight", "requests that are underway at once, in each actor", "32"),
        whole("requests_per_minute", "the most requests that begin in a minute, in all actors together", "no limit"),
        whole("tokens_per_minute", "the most tokens asked for in a minute, in all actors together", "no limit"),
        number("timeout_s", "the longest wait for an answer, in seconds", "600", 0.1, 86400),
        COST,
        text("key_env", "the environment variable that has the key", f"`{KEY_ENV}`, if it is set"),
    )

    def check_keys(self, job: ModelJob) -> None:
        check_cpu(job)
        options = job.model.options
        url = urlsplit(options["url"])
        if "@" in url.netloc or url.query:
            raise JobError(
                f"model.url: has {'a query' if url.query else 'a name or a password before an @'}; leave them out, and "
                "name in model.key_env the variable that has the key"
            )
        super().check_keys(job)
        if (api := options.get("api", CHAT)) != CHAT and (key := next((key for key in FORMS if key in options), "")):
            raise JobError(f"model.{key}: is for api: {CHAT}, and not for {api}")
        if (cost := options.get(COST.name)) is not None:
            _check_cost(job, cost, api)

    def warm(self) -> None:
        import openai  # noqa: F401

    def load(self, job: ModelJob, path: str | None) -> Predictor:
        try:
            from nightjar.inference.predictors.language.endpoint import Endpoint
        except ImportError as error:
            raise missing("openai", ("openai", "jsonschema")) from error
        return Endpoint(job)


def _check_cost(job: ModelJob, cost: Mapping[str, Any], api: str) -> None:
    """Check that what the run will say of its cost is all of it."""
    if job.model.name:
        raise JobError("model.cost: the tokens of several models are counted together; leave it out")
    if "output_mtok" not in cost and api != EMBEDDINGS:
        raise JobError("model.cost.output_mtok: is required, as answers have tokens, too; write 0 if they are free")


ADAPTER = OpenAI()
