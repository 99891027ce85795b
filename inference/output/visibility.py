"""Changes by a person to what readers see: a rollback, one night taken away, one night shown again.

Each change is a new snapshot, made by `publish.add`. Nothing is deleted here, and each change can be undone. What was
deleted, by a person or by `history.retention`, is not shown again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from nightjar.inference.errors import JobError, Missing
from nightjar.inference.ledger.lines import Published
from nightjar.inference.output import publications as publish
from nightjar.inference.output import revisions as revs
from nightjar.inference.output.nights import published_run, scoring_anew, there
from nightjar.inference.output.publications import Origin, Snapshot
from nightjar.inference.storage.protocol import Storage, at_once

_MAX_TRIES = 100


@dataclass(frozen=True, slots=True)
class Change:
    """What a new snapshot changes for one run. before, after: the revision that readers saw, and see now; 0 for
    none.
    """

    run_id: str
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationListed:
    """One publication: when and by what it was made, and what it changed for readers."""

    publication: int
    """The number of the publication."""

    at: str
    """When the publication was made, in UTC, as ISO 8601."""

    made_by: Origin
    """The act that made the publication."""

    note: str
    """Why the publication was made, for people."""

    latest: str | None
    """The run of the highest date; null if readers see no run."""

    runs: Mapping[str, int]
    """Run → the number of its revision that readers see."""

    changes: tuple[Change, ...]
    """The runs that readers lose, gain, or see in another revision."""


def listed(before: Snapshot, after: Snapshot) -> PublicationListed:
    """The record of a publication. before: the one that readers saw until then."""
    return PublicationListed(
        publication=after.number,
        at=after.at,
        made_by=after.origin,
        note=after.note,
        latest=after.latest(),
        runs={run: entry.revision for run, entry in sorted(after.runs.items())},
        changes=changes(before, after),
    )


def changes(before: Snapshot, after: Snapshot) -> tuple[Change, ...]:
    """The runs that readers lose, gain, or see in another revision."""
    old, new = ({run: each.revision for run, each in snapshot.runs.items()} for snapshot in (before, after))
    return tuple(
        Change(run, old.get(run, 0), new.get(run, 0))
        for run in sorted(old.keys() | new.keys())
        if before.runs.get(run) != after.runs.get(run)
    )


def publications(storage: Storage, output: str, limit: int) -> list[PublicationListed]:
    """The snapshots of an output, the newest first; at most `limit`."""
    found = list(publish.snapshots(storage, output, publish.numbers(storage, output)[-limit - 1 :]))
    below = {each.number + 1: each for each in found}
    return [listed(below.get(each.number, each.without_own()), each) for each in found][-limit:][::-1]


@dataclass(frozen=True, slots=True)
class Return:
    """What a rollback would do. now: what readers see. earlier: what they would see again: an earlier snapshot, without
    runs that are deleted. gone: these runs, with the revision that it has of each.
    """

    now: Snapshot
    earlier: Snapshot
    gone: Mapping[str, int] = field(default_factory=dict)


def back(storage: Storage, output: str, to: int | None) -> Return:
    """What a rollback would do. Changes nothing.

    to: the number of the earlier snapshot; default: the one before the newest that was not itself a rollback or a
    prune.

    Raises:
        JobError: there is nothing to go back to; a revision that readers would see again is not as it was published; or
            it is deleted, and readers see another revision of its run, which would vanish.
    """
    now = publish.newest(storage, output)
    target = to if to is not None else _before(storage, output, now)
    if target is None:
        raise JobError(
            f"{output} has no earlier publication to go back to; `nightjar unpublish JOB RUN` takes one night away"
        )
    earlier = publish.snapshot(storage, output, target) if target else Snapshot(0)
    again = [(run, entry) for run, entry in sorted(earlier.runs.items()) if now.runs.get(run) != entry]

    def is_gone(run: str, entry: Published) -> bool:
        try:
            _check_can_be_shown(storage, output, run, entry)
        except _Gone:
            if run in now.runs:
                raise
            return True
        return False

    left_out = at_once(lambda each: is_gone(*each), again)
    gone = {run: entry.revision for (run, entry), out in zip(again, left_out, strict=True) if out}
    left = {run: entry for run, entry in earlier.runs.items() if run not in gone}
    return Return(now, replace(earlier, runs=left), gone)


def rollback(storage: Storage, output: str, seen: Return) -> Snapshot:
    """Show readers an earlier publication again, as a new snapshot. seen: what `back` has found, so that nothing is
    undone that was published since.

    Raises:
        JobError: something was published meanwhile.
    """
    now, earlier = seen.now, seen.earlier
    origin = Origin("rollback", to=earlier.number)
    there = publish.add(storage, output, now.number + 1, earlier.runs, origin)
    if (there.origin, there.runs) != (origin, earlier.runs):
        # The publication that the person wants to undo is not the newest any more; a rollback would undo another one.
        raise JobError(
            f"publication {there.number} ({there.note}) appeared meanwhile and nothing was rolled back; "
            f"look again, then repeat with --to {earlier.number} if that is still what readers should see"
        )
    return there


def unpublish(storage: Storage, output: str, run_id: str | None, date: str | None = None) -> Snapshot:
    """Take one run away from readers: that of this id, or else of this date. The others stay as they are.

    Raises:
        JobError: it is not published, or was published again meanwhile.
    """
    run, entry = published_run(publish.newest(storage, output), output, run_id, date)

    def without(now: Snapshot) -> dict[str, Published]:
        if now.runs.get(run, entry) != entry:
            raise JobError(
                f"revision {now.runs[run].revision} of the run {run!r} was published meanwhile, and nothing was "
                "taken away; look again, then repeat the command if readers should not see that one either"
            )
        return {other: published for other, published in now.runs.items() if other != run}

    return _change(storage, output, Origin("unpublish", run, entry.revision), without)


def republish(storage: Storage, output: str, run_id: str | None, date: str = "") -> Snapshot:
    """Show readers the newest published revision of a run again that was rolled back or unpublished: the run of this
    id, or else the one that readers saw last of this date.

    Raises:
        JobError: it was never published, readers see it already, it is not as it was published, or another revision was
            published meanwhile.
    """
    run_id = run_id or _last_of(storage, output, date)
    entry = published_before(storage, revs.run_folder(output, run_id))
    if entry is None:
        raise JobError(
            f"no published revision of the run {run_id!r} is in {output}; `nightjar publications JOB` lists what was "
            "published"
        )
    before = publish.shown(storage, output, run_id)
    if before == entry:
        raise JobError(f"readers see r{entry.revision} of the run {run_id!r} already")
    _check_can_be_shown(storage, output, run_id, entry)

    def again(now: Snapshot) -> dict[str, Published]:
        found = now.runs.get(run_id)
        if found is not None and found not in (before, entry):
            raise JobError(
                f"revision {found.revision} of the run {run_id!r} was published meanwhile, and nothing was changed"
            )
        return {**now.runs, run_id: entry}

    return _change(storage, output, Origin("republish", run_id, entry.revision), again)


class _Gone(JobError):
    """The files of a revision are deleted."""


def _check_can_be_shown(storage: Storage, output: str, run_id: str, entry: Published) -> None:
    """Check that a revision is still there before readers are led to it.

    Raises:
        _Gone: its manifest, its list of shards or its first data file is gone, or is that of another revision, which
            was scored since.
        JobError: its manifest or its list of shards is not what was published.
    """
    try:
        there(storage, output, 0, run_id, entry)
    except (Missing, JobError) as error:
        if not isinstance(error, Missing):
            anew = revs.read_revision(storage, revs.run_folder(output, run_id), entry.revision).state.intent
            if anew is None or anew.published == entry:
                raise
        raise _Gone(
            f"r{entry.revision} of the run {run_id!r} cannot be shown again, because it was deleted ({error}); nothing "
            f"was changed. `{scoring_anew(run_id, entry.date)}` scores it anew; `nightjar unpublish JOB RUN` "
            "takes one night away and leaves the others as they are"
        ) from error


def _change(
    storage: Storage, output: str, origin: Origin, runs_after: Callable[[Snapshot], dict[str, Published]]
) -> Snapshot:
    """Make a snapshot that changes one run of the newest one, also if other runs publish meanwhile."""
    for _ in range(_MAX_TRIES):
        now = publish.newest(storage, output)
        runs = runs_after(now)
        if runs == now.runs:
            return now  # another command made the same change meanwhile
        there = publish.add(storage, output, now.number + 1, runs, origin)
        if (there.origin, there.runs) == (origin, runs):
            return there
    raise JobError(f"publications in {output} are created faster than this change can be; try again")


def _before(storage: Storage, output: str, now: Snapshot) -> int | None:
    """The publication before the one that readers really see, so that repeated rollbacks go further back.

    What a prune took away is gone, so it is not what a rollback takes back.
    """
    numbers, effective = publish.numbers(storage, output), now
    while effective.origin.act in ("rollback", "prune"):
        below = [number for number in numbers if number < effective.number]
        target = effective.origin.to if effective.origin.act == "rollback" else max(below, default=0)
        if target not in numbers:
            return None
        effective = publish.snapshot(storage, output, target)
    return max((number for number in numbers if number < effective.number), default=None)


def _last_of(storage: Storage, output: str, date: str) -> str:
    """The run of a date that readers saw last, and do not see now; else one that they see, or a run of that name."""
    shown = publish.newest(storage, output)
    for found in publish.snapshots(storage, output, publish.numbers(storage, output)[::-1]):
        hidden = {run: entry for run, entry in found.runs.items() if run not in shown.runs}
        if run := replace(found, runs=hidden).nights().get(date):
            return run
    return shown.nights().get(date, date)


def published_before(storage: Storage, run_uri: str) -> Published | None:
    """The newest revision of a run that was published, whether or not readers see it."""
    newest = revs.newest_revision(storage, run_uri)
    for number in range(newest.number if newest else 0, 0, -1):
        found = revs.read_revision(storage, run_uri, number)
        # Without its success file it was published, too: the command ended, or the storage failed, in between.
        if (found.success is not None or found.state.published is not None) and found.state.intent is not None:
            return found.state.intent.published
    return None
