"""Turns the faults of a job file into sentences for tired people: the key, its value, and what to write instead."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

from pydantic import ValidationError

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
    "batch_size": "model.batch_size",
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
"""Names of Ray Data and others → our key."""

_WITHOUT_VALUE = {"missing", "string_too_short", "string_too_long", "too_short"}
_MAY_BE_SECRET = re.compile(r"notify(\.webhook\w*)?|resources\.runtime_env\.env_vars(\..*)?|(late_labels\.)?input\.uri")
"""Keys whose values are in no message: an address, a password or a signed URL may stand at the wrong one."""
_SHOWN_CHARS = 60


def sentences(error: ValidationError) -> list[str]:
    """One sentence per fault, the first one of each key."""
    found = dict[str, str]()
    for fault in error.errors():
        where = _where(fault["loc"])
        found.setdefault(where, _sentence(where, fault))
    return list(found.values())


def _where(location: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")


def _sentence(where: str, fault: Any) -> str:
    kind = fault["type"]
    if kind == "value_error":
        return f"{where}: {fault['ctx']['error']}" if where else str(fault["ctx"]["error"])
    if kind == "unknown_key":
        return _unknown(where, **fault["ctx"])
    if fault["input"] is None:
        return f"{where}: is empty; give it a value or remove it"
    must = _PLAIN[kind].format(**fault.get("ctx", {})) if kind in _PLAIN else fault["msg"]
    return f"{where}: {must}{'' if _MAY_BE_SECRET.fullmatch(where) else _given(kind, fault['input'])}"


def _unknown(section: str, key: str, known: list[str]) -> str:
    """An unknown key, with a hint at the intended one: by another name, or by spelling; else all known keys."""
    where = f"{section}.{key}" if section else key
    if other := _OTHER_NAMES.get(where) or _OTHER_NAMES.get(key):
        return f"unknown key {where!r}; write {other}"
    hint = nearest(key, known, prefix=f"{section}." if section else "") or f"; known: {', '.join(known)}"
    return f"unknown key {where!r}{hint}"


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
    # YAML makes a date of 2026-11-19, which is the name of a night, too.
    is_date = kind == "form" and isinstance(value, dt.date)
    quotes = is_date or (kind == "string_type" and not isinstance(value, dict | list))
    return f", not {shown}" + ("; put it in quotes" if quotes else "")
