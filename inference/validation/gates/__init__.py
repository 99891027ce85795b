"""The gates: a gate makes a verdict from evidence, and does not know where the evidence comes from.

A new gate is a class with `judge`; `rules` lists those of a job.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from nightjar.inference.errors import GateFailed
from nightjar.inference.job.checks import ColumnCheck, Limits, MetricCheck, OnFail
from nightjar.inference.jsonform import SELDOM
from nightjar.inference.metrics.columns import number
from nightjar.inference.metrics.figures import AccumulatorFigures, Figures
from nightjar.inference.metrics.profile import Profile
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.records import Counts
from nightjar.inference.usage import NO_USAGE, Usage

if TYPE_CHECKING:
    from nightjar.inference.validation.rescore import Rescored


# What a check of the user's own is given and may return. Both are public: fields are added, and none is changed.
@dataclass(frozen=True, slots=True, kw_only=True)
class NightEvidence(Counts):
    """One night: scored and audited, and about to be published; or published before.

    `rows_in` counts the rows of the input that were scored, or tried: `rows_out` that will be published, and
    `rows_quarantined` that will not.
    """

    job: str
    """The name of the job."""

    run_id: str
    """The name of the run."""

    date: str
    """The run's logical time: a day as `2026-11-28`, or an instant in UTC as `2026-11-28T0530`."""

    shards: int
    """Shards of the night."""

    metrics: Figures
    """The figures of the columns that other checks name, of outputs, of the labels against the scores, and the profile
    of the columns that the job profiles, as `--json` prints them."""

    last: NightEvidence | None = None
    """The published night before this one, if there is one; its own `last` is None."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its words."""

    passed: bool
    """Whether the night passes the check."""

    sentence: str = ""
    """Why, and what to do next."""

    observed: str = ""
    """A short text for the table of gates, as "3 flagged"; '' shows yes or no."""

    limit: str = ""
    """A short text for the table of gates, as "none"; '' shows yes."""


@dataclass(frozen=True, slots=True)
class Found:
    """The input as discovery found it."""

    files: int
    """Files of the input, unreadable ones included."""

    rows: int
    """Rows of the input that match `input.where`, as far as they are known."""

    unreadable: int = 0
    """Files that could not be read."""

    last: NightEvidence | None = None
    """The published night before this one; None if no gate needs it, or there is none."""

    uncounted: int = 0
    """Files whose rows are not in `rows`, because the rows are not known before they are read."""


@dataclass(frozen=True, slots=True)
class Offender:
    """One row that a gate refuses."""

    shard: str
    """The id of the row's shard."""

    file: str
    """The URI of the row's input file."""

    row: int
    """The index of the row in its file."""

    value: str
    """The refused value, as text for people; of a check on keys the key, and an earlier row that has it."""

    replay: str = ""
    """The command that scores the row again; empty until the command is known, and for a check on keys."""

    @property
    def holds(self) -> str:
        """Says which row has which value, without what to do about it."""
        return f"Row {self.row} of {self.file} (shard {self.shard}) holds {self.value}"

    @property
    def sentence(self) -> str:
        """Says which row has which value, with the command that scores the row again."""
        return f"{self.holds}: {self.replay}" if self.replay else f"{self.holds}."


@dataclass(frozen=True, slots=True)
class Baseline:
    """A night to compare with: a published one, or a run that was validated without being published."""

    called: str
    """The name of the night, for a sentence."""

    profile: Profile | None
    """The profile of the night's columns; None if there is none."""

    why: str = ""
    """Why there is no profile; empty if there is one."""

    unreadable: bool = False
    """Whether there is a profile, and this version cannot read it."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """Rows whose key another row has. rows: those after the first of each key, counted by 64-bit hashes of the keys.
    where: the second row of each of the first few keys. Of these the keys themselves were compared.
    """

    rows: int = 0
    where: tuple[Offender, ...] = ()


@dataclass(frozen=True)
class Evidence(Counts):
    """What gates judge. Before anything is scored, only `found` is known."""

    found: Found
    """The input as discovery found it."""

    shards: int = 0
    """Shards of the run."""

    metrics: Metrics = field(default_factory=Metrics)
    """The metrics of all rows."""

    offenders: Mapping[str, tuple[Offender, ...]] = field(default_factory=dict)
    """Key of a gate on a column → the first rows that the gate refuses."""

    rescored: Rescored | None = None
    """The result of scoring a sample of shards again; None if no shard was."""

    usage: Usage = NO_USAGE
    """What language models took, for all shards."""

    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    """The nights to compare with, by the names that the job's checks give them."""

    accumulators: Mapping[str, AccumulatorFigures] = field(default_factory=dict)
    """The figures of the user's own accumulators, by name."""

    called: Mapping[str, Judgement | str] = field(default_factory=dict)
    """Key of a check → the answer of the function that the check calls, or why the function gave no verdict."""

    repeated: Mapping[str, Repeated] = field(default_factory=dict)
    """Key of a check on keys → the rows that share a key."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """One gate's verdict."""

    name: str
    """`complete`, `quarantine`, `rescore`, `<column>.<min|max|nulls|finite>`, `<metric>.<min|max>`,
    `<column>.<metric>.<min|max>` of slices, `<column>.drift`, `drift`, `rows.<min|max|last>`, `files.<min|max>`,
    `answers.cut`, `input.wait`, `<columns>.unique`, `<accumulator>`, `<accumulator>.<figure>.<min|max>`, or the name of
    a function of the user's own."""

    passed: bool
    """Whether the gate passed."""

    observed: str
    """What the gate found, as text for a table."""

    limit: str
    """What the gate allows, as text for a table."""

    sentence: str
    """What happened and, if the gate did not pass, what to do next, with the job's key."""

    where: tuple[Offender, ...] = ()
    """The first few rows that the gate refuses: of a gate on a column one per shard, of a check on keys one per key;
    empty for other gates."""

    on_fail: OnFail = field(default="block", metadata=SELDOM)
    """What follows if the gate did not pass, as the job says; a gate may itself weaken that to `warn`."""

    @property
    def verdict(self) -> Literal["pass", "warn", "ask", "block"]:
        """What follows."""
        return "pass" if self.passed else self.on_fail


class Gate(ABC):
    """Decides one thing about a run."""

    @abstractmethod
    def judge(self, evidence: Evidence) -> GateResult:
        """Judge the evidence."""


@dataclass(frozen=True)
class Limited(Gate):
    """Something is at least (`min`) or at most (`max`) `bound`, which is allowed itself. key: the limit's place in the
    job, as `checks[0].min`.
    """

    key: str
    end: Literal["min", "max"]
    bound: int | float

    @property
    def limit(self) -> str:
        """The limit, as text for a table."""
        return number(self.bound)

    def holds(self, value: int | float) -> bool:
        """Whether a value keeps the limit."""
        return value >= self.bound if self.end == "min" else value <= self.bound

    @property
    def side(self) -> str:
        """Where a value lies that does not keep the limit."""
        return "below" if self.end == "min" else "above"

    @property
    def remedy(self) -> str:
        """What makes room for such a value."""
        return "lower" if self.end == "min" else "raise"


def limits_of(
    check: ColumnCheck | MetricCheck | Limits, key: str
) -> Iterator[tuple[str, Literal["min", "max"], int | float]]:
    """The first fields of `Limited` for each limit that a check has. key: of the check."""
    ends: dict[Literal["min", "max"], int | float | None] = {"min": check.min, "max": check.max}
    return ((f"{key}.{end}", end, bound) for end, bound in ends.items() if bound is not None)


@dataclass(frozen=True, slots=True)
class Rule:
    """A gate of a job, and what happens where it does not pass."""

    gate: Gate
    on_fail: OnFail = "block"


def evaluate(rules: Iterable[Rule], evidence: Evidence) -> tuple[GateResult, ...]:
    """The verdict of every gate, in order. A gate may warn where its rule says more."""
    judged = ((rule.gate.judge(evidence), rule.on_fail) for rule in rules)
    return tuple(replace(found, on_fail="warn" if found.on_fail == "warn" else on_fail) for found, on_fail in judged)


def enforce(results: tuple[GateResult, ...]) -> tuple[GateResult, ...]:
    """Return the results, if none blocks.

    Raises:
        GateFailed: One does. The error has every result; its message has, for each gate that blocks, a sentence and its
            first row.
    """
    if failed := [gate for gate in results if gate.verdict == "block"]:
        raise GateFailed("; ".join(map(told, failed)), results)
    return results


def told(result: GateResult) -> str:
    """The sentence of a gate that did not pass, and the first row that it refuses."""
    return " ".join([result.sentence, *(offender.sentence for offender in result.where[:1])])


def asking(results: Iterable[GateResult]) -> tuple[GateResult, ...]:
    """The gates that did not pass and because of which a person is asked."""
    return tuple(result for result in results if result.verdict == "ask")
