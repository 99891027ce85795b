"""The small frozen records that the steps of a run pass to each other. Everything important is in the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nightjar.inference.input.plan import Plan
from nightjar.inference.ledger.ledger import State
from nightjar.inference.ledger.lines import Published, Question
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.metrics.figures import Figures
from nightjar.inference.output.outcomes import Reused
from nightjar.inference.run.reuse import Source
from nightjar.inference.validation.gates import GateResult


@dataclass(frozen=True)
class RunPlan:
    """What would be scored. state: what the ledger already has. again: why shards with a result are scored again.

    source: the revision that has results of further shards; None if none has. takes_over: whether this run takes them
    over; else it would with `reuse`. alike, alike_rows: these shards and their rows. rows_from: the revision from which
    outputs of rows are taken, as `Revision.name`; empty for none.
    """

    plan: Plan
    state: State
    again: tuple[str, ...]
    source: Source | None
    takes_over: bool
    alike: int
    alike_rows: int
    rows_from: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the model made of a few rows. places: of the input, so many. failed: rows that could not be scored.

    nonfinite: NaN and infinite values by output. file: that of the rows shown. names, values: of these rows, as text:
    carried columns, then outputs.
    """

    rows: int = 0
    places: int = 0
    failed: int = 0
    nonfinite: Mapping[str, int] = field(default_factory=dict)
    file: str | None
    names: tuple[str, ...] = ()
    values: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Scored:
    """The result of the score step.

    published, number: how this revision was published before, if it was; then nothing was left to score. again: why
    shards with a result were scored again. workers: the most that scored at once. took: what was done → seconds, in the
    last of so many tries of the step.
    """

    revision: int
    epoch: int
    progress: Progress
    published: Published | None = None
    number: int = 0
    device: str = ""
    startup_s: float = 0.0
    warnings: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    workers: int = 0
    took: Mapping[str, float] = field(default_factory=dict)
    tries: int = 1

    @property
    def finished(self) -> bool:
        """Whether this revision was published before."""
        return self.published is not None


@dataclass(frozen=True)
class Verdict:
    """The result of the validate step. published: the revision, as readers will see it. shards: the name of the list
    of shards, relative to the output. reused: the results that were taken over from earlier revisions. question: what a
    person is asked before it is published. took, tries: as in `Scored`.
    """

    published: Published
    epoch: int
    gates: tuple[GateResult, ...]
    metrics: Figures
    shards: str
    reused: tuple[Reused, ...] = ()
    question: Question | None = None
    took: Mapping[str, float] = field(default_factory=dict)
    tries: int = 1


@dataclass(frozen=True)
class Publication:
    """The result of the publish step. number: of the snapshot; 0 if the run was not to be published.

    unfinished: why sweeping and `_SUCCESS` failed though readers see the run; running it again does them. behind: why
    `latest/` and `dates/` do not show it yet. tables_behind: a sentence for each table that does not show it yet.
    """

    revision: int
    number: int
    manifest: str
    swept: int = 0
    seconds: float = 0.0
    unfinished: str = ""
    behind: str = ""
    tables_behind: tuple[str, ...] = ()
