"""The first steps: `discover` finds tonight's input, and `score` scores every shard without a receipt in the ledger.

Each step that writes (`score`, `validating.validate`, `publishing.publish_run`) opens an epoch, does its part, and
stops. The flow's tasks call them, and so may a plain script. They hand each other small frozen records; whatever
matters is in the ledger, so that any step may be repeated, by anybody, at any time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from nightjar.inference.engine import opened
from nightjar.inference.engine.protocol import Engine
from nightjar.inference.errors import Held, JobError
from nightjar.inference.identity.snapshots import keep
from nightjar.inference.input.plan import Discovery, Plan, make_plan
from nightjar.inference.input.plan import discover as discover_input
from nightjar.inference.job.model import Job
from nightjar.inference.ledger.epochs import LedgerWriter
from nightjar.inference.ledger.lines import Doing, Line, Packages, Preflight
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.output import latest_view, targets
from nightjar.inference.output import publications as publish
from nightjar.inference.output import revisions as revs
from nightjar.inference.records import NO_COUNTS, Seen
from nightjar.inference.run.campaign import Campaign
from nightjar.inference.run.lease import leased
from nightjar.inference.run.publishing import commit_tables, finish_publication
from nightjar.inference.run.refusals import check_columns, check_labels, check_without_input
from nightjar.inference.run.request import RunRequest, identity_of, worker_spec
from nightjar.inference.run.results import Listener, Listeners, RunPlan, Scored
from nightjar.inference.run.resume import (
    check_not_taken_back,
    claim,
    number_for,
    plan_in,
    retire,
    why_again,
)
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.preflight import Loaded, samples
from nightjar.inference.stopwatch import Stopwatch
from nightjar.inference.validation import gates
from nightjar.inference.validation.evidence import judge_input
from nightjar.inference.validation.manifest import read_manifest
from nightjar.inference.witness.seen import UNSURE, sentences

_FILES = 1000
"""The paths of this many files are looked at for the name of a column that the files lack."""


def discover(request: RunRequest) -> Discovery:
    """Find tonight's input and check it against the job. Writes nothing.

    Raises:
        JobError: nothing to score, or job, input, output and model do not fit together.
    """
    check_without_input(request)
    discovery = discover_input(request.storage, request.job)
    check_columns(request.job, discovery.schema, discovery.files["uri"].slice(0, _FILES).to_pylist())
    return discovery


def plan(request: RunRequest, discovery: Discovery) -> RunPlan:
    """Plan what would be scored, and say what the ledger already has. Writes nothing.

    Raises:
        JobError: a table of the job's cannot be written, or cannot take the columns.
    """
    targets.check(request.storage, request.job, discovery.schema)
    identity = identity_of(request, discovery.schema)
    newest = revs.newest_revision(request.storage, request.run_uri)
    known = newest if revs.planned_by(newest) == identity.fingerprint and not request.fresh else None
    previous = known.plan() if known else None
    made = make_plan(discovery, request.job, identity.fingerprint, previous).limited(request.limit)
    state = newest.state if newest and not request.fresh else None
    return RunPlan(made, state, why_again(request, identity, made, newest))


def score(request: RunRequest, discovery: Discovery, listeners: Sequence[Listener] = ()) -> Scored:
    """Score every shard without a receipt in the ledger.

    Raises:
        Held: Another writer holds the run.
        JobError, ClusterError: Preflight found something that must be changed first.
        GateFailed: There is too little input, or too much; nothing was scored.
        RunFailed: Some shards have no result; the others are committed.
    """
    began, told_of, watch = time.time(), Listeners(listeners), Stopwatch("plan")
    identity = identity_of(request, discovery.schema)
    newest, now = _caught_up(request)
    number = number_for(newest, request, now)
    if newest and newest.sealed and _is_complete(request, discovery, newest, identity.fingerprint):
        return replace(_finished(request, newest), took=watch.claim())
    targets.check(request.storage, request.job, discovery.schema)
    check_not_taken_back(request, newest, number, identity.fingerprint)
    if newest and not newest.sealed and number != newest.number:
        retire(request, newest)
    uri = revs.revision_uri(request.run_uri, number)
    seen = newest if newest and number == newest.number else None
    with leased(request, uri, "score", keep=True, seen=seen) as writer, opened(request.engine) as engine:
        if writer.state.intent is not None:
            raise Held("another writer published this run while this command began; repeat it to see what is left")
        made = plan_in(request, writer, uri, discovery, identity, newest)
        progress = writer.state.progress
        assert writer.state.planned is not None
        spec = worker_spec(
            request,
            discovery.schema,
            revision=uri,
            epoch=writer.epoch,
            segment=writer.state.number,
            rows=None if made.uncounted or request.job.input.where else made.rows,
            described=writer.state.planned.described,
        )
        campaign = Campaign(made, spec, engine, writer, identity.fingerprint, told_of, watch)
        told_of.progress(progress)
        gates.enforce(judge_input(request.storage, request.job, request.date, discovery))
        with watch.during("load"):
            loaded = _preflight(engine, spec, made, writer, told_of)
        keep_external_reads(request.job, loaded, told(request, loaded), writer)
        campaign.run()
        watch.turn_to("close")
        started = (campaign.first_event_at or time.time()) - began
        scored = Scored(
            number,
            writer.epoch,
            progress,
            device=loaded.device,
            startup_s=started,
            warnings=writer.state.about.notes(progress.counts.batches_cut, progress.ceilings),
            again=writer.state.about.again,
            workers=campaign.workers,
        )
    return replace(scored, took=watch.claim())


def _caught_up(request: RunRequest) -> tuple[revs.Revision | None, publish.Snapshot | None]:
    """Claim the run for this command, and finish what earlier ones left undone.

    Returns the run's newest revision; if it has none yet, what readers see now.
    """
    claim(request)
    for snapshot in request.scoring.snapshots:
        keep(request.storage, request.output, snapshot)
    newest = revs.newest_revision(request.storage, request.run_uri)
    settled = newest is not None and finish_publication(request, newest)
    now = publish.newest(request.storage, request.output) if newest is None else None
    # An earlier command may have published and ended before this. If it fails now, this run's publication reports it.
    date = request.date if settled else None
    latest_view.refresh(request.storage, request.output, request.job.name, date, now=now, behind=True)
    commit_tables(request)
    return newest, now


def was_published(request: RunRequest) -> bool:
    """Whether the run's newest revision is published and finished, so that there may be nothing left to score."""
    number = 0 if request.fresh else revs.newest_number(request.storage, request.run_uri)
    return number > 0 and revs.is_finished(request.storage, request.run_uri, number)


def nothing_to_score(request: RunRequest, discovery: Discovery) -> bool:
    """Whether `score` would find everything done: the newest revision is published, and what this run would make."""
    newest = revs.newest_revision(request.storage, request.run_uri)
    if newest is None or not newest.sealed:
        return False
    return _is_complete(request, discovery, newest, identity_of(request, discovery.schema).fingerprint)


def told(request: RunRequest, loaded: Loaded) -> list[str]:
    """What preflight found and a person should know, whether or not the run goes on."""
    on_cpu = request.job.resources.gpus > 0 and loaded.device == "cpu"
    lost = (
        "resources.gpus reserves GPUs, but the model runs on the CPU; `nightjar doctor` on that node says which GPUs "
        "the frameworks find there"
    )
    return [*([lost] if on_cpu else []), *loaded.notes]


def _is_complete(request: RunRequest, discovery: Discovery, newest: revs.Revision, fingerprint: str) -> bool:
    """Whether the newest, published revision equals what this run would make."""
    if request.fresh or revs.planned_by(newest) != fingerprint:
        return False
    previous = newest.plan()
    wanted = make_plan(discovery, request.job, fingerprint, previous).limited(request.limit)
    if set(wanted.ids()) != newest.state.committed & set(wanted.ids()) or previous is None:
        return False
    return set(previous.ids()) == set(wanted.ids()) and _counted_alike(request, newest)


def _counted_alike(request: RunRequest, newest: revs.Revision) -> bool:
    """Whether the figures of a published revision are of the accumulators as they are now. If not, the run makes a
    revision that takes over all results, and their figures are made anew.
    """
    if not request.job.accumulators:
        return True
    assert newest.state.intent is not None
    found = read_manifest(request.storage, request.output, newest.state.intent.published).metrics.accumulators
    now = {name: (uses, request.scoring.counting) for name, uses in request.job.accumulators.items()}
    return {name: (each.uses, each.code) for name, each in found.items()} == now


def _finished(request: RunRequest, newest: revs.Revision) -> Scored:
    """The result of the step for a published revision to which nothing has to be added."""
    assert newest.state.intent is not None
    entry = newest.state.intent.published
    manifest = read_manifest(request.storage, request.output, entry)
    totals = manifest.totals
    progress = Progress(
        shards=totals.shards,
        rows=totals.rows_in,
        done_shards=totals.shards,
        counts=NO_COUNTS + totals,
        ceilings=totals.ceilings,
        usage=totals.usage,
        usage_before=totals.usage,
        reused_shards=totals.shards,
        reused_rows=totals.rows_in,
    )
    notes = manifest.remarks().notes(progress.counts.batches_cut, progress.ceilings)
    # What readers see is published, also where the storage did not let the ledger say so.
    published = newest.state.published or newest.state.intent
    return Scored(newest.number, newest.state.epoch, progress, entry, published.number, warnings=notes)


def _preflight(engine: Engine, spec: WorkerSpec, made: Plan, writer: LedgerWriter, listeners: Listeners) -> Loaded:
    """Try labels and model, unless nothing is left to score."""
    left = next((shard for shard in made.shards() if shard.id not in writer.state.committed), None)
    if left is None:
        return Loaded("")
    places = samples(made)
    check_labels(spec.storage, spec.job, spec.schema, places, all_alike=True)
    engine.check_capacity(spec.job)
    writer.append([Doing("load")])
    listeners.progress(writer.state.progress)
    return engine.preflight(spec, places)


_BEFORE = (
    ". This run has results that were scored in this way. After a change of code, model or job they are scored again; "
    "after any other change, only with --fresh"
)


def keep_external_reads(job: Job, loaded: Loaded, notes: Sequence[str], writer: LedgerWriter) -> None:
    """Keep in the ledger what preflight noticed beyond the run's identity, or refuse it if the job is strict.

    notes: preflight's other notes.

    Raises:
        JobError: The job is strict, and something was noticed now, or while the run's results were scored.
    """
    about = writer.state.about
    refuse_external_reads(job, loaded.outside)
    refuse_external_reads(job, about.outside.all(), _BEFORE)
    lines: list[Line] = [*about.noticed(loaded.outside)]
    # If nothing is left to score, nothing was loaded.
    if loaded.packages and loaded.packages != about.tried:
        lines.append(Packages(loaded.packages))
    if loaded.packages and tuple(notes) != about.preflight:
        lines.append(Preflight(tuple(notes)))
    if lines:
        writer.append(lines)


def refuse_external_reads(job: Job, outside: Iterable[Seen], also: str = "") -> None:
    """Refuse a strict job if something was noticed. also: added to the message.

    Raises:
        JobError: Something was noticed; the message lists it.
    """
    if job.identity.strict and (found := [seen for seen in outside if seen.kind not in UNSURE]):
        raise JobError(f"identity: strict: {'; '.join(sentences(found))}{also}")
