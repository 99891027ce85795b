"""The user's own accumulators: figures of a night's rows, from states that are merged in the order of the shards."""

from __future__ import annotations

import math
import numbers
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

MOST_BYTES = 1 << 18
"""The most bytes of a state, whether of one shard or of the night: it must not grow with the rows."""

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
        """Add the rows of another one. state: what its `state` returned."""

    def state(self) -> Any:
        """What is kept of the rows: anything that can be pickled."""

    def results(self) -> Mapping[str, float | None]:
        """The figures: always the same names; None for a figure that these rows do not have."""


class Broken(Exception):
    """An accumulator does not keep what it must; the text is a sentence that follows "module:Name"."""


def encoded(state: Any) -> bytes:
    """A state as it goes from one process of the user's code to the next.

    Raises:
        Broken: It is too large.
    """
    found = pickle.dumps(state)
    if len(found) > MOST_BYTES:
        raise Broken(
            f"has a state of {len(found):,} bytes, and {MOST_BYTES:,} are the most; keep counts in place of rows or "
            "values, so that the state does not grow with the rows"
        )
    return found


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
            made.merge(pickle.loads(state))
        return encoded(made.state())

    def results(self, state: bytes) -> dict[str, float | None]:
        """The figures of a state."""
        made = self.make()
        made.merge(pickle.loads(state))
        return _figures(made.results())


def _figures(found: Any) -> dict[str, float | None]:
    if not isinstance(found, Mapping):
        raise Broken(f"returns a {type(found).__name__} from results(); return a dict of figures by name")
    return {str(name): _figure(name, value) for name, value in found.items()}


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
