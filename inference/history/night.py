"""A run as one record, for `status` and its report: from storage alone, at any time, however the night ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.errors import JobError, Missing, StorageError
from nightjar.inference.history.run_status import (
    RunLine,
    figures_of,
    newest_figures,
    run_line,
    scorers,
    shown_instead,
    warnings,
)
from nightjar.inference.history.run_tables import Incident, RunReport, ShardLine, lost, mending
from nightjar.inference.identity.identity import Identity
from nightjar.inference.job.checks import LAST, DriftCheck
from nightjar.inference.metrics.drift import Drift, compare_columns
from nightjar.inference.metrics.figures import Figures
from nightjar.inference.metrics.profile import Profile
from nightjar.inference.output import publications as publish
from nightjar.inference.output import revisions as revs
from nightjar.inference.output import targets
from nightjar.inference.output.revisions import RevisionFile, identity_of_plan, revision_in
from nightjar.inference.output.targets import TableShown
from nightjar.inference.records import Counts, Failed, as_line
from nightjar.inference.run.account import Account, WorkersCost, kept, workers_cost
from nightjar.inference.run.request import RunRequest
from nightjar.inference.storage.protocol import Storage, join
from nightjar.inference.validation.evaluations import LateEvaluation, latest
from nightjar.inference.validation.evidence import baseline, earlier_nights
from nightjar.inference.validation.gates import GateResult
from nightjar.inference.validation.manifest import Manifest, manifest_of, read_manifest, read_profile

MAX_NIGHTS = 30
"""The most earlier nights of a trend: a month. Each costs a request to the storage."""


@dataclass(frozen=True, slots=True)
class NightFigures:
    """One night. figures: by name; what a night does not have is not in it."""

    date: str
    figures: Mapping[str, float]


def night_figures(date: str, counts: Counts, metrics: Figures) -> NightFigures:
    """The figures that a trend has of a night."""
    figures = {"rows": counts.rows_in, "quarantined": counts.rows_quarantined, **figures_of(metrics)}
    return NightFigures(date, figures)


def trend(storage: Storage, output: str, date: str) -> tuple[NightFigures, ...]:
    """The published nights before this date, the earliest first; at most `MAX_NIGHTS`.

    Raises:
        JobError: A manifest is not the one that was published.
    """
    nights = []
    for run, day, each in islice(earlier_nights(storage, output, date), MAX_NIGHTS):
        metrics = newest_figures(storage, revision_in(output, run, each.revision), each)
        nights.append(night_figures(day, each.totals, metrics))
    return tuple(reversed(nights))


MAX_COLUMNS = 300
"""The most columns of a table; they come in the order of how far they are apart."""

MAX_GROUPED = 4
"""The most columns whose groups are kept, for a plot each."""


@dataclass(frozen=True, slots=True)
class NightsCompared:
    """Tonight's columns beside those of another night."""

    called: str
    """The other night, for a sentence."""

    why: str = ""
    """Why the columns cannot be compared; then there are no columns. Empty if they can."""

    columns: tuple[Drift, ...] = ()
    """The first of the columns, the ones that are furthest apart with their groups."""

    total: int = 0
    """How many columns both nights have."""

    beyond: int = 0
    """How many columns differ by more than chance explains."""

    drawn: int | None = None
    """Tonight's rows that are described, where these are not all; else None."""


def beside(called: str, before: Profile, now: Profile) -> NightsCompared:
    """Compare the columns that both nights have. called: the other night, for a sentence."""
    found = compare_columns(before, now)
    bounded = (
        each if each.beyond and place < MAX_GROUPED else replace(each, groups=())
        for place, each in enumerate(found[:MAX_COLUMNS])
    )
    return NightsCompared(called, "", tuple(bounded), len(found), sum(each.beyond for each in found))


@dataclass(frozen=True, kw_only=True)
class RunNow:
    """A run as it stands now: what `status` says, and what its report begins with."""

    request: RunRequest
    """The run."""

    newest: revs.Revision | None
    """The newest revision of the run; None if nothing of the run was begun."""

    now: publish.Snapshot
    """What readers see."""

    line: RunLine
    """How the run stands, and its figures."""

    tables: tuple[TableShown, ...]
    """The tables of the job, and what they show."""

    manifest: Manifest | None = None
    """The manifest of a revision whose publication was begun, or that asks; else None."""

    gates: tuple[GateResult, ...] = ()
    """The gates that were judged."""

    late: LateEvaluation | None = None
    """The newest evaluation by labels that came later, of the revision that readers see, or else of this one."""

    failed: Mapping[str, Sequence[Failed]] = field(default_factory=dict)
    """Shard → its failures, as `run_tables.lost`."""

    again: tuple[str, ...] = ()
    """Why shards with a result were scored again, a sentence each."""

    notes: tuple[str, ...] = ()
    """What else a person should know, or can do, a sentence each."""

    unread: tuple[str, ...] = ()
    """What could not be read, a sentence each."""

    @property
    def instead(self) -> str:
        """As `shown_instead`."""
        return shown_instead(self.now, self.request.run_id)

    @property
    def late_tables(self) -> tuple[TableShown, ...]:
        """The tables of the job that do not show what readers of the files see."""
        return targets.late_tables(self.tables, self.now.number, bool(self.now.runs))

    @property
    def warnings(self) -> list[str]:
        """What the gates say that did not pass and only warn, or that a person has approved: of a run that asks, the
        question says what is asked.
        """
        approved = self.newest is not None and self.newest.state.intent is not None
        return warnings(gate for gate in self.gates if approved or gate.verdict == "warn")


def look(request: RunRequest) -> RunNow:
    """Look at a run.

    Raises:
        StorageError: Its ledger, its plan or the publications cannot be read.
    """
    storage, newest = request.storage, revs.newest_revision(request.storage, request.run_uri)
    now = publish.newest(storage, request.output)
    shown = now.runs.get(request.run_id)
    found = RunNow(
        request=request,
        newest=newest,
        now=now,
        line=run_line(request, newest, shown),
        tables=targets.shown(storage, request.output, request.job.output.tables),
    )
    if newest is None:
        return found
    state, unread, failed = newest.state, list[str](), lost(newest)
    manifest, written = None, state.intent or state.question
    if written is not None:
        remedy = "damaged: {}; or score this run anew with --fresh"
        manifest = _known(unread, lambda: read_manifest(storage, request.output, written.published), remedy)
    seen = revs.revision_uri(request.run_uri, shown.revision if shown else newest.number)
    late = _known(unread, lambda: latest(storage, seen))
    return replace(
        found,
        manifest=manifest,
        gates=manifest.gates if manifest else (),
        late=late,
        failed=failed,
        again=state.about.again,
        notes=(
            *state.about.notes(state.progress.counts.batches_cut, state.progress.ceilings),
            *([state.decision.words] if state.decision else ()),
            *mending(newest, failed),
        ),
        unread=tuple(unread),
    )


T = TypeVar("T")


def _known(unread: list[str], read: Callable[[], T], said: str = "{}") -> T | None:
    """What is read; None if it cannot be, and then why is added to `unread`."""
    try:
        return read()
    except (JobError, StorageError) as error:
        unread.append(said.format(error))
        return None


REPORT = "report.html"
"""The name of the report of a revision, beside its manifest."""

SHARDS_SHOWN = 100
"""The most shards of the report: without a result first, then retried, then slowest."""

INCIDENTS_SHOWN = 50
"""The most failed attempts and quarantined rows of the report: each row may be in a part of its own, a request."""


@dataclass(frozen=True, kw_only=True)
class Report(RunNow):
    """The newest revision of a run, as it stands now.

    manifest: also of one that is not to be published. gates: of a revision that they refused before anything was
    scored, only those that did not pass.
    """

    newest: revs.Revision
    """The revision of the report."""

    manifest_uri: str
    """The URI of the manifest; empty without one."""

    metrics: Figures | None
    """The metrics of the audit, with the evaluation of labels that came late, if any; None without a manifest."""

    trend: tuple[NightFigures, ...]
    """The nights before and, last, this one; empty if the figures of this one are not known."""

    compared: tuple[NightsCompared, ...]
    """The columns beside those of other nights."""

    account: Account | None
    """Where the time of the last command that scored went; None if it did not come to its end."""

    cost: WorkersCost | None
    """The cost of the workers of the last command that scored; None without prices, or if nothing was scored."""

    slow: SlowShard | None
    """The slowest shard, if it took much longer than the others."""

    shards: tuple[ShardLine, ...]
    """The first of the shards, at most `SHARDS_SHOWN`."""

    incidents: tuple[Incident, ...]
    """The first of the incidents, at most `INCIDENTS_SHOWN`."""

    identity: Identity | None
    """What scored the shards; None if the ledger does not say."""

    @property
    def page(self) -> str:
        """The URI of its page."""
        return join(self.newest.uri, REPORT)


def collect(request: RunRequest, account: Account | None = None) -> Report:
    """The newest revision of the run. account: where the time of its last command went; default: as it was kept.

    Raises:
        JobError: The run has no revision.
        StorageError: As `look`. What else cannot be read is named in the report.
    """
    found = look(request)
    newest, storage, late = found.newest, request.storage, found.late
    if newest is None:
        raise JobError(f"nothing of the run {request.run_id!r} is there, so there is nothing to report")
    unread, state, progress = list(found.unread), newest.state, newest.state.progress

    known = partial(_known, unread)
    written = state.intent or state.question
    # The gates of the last command that scored or validated count.
    judged = max((epoch for epoch, _ in scorers(state)), default=0)
    file = written.published.manifest if written else f"manifest-{judged:06d}.json"
    file = join(request.output if written else newest.uri, file)
    manifest = found.manifest if written else known(lambda: _unpublished(storage, file))
    metrics = manifest.metrics if manifest else None
    if metrics and late and late.revision == newest.number:
        metrics = late.instead_of(metrics)
    date = state.planned.date if state.planned else request.date
    account = account or known(lambda: kept(storage, newest))
    nights: tuple[NightFigures, ...] = ()
    if metrics and progress.done_shards == progress.shards:
        earlier = known(lambda: trend(storage, request.output, date)) or ()
        nights = (*earlier, night_figures(date, progress.counts, metrics))
    compared = known(lambda: _compared(request, newest, date, manifest.profile if manifest else None)) or ()
    identity = known(lambda: identity_of_plan(storage, newest.uri, state))
    read = RunReport(request, newest, goes_on=found.line.standing.state == "running")
    gates = manifest.gates if manifest else _kept_gates(found.line)
    return Report(
        **{**as_line(found), "manifest": manifest, "gates": gates, "unread": tuple(dict.fromkeys(unread))},
        manifest_uri=file if manifest else "",
        metrics=metrics,
        trend=nights,
        compared=compared,
        account=account,
        cost=workers_cost(request.job, account, progress.scored_rows),
        slow=slow_shard(read.outcomes),
        shards=tuple(read.shards(SHARDS_SHOWN)),
        incidents=tuple(read.incidents(INCIDENTS_SHOWN)),
        identity=identity,
    )


def _compared(
    request: RunRequest, newest: revs.Revision, date: str, file: RevisionFile | None
) -> tuple[NightsCompared, ...]:
    """Compare with each night that a check on drift names; without such a check, with the last published night.

    file: the profile of the newest revision; None if its columns were not described.
    """
    if file is None:
        return ()
    storage, job, rows = request.storage, request.job, newest.state.progress.counts.rows_out
    profile = read_profile(storage, newest.uri, file)
    nights = dict.fromkeys(check.against for check in job.checks if isinstance(check, DriftCheck)) or (LAST,)
    found = [baseline(storage, request.output, date, night) for night in nights]
    drawn = profile.rows if profile.rows < rows else None
    return tuple(
        replace(beside(each.called, each.profile, profile), drawn=drawn)
        if each.profile
        else NightsCompared(each.called, each.why)
        for each in found
    )


def _unpublished(storage: Storage, file: str) -> Manifest | None:
    """The manifest of a revision that was judged and is not published; None if it was not judged."""
    try:
        return manifest_of(storage.read(file), file)
    except Missing:
        return None


def _kept_gates(line: RunLine) -> tuple[GateResult, ...]:
    """The gates of which the ledger alone says something."""
    ended = line.standing.ended
    on_fail: Any = "ask" if line.standing.state == "asks" else "block"
    return tuple(
        GateResult(each.name, False, "", "", each.sentence, on_fail=on_fail) for each in (ended.gates if ended else ())
    )


SLOW_S, SLOW_TIMES = 1.0, 5.0
"""A shard is slow that took at least so many seconds, and so many times as long as most of the others."""


@dataclass(frozen=True, slots=True)
class SlowShard:
    """A shard that kept its worker much longer than the others did. others_s: the median of these."""

    shard: str
    seconds: float
    others_s: float


def slow_shard(outcomes: pa.Table) -> SlowShard | None:
    """The slowest shard that was scored for this revision, if it took much longer than the others. outcomes: as
    `output.outcomes.outcomes`.
    """
    scored = outcomes.filter(pc.equal(outcomes["adopted_from"], ""))
    if scored.num_rows < 2:
        return None
    names = np.array(scored["worker"].to_pylist(), dtype=object)
    begin, seconds = (scored[name].to_numpy().astype(float) for name in ("started_at", "seconds"))
    begin -= begin.min()
    own = _own(names, begin, begin + seconds)
    at = int(own.argmax())
    longest, others = float(own[at]), float(np.median(np.delete(own, at)))
    if longest < max(SLOW_S, SLOW_TIMES * others):
        return None
    return SlowShard(scored["shard"][at].as_py(), round(longest, 3), round(others, 3))


def _own(names: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The seconds of each shard after its worker had ended the one before: a shard that is begun early waits for it."""
    order = np.lexsort((end, names))
    before = np.concatenate([[0.0], np.where(names[order][1:] == names[order][:-1], end[order][:-1], 0.0)])
    own = np.empty(len(end))
    own[order] = end[order] - np.maximum(begin[order], before)
    return own
