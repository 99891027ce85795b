"""`status`, `runs` and `show`: how a run stands, how far it is, and what to do about it, as records and in words."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import fields, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from nightjar.flows.pages.advice import advised, as_typed, committing, making_way, near, typed
from nightjar.flows.pages.escaping import line
from nightjar.flows.pages.evaluated import late_lines
from nightjar.flows.pages.wording import describe, late_table, named_instead
from nightjar.flows.reports import Explained, FailedShard, RunListed, RunShown, RunStatus
from nightjar.inference.errors import Damaged, JobError, StorageError
from nightjar.inference.history.run_status import (
    RunFigures,
    RunLine,
    RunState,
    Standing,
    before_it_begins,
    shown_instead,
    stands,
    took,
)
from nightjar.inference.history.run_tables import lost, mending, worded
from nightjar.inference.ledger.holders import Holder, can_be_asked
from nightjar.inference.output import publications as publish
from nightjar.inference.output import revisions as revs
from nightjar.inference.output import targets
from nightjar.inference.output.nights import deleted
from nightjar.inference.output.targets import mendable
from nightjar.inference.records import as_line
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.waits import waits
from nightjar.inference.validation.evaluations import LateEvaluation, latest
from nightjar.inference.validation.gates import warnings
from nightjar.inference.validation.manifest import Manifest, read_manifest

if TYPE_CHECKING:
    from nightjar.inference.history.run_tables import Incident, ShardLine

_FAILURES = 20
"""The most failed shards that `status` names; it also has the number of all."""

_PUBLISHED = 10
"""The most published runs that `status` names: the last ones by name."""


def status(request: RunRequest) -> RunStatus:
    """Say how far a run is, how it stands and what to do about it, from its ledger and the publications."""
    newest = revs.newest_revision(request.storage, request.run_uri)
    now = publish.newest(request.storage, request.output)
    if newest is None:
        return _never_begun(request, now)
    shown = now.runs.get(request.run_id)
    found = stands(RunState.of(request, newest, shown))
    progress, about = newest.state.progress, newest.state.about
    manifest, unreadable = _manifest(request, newest)
    evaluation, damaged = _evaluated(request, shown.revision if shown else newest.number)
    failed, known = lost(request.storage, newest), _bare(request, found, now)
    if len(failed) > _FAILURES:
        all_ = shlex.join(["show", known.job_file, *request.words, "--lines", str(len(failed))])
        known = replace(known, commands={**known.commands, "more": f"{typed('nightjar')} {all_}"})
    return replace(
        known,
        revision=newest.number,
        holder=str(newest.state.holder) if newest.state.holder else None,
        sign_of_life=_sign_of_life(newest.state.holder, found.state, request.lease_s),
        published_revision=shown.revision if shown else None,
        shards=progress.shards,
        committed=progress.done_shards,
        rows_out=progress.rows_out,
        rows_quarantined=progress.rows_quarantined,
        rows_partial=progress.rows_partial,
        seconds=took(request.storage, newest, manifest)[1],
        summary=describe(progress, running=found.state == "running") if progress.shards else "not planned yet",
        again=about.again,
        warnings=_warnings(newest, manifest),
        notes=(
            *_waits(request, newest),
            *about.notes(progress.cuts, progress.backoffs),
            *_decided(newest),
            *mending(newest, failed),
            *damaged,
            *unreadable,
        ),
        failed_shards=len(failed),
        failures=tuple(
            FailedShard(shard, len(said), said[-1].cause, said[-1].message)
            for shard, said in islice(failed.items(), _FAILURES)
        ),
        evaluation=evaluation,
    )


def _manifest(request: RunRequest, newest: revs.Revision) -> tuple[Manifest | None, tuple[str, ...]]:
    """The manifest of a revision that was published, or that asks a person; and why it cannot be read."""
    written = newest.state.intent or newest.state.question
    if written is None:
        return None, ()
    try:
        return read_manifest(request.storage, request.output, written.published), ()
    except (JobError, StorageError) as error:
        return None, (f"damaged: {error}; or score this run anew with --fresh",)


def _warnings(newest: revs.Revision, manifest: Manifest | None) -> tuple[str, ...]:
    """What the gates said that did not pass and only warn. Of a run that asks, the question says what is asked."""
    said = manifest.gates if manifest else ()
    return tuple(warnings(gate for gate in said if newest.state.intent or gate.verdict == "warn"))


def _evaluated(request: RunRequest, revision: int) -> tuple[LateEvaluation | None, tuple[str, ...]]:
    """A revision's newest evaluation by labels that came later; and why it cannot be read."""
    try:
        return latest(request.storage, revs.revision_uri(request.run_uri, revision)), ()
    except Damaged as error:
        return None, (str(error),)


def _waits(request: RunRequest, newest: revs.Revision) -> tuple[str, ...]:
    """What the next step of the run, or a command that continues it, waits for."""
    ended, openers = newest.state.ended, newest.state.openers
    after = max(ended.at if ended else "", openers[-1][1].at if openers else "")
    found = waits(request.storage, request.run_uri, request.job.name, after)
    return (str(found),) if found else ()


def _decided(newest: revs.Revision) -> tuple[str, ...]:
    """What a person answered who was asked."""
    return (newest.state.decision.words,) if newest.state.decision else ()


def _sign_of_life(holder: Holder | None, state: str, lease_s: float) -> str:
    """What is known of the writer of a run that is going on; empty for any other run."""
    if holder is None or state not in {"running", "publishing"}:
        return ""
    if can_be_asked(holder):
        return "its process is there now; it may outlive a command that was killed by some seconds, so ask again then"
    return f"it wrote into the ledger just now; if it writes nothing for {lease_s:g} s, the run is called silent"


def _never_begun(request: RunRequest, now: publish.Snapshot) -> RunStatus:
    """`status` of a run without a ledger: what it waits for, or why it could not begin, if that was kept."""
    shown = now.runs.get(request.run_id)
    unknown = Standing("unknown", problem=deleted(request.run_id, date=shown.date) if shown else "")
    begins = before_it_begins(request.storage, request.run_uri, request.job.name)
    found = _bare(request, begins or unknown, now)
    return replace(found, published_revision=shown.revision if shown else None)


def _bare(request: RunRequest, found: Standing, now: publish.Snapshot) -> RunStatus:
    """The fields that are known for every run."""
    known = RunStatus(
        **_explanation(request, found),
        job=request.job.name,
        job_file=near(request.job_path),
        run_id=request.run_id,
        publication=now.number,
        published=tuple(sorted(now.runs)[-_PUBLISHED:]),
        instead=shown_instead(now, request.run_id),
        tables=targets.shown(request.storage, request.output, request.job.output.tables),
    )
    commits = {"commit": committing(request)} if mendable(known.late_tables) else {}
    return replace(known, commands={**known.commands, **making_way(request, known.instead), **commits})


def explained(request: RunRequest, found: Standing) -> Explained:
    """How a run stands, why, and the commands that show more, repeat or mend it."""
    return Explained(**_explanation(request, found))


def _explanation(request: RunRequest, found: Standing) -> dict[str, Any]:
    return {
        "state": found.state,
        "standing": found.words,
        "cause": found.cause,
        "ended": found.ended,
        "tried_again": found.tried,
        "commands": advised(request, found, near(request.job_path)),
    }


def status_text(found: RunStatus) -> str:
    """The text of `status` for people."""
    if not found.revision:
        return "\n".join(_never_text(found))
    lines = [f"{found.job} {found.run_id} r{found.revision}: {found.standing}, {found.summary}"]
    if found.holder:
        lines.append(f"  writer     {found.holder}")
    if found.sign_of_life:
        lines.append(f"  alive      {found.sign_of_life}")
    lines += explained_lines(found)
    seen = f"r{found.published_revision}" if found.published_revision else "nothing of it"
    lines.append(f"  readers    see {seen} (publication {found.publication})")
    lines += [f"  but        {named_instead(found.instead)}"] if found.instead else []
    lines += [f"  table      {line(late_table(each, found.publication))}" for each in found.late_tables]
    lines += [f"  warning    {line(said)}" for said in found.warnings]
    late = late_lines(found.evaluation, found.revision) if found.evaluation else []
    lines += [f"  {word:<10} {line(text)}" for word, text in late]
    lines += [f"  {word:<10} {line(text)}" for word, text in worded(found.again, found.notes)]
    lines += [f"  shard      {each.shard}: {each.cause}: {line(each.message)}" for each in found.failures]
    if more := found.failed_shards - len(found.failures):
        lines.append(f"             and {more:,} more")
    return "\n".join([*lines, *command_lines(found)])


def run_listed(run: RunLine, why: Explained) -> RunListed:
    """A line of `runs`. why: as `explained`."""
    figures = {each.name: getattr(run, each.name) for each in fields(RunFigures)}
    return RunListed(**figures, **as_line(why))


def run_shown(found: RunStatus, shards: Iterable[ShardLine], incidents: Iterable[Incident]) -> RunShown:
    """A run, and the first of its shards and incidents."""
    return RunShown(**as_line(found), shards_shown=tuple(shards), incidents=tuple(incidents))


def _never_text(found: RunStatus) -> list[str]:
    if found.published_revision:
        said = f"{found.job} {found.run_id}: readers see r{found.published_revision} of it, and nothing of it is there"
    elif found.state == "unknown":
        known = ", ".join(found.published) or "none"
        said = f"{found.run_id}: no such run yet; published runs: {known}"
    else:
        said = f"{found.job} {found.run_id}: {found.standing}, nothing of it was begun"
    return [said, *explained_lines(found), *command_lines(found)]


def explained_lines(found: Explained) -> list[str]:
    """Lines that say why a run stands as it does, and since when."""
    lines = [f"  why        {line(found.cause)}"] if found.cause else []
    if found.ended:
        for gate in found.ended.gates:
            told = (("row", gate.row), ("replay", as_typed(gate.replay)))
            lines += [f"  {word:<10} {line(text)}" for word, text in told if text]
        lines.append(f"  ended      {found.ended.at}")
    if tried := found.tried_again:
        lines.append(f"  tried      again {tried.at}: {tried.outcome} at {tried.step}: {line(tried.message)}")
    return lines


def reason_text(run_id: str, found: Explained) -> str:
    """The text for one run of a list: how it stands, why, and what to do about it."""
    return "\n".join([f"{run_id}: {found.standing}", *explained_lines(found), *command_lines(found)])


def command_lines(found: Explained) -> list[str]:
    """Lines with the commands."""
    return [f"  {word:<10} {command}" for word, command in found.commands.items()]
