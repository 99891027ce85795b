"""Turns the faults of a job file into sentences for tired people: the key, its value, and what to write instead."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from nightjar.inference.messages import nearest

_PLAIN: dict[str, str] = {
    "missing": "is required",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "string_too_long": "is longer than {max_length} characters",
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping of name: type",
    "tuple_type": "must be a list",
    "too_short": "must not be empty",
    "literal_error": "must be {expected}",
    "form": "must be {words}",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
}
_OTHER_NAMES: dict[str, str] = {
    "allow_pickle": "model.trusted",
    "batch_format": "model.options.batch_format",
    "batch_tokens": "model.options.batch_tokens",
    "compute": "resources.actors",
    "concurrency": "resources.actors",
    "fn_constructor_kwargs": "model.options",
    "input.path": "input.uri",
    "kwargs": "model.options",
    "num_actors": "resources.actors",
    "num_cpus": "resources.cpus",
    "num_gpus": "resources.gpus",
    "num_workers": "resources.actors",
    "output.path": "output.uri",
    "parallelism": "resources.actors",
    "retries": "retry.attempts",
    "workers": "resources.actors",
}
"""Names of Ray Data and others → our key; the spelling alone would suggest `concurrency_limit` for `concurrency`."""

_WITHOUT_VALUE = {"missing", "string_too_short", "string_too_long", "too_short"}
_MAY_BE_SECRET = re.compile(r"notify(\.webhook\w*)?|resources\.runtime_env\.env_vars(\..*)?")
"""Keys whose values are in no message: an address or a password may stand at the wrong one."""
_SHOWN_CHARS = 60

Sections = Mapping[str, tuple[type[BaseModel], ...]]
"""The model or models of each key that has keys of its own, without indexes; '' for the file itself."""


def sentences(error: ValidationError, file: type[BaseModel]) -> list[str]:
    """One sentence per fault, the first one of each key. file: the model of the whole file."""
    sections, found = sections_of(file), dict[str, str]()
    for fault in error.errors():
        where = _where(fault["loc"])
        found.setdefault(where, _sentence(where, fault, sections))
    return list(found.values())


def sections_of(model: type[BaseModel], key: str = "") -> dict[str, tuple[type[BaseModel], ...]]:
    """The sections of a key whose model this is, and the key itself; those of fewer levels come first."""
    found: dict[str, tuple[type[BaseModel], ...]] = {key: (model,)}
    for name, field in model.model_fields.items():
        below = f"{key}.{field.alias or name}" if key else field.alias or name
        for each in _models(field.annotation):
            for section, models in sections_of(each, below).items():
                found[section] = (*found.get(section, ()), *models)
    return dict(sorted(found.items(), key=lambda item: item[0].count(".")))


def _models(kind: Any) -> list[type[BaseModel]]:
    """The models in an annotation, as `tuple[Check, ...] | None`."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [model for inner in get_args(kind) for model in _models(inner)]


def _upward(where: str) -> list[str]:
    """`checks[3]` and `checks[3].rows`, for `checks[3].rows`."""
    parts = where.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def _where(location: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")


def _sentence(where: str, fault: Any, sections: Sections) -> str:
    kind = fault["type"]
    if kind == "value_error":
        return f"{where}: {fault['ctx']['error']}" if where else str(fault["ctx"]["error"])
    if kind == "extra_forbidden":
        return f"unknown key {where!r}{_meant(where, sections)}"
    if fault["input"] is None:
        return f"{where}: is empty; give it a value or remove it"
    given = "" if _MAY_BE_SECRET.fullmatch(where) else _given(kind, fault["input"])
    return f"{where}: {_must(where, kind, fault, sections)}{given}"


def _meant(where: str, sections: Sections) -> str:
    """A hint at the intended key: by another name, by spelling, or in another section; else all known keys."""
    section, _, key = where.rpartition(".")
    known = _keys(section, sections)
    if other := _OTHER_NAMES.get(where) or _OTHER_NAMES.get(key):
        return f"; write {other}"
    if close := nearest(key, known, prefix=f"{section}." if section else ""):
        return close
    # What one model has, each of several has: only `model` is named. Of sections that are alike the first one is, too.
    unlike: dict[Any, str] = {}
    for other, models in sections.items():
        if other not in {"", "models"}:
            unlike.setdefault(models, other)
    above = {_without_index(each): each for each in _upward(section)}
    elsewhere = [f"{above.get(other, other)}.{key}" for other in unlike.values() if key in _keys(other, sections)]
    return f"; did you mean {elsewhere[0]!r}?" if len(elsewhere) == 1 else f"; known: {', '.join(known)}"


def _must(where: str, kind: str, fault: Any, sections: Sections) -> str:
    if kind == "model_type":
        return f"must be a mapping with the keys {', '.join(_keys(where, sections))}"
    if kind in _PLAIN:
        return _PLAIN[kind].format(**fault.get("ctx", {}))
    return f"{fault['msg'][0].lower()}{fault['msg'][1:]}"


def _given(kind: str, value: Any) -> str:
    if kind in _WITHOUT_VALUE:
        return ""
    value = list(value) if isinstance(value, tuple) else value
    if isinstance(value, bool):
        shown = str(value).lower()
    else:
        shown = value.isoformat() if isinstance(value, dt.date) else repr(value)
    if len(shown) > _SHOWN_CHARS:
        shown = f"{shown[:_SHOWN_CHARS]} …"
    quotes = kind == "string_type" and not isinstance(value, dict | list)
    return f", not {shown}" + ("; put it in quotes" if quotes else "")


def _keys(section: str, sections: Sections) -> list[str]:
    models = sections.get(_without_index(section), ())
    fields = [each for model in models for each in model.model_fields.items()]
    return list(dict.fromkeys(field.alias or name for name, field in fields if not field.exclude))


def _without_index(where: str) -> str:
    """`checks[3].rows` as it stands among the sections: `checks.rows`."""
    return re.sub(r"\[\d+\]", "", where)
