"""The first steps: `discover` finds tonight's input, and `score` scores every shard without a receipt in the ledger.

Each step that writes (`score`, `publishing.validate`, `publishing.publish_run`) opens an epoch, does its part, and
stops. The flow's tasks call them, and so may a plain script. They hand each other small frozen records; whatever
matters is in the ledger, so that any step may be repeated, by anybody, at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from nightjar.inference.engine import opened
from nightjar.inference.engine.protocol import Engine
from nightjar.inference.errors import Held
from nightjar.inference.identity.snapshots import keep
from nightjar.inference.input.plan import Discovery, Plan
from nightjar.inference.input.plan import discover as discover_input
from nightjar.inference.ledger.epochs import LedgerWriter
from nightjar.inference.ledger.lines import Doing
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.output import latest_view, targets
from nightjar.inference.output import publications as publish
from nightjar.inference.output import revisions as revs
from nightjar.inference.run.campaign import Campaign
from nightjar.inference.run.lease import leased
from nightjar.inference.run.publishing import commit_tables, finish_publication
from nightjar.inference.run.refusals import check_columns, check_labels, check_without_input, keep_external_reads, told
from nightjar.inference.run.request import RunRequest, identity_of, worker_spec
from nightjar.inference.run.results import Scored
from nightjar.inference.run.resume import claim, finished, manifest_if_complete, number_for, plan_in, retire
from nightjar.inference.run.reuse import check_not_taken_back, row_reuse
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.preflight import Loaded, samples
from nightjar.inference.stopwatch import Stopwatch
from nightjar.inference.validation import gates
from nightjar.inference.validation.evidence import judge_input

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


def score(request: RunRequest, discovery: Discovery, tell: Callable[[Progress], None] = lambda _: None) -> Scored:
    """Score every shard without a receipt in the ledger.

    tell: called once, with the run's own progress, which keeps changing while it scores.

    Raises:
        Held: Another writer holds the run.
        JobError, ClusterError: Preflight found something that must be changed first.
        GateFailed: There is too little input, or too much; nothing was scored.
        RunFailed: Some shards have no result; the others are committed.
    """
    began, watch = time.time(), Stopwatch("plan")
    identity = identity_of(request, discovery.schema)
    highest, now = _caught_up(request)
    number = number_for(highest, request, now)
    newest = revs.unless_removed(highest)
    if newest and (manifest := manifest_if_complete(request, discovery, newest, identity.fingerprint)):
        return replace(finished(newest, manifest), took=watch.claim())
    targets.check(request.storage, request.job, discovery.schema, request.date)
    check_not_taken_back(request, newest, number, identity.fingerprint)
    if newest and not newest.sealed and number != newest.number:
        retire(request, newest)
    uri = revs.revision_uri(request.run_uri, number)
    seen = newest if newest and number == newest.number else None
    with leased(request, uri, "score", keep=True, seen=seen) as writer, opened(request.engine) as engine:
        if writer.state.intent is not None or writer.state.removed:
            done = "deleted" if writer.state.removed else "published"
            raise Held(f"another writer {done} this run while this command began; repeat it to see what is left")
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
            reuse=row_reuse(request, writer.state, discovery.schema),
        )
        campaign = Campaign(made, spec, engine, writer, identity.fingerprint, watch)
        tell(progress)
        gates.enforce(judge_input(request.storage, request.job, request.date, discovery))
        with watch.during("load"):
            loaded = _preflight(engine, spec, made, writer)
        keep_external_reads(request.job, loaded, told(request, loaded), writer)
        campaign.run()
        watch.turn_to("close")
        started = max(0.0, campaign.first_event_at - began)
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

    Returns the run's newest revision, also one that is being deleted; if it has none yet, what readers see now.
    """
    claim(request)
    for snapshot in request.scoring.snapshots:
        keep(request.storage, request.output, snapshot)
    newest = revs.highest_revision(request.storage, request.run_uri)
    settled = newest is not None and finish_publication(request, newest)
    now = publish.newest(request.storage, request.output) if newest is None else None
    # An earlier command may have published and ended before this. If it fails now, this run's publication reports it.
    date = request.date if settled else None
    latest_view.refresh(request.storage, request.output, request.job.name, date, now=now)
    commit_tables(request)
    return newest, now


def _preflight(engine: Engine, spec: WorkerSpec, made: Plan, writer: LedgerWriter) -> Loaded:
    """Try labels and model, unless nothing is left to score."""
    left = next((shard for shard in made.shards() if shard.id not in writer.state.committed), None)
    if left is None:
        return Loaded("")
    places = samples(made)
    check_labels(spec.storage, spec.job, spec.schema, places, all_alike=True)
    engine.check_capacity(spec.job)
    writer.append([Doing("load")])
    return engine.preflight(spec, places)
