"""The seam of the gates: evidence → verdict. A gate knows nothing of where its evidence comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from nightjar.inference.columns import ColumnState
from nightjar.inference.errors import GateFailed

if TYPE_CHECKING:
    from nightjar.inference.rescore import Rescored


@dataclass(frozen=True, slots=True)
class LastNight:
    """The published night before this one: its run, its logical date, and the rows of its input."""

    run_id: str
    date: str
    rows: int


@dataclass(frozen=True, slots=True)
class Found:
    """The input as discovery found it. unreadable: files of unknown rows. last: None if no gate asks, or none is."""

    files: int
    rows: int
    unreadable: int = 0
    last: LastNight | None = None


@dataclass(frozen=True)
class Evidence:
    """What gates judge. Before anything is scored, only `found` is known.

    columns: checked column → what was counted of it.
    """

    found: Found
    shards: int = 0
    missing: int = 0
    rows_in: int = 0
    rows_quarantined: int = 0
    columns: Mapping[str, ColumnState] = field(default_factory=dict)
    rescored: Rescored | None = None


@dataclass(frozen=True, slots=True)
class GateResult:
    """One gate's verdict.

    name: `complete`, `quarantine`, `rescore`, `<column>.<min|max|nulls|finite>`, `rows.<min|max|last>`,
    `files.<min|max>`. observed, limit: for a table. sentence: what happened and, when it did not pass, what to do
    next, naming the job's key.
    """

    name: str
    passed: bool
    observed: str
    limit: str
    sentence: str


class Gate(Protocol):
    """Decides one thing about a run."""

    def judge(self, evidence: Evidence) -> GateResult:
        """The verdict, whether it passes or not."""


def evaluate(gates: Iterable[Gate], evidence: Evidence) -> tuple[GateResult, ...]:
    """Every gate's verdict, in order."""
    return tuple(gate.judge(evidence) for gate in gates)


def enforce(results: tuple[GateResult, ...]) -> tuple[GateResult, ...]:
    """The results, if all passed.

    Raises:
        GateFailed: with every result, and a sentence for each that did not pass.
    """
    if failed := [gate.sentence for gate in results if not gate.passed]:
        raise GateFailed("; ".join(failed), results)
    return results


def of_record(record: dict[str, Any]) -> GateResult:
    """A verdict read back from a manifest."""
    return GateResult(**record)


def number(value: int | float) -> str:
    """Short where that is exact, so that a value just past its limit never reads the same as the limit."""
    short = f"{value:.12g}"
    return short if float(short) == value else repr(value)


def counted(count: int, thing: str) -> str:
    """1 row, 2 rows."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
