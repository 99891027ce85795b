"""What the adapters of language models share: their options, and the prices of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nightjar.inference.errors import JobError
from nightjar.inference.job.checks import AnswersCheck
from nightjar.inference.job.model import Job
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.job.options import Option, choice, keywords, number, section, text, texts
from nightjar.inference.predictors.adapter import Adapter
from nightjar.inference.predictors.batches import BATCH_FORMAT
from nightjar.inference.predictors.language.answers import CHAT, COMPLETIONS, EMBEDDINGS, Reader, check_schema
from nightjar.inference.predictors.language.prompts import prompt_of
from nightjar.inference.records import Usage

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
ASKED = (
    choice("api", (CHAT, COMPLETIONS, EMBEDDINGS), "asks for an answer, for what follows, or for a vector"),
    PROMPT,
    MESSAGES,
    SAMPLING,
    JSON_SCHEMA,
    CHOICE,
    BATCH_FORMAT,
)
"""The options of every adapter of language models."""

FORMS = ("json_schema", "regex", "choice")
"""Options that say which form an answer has. One of them at most."""


class LanguageModel(Adapter):
    """Base of these adapters."""

    probabilities = False
    """Whether the probability of each choice is known."""

    def check_keys(self, job: ModelJob) -> None:
        options = job.model.options
        prompt = prompt_of(job)
        api = options.get("api", CHAT)
        if api != CHAT and prompt.is_chat:
            raise JobError(f"model.messages: are for api: {CHAT}; write model.prompt for {api}")
        if api == EMBEDDINGS and (key := next((key for key in ("sampling", *FORMS) if key in options), "")):
            raise JobError(f"model.{key}: is for answers, and a vector is none; leave it out with api: {EMBEDDINGS}")
        if api == EMBEDDINGS and any(isinstance(check, AnswersCheck) for check in job.whole.checks):
            raise JobError(f"checks: a vector is no answer that is cut; leave out the check on answers with api: {api}")
        if len(forms := [key for key in FORMS if key in options]) > 1:
            raise JobError(f"model.{forms[0]}: model.{forms[1]} is there, too; keep one of the two")
        if isinstance(schema := options.get("json_schema"), Mapping):
            check_schema(schema)
        Reader(job, probabilities=self.probabilities)
        check_rescored(job)

    def named(self, job: ModelJob) -> tuple[str, tuple[str, ...]]:
        prompt = prompt_of(job)
        return f"model.{prompt.key}", prompt.columns


def check_rescored(job: ModelJob) -> None:
    """Check that a job with a second scoring says how many of its answers may differ."""
    if job.whole.rescore.share > 0 and "differing" not in job.whole.rescore.model_fields_set:
        raise JobError(
            "rescore.differing: is required, as a language model may answer otherwise the second time; write the "
            "share of the compared rows that may differ, as 0.1, or 0 if none may"
        )


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
    only = job.models[0]
    priced = not job.several and COST.name in only.framework.aside
    given = only.options.get(COST.name) if priced else None
    if given is None:
        return None
    first = given["input_mtok"]
    return TokenPrices(first, given.get("output_mtok", 0), given.get("cached_mtok", first), given.get("currency", ""))
