"""Lines of the ledger that a writer adds to what its workers say (`records.Event`): a frozen record for each kind.

`encode` gives a line its one JSON form: the kind under `t`, then the fields in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Protocol

from nightjar.inference.ledger.holders import Holder
from nightjar.inference.records import Failed, as_line

_SELDOM = {"seldom": True}
"""Of a field that is left out of the line where it is empty or 0, as lines of before do not have it."""


class Line(Protocol):
    """A frozen dataclass. t: the kind of line."""

    t: ClassVar[str]


def encode(line: Line) -> dict[str, Any]:
    """The line as a JSON object."""
    record: dict[str, Any] = {"t": line.t}
    for each in fields(line):  # type: ignore[arg-type]
        value = getattr(line, each.name)
        if value or not each.metadata.get("seldom"):
            record[each.name] = _plain(value)
    return record


def _plain(value: Any) -> Any:
    """As it is when it is read back, so that a writer's own state is that of whoever replays its ledger."""
    if is_dataclass(value):
        return as_line(value)
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True)
class Opened:
    """An epoch begins: who writes from here on."""

    t: ClassVar[str] = "opened"
    writer: Holder


@dataclass(frozen=True, slots=True)
class Closed:
    """The epoch ends, and the next writer need not wait for the lease to lapse."""

    t: ClassVar[str] = "closed"


@dataclass(frozen=True, slots=True)
class Doing:
    """A part of a step begins that takes long: `load` (the model) or `score`."""

    t: ClassVar[str] = "doing"
    step: str


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan counts from here on. file: its name. fingerprint: under which its shards are scored.

    shards, rows: of the plan; uncounted: shards whose rows are not known. done_shards, rows_out, rows_quarantined and
    cuts are of those that are committed already. identity: the file that says what scores them. adopts: the revision
    that results are taken over from, else 0. again: what made shards old that had a result.
    """

    t: ClassVar[str] = "planned"
    file: str
    fingerprint: str
    date: str
    shards: int
    rows: int
    done_shards: int
    rows_out: int
    rows_quarantined: int
    cuts: int
    uncounted: int = field(metadata=_SELDOM)
    identity: str
    adopts: int
    again: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """A packed shard failed for `why`: each of its files is a shard of its own from here on, `into` of them."""

    t: ClassVar[str] = "split"
    shard: str
    why: str
    into: int


@dataclass(frozen=True, slots=True)
class Revoked(Failed):
    """A receipt is taken back: the audit found its parts damaged. rows_out, rows_quarantined, cuts: as it had them."""

    t: ClassVar[str] = "revoked"
    rows_out: int = 0
    rows_quarantined: int = 0
    cuts: int = 0


@dataclass(frozen=True, slots=True)
class Packages:
    """The packages that preflight loaded the model with, by name; of results taken over, those they were scored with.

    adopted_from: the name of the revision that those results are taken over from.
    """

    t: ClassVar[str] = "packages"
    loaded: Mapping[str, Any]
    adopted_from: str = field(default="", metadata=_SELDOM)


@dataclass(frozen=True, slots=True)
class Preflight:
    """What preflight had to say, a sentence each."""

    t: ClassVar[str] = "preflight"
    notes: tuple[str, ...]
