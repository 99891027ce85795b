"""`uses: openai`: a language model behind an endpoint that speaks OpenAI's API, as vLLM's and llama.cpp's servers do.

A request for each row, under the job's limits. What the endpoint says is wrong with a row costs that row; what it says
is wrong with all, ends the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.checks import AnswersCheck
from nightjar.inference.job.model import Job
from nightjar.inference.job.options import Option, choice, flag, keywords, number, text, texts, whole
from nightjar.inference.predictors.adapter import Adapter, Predictor, WithoutDevices, check_cpu, check_no_pickles
from nightjar.inference.predictors.answers import check_schema
from nightjar.inference.predictors.apis import CHAT, COMPLETIONS, EMBEDDINGS, KEY_ENV, reader_of
from nightjar.inference.predictors.batches import BATCH_FORMAT
from nightjar.inference.predictors.installed import missing
from nightjar.inference.predictors.prices import COST
from nightjar.inference.predictors.prompts import prompt_of

_MESSAGE = {
    "type": "object",
    "properties": {"role": {"type": "string"}, "content": {"type": "string"}},
    "required": ["role", "content"],
}
PROMPT = text("prompt", "the prompt, with columns in braces: `Is this positive? {text}`", "none; this or `messages`")
MESSAGES = Option(
    "messages",
    {"anyOf": [{"type": "string"}, {"type": "array", "items": _MESSAGE, "minItems": 1}]},
    "none; this or `prompt`",
    "a list of `{role, content}` with columns in braces, or the name of a column that has such lists, or JSON",
    "a list of {role: …, content: …}, or the name of a column",
)
SAMPLING = keywords(
    "sampling", "how answers are chosen, as `{max_tokens: 32, temperature: 0}`", "the model's own", "a mapping"
)
JSON_SCHEMA = Option(
    "json_schema",
    {"anyOf": [{"type": "string"}, {"type": "object"}]},
    "none",
    "the JSON Schema that each answer follows, or its file beside the job; outputs are its properties",
    "a JSON Schema, or the name of its file",
)
CHOICE = texts("choice", "each answer is one of these", "none", "a list of texts, each once", least=2)


class OpenAI(WithoutDevices):
    """The `Adapter` of such endpoints."""

    libraries: tuple[str, ...] = ("openai",)
    extra = "openai"
    reads_arrow = True
    scratch: tuple[str, ...] = ()
    options: tuple[Option, ...] | None = (
        text("url", "where the endpoint is", "required", "https?://.+", "a URL, as http://host:8000/v1", required=True),
        text("served_model", "the model's name there", "required", required=True),
        choice("api", (CHAT, COMPLETIONS, EMBEDDINGS), "asks for an answer, for what follows, or for a vector"),
        PROMPT,
        MESSAGES,
        SAMPLING,
        JSON_SCHEMA,
        CHOICE,
        keywords("extra_body", "goes with each request, for what only this endpoint knows", "none", "a mapping"),
        whole("requests_in_flight", "requests that are underway at once, in each actor", "32"),
        whole("requests_per_minute", "the most requests that begin in a minute, in all actors together", "no limit"),
        whole("tokens_per_minute", "the most tokens asked for in a minute, in all actors together", "no limit"),
        number("timeout_s", "the longest wait for an answer, in seconds", "600", 0.1, 86400),
        flag("journal", "answers of shards that are not written yet are kept, so that none is paid for twice"),
        COST,
        text("key_env", "the environment variable that has the key", f"`{KEY_ENV}`, if it is set"),
        BATCH_FORMAT,
    )

    def check_keys(self, job: Job) -> None:
        """As `Adapter.check_keys`."""
        check_no_pickles(job)
        check_cpu(job)
        options = job.model.options
        if "@" in urlsplit(options["url"]).netloc:
            raise JobError(
                "model.url: has a name or a password before an @; leave them out, and name in model.key_env the "
                "variable that has the key"
            )
        prompt = prompt_of(job)
        api = options.get("api", CHAT)
        if api != CHAT and prompt.is_chat:
            raise JobError(f"model.messages: are for api: {CHAT}; write model.prompt for {api}")
        if api != CHAT and (key := next((key for key in ("json_schema", "choice") if key in options), "")):
            raise JobError(f"model.{key}: is for api: {CHAT}, and not for {api}")
        if api == EMBEDDINGS and "sampling" in options:
            raise JobError(f"model.sampling: a vector is not sampled; leave it out with api: {EMBEDDINGS}")
        if (cost := options.get(COST.name)) is not None:
            _check_cost(job, cost, api)
        if api == EMBEDDINGS and any(isinstance(check, AnswersCheck) for check in job.checks):
            raise JobError(f"checks: a vector is no answer that is cut; leave out the check on answers with api: {api}")
        if isinstance(schema := options.get("json_schema"), Mapping):
            check_schema(schema)
        reader_of(job)
        if job.rescore.share > 0:
            raise JobError(
                f"rescore.share: compares outputs with those of a second scoring, and a language model may answer "
                f"otherwise the second time; leave it out with {job.model.uses}"
            )

    def fingerprint(self, job: Job) -> Mapping[str, str]:
        """Empty: what computes is elsewhere, and `model.version` says which it is."""
        return {}

    def check_columns(self, job: Job, schema: pa.Schema) -> None:
        """As `Adapter.check_columns`."""

    def named(self, job: Job) -> tuple[str, tuple[str, ...]]:
        """As `adapter.NamesColumns`."""
        prompt = prompt_of(job)
        return f"model.{prompt.key}", prompt.columns

    def inspect(self, job: Job, path: str) -> None:
        """Nothing: there is no file."""

    def warm(self) -> None:
        """As `Adapter.warm`."""
        import openai  # noqa: F401

    def load(self, job: Job, path: str | None) -> Predictor:
        """As `Adapter.load`."""
        try:
            from nightjar.inference.predictors.endpoint import Endpoint
        except ImportError as error:
            raise missing("openai", ("openai", "jsonschema")) from error
        return Endpoint(job)


def _check_cost(job: Job, cost: Mapping[str, Any], api: str) -> None:
    """Check that what the run will say of its cost is all of it.

    Raises:
        JobError: It would not be. Names the key.
    """
    if job.model.called:
        raise JobError("model.cost: the tokens of several models are counted together; leave it out")
    if "output_mtok" not in cost and api != EMBEDDINGS:
        raise JobError("model.cost.output_mtok: is required, as answers have tokens, too; write 0 if they are free")


ADAPTER: Adapter = OpenAI()
