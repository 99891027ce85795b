"""The user's own accumulators: figures of a night's rows, from states that merge exactly.

A state is written as bytes, in one form only, so that the same rows have the same bytes if the class keeps what
`Accumulator` promises. `tried` finds most classes that do not.
"""

from __future__ import annotations

import inspect
import json
import math
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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
_SHOWN = 60
"""The most characters of a value in a sentence."""

_ROUNDED = 1e-9
"""Floats that differ by no more than this, relative to their size or in all, differ by how a sum was rounded."""


class Accumulator(Protocol):
    """A class of the user's own that `accumulators` names. Called without arguments, it makes one that has no rows.

    Any grouping and any order of the same rows must give the same state: each shard has its own, and the audit merges
    them.
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


@dataclass(frozen=True, slots=True)
class Tried:
    """An accumulator on sample rows. figures: the names that it gives. note: what a person should know."""

    figures: tuple[str, ...]
    note: str = ""


def tried(kind: Kind, rows: pa.Table) -> Tried:
    """Try an accumulator on a few rows: cut in thirds, merged in several orders, and in another order of the rows.

    Raises:
        Broken: Its states are not the same for the same rows. Whatever it raises itself goes through.
    """
    whole = kind.of_rows([rows])
    low, high = rows.num_rows // 3, 2 * rows.num_rows // 3
    one, two, three = (kind.of_rows([rows.slice(a, b - a)]) for a, b in ((0, low), (low, high), (high, rows.num_rows)))
    turned = rows.take(pa.array(range(rows.num_rows - 1, -1, -1), pa.int64()))
    ways = {
        "its state merged into a new one": kind.of_states([whole]),
        "the rows in another order": kind.of_rows([turned]),
        "three parts of the rows, merged": kind.of_states([one, two, three]),
        "three parts of the rows, merged in another order": kind.of_states([three, one, two]),
        "three parts of the rows, the last two merged first": kind.of_states([one, kind.of_states([two, three])]),
    }
    notes = [_compare(whole, found, way) for way, found in ways.items() if found != whole]
    figures = tuple(kind.results(whole))
    if not figures:
        raise Broken("returns no figure from results()")
    return Tried(figures, notes[0] if notes else "")


def _compare(whole: bytes, other: bytes, way: str) -> str:
    """A sentence on two states of the same rows that differ only by rounding.

    Raises:
        Broken: They differ by more.
    """
    if _RAW in (whole[:1], other[:1]):
        said, rounded = "the bytes are others", False
    else:
        at, before, now, rounded = _differ(decoded(whole), decoded(other), "state()")
        said = f"{at} is {_short(now)}, and not {_short(before)}"
    if rounded:
        return (
            f"rounds (with {way}, {said}). The last digits of its figures depend on how a night is cut into shards; "
            "sum whole numbers, as round(x * 2**20), and they do not"
        )
    raise Broken(
        f"has another state for the same rows: with {way}, {said}. Each shard has a state, and any order and grouping "
        "of the rows must give the same one: count, or sum whole numbers, and let merge() add what state() returns"
    )


def _differ(a: Any, b: Any, at: str) -> tuple[str, Any, Any, bool]:
    """The first place where two values differ that are not the same, and whether all differences are of rounding."""
    inner: Sequence[Any] = ()
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        inner = [(f"{at}[{key!r}]", a[key], b[key]) for key in a]
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        inner = [(f"{at}[{index}]", *pair) for index, pair in enumerate(zip(a, b, strict=True))]
    if not inner:
        counted = all(isinstance(each, int | float) for each in (a, b)) and float in (type(a), type(b))
        return at, a, b, counted and math.isclose(a, b, rel_tol=_ROUNDED, abs_tol=_ROUNDED)
    found = [_differ(x, y, place) for place, x, y in inner if _text(x) != _text(y)]
    return next((each for each in found if not each[3]), found[0])


def _short(value: Any) -> str:
    text = repr(value)
    return clip(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


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
