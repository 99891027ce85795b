"""The one JSON form of a frozen record: its fields by name, in their order.

What a field is read back as is said by its declared type. A field of free form is declared as `Any` or `Mapping[str,
Any]`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")

Int32 = Annotated[int, "int32"]
Float32 = Annotated[float, "float32"]
"""Numbers of four bytes in a file of records; other numbers have eight. See `arrow_types.record_schema`."""

SELDOM = {"seldom": True}
"""Metadata of a field that is left out of the JSON object where it has its default."""


def to_json(record: Any) -> dict[str, Any]:
    """The record as a JSON object. `dataclasses.asdict` copies deeply, and is slower."""
    kind: Any = type(record)
    found = {}
    for name, left_out in _fields(kind):
        value = getattr(record, name)
        if value != left_out:
            found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return to_json(value) if is_dataclass(value) else value


@cache
def _fields(record: Any) -> list[tuple[str, Any]]:
    """Of each field its name, and the value for which it is left out."""
    return [(each.name, _default(each) if each.metadata.get("seldom") else MISSING) for each in fields(record)]


def _default(of: Field[Any]) -> Any:
    return of.default if of.default_factory is MISSING else of.default_factory()


def of_json(record: type[T], found: Any) -> T:
    """The inverse of `to_json`. Keys of a newer version are ignored; what an older one lacks has its default.

    Raises:
        ValueError: It lacks a field that has no default, or is of another form.
    """
    kind: Any = record
    made: T = _adapter(kind).validate_python(found)
    return made


def to_bytes(record: Any, indent: int | None = None) -> bytes:
    """The record as the content of a JSON file. indent: as of `json.dumps`."""
    return json.dumps(to_json(record), indent=indent).encode()


def of_bytes(record: type[T], content: bytes) -> T:
    """The inverse of `to_bytes`; as `of_json`, also of content that is not JSON."""
    return of_json(record, json.loads(content))


@cache
def _adapter(record: Any) -> TypeAdapter[Any]:
    return TypeAdapter(record)
