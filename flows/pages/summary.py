"""Runs in words, and as the records of `reports`: what the command line prints when it has something to say."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from nightjar.flows.pages.advice import (
    Aftermath,
    advised,
    aftermath,
    near,
    remedies,
    repeating,
    typed,
)
from nightjar.flows.pages.escaping import line
from nightjar.flows.pages.wording import describe, duration, evaluation_lines, notes, rows_known
from nightjar.flows.reports import (
    EngineFigures,
    Estimate,
    Explained,
    FailedShard,
    PlanReport,
    RunListed,
    RunResult,
    RunShown,
    RunStatus,
    Seconds,
)
from nightjar.inference.errors import StorageError
from nightjar.inference.messages import counted
from nightjar.inference.metrics.states import nonfinite_notes
from nightjar.inference.output import publications as publish
from nightjar.inference.output import revisions as revs
from nightjar.inference.run import reasons
from nightjar.inference.run.report import (
    lost,
    remarks_of,
    worded,
)
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.standing import RunLine, Standing, stands

if TYPE_CHECKING:
    from nightjar.flows.outcome import Launched
    from nightjar.inference.input.discovery import Discovery
    from nightjar.inference.input.plan import Plan
    from nightjar.inference.run.replay import Measured, Replayed, Values
    from nightjar.inference.run.report import Incident, ShardLine
    from nightjar.inference.run.steps import Planned

_FAILURES = 20
"""Failed shards that `status` names; it says how many there are."""

_PUBLISHED = 10
"""Runs that readers see and `status` names: the last ones by name."""

START_S = 20.0
"""What a run takes besides its model and its rows: starting Ray and Prefect, the steps' own beginning and end. Taken
from runs of examples/flights on two cores: 32 s, of which loading the model twice, scoring and the audit took 12.
"""

_NAME_CHARS = 30
"""Names of columns are aligned up to so many characters."""


def run_result(launched: Launched, total_s: float) -> RunResult:
    """A finished run as a record; times in seconds."""
    outcome = launched.outcome
    scored, progress = outcome.scored, outcome.scored.progress
    return RunResult(
        job=outcome.request.job.name,
        run_id=outcome.request.run_id,
        revision=scored.revision,
        state="published" if outcome.publication.number else "validated",
        publication=outcome.publication.number,
        rows_in=progress.rows,
        rows_out=progress.rows_out,
        rows_quarantined=progress.rows_quarantined,
        shards=progress.shards,
        reused_shards=progress.reused_shards,
        failed_attempts=progress.failed_attempts,
        retries=progress.retries,
        batches_cut=progress.cuts,
        deaths=progress.deaths,
        device=scored.device,
        again=scored.again,
        notes=scored.warnings,
        unreported=launched.unreported,
        metrics=outcome.verdict.metrics,
        manifest=f"{outcome.request.output}/{outcome.publication.manifest}",
        seconds=_seconds(launched, total_s),
        engine=EngineFigures(
            startup_s=round(scored.startup_s, 3),
            first_start=round(progress.first_start, 3),
            steady_s=round(progress.steady_s, 3),
            rows_per_s=round(progress.rows_per_s),
        ),
    )


def _seconds(launched: Launched, total_s: float) -> Seconds:
    outcome = launched.outcome
    return Seconds(
        total=round(total_s, 3),
        ray=round(launched.ray_s, 3),
        prefect=round(launched.prefect_s, 3),
        discover=round(outcome.discover_s, 3),
        score=round(outcome.scored.seconds, 3),
        validate=round(outcome.verdict.seconds, 3),
        publish=round(outcome.publication.seconds, 3),
    )


def as_text(launched: Launched, total_s: float) -> str:
    """The closing summary: figures, paths, next steps."""
    outcome = launched.outcome
    request, scored, progress = outcome.request, outcome.scored, outcome.scored.progress
    folder = revs.revision_uri(request.run_uri, scored.revision)
    lines = [
        _headline(launched, total_s),
        f"  rows       {progress.rows:,} in = {progress.rows_out:,} out + {progress.rows_quarantined:,} quarantined, "
        f"over {progress.shards:,} shards"
        + (f" ({progress.reused_shards:,} already done)" if progress.reused_shards else ""),
    ]
    lines += [f"  again      {why}" for why in scored.again]
    if progress.rows_per_s:
        lines.append(
            f"  speed      {progress.rows_per_s:,.0f} rows/s on {scored.device}; scored in {duration(scored.seconds)}, "
            f"audited in {duration(outcome.verdict.seconds)}"
        )
    if progress.failed_attempts or progress.retries:
        lines.append(
            f"  retries    {counted(progress.failed_attempts, 'failed attempt')} "
            f"({progress.deaths} by a lost process), {counted(progress.retries, 'fault')} overcome in place"
        )
    lines.append(f"  gates      {len(outcome.verdict.gates)} of {len(outcome.verdict.gates)} passed")
    lines += [f"  {name:<10} {value}" for name, value in evaluation_lines(outcome.verdict.metrics)]
    if progress.rows_quarantined:
        lines.append(f"  quarantine {folder}/quarantine")
    lines += [
        f"  data       {folder}/data",
        f"  manifest   {request.output}/{outcome.publication.manifest}",
        *[f"  note       {warning}" for warning in scored.warnings],
        *[f"  note       {note}" for note in nonfinite_notes(outcome.verdict.metrics.get("outputs", {}))],
        *[f"  note       {note}" for note in notes(outcome.publication)],
        *_unreported(launched),
        "",
        *_next_steps(launched),
    ]
    return "\n".join(lines)


def _unreported(launched: Launched) -> list[str]:
    if not launched.unreported:
        return []
    return [
        f"  note       Prefect's API was away at the end ({launched.unreported}): its page of this run may say "
        "Running or Failed; the ledger is right"
    ]


def _headline(launched: Launched, total_s: float) -> str:
    outcome = launched.outcome
    name = f"{outcome.request.job.name} {outcome.request.run_id} r{outcome.scored.revision}"
    took = f"in {duration(total_s)}"
    if outcome.scored.finished:
        return f"{name}: everything is committed and published already, nothing was scored ({took})"
    if outcome.publication.number:
        return f"{name}: published as #{outcome.publication.number} {took}"
    return f"{name}: scored and validated, not published {took}"


def _next_steps(launched: Launched) -> list[str]:
    outcome = launched.outcome
    job = shlex.quote(near(outcome.request.job_path))
    rollback = shlex.join(["rollback", near(outcome.request.job_path), *outcome.request.place])
    steps = []
    if outcome.publication.number:
        steps.append(f"Read it:      {typed('nightjar')} files {job} {shlex.join(outcome.request.named)}")
        # A rollback takes back what was published last, whatever night that is.
        if not outcome.scored.finished:
            steps.append(f"Take it back: {typed('nightjar')} {rollback}")
    elif not outcome.request.limit:
        publishing = replace(outcome.request, publish=True)
        steps.append(f"Publish it:   {typed('nightjar')} run {job} {repeating(publishing, launched.ray)}")
    if launched.own_api:
        steps.append(f"In the UI:    {typed('prefect')} server start, then http://127.0.0.1:4200 → Runs, and Artifacts")
    else:
        steps.append(f"In the UI:    {launched.api_url.removesuffix('/api')} → Runs, and Artifacts")
    return steps


def after_failure(request: RunRequest, ray: str | None = None) -> str:
    """What to do next, once a run failed. ray: the cluster that was named."""
    after = aftermath(request)
    lines = [after.seen]
    # The storage may be why it failed: that was said.
    with suppress(StorageError):
        found = status(request)
        if found.revision:
            lines.append(f"  so far     {found.summary}")
        lines += [f"  {word:<10} {text}" for word, text in remarks_of(request.storage, request.run_uri)]
    commands = remedies(request, after.state, near(request.job_path), fresh=after.fresh, ray=ray)
    lines += [f"  {word:<10} {typed('nightjar')} {command}{_scores(word, after)}" for word, command in commands.items()]
    return "\n".join(lines)


def _scores(word: str, after: Aftermath) -> str:
    return "   (scores only what is missing)" if word == "repeat" and not after.fresh else ""


def status(request: RunRequest) -> RunStatus:
    """How far a run is and how it stands, from its ledger and the publications; and what to do about it."""
    newest = revs.newest_revision(request.storage, request.run_uri)
    now = publish.newest(request.storage, request.output)
    if newest is None:
        return _never_begun(request, now)
    shown = now.runs.get(request.run_id)
    found = stands(
        request.storage,
        request.run_uri,
        newest,
        shown.revision if shown else 0,
        request.job.name,
        request.lease_s,
    )
    progress, about = newest.state.progress, newest.state.about
    failed = lost(request.storage, newest)
    return replace(
        _bare(request, found, now),
        revision=newest.number,
        holder=str(newest.state.holder) if newest.state.holder else None,
        published_revision=shown.revision if shown else None,
        shards=progress.shards,
        committed=progress.done_shards,
        rows_out=progress.rows_out,
        rows_quarantined=progress.rows_quarantined,
        summary=describe(progress, running=found.state == "running") if progress.shards else "not planned yet",
        again=about.again,
        notes=about.notes(progress.cuts),
        failed_shards=len(failed),
        failures=tuple(
            FailedShard(shard, len(said), said[-1].cause, said[-1].message)
            for shard, said in islice(failed.items(), _FAILURES)
        ),
    )


def _never_begun(request: RunRequest, now: publish.Snapshot) -> RunStatus:
    """`status` of a run without a ledger: why it could not begin, where that was kept."""
    note = reasons.note_of(request.storage, request.run_uri, request.job.name)
    return _bare(request, Standing(note.outcome, note) if note else Standing("unknown"), now)


def _bare(request: RunRequest, found: Standing, now: publish.Snapshot) -> RunStatus:
    """What is known of every run."""
    return RunStatus(
        **_explanation(request, found),
        job=request.job.name,
        job_file=near(request.job_path),
        run_id=request.run_id,
        publication=now.number,
        published=tuple(sorted(now.runs)[-_PUBLISHED:]),
    )


def explained(request: RunRequest, found: Standing) -> Explained:
    """How a run stands, why, and the commands that look, repeat or mend."""
    return Explained(**_explanation(request, found))


def as_fields(record: Any) -> dict[str, Any]:
    """A record's fields by name, one level deep: to make another record that has them, too."""
    return {each.name: getattr(record, each.name) for each in fields(record)}


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
    """`status` for people."""
    if not found.revision:
        return "\n".join(_never_text(found))
    lines = [f"{found.job} {found.run_id} r{found.revision}: {found.standing}, {found.summary}"]
    if found.holder:
        lines.append(f"  writer     {found.holder}")
    lines += explained_lines(found)
    seen = f"r{found.published_revision}" if found.published_revision else "nothing of it"
    lines.append(f"  readers    see {seen} (publication {found.publication})")
    lines += [f"  {word:<10} {line(text)}" for word, text in worded(found.again, found.notes)]
    lines += [f"  shard      {each.shard}: {each.cause}: {line(each.message)}" for each in found.failures]
    if more := found.failed_shards - len(found.failures):
        shown = shlex.join(["show", found.job_file, found.run_id, "--lines", str(found.failed_shards)])
        lines.append(f"             and {more:,} more: {typed('nightjar')} {shown}")
    return "\n".join([*lines, *command_lines(found)])


def run_listed(run: RunLine, why: Explained) -> RunListed:
    """A line of `runs`. why: as `explained`."""
    of_line = {each.name for each in fields(RunListed)} - {each.name for each in fields(Explained)}
    return RunListed(**{name: getattr(run, name) for name in of_line}, **as_fields(why))


def run_shown(found: RunStatus, shards: Iterable[ShardLine], incidents: Iterable[Incident]) -> RunShown:
    """A run, and the first of its shards and incidents."""
    return RunShown(**as_fields(found), shards_shown=tuple(shards), incidents=tuple(incidents))


def _never_text(found: RunStatus) -> list[str]:
    if found.state == "unknown":
        known = ", ".join(found.published) or "none"
        said = f"{found.run_id}: no such run yet; published runs: {known}"
    else:
        said = f"{found.job} {found.run_id}: {found.standing}, nothing of it was begun"
    return [said, *explained_lines(found), *command_lines(found)]


def explained_lines(found: Explained) -> list[str]:
    """Why a run stands as it does, and when that was."""
    lines = [f"  why        {line(found.cause)}"] if found.cause else []
    if found.ended:
        for gate in found.ended.gates:
            told = (("row", gate.row), ("replay", gate.replay))
            lines += [f"  {word:<10} {line(text)}" for word, text in told if text]
        lines.append(f"  ended      {found.ended.at}")
    if tried := found.tried_again:
        lines.append(f"  tried      again {tried.at}: {tried.outcome} at {tried.step}: {line(tried.message)}")
    return lines


def reason_text(run_id: str, found: Explained) -> str:
    """Of one run in a list: how it stands, why, and what to do about it."""
    return "\n".join([f"{run_id}: {found.standing}", *explained_lines(found), *command_lines(found)])


def command_lines(found: Explained) -> list[str]:
    """What to do about it."""
    return [f"  {word:<10} {command}" for word, command in found.commands.items()]


def replayed(result: Replayed) -> str:
    """One row's input, and what became of it."""
    return "\n".join([*_values("input", result.inputs), result.text, *_values("output", result.outputs)])


def _values(kind: str, values: Values) -> list[str]:
    wide = max((len(name) for name, _ in values), default=0)
    return [f"  {kind:<6} {line(name):<{min(wide, _NAME_CHARS)}}  {line(value)}" for name, value in values]


def planned(request: RunRequest, discovery: Discovery, made: Planned, measured: Measured | None) -> PlanReport:
    """What would be scored."""
    plan, state = made.plan, made.state
    done = len(set(plan.ids()) & state.committed) if state else 0
    sizes = [shard.rows for shard in plan.shards()]
    known = [rows for rows in sizes if rows >= 0]
    return PlanReport(
        job=request.job.name,
        run_id=request.run_id,
        files=discovery.files.num_rows,
        unreadable_files=discovery.unreadable,
        unread=discovery.unread,
        rows=plan.rows,
        uncounted_files=discovery.uncounted,
        shards=len(plan),
        committed=done,
        to_score=len(plan) - done,
        rows_per_shard=(min(known, default=0), max(known, default=0)),
        columns=len(discovery.schema),
        again=made.again,
        measured=_estimate(request, plan, done, measured) if measured else None,
    )


def _estimate(request: RunRequest, plan: Plan, done: int, measured: Measured) -> Estimate:
    actors = request.job.resources.max_actors
    # Where rows are not counted, each shard is taken to have as many as the one that was measured.
    rows = measured.rows * len(plan) if plan.uncounted else plan.rows
    left = rows * (len(plan) - done) / max(1, len(plan))
    return Estimate(
        shard=measured.shard,
        rows=measured.rows,
        load_s=round(measured.load_s, 3),
        score_s=round(measured.score_s, 3),
        rows_per_s=round(measured.rows / max(1e-9, measured.score_s)),
        start_s=START_S,
        estimate_s=round(_estimate_s(measured, left, actors), 1),
        actors=actors,
    )


def _estimate_s(measured: Measured, rows: float, actors: int) -> float:
    """The model is loaded twice, one after the other: in preflight, then in all actors at once."""
    return START_S + 2 * measured.load_s + rows / max(1, measured.rows) * measured.score_s / actors if rows else START_S


def plan_text(found: PlanReport) -> str:
    """`planned` for people."""
    low, high = found.rows_per_shard
    shares = f", {low:,} to {high:,} rows a shard" if high else ""
    lines = [
        f"{found.job} {found.run_id}: {found.to_score:,} of {found.shards:,} shards to score, "
        f"{rows_known(found.rows, found.uncounted_files)} in {found.files:,} files{shares}"
    ]
    lines += [f"  again      {why}" for why in found.again]
    if found.unread:
        lines.append(f"  note       {line(found.unread)}")
    if m := found.measured:
        lines.append(
            f"  measured   {m.rows:,} rows in {duration(m.score_s)} ({m.rows_per_s:,} rows/s), model "
            f"loaded in {duration(m.load_s)}: about {duration(m.estimate_s)} with {m.actors} actors"
        )
        lines.append(
            f"             counted: {duration(m.start_s)} to start (typical), loading the model twice (preflight, "
            "actors), reading, scoring; not counted: writing, the audit"
        )
    return "\n".join(lines)
