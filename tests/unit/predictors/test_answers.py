"""What is read out of a language model's answer, and what of it costs the row."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from modeljobs import model_job
from nightjar.inference.arrow_types import arrow_type
from nightjar.inference.errors import AnswerInvalid, JobError
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import scorer as product
from nightjar.inference.predictors.language.answers import Answer, Reader, check_schema

SCHEMA = {
    "type": "object",
    "properties": {"label": {"enum": ["good", "bad"]}, "score": {"type": "number"}, "tags": {"type": "array"}},
    "required": ["label"],
}


def reader(outputs: dict[str, str], **model: Any) -> Reader:
    keys = {
        "uses": "openai",
        "url": "http://here/v1",
        "served_model": "m",
        "prompt": "{a}",
        "outputs": outputs,
        **model,
    }
    job = Job.model_validate({"name": "ask", "input": {"uri": "a"}, "output": {"uri": "b"}, "model": keys})
    return Reader(model_job(job))


def test_an_answer_is_its_text_and_what_it_took() -> None:
    outputs = {
        "answer": "string",
        "prompt_tokens": "int32",
        "output_tokens": "int64",
        "cached_tokens": "int32",
        "finish_reason": "string",
    }
    found = reader(outputs).row(Answer("hi", "length", 5, 2, 4))
    assert found == {
        "answer": "hi",
        "prompt_tokens": 5,
        "output_tokens": 2,
        "cached_tokens": 4,
        "finish_reason": "length",
    }


def test_outputs_are_properties_of_a_structured_answer() -> None:
    read = reader({"score": "float32", "label": "string", "finish_reason": "string"}, json_schema=SCHEMA)
    assert read.schema == SCHEMA
    answer = Answer(json.dumps({"label": "good", "score": 1}), "stop")
    assert read.row(answer) == {"score": 1, "label": "good", "finish_reason": "stop"}
    assert read.row(Answer('{"label": "bad"}', "stop"))["score"] is None


@pytest.mark.parametrize(
    ("text", "reason", "said"),
    [
        (
            '{"label": "go',
            "length",
            "the answer was cut after 9 tokens, before its JSON was complete; raise max_tokens",
        ),
        ("good", "stop", "the answer is no JSON"),
        ('{"label": "so"}', "stop", "the answer does not follow the schema: 'so' is not one of .*label"),
        ('{"score": 1}', "stop", "the answer does not follow the schema: 'label' is a required property"),
        ('{"label": "good", "score": 1e99}', "stop", r"the answer has 1e\+99 as 'score', which is no int32"),
    ],
)
def test_an_answer_that_does_not_follow_the_schema_costs_the_row(text: str, reason: str, said: str) -> None:
    read = reader({"label": "string", "score": "int32"}, json_schema=SCHEMA)
    with pytest.raises(AnswerInvalid, match=said):
        read.row(Answer(text, reason, 3, 9))


@pytest.mark.parametrize(
    ("kind", "answers", "lost"),
    [
        ("int32", {"1": 1, "2.5": None, "3.0": 3, "true": 1}, ["2.5"]),
        ("float32", {"1": 1.0, "true": 1.0, "2.5": 2.5, "null": None}, []),
        ("int64", {"3.0": 3, str(2**53 + 1): 2**53 + 1}, []),
        ("uint64", {"1": 1, str(2**64 - 1): 2**64 - 1, str(2**64): None, "-1": None}, [str(2**64), "-1"]),
        ("date32", {"5": None, "null": None}, ["5"]),
        ("timestamp[us]", {"5": None, "null": None}, ["5"]),
        ("list<string>", {'""': None, '["a"]': ["a"], "[]": []}, ["''"]),
        ("binary", {'"a"': None, "null": None}, ["'a'"]),
        ("string", {'"a"': "a", r'"\ud800"': None, "1": None}, [r"'\ud800'", "1"]),
        ("float32[2, 2]", {"[[1, 2], [3, 4]]": [1.0, 2.0, 3.0, 4.0], "[[1, 2]]": None}, [r"[[1, 2]]"]),
        ("struct<a: string, note: string>", {'{"a": "x"}': {"a": "x", "note": None}}, []),
        (
            "struct<a: float32, note: string>",
            {
                '{"a": 1}': {"a": 1.0, "note": None},
                '{"a": 2.5, "note": "n"}': {"a": 2.5, "note": "n"},
                '{"a": ""}': None,
            },
            ["{'a': ''}"],
        ),
    ],
)
def test_an_answer_that_does_not_fit_its_type_costs_its_own_row_alone(
    kind: str, answers: dict[str, Any], lost: list[str]
) -> None:
    """Whatever the others are. answers: as JSON, with what becomes of them, None for a row that is lost."""
    read = reader({"score": kind}, json_schema={"type": "object", "properties": {"score": {}}})
    held, said = [], []
    for answer in answers:
        try:
            held.append(read.row(Answer(f'{{"score": {answer}}}', "stop"))["score"])
        except AnswerInvalid as error:
            said.append(str(error))
    declared = arrow_type(kind)
    assert said == [f"the answer has {each} as 'score', which is no {declared}" for each in lost]
    for some in (held, held[::-1], *([each] for each in held)):
        column = product.normalise({"score": some}, {"score": declared}, len(some))["score"]
        assert len(column) == len(some)
    kept = [wanted for answer, wanted in answers.items() if wanted is not None or answer == "null"]
    assert product.normalise({"score": held}, {"score": declared}, len(held))["score"].to_pylist() == kept


@pytest.mark.parametrize("text", ["[" * 3000, "[" * 100_000 + "]" * 100_000, '{"score": ' * 3000])
def test_an_answer_that_is_nested_too_deeply_costs_the_row(text: str) -> None:
    read = reader({"score": "float32"}, json_schema=SCHEMA)
    with pytest.raises(AnswerInvalid, match=r"^the answer is no JSON that can be read \(maximum recursion depth"):
        read.row(Answer(text, "stop"))
    with pytest.raises(AnswerInvalid, match="the answer was cut after 9 tokens, before its JSON was complete"):
        read.row(Answer(text, "length", 3, 9))


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_what_is_no_number_costs_the_row_with_and_without_bounds(text: str) -> None:
    """No bound of a schema refuses NaN."""
    for bounds in ({}, {"minimum": 0, "maximum": 1}):
        score = {"type": "number", **bounds}
        read = reader({"score": "float64"}, json_schema={"type": "object", "properties": {"score": score}})
        with pytest.raises(AnswerInvalid, match=r"^the answer is no JSON that can be read"):
            read.row(Answer(f'{{"score": {text}}}', "stop"))
        assert read.row(Answer('{"score": 1e0}', "stop")) == {"score": 1.0}


def test_an_answer_that_is_nested_too_deeply_for_its_schema_costs_the_row() -> None:
    """The schema names itself, so that it goes as deep as the answer."""
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}}}
    read = reader({"left": "string"}, json_schema=tree)
    before = sys.getrecursionlimit()  # some libraries raise it
    sys.setrecursionlimit(1000)
    try:
        with pytest.raises(AnswerInvalid, match=r"^the answer is no JSON that can be read \(maximum recursion depth"):
            read.row(Answer('{"left": ' * 400 + "{}" + "}" * 400, "stop"))
    finally:
        sys.setrecursionlimit(before)


def test_a_cut_answer_whose_json_is_complete_is_whole() -> None:
    read = reader({"label": "string", "finish_reason": "string"}, json_schema=SCHEMA)
    assert read.row(Answer('{"label": "good"}', "length", 3, 9)) == {"label": "good", "finish_reason": "length"}


def test_a_choice_is_asked_for_as_a_schema() -> None:
    read = reader({"label": "string"}, choice=["yes", "no"])
    assert read.schema is not None
    assert read.schema["properties"] == {"choice": {"type": "string", "enum": ["yes", "no"]}}
    assert read.row(Answer('{"choice": "no"}', "stop")) == {"label": "no"}
    with pytest.raises(AnswerInvalid, match="'maybe' is not one of"):
        read.row(Answer('{"choice": "maybe"}', "stop"))


def test_a_vector_is_the_only_output_beside_what_it_took() -> None:
    read = reader({"vector": "float32[2]", "prompt_tokens": "int32"}, api="embeddings")
    assert read.row(Answer(prompt_tokens=4, vector=[1.0, 2.0])) == {"vector": [1.0, 2.0], "prompt_tokens": 4}


@pytest.mark.parametrize(
    ("outputs", "keys", "said"),
    [
        ({"a": "string", "b": "string"}, {}, "model.outputs: 'a' and 'b', and without model.json_schema there is only"),
        ({"a": "int32"}, {}, "model.outputs.a: is a text: the answer, and not int32"),
        ({"prompt_tokens": "string"}, {}, "model.outputs.prompt_tokens: is a number of tokens"),
        ({"finish_reason": "int32"}, {}, "model.outputs.finish_reason: is a text; write string, not int32"),
        ({"lable": "string"}, {"json_schema": SCHEMA}, "is no property of model.json_schema.*did you mean 'label'"),
        ({"a": "string"}, {"api": "embeddings"}, "model.outputs.a: is a list of numbers: the vector of the prompt"),
    ],
)
def test_outputs_that_no_answer_has_are_errors_of_the_job(
    outputs: dict[str, str], keys: dict[str, Any], said: str
) -> None:
    with pytest.raises(JobError, match=said):
        reader(outputs, **keys)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "array"}, "model.json_schema: must be of an object"),
        (
            {
                "type": "object",
                "properties": {"a": {"anyOf": [{"$ref": "#/$defs/Sentment"}]}},
                "$defs": {"Sentiment": {}},
            },
            r"model.json_schema: \$ref: '/\$defs/Sentment' is not in the schema",
        ),
        ({"type": "object", "properties": {"a": {"type": "numbr"}}}, "model.json_schema: 'numbr' is not valid"),
    ],
)
def test_a_schema_must_be_one_of_an_object(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=said):
        check_schema(schema)
