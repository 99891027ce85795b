"""What a run begins with: the output that it owns, the revision that it continues, its plan; and whether that leaves
anything to score.
"""

from __future__ import annotations

from dataclasses import replace

from nightjar.inference.engine.auditing import FEW_SHARDS, is_small
from nightjar.inference.errors import AlreadyExists, Damaged, JobError, NightjarError
from nightjar.inference.identity.identity import Identity
from nightjar.inference.input.plan import Discovery, Plan, make_plan
from nightjar.inference.job.model import Job
from nightjar.inference.ledger.epochs import LedgerWriter
from nightjar.inference.ledger.holders import RETIRE
from nightjar.inference.ledger.ledger import State
from nightjar.inference.ledger.lines import Planned
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.ledger.remarks import Remarks
from nightjar.inference.metrics.profile import share_of
from nightjar.inference.output import publications as publish
from nightjar.inference.output import revisions as revs
from nightjar.inference.output import targets
from nightjar.inference.output.outcomes import outcomes
from nightjar.inference.output.owner import claim_output, naming_output
from nightjar.inference.records import NO_COUNTS
from nightjar.inference.run.lease import leased
from nightjar.inference.run.request import RunRequest, identity_of, record_run
from nightjar.inference.run.results import RunPlan, Scored
from nightjar.inference.run.reuse import EarlierNights, Source, rows_from, source_of, why_again
from nightjar.inference.storage.lake import probe_conditional_writes
from nightjar.inference.storage.protocol import join
from nightjar.inference.validation.manifest import Manifest, read_manifest


def claim(request: RunRequest) -> None:
    """Claim the output, and check that its storage honours create-if-absent, on which everything relies."""
    claim_output(request.storage, request.output, request.job.name)
    record_run(request)
    probe_output(request)


def probe_output(request: RunRequest) -> None:
    """Check that the output's storage takes files, and honours create-if-absent.

    Raises:
        JobError: it does not; names `output.uri`.
    """
    if request.job.output.single_writer:
        return
    with naming_output(request.output):
        honours = probe_conditional_writes(request.storage, request.output)
    if not honours:
        raise JobError(
            f"output.uri: the storage behind {request.output} ignores create-if-absent (If-None-Match), so two runs "
            "could overwrite each other; use another one, or set output.single_writer: true if nothing else ever "
            "runs this job"
        )


def plan(request: RunRequest, discovery: Discovery) -> RunPlan:
    """Plan what would be scored, and say what the ledger already has, and what is taken over. Writes nothing.

    Raises:
        JobError: a table of the job's cannot be written, or cannot take the columns.
    """
    targets.check(request.storage, request.job, discovery.schema, request.date)
    identity = identity_of(request, discovery.schema)
    newest = revs.newest_revision(request.storage, request.run_uri)
    state = newest.state if newest and not request.fresh else State()
    continued = State() if newest and newest.sealed else state  # then another revision would begin
    previous = newest.plan() if newest and continued.planned else None
    nights = EarlierNights(request)
    made, source, _ = _draft(request, discovery, identity.fingerprint, continued, newest, previous, nights)
    wanted = made = _limited(request, made, previous, newest.uri if newest else "", continued)
    again = tuple(why_again(request, identity, made, newest, source, nights))
    takes_over = source is not None and source.fingerprint == identity.fingerprint
    if not takes_over and not request.fresh and (source := nights.alike(identity.fingerprint)):
        wanted = make_plan(discovery, request.job, identity.fingerprint, source.plan).limited(request.limit)
    there = source.revision.state.committed if source is not None else frozenset()
    there = there - state.committed - continued.revoked.keys()  # what is revoked here is not taken over again
    alike = [max(shard.rows, 0) for shard in wanted.shards() if shard.id in there]
    rows = rows_from(request, continued, identity.fingerprint, discovery.schema, nights)
    return RunPlan(made, None if request.fresh else newest, again, source, takes_over, len(alike), sum(alike), rows)


def _draft(
    request: RunRequest,
    discovery: Discovery,
    fingerprint: str,
    state: State,
    newest: revs.Revision | None,
    previous: Plan | None,
    nights: EarlierNights,
) -> tuple[Plan, Source | None, Planned | None]:
    """The plan of a revision, without a limit; whose results it takes over; and the ledger's line of the plan whose
    shards are kept where their files did not change.

    state: of the ledger of the revision. newest: of the run. previous: the newest plan of the revision itself.
    """
    source = source_of(request, state, newest, fingerprint, nights)
    kept, before = None, None
    if state.planned is not None and state.planned.fingerprint == fingerprint:
        kept, before = previous, state.planned
    elif source is not None and source.fingerprint == fingerprint:
        kept, before = source.plan, source.revision.state.planned
    made = make_plan(discovery, request.job, fingerprint, kept)
    return made.with_splits(state.splits, fingerprint)[0], source, before


def _limited(request: RunRequest, made: Plan, previous: Plan | None, uri: str, state: State) -> Plan:
    """What is scored of the plan. Of the one that lies in the revision it is what `validate` finds there.

    previous: that one; None for none. uri, state: of the revision.
    """
    stays = request.limit and previous is not None and previous.table.equals(made.table)
    found = revs.read_plan(request.storage, uri, state, request.limit) if stays else None
    return made.limited(request.limit) if found is None else found


def number_for(newest: revs.Revision | None, request: RunRequest, now: publish.Snapshot | None) -> int:
    """The number of the revision to continue. newest: also one that is being deleted. now: what readers see, for a run
    that has no revision.
    """
    if newest is None:
        # A night that was published and then deleted continues after its published number, so that no number is used
        # twice.
        shown = now.runs.get(request.run_id) if now else None
        return shown.revision + 1 if shown else 1
    return newest.number + (newest.sealed or (request.fresh and not newest.begun_by(request.flow_run)))


def retire(request: RunRequest, newest: revs.Revision) -> None:
    """Leave an unfinished revision, but only if nobody is writing it, and so that no writer that wakes up can go on."""
    with leased(request, newest.uri, RETIRE, keep=False, seen=newest):
        pass


def plan_in(
    request: RunRequest,
    writer: LedgerWriter,
    uri: str,
    discovery: Discovery,
    identity: Identity,
    newest: revs.Revision | None,
) -> Plan:
    """Plan under this epoch, take over what an earlier revision has, and make both durable."""
    storage, state, fingerprint = writer.ledger.storage, writer.state, identity.fingerprint
    previous = revs.read_plan(storage, uri, state)
    nights = EarlierNights(request)
    made, source, before = _draft(request, discovery, fingerprint, state, newest, previous, nights)
    wanted, limit = _limited(request, made, previous, uri, state), request.limit or 0
    if previous is None or not previous.table.equals(made.table):
        name = f"plan-{writer.epoch:06d}.parquet"
        try:
            storage.create(join(uri, name), made.to_bytes())
        except AlreadyExists as error:
            # An epoch has one plan, so an earlier ledger named this one.
            raise Damaged(
                f"{writer.ledger.uri}: the ledger that named {name} is gone; restore it, or score the run anew with "
                "--fresh"
            ) from error
        scored_by = f"identity-{writer.epoch:06d}.json"
        storage.create(join(uri, scored_by), identity.to_bytes())
        line = Planned(
            file=name,
            fingerprint=fingerprint,
            date=request.date,
            identity=scored_by,
            adopts=source.revision.name if source and not set(source.plan.ids()).isdisjoint(made.ids()) else "",
            rows_from=rows_from(request, state, fingerprint, discovery.schema, nights),
            again=tuple(why_again(request, identity, wanted, newest, source, nights)),
            snapshot=discovery.snapshot,
            described=_described(request.job, wanted, before),
            limit=limit,
        )
        # The outputs of rows bring along what is known about how they were scored.
        known = state.remarks.get(fingerprint, Remarks()).lacking(nights.remarks(line.rows_from))
        writer.append([_counted(line, writer, wanted, request.job), *known])
    elif writer.state.planned is not None and writer.state.planned.limit != limit:
        line = replace(writer.state.planned, limit=limit, again=())
        writer.append([_counted(line, writer, wanted, request.job)])
    if source is not None:
        revs.adopt(writer, uri, wanted, source.revision, source.plan, states_beside=request.job.states_beside)
    return wanted


def _described(job: Job, made: Plan, before: Planned | None) -> float:
    """The share of the rows whose columns are described. before: the plan whose results are taken over.

    Results of one fingerprint are merged, so they all have the share that was decided first, however the input grows.
    """
    if job.profile.share is not None:
        return job.profile.share
    if before is not None:
        return before.described
    uncounted = made.uncounted or job.input.where
    return share_of(None if uncounted or not job.profiling else made.rows)


def _counted(line: Planned, writer: LedgerWriter, made: Plan, job: Job) -> Planned:
    """The ledger's line for this plan, with the plan's size and the totals that the ledger already has.

    With `input.where` no shard's rows are known before they are read: nobody knows which of them match.
    """
    wanted, done, counts = set(made.ids()) & writer.state.committed, 0, NO_COUNTS
    for receipt in writer.ledger.receipts(writer.state) if wanted else ():
        if receipt.shard in wanted:
            done, counts = done + 1, counts + receipt
    return replace(
        line,
        shards=len(made),
        rows=0 if job.input.where else made.rows,
        done_shards=done,
        uncounted=len(made) if job.input.where else made.uncounted,
        counts=counts,
    )


def was_published(request: RunRequest) -> bool:
    """Whether the run's newest revision is published and finished, so that there may be nothing left to score."""
    number = 0 if request.fresh else revs.newest_number(request.storage, request.run_uri)
    return number > 0 and revs.is_finished(request.storage, request.run_uri, number)


def may_be_idle(job: Job) -> bool:
    """Whether a night of the job may leave nothing for a cluster: it reuses results, and neither runs code of the
    user's after the scoring nor has anything installed for its processes.
    """
    return job.reuse is not None and not (job.rescore.share or job.beside() or job.resources.runtime_env.pip)


def needs_cluster(request: RunRequest, discovery: Discovery, *, there: bool) -> bool:
    """Whether anything is left to do that a cluster should do.

    If it is not, this process does the rest, and scores the shards of the few parts that it may find missing or damaged
    where they were to be taken over. there: whether a cluster is there already. Else it would have to start, and this
    process rather does a small audit itself.
    """
    if was_published(request):
        newest = revs.newest_revision(request.storage, request.run_uri)
        if manifest_if_complete(request, discovery, newest, identity_of(request, discovery.schema).fingerprint):
            return False
    if there or request.fresh or not may_be_idle(request.job):
        return True
    try:
        made = plan(request, discovery)
        if made.left or len(made.plan) > FEW_SHARDS:
            return True
        source = made.source.revision if made.source is not None and made.takes_over else None
        parts = (outcomes(made.plan, each.ledger, each.state) for each in (made.newest, source) if each is not None)
        return not all(map(is_small, parts))
    except NightjarError:
        return True  # the step that meets the error again knows whether the run can go on


def manifest_if_complete(
    request: RunRequest, discovery: Discovery, newest: revs.Revision | None, fingerprint: str
) -> Manifest | None:
    """The manifest of the newest revision, if that is published and equals what this run would make; else None.

    A revision that was judged by something else than the job judges with now does not: the run makes one that takes
    over all results, and is judged anew.
    """
    if newest is None or newest.state.intent is None or request.fresh or revs.planned_by(newest) != fingerprint:
        return None
    previous = newest.plan()
    wanted = set(make_plan(discovery, request.job, fingerprint, previous).limited(request.limit).ids())
    if previous is None or set(previous.ids()) != wanted or not wanted <= newest.state.committed:
        return None
    manifest = read_manifest(request.storage, request.output, newest.state.intent.published)
    return manifest if manifest.judging == request.scoring.judging else None


def finished(newest: revs.Revision, manifest: Manifest) -> Scored:
    """The result of the step for a published revision to which nothing has to be added. manifest: of the revision."""
    assert newest.state.intent is not None
    entry = newest.state.intent.published
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
