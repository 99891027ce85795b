"""Prompts of language models: templates that are filled with the columns of a row.

`prompt: "Is this review positive?\n\n{text}"` names the columns in braces, as Python's `str.format`; a brace that is
meant is written twice. `messages:` is a list of such templates with roles, or the name of a column that has messages.
"""

from __future__ import annotations

import datetime as dt
import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from nightjar.inference.errors import JobError, PromptInvalid
from nightjar.inference.job.modeljob import ModelJob

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


@lru_cache
def _pieces(template: str) -> tuple[tuple[str, str], ...]:
    """The texts of a template, each with the name of the column that follows it, '' for none."""
    return tuple((before, name or "") for before, name, _, _ in string.Formatter().parse(template))


def _filled(template: str, row: Mapping[str, Any]) -> str:
    """The text for one row. `str.format` would take a dot or a bracket in a column's name for a part of its value."""
    return "".join(before + (_text(name, row[name]) if name else "") for before, name in _pieces(template))


def _text(name: str, value: Any) -> str:
    if value is None or value != value:
        raise PromptInvalid(f"column {name!r} has no value, which the prompt needs")
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float | dt.date | dt.time | dt.timedelta):
        return str(value)
    try:
        return json.dumps(value, ensure_ascii=False)
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
