"""A night as one record, for its report: collected from storage alone, at any time, however the night ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
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
    sealed_manifest,
    shown_instead,
)
from nightjar.inference.history.run_tables import Incident, RunReport, ShardLine, lost, mending, worded
from nightjar.inference.identity.identity import Identity
from nightjar.inference.job.checks import DriftCheck
from nightjar.inference.job.model import Job
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.metrics.drift import Drift, compare_columns
from nightjar.inference.metrics.figures import Figures
from nightjar.inference.metrics.profile import Profile
from nightjar.inference.output import publications as publish
from nightjar.inference.output import revisions as revs
from nightjar.inference.output import targets
from nightjar.inference.output.revisions import RevisionFile, revision_in
from nightjar.inference.output.targets import TableShown
from nightjar.inference.run.account import Account, WorkersCost, kept, workers_cost
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.resume import identity_of_plan
from nightjar.inference.storage.protocol import Storage, join
from nightjar.inference.validation.evaluations import LateEvaluation, latest
from nightjar.inference.validation.evidence import baseline, earlier_nights
from nightjar.inference.validation.gates import GateResult
from nightjar.inference.validation.manifest import Manifest, Refused, manifest_of, read_profile, read_refused

MAX_NIGHTS = 30
"""The most earlier nights of a trend: a month. Each costs a request to the storage."""


@dataclass(frozen=True, slots=True)
class NightFigures:
    """One night. figures: by name; what a night does not have is not in it."""

    date: str
    run_id: str
    rows: int
    quarantined: int
    figures: Mapping[str, float] = field(default_factory=dict)


def trend(storage: Storage, output: str, date: str) -> tuple[NightFigures, ...]:
    """The published nights before this date, the earliest first; at most `MAX_NIGHTS`.

    Raises:
        JobError: A manifest is not the one that was published.
    """
    found = islice(earlier_nights(storage, output, date), MAX_NIGHTS)
    nights = []
    for run, day, each in found:
        figures = figures_of(newest_figures(storage, revision_in(output, run, each.revision), each))
        nights.append(NightFigures(day, run, each.totals.rows_in, each.totals.rows_quarantined, figures))
    return tuple(reversed(nights))


MAX_COLUMNS = 300
"""The most columns of a table; they come in the order of how far they are apart."""

MAX_GROUPED = 4
"""The most columns whose groups are kept, for a plot each."""


@dataclass(frozen=True, slots=True)
class NightsCompared:
    """Tonight's columns beside those of another night. called: that night, for a sentence. why: why they cannot be
    compared; then there are no columns. columns: the first of them, the ones that are furthest apart with their groups.
    total, beyond: how many there are, and how many differ by more than chance explains. drawn: tonight's rows that are
    described, where these are not all.
    """

    called: str
    why: str = ""
    columns: tuple[Drift, ...] = ()
    total: int = 0
    beyond: int = 0
    drawn: int | None = None


def drifted(storage: Storage, job: Job, date: str, profile: Profile, rows: int) -> tuple[NightsCompared, ...]:
    """Compare with each night that a check on drift names; without such a check, with the last published night. rows:
    tonight's, which may be more than the profile describes.

    Raises:
        JobError: A manifest or profile is not the one that was published.
    """
    nights = dict.fromkeys(check.against for check in job.checks if isinstance(check, DriftCheck)) or {"last": None}
    found = [baseline(storage, job.output.uri, date, night) for night in nights]
    drawn = profile.rows if profile.rows < rows else None
    return tuple(
        replace(beside(each.called, each.profile, profile), drawn=drawn)
        if each.profile
        else NightsCompared(each.called, each.why)
        for each in found
    )


def beside(called: str, before: Profile, now: Profile) -> NightsCompared:
    """Compare the columns that both nights have. called: the other night, for a sentence."""
    found = compare_columns(before, now)
    bounded = (
        each if each.beyond and place < MAX_GROUPED else replace(each, groups=())
        for place, each in enumerate(found[:MAX_COLUMNS])
    )
    return NightsCompared(called, "", tuple(bounded), len(found), sum(each.beyond for each in found))


REPORT = "report.html"
"""The name of the report of a revision, beside its manifest."""

SHARDS_SHOWN = 100
"""The most shards of the report: without a result first, then retried, then slowest."""

INCIDENTS_SHOWN = 100
"""The most failed attempts and quarantined rows of the report."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One revision of a run, as it stands now.

    words: the arguments for commands about it. line: how it stands, and its figures. uri: of the revision. newest: the
    number of the newest publication of the output. instead: as `standing.shown_instead`. late_tables: those of the job
    that do not show that one. remarks: (word, what a person should know of how it was scored, or can do about its
    files). gates: all that were judged; of a run that was refused before anything was scored, only those that did not
    pass. decision: what a person answered who was asked. metrics: of the audit, with the evaluation of labels that came
    late, if any. labels_later: whether the job expects such. late: the newest such evaluation, of the revision that
    readers see, or else of this one. trend: the nights before; tonight: the same figures of this one, if they are
    known. compared: the columns beside those of other nights. account: where the time of the last command that scored
    went, if it came to its end. cost: of its workers. times: when the shards were scored. shards, incidents: the first
    of them. identity: what scored the shards; None if the ledger does not say. libraries: their versions, where it was
    validated. incomplete: what could not be read, a sentence each.
    """

    job: str
    job_path: str
    words: tuple[str, ...]
    line: RunLine
    uri: str
    input: str
    newest: int = 0
    instead: str = ""
    late_tables: tuple[TableShown, ...] = ()
    validated_at: str = ""
    remarks: tuple[tuple[str, str], ...] = ()
    gates: tuple[GateResult, ...] = ()
    decision: str = ""
    metrics: Figures | None = None
    labels_later: bool = False
    late: LateEvaluation | None = None
    trend: tuple[NightFigures, ...] = ()
    tonight: NightFigures | None = None
    compared: tuple[NightsCompared, ...] = ()
    progress: Progress
    account: Account | None = None
    cost: WorkersCost | None = None
    times: ShardTimes
    shards: tuple[ShardLine, ...] = ()
    incidents: tuple[Incident, ...] = ()
    snapshots: tuple[str, ...] = ()
    fingerprint: str = ""
    identity: Identity | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)
    manifest: str = ""
    cover: str = ""
    incomplete: tuple[str, ...] = ()

    @property
    def page(self) -> str:
        """The URI of its page."""
        return join(self.uri, REPORT)


def collect(request: RunRequest, account: Account | None = None) -> Report:
    """The newest revision of the run. account: where the time of its last command went; default: as it was kept.

    Raises:
        JobError: The run has no revision.
        StorageError: Its ledger or plan cannot be read. What else cannot be read is named in the report.
    """
    newest = revs.newest_revision(request.storage, request.run_uri)
    if newest is None:
        raise JobError(f"nothing of the run {request.run_id!r} was begun, so there is nothing to report")
    return _Collector(request, newest).report(account)


class _Collector:
    """Reads what a report needs, and notes what it cannot read."""

    def __init__(self, request: RunRequest, newest: revs.Revision) -> None:
        self.request, self.newest, self.storage = request, newest, request.storage
        self.incomplete: list[str] = []

    def report(self, account: Account | None) -> Report:
        request, newest, state = self.request, self.newest, self.newest.state
        now = publish.newest(self.storage, request.output)
        shown = now.runs.get(request.run_id)
        line = run_line(request, newest, shown)
        tables = RunReport(request, newest)
        name, manifest = self._try(lambda: _manifest(request, newest)) or ("", None)
        refused = None if manifest else self._try(lambda: read_refused(self.storage, newest.uri, _judged(newest)))
        judged: Manifest | Refused | None = manifest or refused
        metrics = judged.metrics if judged else None
        seen = revs.revision_uri(request.run_uri, shown.revision if shown else newest.number)
        late = self._try(lambda: latest(self.storage, seen))
        if metrics and late and late.revision == newest.number:
            metrics = late.instead_of(metrics)
        date = state.planned.date if state.planned else request.date
        whole = state.progress.done_shards == state.progress.shards
        rows, lost = state.progress.rows, state.progress.counts.rows_quarantined
        account = account or self._try(lambda: kept(self.storage, newest))
        return Report(
            job=request.job.name,
            job_path=request.job_path,
            words=request.words,
            line=line,
            uri=newest.uri,
            input=manifest.input if manifest else request.job.input.shown,
            newest=now.number,
            instead=shown_instead(now, request.run_id),
            late_tables=targets.late_tables(
                targets.shown(self.storage, request.output, request.job.output.tables), now.number, bool(now.runs)
            ),
            validated_at=manifest.validated_at if manifest else "",
            remarks=self._remarks(),
            gates=judged.gates if judged else _kept_gates(line),
            decision=state.decision.words if state.decision else "",
            metrics=metrics,
            labels_later=request.job.late_labels is not None,
            late=late,
            trend=self._try(lambda: trend(self.storage, request.output, date)) or (),
            tonight=NightFigures(date, request.run_id, rows, lost, figures_of(metrics)) if metrics and whole else None,
            compared=self._try(lambda: self._compared(date, judged.profile if judged else None)) or (),
            progress=state.progress,
            account=account,
            cost=workers_cost(request.job, account, state.progress.scored_rows),
            times=shard_times(tables.outcomes),
            shards=tuple(tables.shards(SHARDS_SHOWN)),
            incidents=tuple(tables.incidents(INCIDENTS_SHOWN)),
            snapshots=state.about.snapshots,
            fingerprint=state.planned.fingerprint if state.planned else "",
            identity=self._try(lambda: identity_of_plan(self.storage, self.newest.uri, self.newest.state)),
            libraries=manifest.libraries if manifest else {},
            manifest=name,
            cover=manifest.audit.cover if manifest else "",
            incomplete=tuple(dict.fromkeys(self.incomplete)),
        )

    def _remarks(self) -> tuple[tuple[str, str], ...]:
        about, progress = self.newest.state.about, self.newest.state.progress
        mend = self._try(lambda: mending(self.newest, lost(self.newest))) or []
        said = worded(about.again, about.notes(progress.counts.batches_cut, progress.ceilings))
        return (*said, *(("mend", each) for each in mend))

    def _try(self, read: Callable[[], T]) -> T | None:
        """What can be read; else the report says what could not."""
        try:
            return read()
        except (JobError, StorageError) as error:
            self.incomplete.append(str(error))
            return None

    def _compared(self, date: str, kept: RevisionFile | None) -> tuple[NightsCompared, ...]:
        if kept is None:
            return ()
        profile = read_profile(self.storage, self.newest.uri, kept)
        return drifted(self.storage, self.request.job, date, profile, self.newest.state.progress.counts.rows_out)


def _manifest(request: RunRequest, newest: revs.Revision) -> tuple[str, Manifest] | None:
    """The manifest of a revision that passed its gates, and its URI; also of one that is not published."""
    state = newest.state
    if state.intent is not None:
        name = join(request.output, state.intent.published.manifest)
        found = sealed_manifest(request, state)
        if found is None:
            raise StorageError(f"{name}: not the manifest that was published; restore it")
        return name, found
    asked = state.question
    name = asked.published.manifest.rpartition("/")[2] if asked else f"manifest-{_judged(newest):06d}.json"
    file = join(newest.uri, name)
    try:
        return file, manifest_of(request.storage.read(file), file)
    except Missing:
        return None


def _judged(newest: revs.Revision) -> int:
    """The epoch of the last command that scored or validated, whose gates count. 0 if there is none."""
    return max((epoch for epoch, writer in newest.state.openers if writer.task in ("score", "validate")), default=0)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTimes:
    """The shards that were scored for this revision.

    taken_over: shards with a result of an earlier revision, which the other fields leave out. seconds: from the start
    of the first shard to the end of the last. shard_seconds: the sum over all shards. workers: how many scored. slow:
    the slowest shard, if it took much longer than the others.
    """

    shards: int = 0
    taken_over: int = 0
    seconds: float = 0.0
    shard_seconds: float = 0.0
    workers: int = 0
    slow: SlowShard | None = None


def shard_times(outcomes: pa.Table) -> ShardTimes:
    """The times of all committed shards. outcomes: as `output.outcomes.outcomes`."""
    committed = outcomes.filter(pc.equal(outcomes["status"], "committed"))
    own = pc.fill_null(pc.equal(committed["adopted_from"], ""), True)
    scored = committed.filter(own).select(["worker", "started_at", "seconds", "shard"])
    taken_over = committed.num_rows - scored.num_rows
    if not scored.num_rows:
        return ShardTimes(taken_over=taken_over)
    names = np.array(scored["worker"].to_pylist(), dtype=object)
    begin, seconds = (scored[name].to_numpy().astype(float) for name in ("started_at", "seconds"))
    begin -= begin.min()
    end = begin + seconds
    return ShardTimes(
        shards=scored.num_rows,
        taken_over=taken_over,
        seconds=round(float(end.max()), 3),
        shard_seconds=round(float(seconds.sum()), 3),
        workers=len(set(names)),
        slow=_slow(scored["shard"], _own(names, begin, end)),
    )


def _own(names: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The seconds of each shard after its worker had ended the one before: a shard that is begun early waits for it."""
    order = np.lexsort((end, names))
    before = np.concatenate([[0.0], np.where(names[order][1:] == names[order][:-1], end[order][:-1], 0.0)])
    own = np.empty(len(end))
    own[order] = end[order] - np.maximum(begin[order], before)
    return own


def _slow(shards: pa.ChunkedArray, seconds: np.ndarray) -> SlowShard | None:
    if len(seconds) < 2:
        return None
    at = int(seconds.argmax())
    longest, others = float(seconds[at]), float(np.median(np.delete(seconds, at)))
    if longest < max(SLOW_S, SLOW_TIMES * others):
        return None
    return SlowShard(shards[at].as_py(), round(longest, 3), round(others, 3))
