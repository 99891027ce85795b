"""The gates: a gate makes a verdict from evidence, and does not know where the evidence comes from.

A new gate is a class with `judge`; `rules` lists those of a job.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from nightjar.inference.errors import GateFailed
from nightjar.inference.job.checks import OnFail
from nightjar.inference.jsonform import SELDOM
from nightjar.inference.metrics.figures import AccumulatorFigures, Figures
from nightjar.inference.metrics.profile import Profile
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.records import NO_USAGE, Counts, Usage

if TYPE_CHECKING:
    from nightjar.inference.validation.rescore import Rescored


# What a check of the user's own is given and may return. Both are public: fields are added, and none is changed.
@dataclass(frozen=True, slots=True, kw_only=True)
class NightEvidence(Counts):
    """One night: scored and audited, and about to be published; or published before.

    date: the logical date, as ISO 8601. rows_in: rows of the input that were scored, or tried: `rows_out` that will
    be published, and `rows_quarantined` that will not. metrics: the figures of the columns that other checks name,
    of outputs, of the labels against the scores, and the profile of the columns that the job profiles, as `--json`
    prints them. last: the published night before this one, if there is one; its own `last` is None.
    """

    job: str
    run_id: str
    date: str
    shards: int
    metrics: Figures
    last: NightEvidence | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its words. sentence: why, and what to do next. observed, limit: short texts for the table of
    gates, as "3 flagged" and "none".
    """

    passed: bool
    sentence: str = ""
    observed: str = ""
    limit: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """The input as discovery found it.

    unreadable: the number of files that could not be read. last: None if no gate needs it, or there is none. uncounted:
    the number of files whose rows are not in `rows`, because they are not known before they are read.
    """

    files: int
    rows: int
    unreadable: int = 0
    last: NightEvidence | None = None
    uncounted: int = 0


@dataclass(frozen=True, slots=True)
class Offender:
    """One row that a gate refuses. row: its index in its file. value: its value, as text for people.

    replay: the command that scores it again; empty until that is known.
    """

    shard: str
    file: str
    row: int
    value: str
    replay: str = ""

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
    """A published night to compare with. called: the night, for a sentence. profile: None if there is none; `why` says
    why. unreadable: whether there is one, and this version cannot read it.
    """

    called: str
    profile: Profile | None
    why: str = ""
    unreadable: bool = False


@dataclass(frozen=True, slots=True)
class Repeated:
    """Rows whose key another row has. rows: those after the first of each key, counted by 64-bit hashes of the keys.
    where: the second row of each of the first few keys. Of these the keys themselves were compared.
    """

    rows: int = 0
    where: tuple[Offender, ...] = ()


@dataclass(frozen=True)
class Evidence(Counts):
    """What gates judge. Before anything is scored, only `found` is known.

    metrics: of all rows. offenders: key of a gate on a column → the first rows that it refuses. usage: of language
    models, for all shards. baselines: other nights, as the job's checks name them. accumulators: figures of the user's
    own, by name. called: key of a check → what the function answered that it calls, or why it gave no verdict.
    repeated: key of a check on keys → the rows that share one.
    """

    found: Found
    shards: int = 0
    metrics: Metrics = field(default_factory=Metrics)
    offenders: Mapping[str, tuple[Offender, ...]] = field(default_factory=dict)
    rescored: Rescored | None = None
    usage: Usage = NO_USAGE
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    accumulators: Mapping[str, AccumulatorFigures] = field(default_factory=dict)
    called: Mapping[str, Judgement | str] = field(default_factory=dict)
    repeated: Mapping[str, Repeated] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GateResult:
    """One gate's verdict.

    name: `complete`, `quarantine`, `rescore`, `<column>.<min|max|nulls|finite>`, `<metric>.<min|max>`,
    `<column>.<metric>.<min|max>` of slices, `<column>.drift`, `drift`, `rows.<min|max|last>`, `files.<min|max>`,
    `answers.cut`, `input.wait`, `<columns>.unique`, `<accumulator>`, `<accumulator>.<figure>.<min|max>`, or the name of
    a function of the user's own. observed, limit: texts for a table. sentence: what happened and, if the gate did not
    pass, what to do next, with the job's key. where: if a gate on a column did not pass, the first few rows that it
    refuses, one per shard. on_fail: what the job says is to happen where it did not pass.
    """

    name: str
    passed: bool
    observed: str
    limit: str
    sentence: str
    where: tuple[Offender, ...] = ()
    on_fail: OnFail = field(default="block", metadata=SELDOM)

    @property
    def verdict(self) -> Literal["pass", "warn", "ask", "block"]:
        """What follows."""
        return "pass" if self.passed else self.on_fail


class Gate(ABC):
    """Decides one thing about a run."""

    @abstractmethod
    def judge(self, evidence: Evidence) -> GateResult:
        """Judge the evidence."""


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
