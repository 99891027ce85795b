"""The seam of the gates: evidence → verdict. A gate knows nothing of where its evidence comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from nightjar.inference.errors import GateFailed
from nightjar.inference.metrics.columns import ColumnState

if TYPE_CHECKING:
    from nightjar.inference.validation.rescore import Rescored


@dataclass(frozen=True, slots=True)
class LastNight:
    """The published night before this one: its run, its logical date, and the rows of its input."""

    run_id: str
    date: str
    rows: int


@dataclass(frozen=True, slots=True)
class Found:
    """The input as discovery found it.

    unreadable: files that could not be read. last: None if no gate asks, or none is. uncounted: files
    whose rows are not in `rows`, because they are not known before they are read.
    """

    files: int
    rows: int
    unreadable: int = 0
    last: LastNight | None = None
    uncounted: int = 0


@dataclass(frozen=True, slots=True)
class Offender:
    """One row that speaks against a column. row: its index in its file, -1 where that is not known.

    value: what it holds, for a person. replay: the command that scores it again, empty without a row.
    """

    shard: str
    file: str
    row: int
    value: str
    replay: str = ""

    @property
    def holds(self) -> str:
        """What is where, without what to do about it."""
        if self.row < 0:
            return f"Shard {self.shard} holds {self.value}{f', of {self.file}' if self.file else ''}"
        return f"Row {self.row} of {self.file} (shard {self.shard}) holds {self.value}"

    @property
    def sentence(self) -> str:
        """The same, and the command that scores the row again."""
        return f"{self.holds}: {self.replay}" if self.replay else f"{self.holds}."


@dataclass(frozen=True)
class Evidence:
    """What gates judge. Before anything is scored, only `found` is known.

    columns: checked column → what was counted of it. offenders: key of a column's gate → the first rows that speak
    against it.
    """

    found: Found
    shards: int = 0
    missing: int = 0
    rows_in: int = 0
    rows_quarantined: int = 0
    columns: Mapping[str, ColumnState] = field(default_factory=dict)
    offenders: Mapping[str, tuple[Offender, ...]] = field(default_factory=dict)
    rescored: Rescored | None = None


@dataclass(frozen=True, slots=True)
class GateResult:
    """One gate's verdict.

    name: `complete`, `quarantine`, `rescore`, `<column>.<min|max|nulls|finite>`, `rows.<min|max|last>`,
    `files.<min|max>`, `input.wait`. observed, limit: for a table. sentence: what happened and, when it did not pass,
    what to do next, naming the job's key. where: of a column that did not pass the first few rows why, one a shard.
    """

    name: str
    passed: bool
    observed: str
    limit: str
    sentence: str
    where: tuple[Offender, ...] = ()


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
        GateFailed: with every result, and a sentence for each that did not pass, and its first row.
    """
    if failed := [gate for gate in results if not gate.passed]:
        said = (" ".join([gate.sentence, *(offender.sentence for offender in gate.where[:1])]) for gate in failed)
        raise GateFailed("; ".join(said), results)
    return results


def of_record(record: dict[str, Any]) -> GateResult:
    """A verdict read back from a manifest; those of earlier versions have no `where`."""
    return GateResult(**{**record, "where": tuple(Offender(**offender) for offender in record.get("where", ()))})


def number(value: int | float) -> str:
    """Short where that is exact, so that a value just past its limit never reads the same as the limit."""
    short = f"{value:.12g}"
    return short if float(short) == value else repr(value)
