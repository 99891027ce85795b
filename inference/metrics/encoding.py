"""What every state of a metric has in common: it is added up, and kept as JSON.

The states of shards are merged in the order of the shards. So a resumed run's metrics equal an uninterrupted run's to
the byte, also where a sum of floats depends on its order.
"""

from __future__ import annotations

import base64
import json
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Self, TypeVar, get_origin, get_type_hints

import numpy as np

T = TypeVar("T")


class State:
    """A base for dataclasses whose fields are numbers, texts, arrays, counters and other states."""

    __slots__ = ()

    def merge(self, other: Self) -> None:
        """Add another's rows: numbers, counters and states are added, and a bool is true if either is.

        A class with other fields, as arrays or extreme values, adds these itself.
        """
        kind: Any = type(self)
        for name in _names(kind):
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, State):
                mine.merge(theirs)
            elif isinstance(mine, Counter):
                mine.update(theirs)
            elif isinstance(mine, bool):
                setattr(self, name, mine or theirs)
            elif isinstance(mine, int | float):
                setattr(self, name, mine + theirs)

    def values(self) -> list[Any]:
        """The fields' values for JSON."""
        kind: Any = type(self)
        return [_written(getattr(self, name)) for name in _names(kind)]

    @classmethod
    def of_values(cls, values: Any) -> Self:
        """The inverse of `values`."""
        kind: Any = cls
        return kind(*(read(value) for read, value in zip(_readers(kind), values, strict=True)))  # type: ignore[no-any-return]


class States(ABC):
    """A base for the states of a job together. They are equal if their bytes are."""

    __hash__ = None  # type: ignore[assignment]

    @abstractmethod
    def to_bytes(self) -> bytes:
        """As they are kept with a part."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, States) and type(other) is type(self) and other.to_bytes() == self.to_bytes()


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


def _written(value: Any) -> Any:
    if isinstance(value, State):
        return value.values()
    if isinstance(value, np.ndarray):
        return pack(value)
    return sorted(value.items()) if isinstance(value, Counter) else value


@cache
def _readers(kind: Any) -> tuple[Callable[[Any], Any], ...]:
    types = get_type_hints(kind)
    return tuple(_reader(types[name]) for name in _names(kind))


def _reader(kind: Any) -> Callable[[Any], Any]:
    kind = get_origin(kind) or kind
    if kind is np.ndarray:
        return unpack
    if kind is Counter:
        return lambda pairs: Counter(dict(pairs))
    return kind.of_values if isinstance(kind, type) and issubclass(kind, State) else lambda value: value


def pack(values: np.ndarray) -> str:
    """An array of integers or float64 as text. Integers take as few bytes as the largest needs; ascending ones are
    kept by the gaps between them.
    """
    kind, first = values.dtype, ""
    if kind.kind != "f" and len(values):
        if len(values) > 1 and (values[1:] > values[:-1]).all():
            first, values = str(values[0]), np.diff(values)
        narrow = np.result_type(*(np.min_scalar_type(end) for end in (values.min(), values.max())))
        values = values.astype(narrow if narrow.kind in "iu" else kind)  # of int8 and uint64 it is float64
    raw = base64.b64encode(min(_deflated(values.tobytes()), key=len)).decode("ascii")
    return f"{kind.str},{values.dtype.str},{first},{raw}"


def _deflated(data: bytes) -> Iterator[bytes]:
    """The data in each of two ways: some arrays repeat in patterns, and others only in runs."""
    for strategy in (zlib.Z_DEFAULT_STRATEGY, zlib.Z_RLE):
        packer = zlib.compressobj(strategy=strategy)
        yield packer.compress(data) + packer.flush()


def unpack(text: str) -> np.ndarray:
    """The inverse of `pack`."""
    kind, width, first, raw = text.split(",")
    values = np.frombuffer(zlib.decompress(base64.b64decode(raw, validate=True)), width).astype(kind)
    return np.cumsum(np.concatenate([np.array([int(first)], kind), values]), dtype=kind) if first else values


def to_bytes(version: int, kept: Mapping[str, Any]) -> bytes:
    """States as they lie beside a part."""
    return zlib.compress(json.dumps({"v": version, **kept}, separators=(",", ":")).encode())


def from_bytes(data: bytes, version: int, called: str, read: Callable[[dict[str, Any]], T]) -> T:
    """The inverse of `to_bytes`. called: what it holds, for the error. read: makes it from what was kept.

    Raises:
        ValueError: Nothing that this version can read.
    """
    try:
        found = json.loads(zlib.decompress(data))
        if found["v"] != version:
            raise ValueError(f"version {found['v']}, not {version}")
        return read(found)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, zlib.error) as error:
        raise ValueError(f"not {called}: {error}") from error
