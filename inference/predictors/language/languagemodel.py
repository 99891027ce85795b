"""What the adapters of language models share: their options, the prices of tokens, and prompts."""

from __future__ import annotations

import datetime as dt
import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

from nightjar.inference.errors import JobError, PromptInvalid
from nightjar.inference.job.checks import AnswersCheck
from nightjar.inference.job.model import Job
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.job.options import Option, choice, keywords, number, section, text, texts
from nightjar.inference.predictors.adapter import Adapter
from nightjar.inference.predictors.arrays import is_missing
from nightjar.inference.predictors.batches import BATCH_FORMAT
from nightjar.inference.predictors.language.answers import CHAT, COMPLETIONS, EMBEDDINGS, Reader, check_schema
from nightjar.inference.usage import Usage

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

    not_followed: ClassVar[Mapping[str, str]] = {
        "n": "each row has one answer",
        "stream": "an answer is handed on when it is whole",
    }
    """Keys of `sampling` that have no meaning here, and why."""

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
        for key, why in self.not_followed.items():
            if key in options.get("sampling", {}):
                raise JobError(f"model.sampling.{key}: {why}; leave it out")
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
    """Of a million tokens each."""

    input_mtok: float
    """The price of tokens of prompts."""

    output_mtok: float
    """The price of tokens of answers; 0 if the job gives none."""

    cached_mtok: float
    """The price of tokens of prompts that were in the endpoint's cache; `input_mtok` if the job gives none."""

    currency: str = ""
    """The currency of the prices; '' if the job names none."""

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


# ---- prompts -------------------------------------------------------------------------------------------------
#
# Templates that are filled with the columns of a row. `prompt: "Is this positive?\n\n{text}"` names the columns in
# braces, as Python's `str.format`; a brace that is meant is written twice. `messages:` is a list of such templates with
# roles, or the name of a column that has messages.

Messages = list[dict[str, Any]]
"""A conversation: a dict with `role` and `content` for each message."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of a job: templates of messages, one template of a plain prompt, or a column that has messages."""

    roles: tuple[str, ...] = ()
    """Those of the messages in order; none for a plain prompt."""
    templates: tuple[str, ...] = ()
    column: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a row must have, each once."""
        named = (name for template in self.templates for _, name in _pieces(template) if name)
        return (self.column,) if self.column else tuple(dict.fromkeys(named))

    @property
    def key(self) -> str:
        """The key of `model` that says it."""
        return "messages" if self.is_chat else "prompt"

    @property
    def is_chat(self) -> bool:
        """Whether it is messages with roles, and no plain text."""
        return bool(self.roles or self.column)

    def text(self, row: Mapping[str, Any]) -> str:
        """The plain prompt for one row."""
        (template,) = self.templates
        if not (text := _filled(template, row)):
            raise PromptInvalid("the prompt is empty")
        return text

    def messages(self, row: Mapping[str, Any]) -> Messages:
        """The messages for one row; a plain prompt is one of the user's.

        Raises:
            PromptInvalid: They cannot be filled, or the column holds none.
        """
        if self.column:
            return _messages(self.column, row[self.column])
        if not self.roles:
            return [{"role": "user", "content": self.text(row)}]
        filled = [_filled(template, row) for template in self.templates]
        return [{"role": role, "content": text} for role, text in zip(self.roles, filled, strict=True)]


def prompt_of(job: ModelJob) -> Prompt:
    """What the job asks.

    Raises:
        JobError: It says nothing, or both a prompt and messages, or a template is wrong. Names the key.
    """
    options = job.model.options
    plain: Any = options.get("prompt")
    listed: Any = options.get("messages")
    if plain is not None and listed is not None:
        raise JobError("model.prompt: model.messages is there, too; keep one of the two")
    if listed is None and plain is None:
        raise JobError("model.prompt: is required, or model.messages")
    if listed is None:
        return Prompt(templates=(_template("model.prompt", plain),))
    if isinstance(listed, str):
        return Prompt(column=listed)
    keys = [f"model.messages[{index}].content" for index in range(len(listed))]
    return Prompt(
        tuple(each["role"] for each in listed),
        tuple(_template(key, each["content"]) for key, each in zip(keys, listed, strict=True)),
    )


def _template(key: str, text: str) -> str:
    """Check a template. key: of the job, for messages."""
    try:
        for _, name, form, conversion in string.Formatter().parse(text):
            if name == "" or form or conversion:
                raise ValueError("a column stands in braces by its name alone, as {text}")
    except ValueError as error:
        raise JobError(f"{key}: {error}; a brace that is meant itself is written twice, {{{{ or }}}}") from None
    if not text:
        raise JobError(f"{key}: must not be empty")
    return text


def _pieces(template: str) -> tuple[tuple[str, str], ...]:
    """The texts of a template, each with the name of the column that follows it, '' for none."""
    return tuple((before, name or "") for before, name, _, _ in string.Formatter().parse(template))


def _filled(template: str, row: Mapping[str, Any]) -> str:
    """The text for one row. `str.format` would take a dot or a bracket in a column's name for a part of its value."""
    return "".join(before + (_text(name, row[name]) if name else "") for before, name in _pieces(template))


_Written = bool | int | float | Decimal | UUID | dt.date | dt.time | dt.timedelta
"""What a prompt has as Python writes it, in lists and structs unless JSON has a form for it."""


def _written(value: Any) -> str:
    if isinstance(value, _Written):
        return str(value)
    raise TypeError(f"no form for {type(value).__name__}")


def _text(name: str, value: Any) -> str:
    if is_missing(value):
        raise PromptInvalid(f"column {name!r} has no value, which the prompt needs")
    if isinstance(value, str):
        return value
    if isinstance(value, _Written):
        return str(value)
    try:
        return json.dumps(value, ensure_ascii=False, default=_written)
    except (TypeError, ValueError):
        raise PromptInvalid(f"column {name!r} holds {type(value).__name__}, which has no form as a text") from None


def _messages(name: str, value: Any) -> Messages:
    """The messages that a column has: a list of structs, or JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise PromptInvalid(f"column {name!r} holds a text that is no JSON: {error}") from None
    if not isinstance(value, Sequence) or not value:
        raise PromptInvalid(f"column {name!r} has no messages")
    found = []
    for index, each in enumerate(value):
        if not isinstance(each, Mapping) or not isinstance(each.get("role"), str) or not each.get("content"):
            raise PromptInvalid(f"message {index} of column {name!r} is no role with content: {str(each)[:200]}")
        found.append({key: part for key, part in each.items() if part is not None})
    return found
