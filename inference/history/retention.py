"""Retention: which nights an output keeps, and the deletion of all that belongs to others, the oldest first.

Kept are the newest N nights of what readers see, by their logical dates, and each night that became visible less than N
days ago. As long as readers see fewer than N nights, every night is kept. The other nights are first taken out of what
readers see, by one snapshot. Then go the publications that show none but them, and their runs (`removal`): published
ones, and those that never were. What was kept of code and model goes when no revision is left that it scored.

Each step can be killed and done again, also by two commands at once. Nothing is kept of what was done so far: the next
command finds what is left by its date.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

from nightjar.inference.errors import Damaged, Held, JobError, Missing
from nightjar.inference.history.removal import PRUNE, Size, remove, size_of
from nightjar.inference.identity.identity import Identity
from nightjar.inference.job.checks import BASELINE, DriftCheck
from nightjar.inference.job.sections import MOST_NIGHTS
from nightjar.inference.jsonform import of_bytes
from nightjar.inference.ledger.endings import utc
from nightjar.inference.ledger.epochs import check_free
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.ledger.ledger import Ledger, State, replay
from nightjar.inference.ledger.lines import Published
from nightjar.inference.output import latest_view
from nightjar.inference.output import publications as publish
from nightjar.inference.output.publications import Origin, Snapshot
from nightjar.inference.output.revisions import newest_number, revision_uri, run_folder
from nightjar.inference.records import as_line
from nightjar.inference.run import waiting
from nightjar.inference.run.publishing import commit_tables
from nightjar.inference.run.request import RunRequest, begun, date_named, run_ids
from nightjar.inference.storage.local import remove_empty_folders
from nightjar.inference.storage.protocol import Entry, Storage, at_once, beginning, is_local, join, read_control

_MAX_TRIES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What was deleted, or would be."""

    keep: int
    """How many of the newest nights are kept."""

    publication: int
    """The number of what readers see now."""

    hidden: tuple[str, ...] = ()
    """The dates that readers see no more, in order."""

    runs: tuple[str, ...] = ()
    """The names of the runs that were deleted, the oldest first."""

    publications: int = 0
    """How many publications were deleted."""

    revisions: int = 0
    """How many revisions of the runs were deleted."""

    files: int = 0
    """How many files were deleted, those of publications and of kept code and models included."""

    bytes: int = 0
    """The size of the deleted files, in bytes."""

    left: tuple[str, ...] = ()
    """Why runs are left that are old enough, a sentence each; and why code and models are left that may be unused."""

    behind: str = ""
    """What could not be done of `latest/` and `dates/`; nothing is deleted while they show nights that would go."""

    tables_behind: tuple[str, ...] = ()
    """A sentence for each table that does not show what readers see."""


@dataclass(frozen=True)
class _Rule:
    """What is kept. now: what readers see. oldest: dates from this one on are kept; empty for all. visible: dates of
    which readers saw something new since. since: N days ago, in UTC, as ISO 8601. named: runs that stay whatever their
    date.
    """

    now: Snapshot
    oldest: str
    visible: frozenset[str]
    since: str
    named: frozenset[str]

    def keeps(self, date: str) -> bool:
        """Whether a night is kept."""
        return date >= self.oldest or date in self.visible

    @property
    def runs(self) -> dict[str, Published]:
        """What readers still see."""
        return {run: each for run, each in self.now.runs.items() if run in self.named or self.keeps(each.date)}


def _rule(request: RunRequest, nights: int) -> _Rule:
    storage, output, since = request.storage, request.output, utc(-24 * nights)
    now = publish.newest(storage, output)
    dates = list(now.nights())
    return _Rule(
        now=now,
        oldest=dates[-nights] if len(dates) >= nights else "",
        visible=frozenset(_visible_since(storage, output, now, since)),
        since=since,
        named=frozenset({BASELINE, *(check.against for check in request.job.checks if isinstance(check, DriftCheck))}),
    )


def _visible_since(storage: Storage, output: str, now: Snapshot, since: str) -> Iterator[str]:
    """The dates of what readers see in a snapshot that is newer than that, and did not see in the one below it."""
    numbers = [number for number in publish.numbers(storage, output) if number < now.number]
    after, older = now, publish.snapshots(storage, output, numbers[::-1])
    while after.at > since:
        before = next(older, None)
        below = before if before and before.number == after.number - 1 else after.without_own()
        yield from (entry.date for run, entry in after.runs.items() if below.runs.get(run) != entry)
        if before is None:
            return
        after = before


def prune(request: RunRequest, nights: int, *, dry_run: bool = False) -> Pruned:
    """Delete what belongs to no night that is kept. nights: how many newest ones are. dry_run: only look.

    Raises:
        JobError: The number is wrong, or others publish faster than old nights can be taken away.
        StorageError: The storage refused or failed; what is left is deleted by the next command.
    """
    if not 1 <= nights <= MOST_NIGHTS:
        raise JobError(f"keep: must be at least 1 night and at most {MOST_NIGHTS:,}, not {nights}")
    storage, output, name = request.storage, request.output, request.job.name
    rule = seen = _rule(request, nights)
    note, late = "", tuple[str, ...]()
    if not dry_run:
        rule = _hide(request, nights, seen)
        note, late = latest_view.refresh(storage, output, name), commit_tables(request)
    hidden = tuple(sorted({each.date for each in seen.now.runs.values()} - {e.date for e in rule.runs.values()}))
    done = Pruned(keep=nights, publication=rule.now.number, hidden=hidden, behind=note, tables_behind=late)
    # Asked again, it has nothing to say if these folders show what readers see. Else they lead to nights that would go.
    if note and latest_view.refresh(storage, output, name):
        return done
    old = _old_publications(storage, output, rule)
    if not dry_run:
        storage.delete(entry.uri for entry in old)
    runs, left = _delete_runs(request, rule, dry_run)
    try:
        unused = _unused_snapshots(storage, output, rule.since, runs if dry_run else ())
    except Damaged as error:
        unused = []
        left.append(str(error))
    if not dry_run:
        storage.delete(entry.uri for entry in unused)
        _remove_empty_dates(storage, output, rule.now)
    size = sum(runs.values(), Size(0, len(old) + len(unused), sum(entry.size for entry in (*old, *unused))))
    return replace(done, runs=tuple(runs), publications=len(old), **as_line(size), left=tuple(left))


def _hide(request: RunRequest, nights: int, rule: _Rule) -> _Rule:
    """Take the old nights away from readers, by one snapshot. Returns the rule for what they see then."""
    for _ in range(_MAX_TRIES):
        if rule.runs == rule.now.runs:
            return rule
        # If another command is faster, its snapshot is looked at, too: it may show an old night again.
        publish.add(request.storage, request.output, rule.now.number + 1, rule.runs, Origin("prune"))
        rule = _rule(request, nights)
    raise JobError(f"publications in {request.output} are created faster than old nights can be taken away; try again")


def _old_publications(storage: Storage, output: str, rule: _Rule) -> list[Entry]:
    """The oldest snapshots, up to the first that shows a night that is kept by its date."""
    older = [number for number in publish.numbers(storage, output) if number < rule.now.number]
    found = publish.snapshots(storage, output, older)
    old = takewhile(lambda each: not any(rule.keeps(entry.date) for entry in each.runs.values()), found)
    wanted = {publish.uri_of(output, each.number) for each in old}
    return [entry for entry in storage.list(join(output, "publications")) if entry.uri in wanted] if wanted else []


def _old_runs(request: RunRequest, rule: _Rule) -> list[tuple[str, str]]:
    """The date and name of each run that is not kept, in order."""
    storage, output, stay = request.storage, request.output, rule.named | rule.runs.keys()
    names = [run for run in run_ids(storage, output) if run not in stay]
    dates = at_once(lambda run: _date_of(storage, run_folder(output, run), run), names)
    return sorted((date, run) for date, run in zip(dates, names, strict=True) if date and not rule.keeps(date))


def _delete_runs(request: RunRequest, rule: _Rule, dry_run: bool) -> tuple[dict[str, Size], list[str]]:
    """Delete the runs that are not kept, the oldest first. Returns how much each held, and why others are left."""
    runs, left = dict[str, Size](), list[str]()
    for date, run in _old_runs(request, rule):
        try:
            if (size := _delete(replace(request, run_id=run), rule, date, dry_run)) is not None:
                runs[run] = size
        except (Held, Damaged, Missing) as error:  # the last: another command is deleting it
            left.append(f"{run}: {error}")
    return runs, left


def _date_of(storage: Storage, run_uri: str, run: str) -> str:
    """The logical date of a run; empty if nothing says it."""
    if (day := date_named(run)) is not None:
        return day
    with suppress(Missing, Damaged):
        return begun(storage, run_uri).date
    with suppress(Missing, Damaged):
        state = _state(storage, run_uri) or State()
        return state.removed or (state.planned.date if state.planned else "")
    return ""


def _state(storage: Storage, run_uri: str) -> State | None:
    """What the ledger of a run's newest revision says; None if there is no revision."""
    number = newest_number(storage, run_uri)
    return replay(Ledger(storage, revision_uri(run_uri, number))) if number else None


def _delete(request: RunRequest, rule: _Rule, date: str, dry_run: bool) -> Size | None:
    """Delete the request's run. Returns how much it held; None if it was written since, or nothing says when.

    Raises:
        Held: A writer holds it, or it waits for its input, or for a person; or it is shown again.
        Damaged, Missing: Its ledger cannot be read.
    """
    storage, uri = request.storage, request.run_uri
    state = _state(storage, uri)
    if state is None or not state.removed:
        _check_idle(request, state)
        written = _written(request, state)
        if not written or written > rule.since:
            return None
    size = size_of(storage, uri)
    if dry_run:
        if state is not None:
            uri = revision_uri(uri, newest_number(storage, uri))
            check_free(Ledger(storage, uri), state, this_holder(PRUNE), request.lease_s)
        return size
    remove(request, date, state)
    return size


def _check_idle(request: RunRequest, state: State | None) -> None:
    if (waits := waiting.waits(request)) is not None and not waits.silent:
        raise Held(f"it waits: {waits}")
    question = state.question if state else None
    if state is not None and question is not None and not question.lapsed and not state.approved:
        raise Held(f"it waits for a person's answer until {question.until}")


def _written(request: RunRequest, state: State | None) -> str:
    """When a command, or a person who answered, last wrote a run; empty if nothing says it."""
    note, wait = waiting.note_of(request), waiting.waits(request)
    signs = [note.at] if note else []
    signs += [wait.seen] if wait else []
    if state is None:
        with suppress(Missing):
            signs.append(begun(request.storage, request.run_uri).at)
    else:
        signs += [holder.at for _, holder in state.openers if holder.task != PRUNE]
        signs += [each.at for each in (state.ended, state.decision) if each is not None]
    return max(signs, default="")


def _unused_snapshots(storage: Storage, output: str, since: str, gone: Collection[str]) -> list[Entry]:
    """What is kept of code and models that scored no revision that is left. gone: runs that do not count.

    since: as of the rule. None as long as a run has begun since that has no plan yet, because only the plan says what
    scores it. (A run that is begun again just now, with a model that only deleted nights had, may lose its copy:
    `replay --live` does without.)
    """
    there = storage.list(join(output, "snapshots"))
    kept = {entry.uri.rpartition("/")[2].removesuffix(".zip"): entry for entry in there}
    runs = [run for run in run_ids(storage, output) if run not in gone]
    for run in reversed(runs) if kept else ():  # the latest night has most of them
        uri = run_folder(output, run)
        numbers = range(newest_number(storage, uri), 0, -1)
        found = [each for number in numbers for each in _identities(storage, revision_uri(uri, number))]
        with suppress(Missing):
            if not found and begun(storage, uri).at > since:
                return []
        for each in found:
            for digest in (each.code_digest, *each.models.values()):
                kept.pop(digest, None)
        if not kept:
            return []
    return [*kept.values()]


def _identities(storage: Storage, uri: str) -> Iterator[Identity]:
    """What scored a revision; more than once if it was planned anew."""
    for entry in beginning(storage, join(uri, "identity-")):
        with suppress(Missing):
            yield read_control(storage, entry.uri, partial(of_bytes, Identity), "what scored a run", "restore it")


def _remove_empty_dates(storage: Storage, output: str, now: Snapshot) -> None:
    """Remove the folders for readers, on a disk, of dates that show nothing."""
    dates = join(output, "dates")
    for date in set(storage.subfolders(dates)) - now.nights().keys() if is_local(output) else ():
        remove_empty_folders(join(dates, date))
