"""The user's own accumulators: figures of a night's rows, from states that are merged in the order of the shards."""

from __future__ import annotations

import inspect
import json
import math
import numbers
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from nightjar.inference.job.label_sections import FIGURE
from nightjar.inference.messages import clip, listed

MOST_BYTES = 1 << 18
"""The most bytes of a state, whether of one shard or of the night: it must not grow with the rows."""

MOST_FIGURES = 64
"""The most figures of one accumulator."""

METHODS = ("update", "merge", "state", "results")
"""The methods of an `Accumulator`."""

_JSON, _RAW = b"j", b"b"

_ROUNDED = 1e-6
"""Figures that differ by no more than this, relative to their size or in all, differ by how a sum was rounded."""


class Accumulator(Protocol):
    """A class of the user's own that `accumulators` names. Called without arguments, it makes one that has no rows.

    Each shard has a state, and the audit merges them in the order of the shards. Any grouping of the same rows must
    give the same figures.
    """

    def update(self, rows: pa.Table) -> None:
        """Add rows that are published: their carried columns and outputs."""

    def merge(self, state: Any) -> None:
        """Add the rows of another one. state: what its `state` returned, as JSON gives it back: lists for tuples."""

    def state(self) -> Any:
        """What is kept of the rows: JSON values, or bytes."""

    def results(self) -> Mapping[str, float | None]:
        """The figures: always the same names; None for a figure that these rows do not have."""


class Broken(Exception):
    """An accumulator does not keep what it must; the text is a sentence that follows "module:Name"."""


def encoded(state: Any) -> bytes:
    """A state in the one form in which it is kept and compared.

    Raises:
        Broken: It is of no such value, or too large.
    """
    if isinstance(state, bytes | bytearray | memoryview):
        found = _RAW + bytes(state)
    else:
        found = _JSON + json.dumps(_plain(state, "state()"), sort_keys=True, separators=(",", ":")).encode()
    if len(found) > MOST_BYTES:
        raise Broken(
            f"has a state of {len(found):,} bytes, and {MOST_BYTES:,} are the most; keep counts in place of rows or "
            "values, so that the state does not grow with the rows"
        )
    return found


def decoded(data: bytes) -> Any:
    """A new copy of a state, as `merge` gets it."""
    return json.loads(data[1:]) if data[:1] == _JSON else data[1:]


def _plain(value: Any, at: str) -> Any:
    """A value as JSON has it, with numbers of numpy as Python's."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each, f"{at}[{index}]") for index, each in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise Broken(f"has a key in {at} that is no text: {clip(repr(key))}; JSON has only texts as keys")
        return {key: _plain(each, f"{at}[{key!r}]") for key, each in value.items()}
    raise Broken(f"has a {type(value).__name__} at {at}; a state is made of JSON values (None, bool, int, float, str, "
                 "list, dict with texts as keys), or is bytes")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """One accumulator of a job. uses: "module:Name" of the class. make: the class.

    Every method raises `Broken`, or whatever the class raises.
    """

    name: str
    uses: str
    make: Callable[[], Accumulator]

    @property
    def key(self) -> str:
        """Its place in the job."""
        return f"accumulators.{self.name}"

    def of_rows(self, tables: Iterable[pa.Table]) -> bytes:
        """The state of rows."""
        made = self.make()
        for table in tables:
            if table.num_rows:
                made.update(table)
        return encoded(made.state())

    def of_states(self, states: Iterable[bytes]) -> bytes:
        """The state of the rows of several states, merged in this order."""
        made = self.make()
        for state in states:
            made.merge(decoded(state))
        return encoded(made.state())

    def results(self, state: bytes) -> dict[str, float | None]:
        """The figures of a state."""
        made = self.make()
        made.merge(decoded(state))
        return _figures(made.results())


def _figures(found: Any) -> dict[str, float | None]:
    if not isinstance(found, Mapping):
        raise Broken(f"returns a {type(found).__name__} from results(); return a dict of figures by name")
    if len(found) > MOST_FIGURES:
        raise Broken(f"returns {len(found):,} figures from results(), and {MOST_FIGURES} are the most")
    return {_name(name): _figure(name, value) for name, value in found.items()}


def _name(name: Any) -> str:
    if not isinstance(name, str) or not re.fullmatch(FIGURE, name):
        raise Broken(
            f"names a figure {clip(repr(name))} in results(); a name is at most 64 letters, digits and any of _ . @ % "
            "+ -, without spaces"
        )
    return name


def _figure(name: str, value: Any) -> float | None:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return None
    if not isinstance(value, numbers.Real):
        raise Broken(f"returns a {type(value).__name__} as {name!r} from results(); a figure is a number, or None")
    number = float(value)
    return number if math.isfinite(number) else None


def try_on(kind: Kind, rows: pa.Table) -> tuple[str, ...]:
    """Try an accumulator on a few rows, also cut in thirds that are merged. Returns the names of its figures.

    Raises:
        Broken: The figures are not the same for the same rows. Whatever it raises itself goes through.
    """
    made = kind.make()
    made.update(rows)
    whole = _figures(made.results())
    if not whole:
        raise Broken("returns no figure from results()")
    low, high = rows.num_rows // 3, 2 * rows.num_rows // 3
    one, two, three = (kind.of_rows([rows.slice(a, b - a)]) for a, b in ((0, low), (low, high), (high, rows.num_rows)))
    found = kind.results(kind.of_states([one, kind.of_states([two, three])]))
    for name in dict.fromkeys([*whole, *found]):
        if not _close(whole.get(name), found.get(name)):
            raise Broken(
                f"has other figures for the same rows: with the states of three parts of the rows merged, {name} is "
                f"{found.get(name)}, and not {whole.get(name)}. Each shard has a state, and these are merged in the "
                "order of the shards: let merge() add what state() returns"
            )
    return tuple(whole)


def _close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=_ROUNDED, abs_tol=_ROUNDED)


def lacking(made: Any) -> str:
    """What a class lacks to be an `Accumulator`, as the rest of a sentence that begins with its name; '' if nothing."""
    if not isinstance(made, type):
        return f"is a {type(made).__name__}, not a class"
    absent = [name for name in METHODS if not callable(getattr(made, name, None))]
    if absent:
        return f"has no method {listed(absent, 'and')}; it needs {listed(METHODS, 'and')}"
    try:
        inspect.signature(made).bind()
    except TypeError as error:
        return f"cannot be called without arguments: {error}"
    except ValueError:  # written in C: only a call would tell
        pass
    return ""
