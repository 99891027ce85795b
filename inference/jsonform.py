"""The one JSON form of a frozen record: its fields by name, in their order.

What a field is read back as is said by its declared type: a record, a tuple or a mapping of records, or the JSON value
as it is. A field of free form is declared as `Any` or `Mapping[str, Any]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache, partial
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")

SELDOM = {"seldom": True}
"""Metadata of a field that is left out of the JSON object where it has its default."""


def to_json(record: Any) -> dict[str, Any]:
    """The record as a JSON object. `dataclasses.asdict` copies deeply, and is ten times slower."""
    kind: Any = type(record)
    found = {}
    for name, write, left_out in _writers(kind):
        value = getattr(record, name)
        if value != left_out:
            found[name] = value if write is None or value is None else write(value)
    return found


def of_json(record: type[T], found: Mapping[str, Any]) -> T:
    """The inverse of `to_json`. Keys of a newer version are ignored; what an older one lacks has its default.

    Raises:
        TypeError, AttributeError: it lacks a field that has no default, or is of another form.
    """
    kind: Any = record
    names, readers = _readers(kind)
    given = {name: value for name, value in found.items() if name in names}
    for name, read in readers:
        if given.get(name) is not None:
            given[name] = read(given[name])
    return record(**given)


Convert = Callable[[Any], Any]


@cache
def _writers(record: Any) -> list[tuple[str, Convert | None, Any]]:
    """Of each field its name, what makes its value JSON, and the value for which it is left out."""
    types = get_type_hints(record)
    return [(each.name, _writer(types[each.name]), _left_out(each)) for each in fields(record)]


def _left_out(of: Field[Any]) -> Any:
    if not of.metadata.get("seldom"):
        return MISSING
    return of.default_factory() if of.default_factory is not MISSING else of.default


@cache
def _readers(record: Any) -> tuple[frozenset[str], list[tuple[str, Convert]]]:
    """The names of the fields; and of those whose values are converted, what converts them."""
    types = get_type_hints(record)
    converted = [(each.name, _reader(types[each.name])) for each in fields(record)]
    return frozenset(name for name, _ in converted), [(name, read) for name, read in converted if read is not None]


def _writer(kind: Any) -> Convert | None:
    """What makes a value of this type JSON; None: it is JSON."""
    return to_json if is_dataclass(kind) else _each(kind, _writer, list)


def _reader(kind: Any) -> Convert | None:
    """The inverse of `_writer`."""
    return partial(of_json, kind) if isinstance(kind, type) and is_dataclass(kind) else _each(kind, _reader, tuple)


def _each(kind: Any, converter: Callable[[Any], Convert | None], made_of_tuple: type[Any]) -> Convert | None:
    """What converts each of the values that a value of this type holds. made_of_tuple: what a tuple becomes."""
    origin, held = get_origin(kind), [each for each in get_args(kind) if each is not NoneType]
    if NoneType in get_args(kind):
        return converter(held[0]) if len(held) == 1 else None
    if origin not in (tuple, list, dict, Mapping):
        return None
    convert = converter(held[0] if origin in (tuple, list) else held[1])
    if origin is tuple:
        return made_of_tuple if convert is None else lambda values: made_of_tuple(map(convert, values))
    if convert is None:
        return None
    if origin is list:
        return lambda values: [convert(value) for value in values]
    return lambda values: {key: convert(value) for key, value in values.items()}
