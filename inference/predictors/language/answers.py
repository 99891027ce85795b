"""What a language model answered, as the job's outputs.

`prompt_tokens`, `output_tokens`, `cached_tokens` and `finish_reason` are known for each answer. With `json_schema`
every other output is a property of the answer. Otherwise the only other output is its text; with `choice`, and a model
that says so, also the probability of each choice, by its name, and those of all, as `probabilities`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.arrow_types import is_list, is_number, is_text
from nightjar.inference.errors import AnswerInvalid, JobError, OutputInvalid
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.messages import nearest
from nightjar.inference.predictors.conversion import to_arrow

CHAT, COMPLETIONS, EMBEDDINGS = "chat", "completions", "embeddings"

KEY_ENV = "OPENAI_API_KEY"
"""The environment variable with the key, if the job names none; without it none is sent."""

COUNTED = ("prompt_tokens", "output_tokens", "cached_tokens")
"""Outputs that are numbers of tokens."""

REASON = "finish_reason"
"""The output that says why the answer ended."""

STOPPED, CUT = "stop", "length"
"""Reasons why an answer ended: the model ended it, or it had the most tokens that it may have."""

PROBABILITIES = "probabilities"
"""The output that has the probability of each choice, in their order."""

_CHOSEN = "choice"
"""The property of the answer that has the choice, where a schema is all that can be asked for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one prompt."""

    text: str = ""
    """The text of the answer; '' if there is none, as with a vector."""

    finish_reason: str = ""
    """Why the answer ended, in the model's word, such as `STOPPED` or `CUT`; '' if the model does not say."""

    prompt_tokens: int | None = None
    """Tokens of the prompt; None if the endpoint does not say."""

    output_tokens: int | None = None
    """Tokens of the answer, 0 with a vector; None if the endpoint does not say."""

    cached_tokens: int | None = None
    """Tokens of the prompt that the model had computed before; None if the endpoint does not say."""

    vector: Sequence[float] | None = None
    """The vector of the prompt, where a vector was asked for in place of a text; else None."""

    refusal: str = ""
    """Why there is no text; '' if there is a text or a vector."""

    probabilities: Sequence[float] | None = None
    """The probability of each of the job's choices, in the job's order; None if unknown."""

    seconds: float = 0.0
    """Seconds that the request took that was answered."""

    retries: int = 0
    """Requests for the row before the one that was answered."""

    output: Any = None
    """What vLLM itself returned; None from an endpoint, and with `probabilities`."""


class Reader:
    """Reads the job's outputs out of answers. schema: that each answer is to follow, as JSON Schema; None for none."""

    def __init__(self, job: ModelJob, *, probabilities: bool = False) -> None:
        """probabilities: whether the probability of each choice is known."""
        options = job.model.options
        self._types = job.model.output_types()
        self._given: Mapping[str, Any] | None = options.get("json_schema")
        self._choices: Sequence[str] | None = options.get("choice")
        self._regex = _compiled(options.get("regex"))
        self._read = [name for name in self._types if name not in (*COUNTED, REASON)]
        for name in self._types:
            _check_known(name, self._types[name])
        if self._choices is not None and probabilities:
            known = (*self._choices, PROBABILITIES)
            _check_probabilities({name: self._types[name] for name in self._read if name in known}, self._choices)
            self._read = [name for name in self._read if name not in known]
        if self._given is not None:
            _check_properties(self._given, self._read)
        elif options.get("api") == EMBEDDINGS:
            _check_only(self._read, self._types, is_list, "a list of numbers: the vector of the prompt")
        else:
            likely = " (uses: vllm knows the probability of each choice, too)" if self._choices is not None else ""
            _check_only(self._read, self._types, is_text, f"a text: the answer{likely}")

    @cached_property
    def schema(self) -> Mapping[str, Any] | None:
        """What an answer must follow."""
        if self._choices is None:
            return self._given
        one = {"type": "string", "enum": list(self._choices)}
        return {"type": "object", "properties": {_CHOSEN: one}, "required": [_CHOSEN], "additionalProperties": False}

    def row(self, answer: Answer) -> dict[str, Any]:
        """The outputs of one row.

        Raises:
            AnswerInvalid: The answer has them not.
        """
        if answer.refusal:
            raise AnswerInvalid(answer.refusal)
        known = {name: getattr(answer, name) for name in (*COUNTED, REASON) if name in self._types}
        if answer.vector is not None:
            return known | dict.fromkeys(self._read, answer.vector)
        if answer.probabilities is not None:
            each = dict(zip(self._choices or (), answer.probabilities, strict=True))
            likely = {**each, PROBABILITIES: answer.probabilities}
            chosen = {name: likely[name] for name in self._types if name in likely}
            return chosen | known | self._fitting(dict.fromkeys(self._read, answer.text))
        if self._regex is not None and not self._regex.fullmatch(answer.text):
            _check_whole(answer, "it had the form of model.regex")
            raise AnswerInvalid(f"the answer has not the form of model.regex: {answer.text[:200]!r}")
        if self.schema is None:
            return known | self._fitting(dict.fromkeys(self._read, answer.text))
        found = self._parsed(answer)
        if self._choices is not None:
            return known | dict.fromkeys(self._read, found[_CHOSEN])
        return known | self._fitting({name: found.get(name) for name in self._read})

    def _fitting(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: fitting(name, value, self._types[name], "the answer has") for name, value in values.items()}

    def _parsed(self, answer: Answer) -> Any:
        """The answer as JSON that follows the schema."""
        try:
            # Of an object, what was cut is never JSON. NaN is none, and no number is outside of any bounds of a schema.
            found = json.loads(answer.text, parse_constant=_no_number, parse_float=_finite)
            wrong = next(self._validator.iter_errors(found), None)
        except (ValueError, RecursionError) as error:  # a model that repeats itself opens brackets in brackets
            _check_whole(answer, "its JSON was complete")
            raise AnswerInvalid(f"the answer is no JSON that can be read ({error}): {answer.text[:200]!r}") from None
        if wrong:
            raise AnswerInvalid(f"the answer does not follow the schema: {wrong.message[:200]} (at {wrong.json_path})")
        return found

    @cached_property
    def _validator(self) -> Any:
        from jsonschema.validators import validator_for

        schema = dict(self.schema or {})
        return validator_for(schema)(schema)


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is too large")
    return number


def fitting(name: str, value: Any, kind: pa.DataType, said: str) -> Any:
    """The value of an output as the type holds it, in Python's form: 1 is 1.0 in float32, and a struct has each of its
    fields, None for one that the value lacks. said: where it comes from, for messages.

    The conversion that makes columns decides, for this value alone. Values in this form fit together, because those of
    one type are all of the same form.

    Raises:
        AnswerInvalid: The type cannot hold it.
    """
    try:
        return _held(to_arrow(name, [value], kind))
    except (OutputInvalid, pa.ArrowException, TypeError, ValueError, OverflowError):
        raise AnswerInvalid(f"{said} {_shown(value)} as {name!r}, which is no {kind}") from None


def _held(one: pa.Array) -> Any:
    if isinstance(one.type, pa.FixedShapeTensorType):
        return np.reshape(one.storage[0].as_py(), one.type.shape).tolist()
    return one[0].as_py()


def _shown(value: Any) -> str:
    try:
        return repr(value)[:200]
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deeply to be shown"


def check_schema(schema: Mapping[str, Any]) -> None:
    """Check that a schema is one of an object."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for
    from referencing.exceptions import Unresolvable

    kind = validator_for(dict(schema))
    try:
        kind.check_schema(dict(schema))
        for reference in _references(schema):
            kind(dict(schema)).evolve(schema={"$ref": reference}).is_valid(None)
    except SchemaError as error:
        raise JobError(f"model.json_schema: {error.message} (at {error.json_path})") from None
    except Unresolvable as error:
        raise JobError(f"model.json_schema: $ref: {error.ref!r} is not in the schema") from None
    if schema.get("type") != "object" or not isinstance(schema.get("properties"), Mapping):
        raise JobError('model.json_schema: must be of an object: {"type": "object", "properties": {…}}')


def _references(schema: object) -> Iterator[str]:
    """What a schema refers to: the library follows a reference when it checks an answer, and raises then."""
    if isinstance(schema, Mapping):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from _references(part)


def _check_whole(answer: Answer, before: str) -> None:
    """Check that the answer was not cut. before: what it would have had to be."""
    if answer.finish_reason == CUT:
        raise AnswerInvalid(
            f"the answer was cut after {answer.output_tokens or 'all its'} tokens, before {before}; raise max_tokens "
            f"in model.sampling. It ends with {answer.text[-80:]!r}"
        )


def _compiled(regex: str | None) -> re.Pattern[str] | None:
    if regex is None:
        return None
    try:
        return re.compile(regex, re.DOTALL)
    except re.error as error:
        raise JobError(f"model.regex: {error}") from None


def _check_probabilities(types: Mapping[str, pa.DataType], choices: Sequence[str]) -> None:
    for name, kind in types.items():
        if name == PROBABILITIES and not (is_list(kind) and getattr(kind, "list_size", -1) in {len(choices), -1}):
            raise JobError(f"model.outputs.{name}: has one number for each choice; write float32[{len(choices)}]")
        if name != PROBABILITIES and not is_number(kind):
            raise JobError(f"model.outputs.{name}: is the probability of this choice; write float32, not {kind}")


def _check_known(name: str, kind: pa.DataType) -> None:
    """Check the type of an output that is known for each answer."""
    if name in COUNTED and not pa.types.is_integer(kind):
        raise JobError(f"model.outputs.{name}: is a number of tokens; write int32, not {kind}")
    if name == REASON and not is_text(kind):
        raise JobError(f"model.outputs.{name}: is a text; write string, not {kind}")


def _check_properties(schema: Mapping[str, Any], names: Sequence[str]) -> None:
    known = schema.get("properties", {})
    for name in names:
        if name not in known:
            raise JobError(
                f"model.outputs.{name}: is no property of model.json_schema"
                + (nearest(name, known) or f", which has {', '.join(known)}")
            )


def _check_only(names: Sequence[str], types: Mapping[str, pa.DataType], fits: Any, what: str) -> None:
    """Check that there is at most one output of the answer's own, of a type that fits."""
    if len(names) > 1:
        raise JobError(
            f"model.outputs: {' and '.join(map(repr, names[:2]))}, and without model.json_schema there is only {what}; "
            f"beside it {', '.join((*COUNTED, REASON))}"
        )
    if names and not fits(types[names[0]]):
        raise JobError(f"model.outputs.{names[0]}: is {what}, and not {types[names[0]]}")
