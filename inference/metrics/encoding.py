"""What every state of a metric has in common: it is added up, and kept as JSON.

The states of shards are merged in the order of the shards. So a resumed run's metrics equal an uninterrupted run's to
the byte, also where a sum of floats depends on its order.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from copy import deepcopy
from dataclasses import fields
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Self, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

K = TypeVar("K", bound=Hashable)
S = TypeVar("S", bound="State")


_EXTREMES: dict[str, Any] = {"min": min, "max": max}


class State:
    """A base for dataclasses whose fields are numbers, texts, arrays, counters, other states, and states by name."""

    __slots__ = ()

    def merge(self, other: Self) -> None:
        """Add another's rows: numbers, arrays, counters and states are added, and a bool is true if either is. Of two
        texts the first that is not empty counts. `min` and `max` are the extreme values of both. A state that only the
        other one has is copied.

        A class with other fields adds these itself.
        """
        kind: Any = type(self)
        for name in _names(kind):
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, State) and theirs is not None:
                mine.merge(theirs)
            elif isinstance(theirs, State):
                setattr(self, name, deepcopy(theirs))
            elif isinstance(mine, Counter):
                mine.update(theirs)
            elif isinstance(mine, dict):
                merge_named(mine, theirs)
            elif name in _EXTREMES:
                ends = (end for end in (mine, theirs) if end is not None)
                setattr(self, name, _EXTREMES[name](ends, default=None))
            elif isinstance(mine, bool | str):
                setattr(self, name, mine or theirs)
            elif isinstance(mine, int | float | np.ndarray):
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


class Kept(State):
    """A base for the states of a job's rows that are kept together. They are equal if their bytes are.

    VERSION: of the bytes. CALLED: what they hold, for the error.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]
    VERSION: ClassVar[int]
    CALLED: ClassVar[str]

    def to_bytes(self) -> bytes:
        """As they are kept with a part."""
        kind: Any = type(self)
        kept = {"v": self.VERSION, **dict(zip(_names(kind), self.values(), strict=True))}
        return zlib.compress(json.dumps(kept, separators=(",", ":")).encode())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The inverse of `to_bytes`.

        Raises:
            ValueError: Nothing that this version can read.
        """
        try:
            version, *values = json.loads(zlib.decompress(data)).values()
            if version != cls.VERSION:
                raise ValueError(f"version {version}, not {cls.VERSION}")
            return cls.of_values(values)
        except (KeyError, TypeError, IndexError, AttributeError, ValueError, zlib.error) as error:
            raise ValueError(f"not {cls.CALLED}: {error}") from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kept) and type(other) is type(self) and other.to_bytes() == self.to_bytes()


def merge_named(mine: dict[K, S], theirs: Mapping[K, S]) -> None:
    """Add each state to the one of the same name."""
    for name, state in theirs.items():
        if name in mine:
            mine[name].merge(state)
        else:
            mine[name] = deepcopy(state)


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


def _written(value: Any) -> Any:
    if isinstance(value, State):
        return value.values()
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.tolist()]
    if isinstance(value, Counter):
        return sorted(value.items())
    return {name: _written(value[name]) for name in sorted(value)} if isinstance(value, dict) else value


@cache
def _readers(kind: Any) -> tuple[Callable[[Any], Any], ...]:
    types = get_type_hints(kind)
    return tuple(_reader(types[name]) for name in _names(kind))


def _reader(kind: Any) -> Callable[[Any], Any]:
    if get_origin(kind) is dict:
        read = _reader(get_args(kind)[1])
        return lambda found: {name: read(value) for name, value in found.items()}
    if get_origin(kind) is UnionType:
        read = _reader(get_args(kind)[0])
        return lambda value: None if value is None else read(value)
    kind = get_origin(kind) or kind
    if kind is np.ndarray:
        return lambda found: np.array(found[1], found[0])
    if kind is Counter:
        return lambda pairs: Counter({tuple(key) if isinstance(key, list) else key: count for key, count in pairs})
    return kind.of_values if isinstance(kind, type) and issubclass(kind, State) else lambda value: value
