"""What is wrong with a job file, in sentences a tired person can act on: the key, what it is, what to write."""

from __future__ import annotations

import datetime as dt
import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

_PLAIN: dict[str, str] = {
    "missing": "is required",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping of name: type",
    "tuple_type": "must be a list",
    "too_short": "must not be empty",
    "literal_error": "must be {expected}",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
}
_WITHOUT_VALUE = {"missing", "string_too_short", "too_short"}
_SHOWN_CHARS = 60


def sentences(
    error: ValidationError, sections: Mapping[str, type[BaseModel]], choices: Mapping[str, str]
) -> list[str]:
    """One sentence per fault.

    sections: the model behind each key that has keys of its own, '' for the file itself. choices: what may be
    written where a key takes more than one form.
    """
    return [_sentence(fault, sections, choices) for fault in _faults(error, choices)]


def nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """`; did you mean 'x'?`, or nothing when no known word is near."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {prefix + close[0]!r}?" if close else ""


def _faults(error: ValidationError, choices: Mapping[str, str]) -> list[dict[str, Any]]:
    """Faults by the user's own keys, and for a choice those of the form that was meant.

    Pydantic tries every form and names each in the location: `{min: 3, max: 1}` is also "no whole number".
    """
    forms: dict[str, str] = {}
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for fault in error.errors():
        where, form = _where(fault["loc"], choices)
        choice = next((key for key in choices if where == key or where.startswith(f"{key}.")), None)
        if choice is not None:
            meant = isinstance(fault["input"], dict) or where != choice or fault["type"] == "value_error"
            if forms.setdefault(choice, form if meant else "") != (form if meant else ""):
                if not meant:
                    continue
                forms[choice] = form
                found = {key: kept for key, kept in found.items() if key[0] != choice}
        found.setdefault((where, form), {**fault, "where": where})
    return list(found.values())
