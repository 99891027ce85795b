"""The options of adapters, the keys of `model.options`, and of sources, those of `input.options`: each is declared
once, with its type, default and meaning.

The check of a job, the JSON Schema of the job file and the tables in the docs all come from these declarations.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from nightjar.inference.errors import JobError
from nightjar.inference.messages import nearest


def _listed(known: Sequence[Any]) -> str:
    return ", ".join(str(each).lower() if isinstance(each, bool) else str(each) for each in known)


@dataclass(frozen=True, slots=True)
class Option:
    """One option."""

    name: str
    """The key of the option."""

    schema: Mapping[str, Any]
    """The JSON Schema of the option's values."""

    default: str
    """The default, in words or as YAML writes it."""

    about: str
    """What the option does, in a line."""

    write: str
    """What to write, for messages and the tables in the docs."""

    required: bool = False
    """Whether the adapter cannot do without the option."""

    keys: tuple[Option, ...] = ()
    """The keys of an option that is a mapping with keys of its own; else empty."""


def flag(name: str, about: str, default: str = "`false`") -> Option:
    """An option that is true or false."""
    return Option(name, {"type": "boolean"}, default, about, "true or false")


def choice(name: str, known: Sequence[Any], about: str, default: str = "") -> Option:
    """An option whose values have names; the first one is the default."""
    return Option(name, {"enum": list(known)}, default or f"`{_listed(known[:1])}`", about, _listed(known))


def whole(name: str, about: str, default: str, what: str = "a whole number", least: int = 1) -> Option:
    """An option that is a whole number. what: it is, for messages."""
    return Option(name, {"type": "integer", "minimum": least}, default, about, f"{what} from {least} on")


def number(name: str, about: str, default: str, least: float, most: float, *, required: bool = False) -> Option:
    """An option that is a number between two others."""
    schema = {"type": "number", "minimum": least, "maximum": most}
    return Option(name, schema, default, about, f"a number from {least:g} to {most:g}", required)


def text(
    name: str, about: str, default: str, pattern: str = "", write: str = "a text", required: bool = False
) -> Option:
    """An option that is a text. pattern: of all of it, as a regular expression."""
    schema = {"type": "string"} | ({"pattern": f"^{pattern}$"} if pattern else {})
    return Option(name, schema, default, about, write, required)


def texts(name: str, about: str, default: str, write: str, least: int = 0, required: bool = False) -> Option:
    """An option that is a list of texts, each once."""
    schema = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": least, "uniqueItems": True}
    return Option(name, schema, default, about, write, required)


def keywords(name: str, about: str, default: str, write: str) -> Option:
    """An option that is a mapping from names to anything."""
    return Option(name, {"type": "object"}, default, about, write)


def section(name: str, about: str, write: str, keys: tuple[Option, ...]) -> Option:
    """An option that is a mapping with keys of its own."""
    return Option(name, schema_of(keys), "none", about, write, keys=keys)


def check(
    uses: str, given: Mapping[str, Any], known: Sequence[Option], key: str = "model.options", what: str = "adapter"
) -> None:
    """Check the values of `model.options` against the options of an adapter; or those of another key of another thing.

    Raises:
        JobError: One is unknown or missing, or has a value that it cannot have. Names it.
    """
    options = {option.name: option for option in known}
    for name in sorted(set(given) - set(options)):
        if not options:
            raise JobError(f"{key}: the {uses} {what} has no options; leave it out")
        raise JobError(
            f"{key}.{name}: the {uses} {what} knows only the options {', '.join(options)}" + nearest(name, options)
        )
    for name, option in options.items():
        if option.keys and _is_mapping(given.get(name)):
            check(uses, given[name], option.keys, f"{key}.{name}", what)
        if (name in given or option.required) and not fits(given.get(name), option.schema):
            raise JobError(f"{key}.{name}: {_wrong(given.get(name), option)}")


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value conforms to the schema of an option."""
    return bool(_validator()(schema).is_valid(value))


@cache
def _validator() -> Any:
    """A validator that takes tuples for arrays, no float for an integer, and no NaN or infinity for a number."""
    from jsonschema import Draft202012Validator, validators

    types = Draft202012Validator.TYPE_CHECKER.redefine_many(
        {
            "array": lambda _, value: isinstance(value, list | tuple),
            "integer": lambda _, value: type(value) is int,
            "number": lambda _, value: type(value) is int or (isinstance(value, float) and math.isfinite(value)),
        }
    )
    return validators.extend(Draft202012Validator, type_checker=types)  # type: ignore[no-untyped-call]


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _wrong(value: Any, option: Option) -> str:
    known: Collection[Any] = option.schema.get("enum", ())
    if not known or value is None:
        return f"write {option.write}, not {value!r}"
    names = [each for each in known if isinstance(each, str)]
    return f"{value!r} is not one of {option.write}" + nearest(str(value), names)


def schema_of(known: Sequence[Option]) -> dict[str, Any]:
    """The JSON Schema of `model.options` for an adapter with these options."""
    found = {
        "type": "object",
        "properties": {each.name: {**each.schema, "description": each.about} for each in known},
        "additionalProperties": False,
    }
    required = [each.name for each in known if each.required]
    return found | ({"required": required} if required else {})
