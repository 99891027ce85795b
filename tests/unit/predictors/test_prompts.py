"""Prompts: columns in braces, and what a row must have for one."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from modeljobs import model_job
from nightjar.inference.errors import JobError, PromptInvalid
from nightjar.inference.job.model import Job
from nightjar.inference.predictors.language.languagemodel import Prompt, prompt_of


def job(**model: Any) -> Job:
    """A job that asks an endpoint."""
    keys = {"uses": "openai", "url": "http://here/v1", "served_model": "m", "outputs": {"answer": "string"}, **model}
    return Job.model_validate({"name": "ask", "input": {"uri": "a"}, "output": {"uri": "b"}, "model": keys})


def prompt(**model: Any) -> Prompt:
    return prompt_of(model_job(job(**model)))


def test_columns_are_filled_in_by_their_names() -> None:
    found = prompt(prompt="{{a}} {text}: {n}, {text}")
    assert found.columns == ("text", "n")
    assert found.text({"text": "x{y}", "n": 3}) == "{a} x{y}: 3, x{y}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "1.5"),
        (True, "True"),
        (dt.date(2026, 1, 2), "2026-01-02"),
        (Decimal("1.50"), "1.50"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ([1, "ü"], '[1, "ü"]'),
        ([dt.date(2026, 1, 2), dt.timedelta(1), UUID(int=1)], f'["2026-01-02", "1 day, 0:00:00", "{UUID(int=1)}"]'),
        ({"price": Decimal("1.50"), "at": dt.time(5)}, '{"price": "1.50", "at": "05:00:00"}'),
        ({"a": None}, '{"a": null}'),
        ("\x00\t🙂", "\x00\t🙂"),
    ],
)
def test_values_have_a_form_as_a_text(value: Any, text: str) -> None:
    assert prompt(prompt="{v}").text({"v": value}) == text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "column 'v' has no value, which the prompt needs"),
        (float("nan"), "column 'v' has no value, which the prompt needs"),
        ("", "the prompt is empty"),
        (b"\xff", "column 'v' holds bytes, which has no form as a text"),
        ([b"\xff"], "column 'v' holds list, which has no form as a text"),
    ],
)
def test_a_row_without_a_prompt_says_why(value: Any, said: str) -> None:
    with pytest.raises(PromptInvalid, match=said):
        prompt(prompt="{v}").text({"v": value})


def test_a_plain_prompt_is_a_message_of_the_user() -> None:
    found = prompt(prompt="Say {v}")
    assert not found.is_chat
    assert found.messages({"v": "x"}) == [{"role": "user", "content": "Say x"}]


def test_messages_have_templates() -> None:
    listed = [{"role": "system", "content": "Be {how}."}, {"role": "user", "content": "{text}"}]
    found = prompt(messages=listed)
    assert found.columns == ("how", "text")
    filled = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert found.messages({"how": "brief", "text": "hi"}) == filled


@pytest.mark.parametrize(
    "value",
    [
        [{"role": "user", "content": "hi", "name": None}],
        '[{"role": "user", "content": "hi"}]',
    ],
)
def test_a_column_may_have_the_messages(value: Any) -> None:
    found = prompt(messages="chat")
    assert found.columns == ("chat",)
    assert found.messages({"chat": value}) == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "column 'chat' has no messages"),
        ([], "column 'chat' has no messages"),
        ("hello", "column 'chat' holds a text that is no JSON"),
        ([{"role": "user"}], "message 0 of column 'chat' is no role with content"),
    ],
)
def test_a_column_without_messages_costs_the_row(value: Any, said: str) -> None:
    with pytest.raises(PromptInvalid, match=said):
        prompt(messages="chat").messages({"chat": value})


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "model.prompt: is required, or model.messages"),
        ({"prompt": "a", "messages": "b"}, "model.prompt: model.messages is there, too"),
        ({"prompt": ""}, "model.prompt: must not be empty"),
        ({"prompt": "{a"}, "model.prompt: expected '}' before end of string; a brace that is meant itself"),
        ({"prompt": "{}"}, "model.prompt: a column stands in braces by its name alone"),
        ({"prompt": "{a:>3}"}, "model.prompt: a column stands in braces by its name alone"),
        (
            {"messages": [{"role": "user", "content": "}"}]},
            r"model.messages\[0\].content: Single '}' encountered in format string",
        ),
    ],
)
def test_a_wrong_template_names_its_key(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=said):
        prompt(**keys)
