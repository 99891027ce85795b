"""The state of a run in one word, and the reason, from its ledger."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from nightjar.inference.errors import Held, JobError, Missing, Rejected, StorageError
from nightjar.inference.jsonform import SELDOM
from nightjar.inference.ledger.endings import ASKS, FAILED, Ended
from nightjar.inference.ledger.epochs import shows_life
from nightjar.inference.ledger.holders import Holder, can_be_asked, is_dead
from nightjar.inference.ledger.ledger import State
from nightjar.inference.ledger.lines import Published
from nightjar.inference.messages import counted
from nightjar.inference.metrics.figures import Figures
from nightjar.inference.output import publications as publish
from nightjar.inference.output import revisions as revs
from nightjar.inference.output.nights import deleted
from nightjar.inference.records import Counts
from nightjar.inference.run import account, waiting
from nightjar.inference.run.request import RunRequest, begun, date_named, run_ids
from nightjar.inference.run.waiting import waits
from nightjar.inference.storage.protocol import Storage, at_once
from nightjar.inference.validation.evaluations import by_latest
from nightjar.inference.validation.gates import GateResult, told
from nightjar.inference.validation.manifest import Manifest, read_manifest

SILENT = "silent"
"""The state of a run whose process, on another machine, gives no sign of life: gone, or hanging."""

WAITING = "waiting"
"""The state of a run that has no ledger yet, because it waits for its input."""

UNREADABLE = "unreadable"
"""The state of a run in a list if one of its files cannot be read: damaged, of a newer version, or refused."""

UNKNOWN = "unknown"
"""The state of a run of which nothing is kept: it was never begun, or its files were deleted."""

_GOING = {"running", "publishing", SILENT}


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure by which nights are compared. revision: whose it is, if not the newest one's; else left out."""

    name: str
    value: int | float
    revision: int = field(default=0, metadata=SELDOM)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a run stands."""

    state: str
    """published, rolled back (also by `unpublish`), publishing, running, `SILENT`, failed, rejected, stopped, asks,
    limited, validated, killed, `WAITING`, `UNREADABLE` or `UNKNOWN`."""

    ended: Ended | None = None
    """How the run ended without a publication; None if it did not, or if that was not kept."""

    tried: Ended | None = None
    """Of a run that was published, how the last try ended that could not begin; the try does not change `state`."""

    problem: str = ""
    """Why the run cannot be read, what it waits for, or that its files were deleted; else empty."""

    opened: str = ""
    """The engine of the last command that scored or judged the run; empty if nobody knows."""

    may_be_approved: bool = False
    """A person said no, and may still change the no to a yes."""

    question: str = ""
    """The name of what is asked, or was asked last, as when a person said no; empty if nothing was asked."""

    @property
    def engine(self) -> str:
        """The engine of the last command; empty if nobody knows."""
        note = self.tried or self.ended
        return (note.engine if note else None) or self.opened

    @property
    def words(self) -> str:
        """The state for people, with the gate or the step."""
        return f"{self.state} at {self.ended.where}" if self.ended and self.ended.error else self.state

    @property
    def cause(self) -> str:
        """The reason; empty if there is nothing to explain."""
        return " ".join(self.causes)

    @property
    def causes(self) -> list[str]:
        """The reasons, one of each gate."""
        if self.ended is not None:
            gates = [gate.sentence for gate in self.ended.gates]
            # The gates say all that the message says, unless it is a question's, which says how long it waits.
            return [*gates, *([self.ended.message] if not gates or self.ended.outcome == ASKS else [])]
        return [*filter(None, [self.problem or _CAUSES.get(self.state, "")])]


_CAUSES = {
    "killed": "its process ended without a word: it was killed, or the machine was lost",
    SILENT: "no sign of life from its writer: gone, or hanging",
    "rolled back": "it was published; a person rolled it back or unpublished it since",
}


@dataclass(frozen=True, kw_only=True)
class RunFigures(Counts):
    """One run of a job, in a list of them. A run that never began has revision 0 and no shards."""

    run_id: str
    """The name of the run."""

    date: str = ""
    """The logical date; empty if nothing says it."""

    revision: int = 0
    """The number of the newest revision, whose rows and shards are counted here."""

    shown: int
    """The number of the revision that readers see; 0 if they see none of this run."""

    publication: int = 0
    """The number under which the newest revision was published, else 0."""

    began: str
    """When the last command began that wrote the run; of a run without a revision, when its last try ended. In UTC, as
    ISO 8601; empty if nobody knows."""

    seconds: float | None
    """Seconds that the last command that wrote the run took until it ended; None while it runs, or if nobody knows."""

    shards: int = 0
    """Shards of the plan."""

    done_shards: int = 0
    """Shards that are committed."""

    rows: int = 0
    """Rows of the input, as far as they are counted."""

    failed: int = 0
    """Attempts that failed, and receipts that the audit revoked."""

    metric: Metric | None
    """The figure by which nights are compared, of the revision that readers see, or else of the newest one, if that
    passed its gates."""

    approved: int = 0
    """Gates that the newest revision did not pass, and was published nevertheless: a person approved it."""

    warned: int = 0
    """Gates that the newest revision did not pass, and was published nevertheless: they only warn."""

    @property
    def name(self) -> str:
        """The run and its revision."""
        return f"{self.run_id} r{self.revision}" if self.revision else self.run_id

    @property
    def seen(self) -> str:
        """The revision of it that readers see, with the number of its publication if that is known; empty for none."""
        number = f" (#{self.publication})" if self.publication and self.shown == self.revision else ""
        return f"r{self.shown}{number}" if self.shown else ""

    @property
    def marks(self) -> str:
        """That it did not pass all gates, as the end of a sentence; empty if it did."""
        return marked(self.approved, self.warned)


def overruled(results: Iterable[GateResult]) -> dict[str, int]:
    """How many gates of a published night did not pass: those that a person approved, and those that only warned."""
    counts = Counter(result.verdict for result in results)
    return {"approved": counts["ask"], "warned": counts["warn"]}


def marked(approved: int, warned: int) -> str:
    """The same as the end of a sentence; empty if all gates passed."""
    shown = {"approved by a person": approved, "warned": warned}
    return "".join(f", {counted(count, 'gate')} {what}" for what, count in shown.items() if count)


def warnings(results: Iterable[GateResult]) -> list[str]:
    """What the gates say that did not pass and did not block."""
    return [f"{result.name}: {told(result)}" for result in results if result.verdict in ("warn", "ask")]


@dataclass(frozen=True, kw_only=True)
class RunLine(RunFigures):
    """One run of a job, and how it stands."""

    standing: Standing

    def of(self, request: RunRequest) -> RunRequest:
        """The request for this run, to name it in commands. request: of any run of the output."""
        return replace(request, run_id=self.run_id, date=self.date or date_named(self.run_id) or request.date)


def shown_instead(now: publish.Snapshot, run_id: str) -> str:
    """The run that `latest/`, `dates/` and tables show for the date of this one; empty if that is this one, or readers
    see nothing of it. now: what readers see.
    """
    entry = now.runs.get(run_id)
    night = now.nights()[entry.date] if entry else run_id
    return "" if night == run_id else night


def list_runs(request: RunRequest, limit: int = 20) -> list[RunLine]:
    """The runs in the request's output, at most `limit`. The latest nights come first, then runs with other names."""
    now = publish.newest(request.storage, request.output)

    def look(run_id: str) -> RunLine | None:
        shown, of = now.runs.get(run_id), replace(request, run_id=run_id)
        try:
            line = run_line(of, revs.newest_revision(of.storage, of.run_uri), shown)
            return line if line.standing.state != UNKNOWN else None
        except (StorageError, Held) as error:
            # A run that is damaged, or deleted meanwhile, must not hide the others.
            return _without_ledger(run_id, Standing(UNREADABLE, problem=str(error)), shown)

    names = run_ids(request.storage, request.output)
    # Else thirty experiments would hide every night.
    named = sorted(names, key=lambda name: (date_named(name[:10]) is not None, name), reverse=True)
    # At once, because each run may have to be watched for a lease.
    return [line for line in at_once(look, named[:limit]) if line is not None]


def before_it_begins(request: RunRequest) -> Standing | None:
    """How a run stands that has no ledger: what it waits for, or why it could not begin; None if nothing was kept."""
    note = waiting.note_of(request)
    if found := waits(request, note.at if note else ""):
        return Standing(SILENT if found.silent else WAITING, problem=str(found), opened=found.holder.engine)
    return Standing(note.outcome, note) if note else None


def run_line(request: RunRequest, newest: revs.Revision | None, shown: Published | None) -> RunLine:
    """The request's run in a list. newest: its newest revision, if any. shown: the one that readers see, if any."""
    if newest is None:
        unknown = Standing(UNKNOWN, problem=deleted(request.run_id, date=shown.date) if shown else "")
        return _without_ledger(request.run_id, before_it_begins(request) or unknown, shown, _date_of(request))
    progress = newest.state.progress
    intent = newest.state.intent
    manifest = _readable(request, intent.published) if intent else None
    began, seconds = took(request, newest, manifest)
    return RunLine(
        run_id=request.run_id,
        date=newest.state.planned.date if newest.state.planned else _date_of(request),
        standing=stands(request, newest, shown),
        revision=newest.number,
        shown=shown.revision if shown else 0,
        publication=newest.success.publication if newest.success else 0,
        began=began,
        seconds=seconds,
        shards=progress.shards,
        done_shards=progress.done_shards,
        rows=progress.rows,
        **progress.counts.by_name,
        failed=progress.failed_attempts,
        metric=_metric(request, newest, manifest, shown),
        **overruled(manifest.gates if manifest else ()),
    )


def scorers(state: State) -> list[tuple[int, Holder]]:
    """Its writers that scored or judged, with their epochs, the first one first. A person's answer is written by a
    command that does neither.
    """
    return [opener for opener in state.openers if opener[1].task in ("score", "validate")]


def _metric(
    request: RunRequest, newest: revs.Revision, manifest: Manifest | None, shown: Published | None
) -> Metric | None:
    """The figure of the revision that readers see, or else of the newest one. manifest: of that one."""
    uri, number = newest.uri, 0
    if shown is not None and shown.revision != newest.number:
        number, manifest = shown.revision, _readable(request, shown)
        uri = revs.revision_uri(request.run_uri, number)
    figures = figures_of(newest_figures(request.storage, uri, manifest)) if manifest else {}
    return next((Metric(name, value, number) for name, value in figures.items()), None)


def newest_figures(storage: Storage, revision: str, manifest: Manifest) -> Figures:
    """The figures of a revision, with those of its newest evaluation. One that is damaged is none."""
    try:
        return by_latest(storage, revision, manifest.metrics)
    except StorageError:
        return manifest.metrics  # `status` says what is wrong with the evaluation


def _date_of(request: RunRequest) -> str:
    """The run's logical date; empty if it never began."""
    try:
        return begun(request.storage, request.run_uri).date
    except Missing:
        return ""


def _without_ledger(run_id: str, found: Standing, shown: Published | None, date: str = "") -> RunLine:
    return RunLine(
        run_id=run_id,
        date=date or date_named(run_id) or "",
        standing=found,
        shown=shown.revision if shown else 0,
        began=found.ended.at if found.ended else "",
        seconds=None,
        metric=None,
    )


def stands(request: RunRequest, newest: revs.Revision, shown: Published | None) -> Standing:
    """How the request's run stands, and why. newest, shown: as of `run_line`.

    A writer on another machine can only be watched: for at most the request's lease.
    """
    state = standing(newest, shown.revision if shown else 0, request.lease_s)
    note = waiting.note_of(request)
    ended = _ended(newest.state) if newest.state.holder is None else None
    openers = newest.state.openers
    last = ended.at if ended else openers[-1][1].at if openers else ""
    engine = (scorers(newest.state) or openers)[-1][1].engine if openers else ""
    if note is not None and note.at < last:
        note = None  # it was tried again since, and began
    if state in _GOING:
        return Standing(state, opened=engine)
    if state in {"published", "rolled back"}:
        return Standing(state, None, note, opened=engine)
    if note is not None:
        return Standing(note.outcome, note, opened=engine)
    question, refused = newest.state.question, ended is not None and ended.error == Rejected.__name__
    again = refused and question is not None and not question.lapsed
    return Standing(state, ended, opened=engine, may_be_approved=again, question=question.name if question else "")


def standing(newest: revs.Revision, shown: int, lease_s: float) -> str:
    """In one word, how a revision stands by its ledger: as in `Standing`.

    A writer on another machine can only be watched: for at most `lease_s`.
    """
    if newest.success is not None:
        return "published" if shown == newest.number else "rolled back"
    if newest.sealed and shown == newest.number:
        return "published"  # only the sweep is left
    state, holder = newest.state, newest.state.holder
    if holder is not None and is_dead(holder):
        return "killed"
    if holder is not None:
        lives = can_be_asked(holder) or shows_life(newest.ledger, state, lease_s)
        if lives or state.holder is not None:
            return SILENT if not lives else "publishing" if newest.sealed else "running"
        if state.published is not None:
            return "published"  # while it was watched
    ended = _ended(state)
    return ended.outcome if ended else "killed"


def _ended(state: State) -> Ended | None:
    """How the last flow run ended that has ended. That nobody answered in time is kept by nobody: the clock says so."""
    ended, question = state.ended, state.question
    if ended is None or ended.outcome != ASKS or question is None or not question.lapsed:
        return ended
    return Ended(FAILED, ended.step, question.until, Rejected.__name__, question.no(None))


def _readable(request: RunRequest, published: Published) -> Manifest | None:
    try:
        return read_manifest(request.storage, request.output, published)
    except (JobError, StorageError):
        return None  # a deleted manifest must not end the list of runs


def took(request: RunRequest, newest: revs.Revision, manifest: Manifest | None) -> tuple[str, float | None]:
    """When the flow run began that ended the run or is writing it now, and how many seconds the night took: as in
    `Account.wall_s`; of one that kept no account, by the times in its ledger.
    """
    state = newest.state
    kept = state.ended.at if state.ended else ""
    end = "" if state.holder is not None else manifest.validated_at if manifest else kept
    # A writer that opened the ledger after that only finished the publication.
    writers = [writer for _, writer in state.openers if not end or writer.at <= end]
    if not writers:
        return "", None
    began = next(writer.at for writer in writers if writer.flow_run == writers[-1].flow_run)
    if not end:
        return began, None
    with suppress(StorageError):
        if (made := account.kept(request.storage, newest)) is not None:
            return began, made.wall_s
    return began, (dt.datetime.fromisoformat(end) - dt.datetime.fromisoformat(began)).total_seconds()


def figures_of(metrics: Figures) -> dict[str, float]:
    """The figures by which nights are compared: of the evaluation and of the user's own accumulators, or without both
    the ends of the checked columns.
    """
    found = metrics.evaluation
    if found is not None or metrics.accumulators:
        return {name: each.value for name, each in (found.metrics if found else {}).items()} | metrics.own()
    ends = {
        f"{name}.{end}": value
        for name, column in metrics.columns.items()
        for end, value in (("max", column.max), ("min", column.min))
    }
    return {name: value for name, value in ends.items() if isinstance(value, int | float)}
