"""What a run begins with: the output that it owns, the revision that it continues, the results that it takes over; and
whether that leaves anything to score.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import replace
from typing import Any

from nightjar.inference.errors import AlreadyExists, Damaged, JobError, Missing, TakenBack
from nightjar.inference.identity.identity import Identity, read_identity
from nightjar.inference.input.plan import Discovery, Plan, make_plan
from nightjar.inference.job.model import Job
from nightjar.inference.job.modeljob import mapping
from nightjar.inference.ledger.epochs import LedgerWriter
from nightjar.inference.ledger.holders import RETIRE
from nightjar.inference.ledger.ledger import State
from nightjar.inference.ledger.lines import Planned
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.metrics.profile import share_of
from nightjar.inference.output import publications as publish
from nightjar.inference.output import revisions as revs
from nightjar.inference.output import targets
from nightjar.inference.output.owner import claim_output, naming_output
from nightjar.inference.records import NO_COUNTS
from nightjar.inference.run.lease import leased
from nightjar.inference.run.request import RunRequest, identity_of, record_run
from nightjar.inference.run.results import RunPlan, Scored
from nightjar.inference.storage.lake import probe_conditional_writes
from nightjar.inference.storage.protocol import Storage, join, read_control, same_version
from nightjar.inference.validation.manifest import read_manifest


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
    source, source_plan = _with_plan(_source(request, state, newest))
    before = state.planned or (source.state.planned if source else None)
    kept = previous or source_plan if before and before.fingerprint == fingerprint else None
    made = make_plan(discovery, request.job, fingerprint, kept).with_splits(state.splits, fingerprint)[0]
    wanted, limit = made.limited(request.limit), request.limit or 0
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
        have = writer.state.committed | (source.state.committed if source else set())
        again = tuple[str, ...]()
        with suppress(Missing):  # the revision before may be deleted meanwhile
            again = why_again(request, identity, wanted, newest, have)
        taken = source.number if source else 0
        line = Planned(
            file=name,
            fingerprint=fingerprint,
            date=request.date,
            identity=scored_by,
            adopts=taken,
            again=again,
            snapshot=discovery.snapshot,
            described=_described(request.job, fingerprint, wanted, before),
            limit=limit,
        )
        writer.append([_counted(line, writer, wanted, request.job)])
    elif writer.state.planned is not None and writer.state.planned.limit != limit:
        line = replace(writer.state.planned, limit=limit, again=())
        writer.append([_counted(line, writer, wanted, request.job)])
    if source is not None and source_plan is not None:
        revs.adopt(writer, uri, made, source, source_plan, states_beside=request.job.states_beside)
    return wanted


def _described(job: Job, fingerprint: str, made: Plan, before: Planned | None) -> float:
    """The share of the rows whose columns are described. before: the plan whose results are taken over.

    Results of one fingerprint are merged, so they all have the share that was decided first, however the input grows.
    """
    if job.profile.share is not None:
        return job.profile.share
    if before is not None and before.fingerprint == fingerprint:
        return before.described
    uncounted = made.uncounted or job.input.where
    return share_of(None if uncounted or not job.profiling else made.rows)


def identity_of_plan(storage: Storage, uri: str, state: State) -> Identity | None:
    """The identity of a revision's plan; None without a plan."""
    if state.planned is None or not state.planned.identity:
        return None
    remedy = "restore it, or score the run anew with --fresh; `nightjar replay … --live` does without it"
    return read_control(storage, join(uri, state.planned.identity), read_identity, "what scored a run", remedy)


def why_again(
    request: RunRequest, identity: Identity, made: Plan, newest: revs.Revision | None, have: Set[str] = frozenset()
) -> tuple[str, ...]:
    """Why shards with a result are scored again, in words, with their number.

    newest: the revision before this plan. have: the shards that still have a result.
    """
    if newest is not None and not newest.state.committed and newest.number > 1:
        # This revision was begun before, and ended without any result.
        newest = revs.read_revision(request.storage, request.run_uri, newest.number - 1)
    if newest is None or newest.state.planned is None or not newest.state.committed or request.fresh:
        return ()
    planned = newest.state.planned.fingerprint
    if planned == identity.fingerprint:
        return _changed_input(made, newest)
    before = identity_of_plan(request.storage, newest.uri, newest.state)
    old = len(set(made.ids()) - newest.state.committed - have)
    if before is None or not old:
        return ()
    return (_scored_again(summed(differences(before, identity)), old, len(made)),)


def _changed_input(made: Plan, newest: revs.Revision) -> tuple[str, ...]:
    """The files whose shards differ from those of the previous plan."""
    assert newest.state.planned is not None
    before = newest.plan()
    assert before is not None
    ids = set(before.ids())
    new = [shard.pieces for shard in made.shards() if shard.id not in ids]
    if not new:
        return ()
    wanted = {piece.uri for pieces in new for piece in pieces}
    pieces = (piece for shard in before.shards() for piece in shard.pieces if piece.uri in wanted)
    then = {piece.uri: piece for piece in pieces}
    what = {
        piece.uri: f"{piece.uri.rsplit('/', 1)[-1]} {'changed' if piece.uri in then else 'is new'}"
        for pieces in new
        for piece in pieces
        if (old := then.get(piece.uri)) is None
        or (piece.size, same_version(piece.version, old.version)) != (old.size, True)
    }
    return (_scored_again(summed(list(what.values())) or "files are put together otherwise", len(new), len(made)),)


def _scored_again(what: str, shards: int, of: int) -> str:
    return f"{what}: {shards:,} of {of:,} shards {'is' if shards == 1 else 'are'} scored again"


def _state_of(newest: revs.Revision | None, number: int) -> State:
    """The state of the revision of this number, which is the newest one or is yet to begin."""
    return newest.state if newest is not None and newest.number == number else State()


def _source(request: RunRequest, state: State, newest: revs.Revision | None) -> revs.Revision | None:
    """The published revision whose results may be taken over. It is chosen when a revision begins, and then stays.

    One that was begun with `--fresh` takes over none, whoever continues it.
    """
    if state.planned is not None:
        if not (adopts := state.planned.adopts):
            return None
        found = revs.read_revision(request.storage, request.run_uri, adopts)
        return found if found.state.planned is not None else None  # somebody removed it: its shards are scored again
    if newest is None or request.fresh or any(writer.fresh for _, writer in state.openers):
        return None
    if not newest.sealed and newest.number > 1:
        # It was begun before, and killed before it had a plan.
        newest = revs.read_revision(request.storage, request.run_uri, newest.number - 1)
    return newest if newest.state.intent is not None else None


def _with_plan(source: revs.Revision | None) -> tuple[revs.Revision | None, Plan | None]:
    """A revision and its plan. None without a plan: somebody deletes the revision, and its shards are scored again."""
    with suppress(Missing):
        return source, source.plan() if source is not None else None
    return None, None


def check_not_taken_back(request: RunRequest, newest: revs.Revision | None, number: int, fingerprint: str) -> None:
    """Check that the revision of this number would not publish results again that a person took back.

    Raises:
        TakenBack: It would.
    """
    if request.limit:  # never published
        return
    source = _source(request, _state_of(newest, number), newest)
    if source is None or source.state.planned is None or source.state.planned.fingerprint != fingerprint:
        return
    shown = publish.shown(request.storage, request.output, request.run_id)
    if shown is None or shown.revision != source.number:
        raise TakenBack(
            f"r{source.number} of the run {request.run_id!r} was published before and rolled back or unpublished "
            "since, and this run would publish its results again: nothing was scored, and readers do not see them. "
            f"`nightjar republish JOB {' '.join(request.words)}` shows r{source.number} again, --fresh scores "
            "everything anew"
        )


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


def differences(before: Identity, now: Identity) -> list[str]:
    """The differences in words, the most important first; empty if there are none."""
    found = [
        *_files("", before.code, now.code),
        *_files("model.path", before.model, now.model),
        *(
            f"{called(name)} changed" if name in before.packages else f"{called(name)} counts now, and did not before"
            for name, content in now.packages.items()
            if before.packages.get(name) != content
        ),
        *(f"{called(name)} does not count any more" for name in before.packages if name not in now.packages),
        *_keys(_plain(before.job), _plain(now.job)),
    ]
    if _plain([before.columns, before.kept]) != _plain([now.columns, now.kept]) and not found:
        found.append("the columns of the input changed")
    return found


def called(name: str) -> str:
    """A package, or a file or folder whose content counts like that of one."""
    return name if "/" in name else f"package {name}"


def _files(key: str, before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    prefix = f"{key} " if key else ""
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            what = "changed" if name in before and name in now else "is new" if name in now else "is gone"
            yield f"{prefix}{name}".strip() + f" {what}"


def _keys(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key in sorted({*before, *now}):
        old, new = before.get(key), now.get(key)
        inner_old, inner_new = mapping(old), mapping(new)
        if inner_old is not None and inner_new is not None:
            inner = list(_keys(inner_old, inner_new, f"{prefix}{key}."))
            yield from inner or ([f"{prefix}{key} has another order in the job"] if old != new else [])
        elif old != new:
            # The columns that a pattern names may have changed in the input.
            yield "the carried columns changed" if prefix + key == "carry" else f"{prefix}{key} changed in the job"


_SHOWN = 5


def summed(found: list[str]) -> str:
    """The first few items, and the number of the others, for one line."""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


def _plain(value: Any) -> Any:
    """The value as it comes back from storage, where tuples are lists."""
    return json.loads(json.dumps(value))


def was_published(request: RunRequest) -> bool:
    """Whether the run's newest revision is published and finished, so that there may be nothing left to score."""
    number = 0 if request.fresh else revs.newest_number(request.storage, request.run_uri)
    return number > 0 and revs.is_finished(request.storage, request.run_uri, number)


def nothing_to_score(request: RunRequest, discovery: Discovery) -> bool:
    """Whether `score` would find everything done: the newest revision is published, and what this run would make."""
    newest = revs.newest_revision(request.storage, request.run_uri)
    if newest is None or not newest.sealed:
        return False
    return is_complete(request, discovery, newest, identity_of(request, discovery.schema).fingerprint)


def is_complete(request: RunRequest, discovery: Discovery, newest: revs.Revision, fingerprint: str) -> bool:
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


def finished(request: RunRequest, newest: revs.Revision) -> Scored:
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
