"""The small frozen records that the steps of a run pass to each other. Everything important is in the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nightjar.inference.input.plan import Plan
from nightjar.inference.ledger.lines import Published, Question
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.metrics.figures import Figures
from nightjar.inference.output.outcomes import Reused
from nightjar.inference.output.revisions import Revision
from nightjar.inference.run.reuse import Source
from nightjar.inference.validation.gates import GateResult


@dataclass(frozen=True)
class RunPlan:
    """What would be scored."""

    plan: Plan
    """The shards of the run."""

    newest: Revision | None
    """The newest revision of the run; None if there is none, or the run begins anew."""

    again: tuple[str, ...]
    """Why shards with a result are scored again, and why earlier nights cannot be reused; a sentence each."""

    source: Source | None
    """The revision that has results of further shards; None if none has."""

    takes_over: bool
    """Whether this run takes over the results of `source`; else the run would with `reuse`."""

    alike: int
    """Shards that have a result in `source`, and none in the ledger."""

    alike_rows: int
    """Rows of the `alike` shards, as far as they are known."""

    rows_from: str
    """The revision from which outputs of rows are taken, as `Revision.name`; empty for none."""

    @property
    def committed(self) -> int:
        """Shards that have a result in the ledger."""
        return len(set(self.plan.ids()) & self.newest.state.committed) if self.newest is not None else 0

    @property
    def left(self) -> int:
        """Shards to score."""
        return len(self.plan) - self.committed - (self.alike if self.takes_over else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the model made of a few rows."""

    rows: int = 0
    """Rows that were read for the model."""

    places: int = 0
    """Places of the input that these rows are from."""

    failed: int = 0
    """Rows that could not be scored."""

    nonfinite: Mapping[str, int] = field(default_factory=dict)
    """Float output, or checked column → its NaN and infinite values, if there are any."""

    file: str | None
    """The URI of the file of the rows shown; None if no row is shown."""

    names: tuple[str, ...] = ()
    """The columns of the rows shown: carried columns, then outputs."""

    values: tuple[tuple[str, ...], ...] = ()
    """The values of each row shown, as text, in the order of `names`."""


@dataclass(frozen=True)
class Scored:
    """The result of the score step."""

    revision: int
    """The number of the revision."""

    epoch: int
    """The epoch of the step's writer; the next step checks that no other flow run has written since."""

    progress: Progress
    """The totals of the run."""

    published: Published | None = None
    """The revision as it was published before, if it was; then nothing was left to score."""

    number: int = 0
    """The snapshot that published this revision before; 0 if none did."""

    device: str = ""
    """The devices of the models, as in `Checked`; empty if no model was loaded."""

    startup_s: float = 0.0
    """Seconds from the start of the step to the first event of a worker; 0 if nothing was left to score."""

    warnings: tuple[str, ...] = ()
    """What a person should know of the results, a sentence each."""

    again: tuple[str, ...] = ()
    """Why shards with a result were scored again, a sentence each."""

    workers: int = 0
    """The most workers that scored at once."""

    took: Mapping[str, float] = field(default_factory=dict)
    """What was done → seconds, in the last of `tries` tries of the step."""

    tries: int = 1
    """The tries of the step, the last one included."""

    @property
    def finished(self) -> bool:
        """Whether this revision was published before."""
        return self.published is not None


@dataclass(frozen=True)
class Verdict:
    """The result of the validate step."""

    published: Published
    """The revision, as readers will see it."""

    epoch: int
    """The epoch of the step's writer; the next step checks that no other flow run has written since."""

    gates: tuple[GateResult, ...]
    """The verdict of each gate."""

    metrics: Figures
    """The figures of all rows."""

    shards: str
    """The name of the list of shards, relative to the output."""

    reused: tuple[Reused, ...] = ()
    """The results that were taken over from earlier revisions."""

    question: Question | None = None
    """What a person is asked before the revision is published; None if no gate asks, a person has approved, or the
    run is not to be published.
    """

    took: Mapping[str, float] = field(default_factory=dict)
    """As in `Scored`."""

    tries: int = 1
    """As in `Scored`."""


@dataclass(frozen=True)
class Publication:
    """The result of the publish step."""

    revision: int
    """The number of the revision."""

    number: int
    """The number of the snapshot; 0 if the run was not to be published."""

    manifest: str
    """The name of the manifest, relative to the output."""

    seconds: float = 0.0
    """Wall time of publishing."""

    unfinished: str = ""
    """Why sweeping and `_SUCCESS` failed though readers see the run; running it again does them."""

    behind: str = ""
    """Why `latest/` and `dates/` do not show the run yet; empty if they do."""

    tables_behind: tuple[str, ...] = ()
    """A sentence for each table that could not be changed, and for each night that a table does not show."""
