"""What follows scoring: `validate` proves the cover from the files written, judges the gates and writes the manifest;
`publish_run` makes the revision visible, in one atomic act.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.engine import auditing, opened
from nightjar.inference.engine.protocol import Engine
from nightjar.inference.errors import AuditFailed, Held, RunFailed, ShardsFailed, StorageError, TakenBack, Unanswered
from nightjar.inference.identity.identity import verify_packages
from nightjar.inference.identity.snapshots import verify
from nightjar.inference.input.plan import Discovery, Plan
from nightjar.inference.jsonform import of_json
from nightjar.inference.ledger.endings import failed_gate, utc
from nightjar.inference.ledger.epochs import LedgerWriter
from nightjar.inference.ledger.lines import Published, Question, Revoked, question_name
from nightjar.inference.messages import counted_of
from nightjar.inference.metrics.figures import AccumulatorFigures, Figures
from nightjar.inference.output import latest_view, outcomes, targets
from nightjar.inference.output import publications as publish
from nightjar.inference.output import revisions as revs
from nightjar.inference.output.rowindex import NightIndex
from nightjar.inference.records import Counts
from nightjar.inference.run import waiting
from nightjar.inference.run.lease import leased
from nightjar.inference.run.request import RunRequest, identity_of, worker_spec
from nightjar.inference.run.results import Publication, Scored, Verdict
from nightjar.inference.run.reuse import check_sources, row_reuse
from nightjar.inference.run.user_code import answers
from nightjar.inference.scoring.accumulating import accumulated
from nightjar.inference.stopwatch import Stopwatch
from nightjar.inference.validation import gates
from nightjar.inference.validation.audit import MAX_FINDINGS, Audited, check_plan_covers
from nightjar.inference.validation.evidence import baselines, found, night_before
from nightjar.inference.validation.gates import NightEvidence
from nightjar.inference.validation.gates.rules import gates_of
from nightjar.inference.validation.indexing import indexed
from nightjar.inference.validation.manifest import read_manifest, write_manifest
from nightjar.inference.validation.rescore import Rescored, sample
from nightjar.inference.validation.unique import repeated, unique_checks
from nightjar.inference.validation.violating_rows import with_replays

T = TypeVar("T")


def validate(request: RunRequest, scored: Scored, discovery: Discovery) -> Verdict:
    """Prove the cover from the files written, judge the gates, and write the manifest.

    Raises:
        AuditFailed: The files do not prove that every row is there exactly once.
        GateFailed: A gate did not pass. The manifest, which nothing publishes, has what the gates saw.
    """
    watch = Stopwatch("audit")
    uri = revs.revision_uri(request.run_uri, scored.revision)
    if scored.published is not None:
        return replace(verdict_of(request, scored.published, scored.epoch), took=watch.claim())
    with (
        leased(request, uri, "validate", keep=request.publish, after=scored.epoch) as writer,
        opened(request.engine) as engine,
    ):
        made = revs.read_plan(request.storage, uri, writer.state, request.limit)
        assert made is not None
        if writer.state.approved:
            # What a person has approved is published as that person saw it.
            assert writer.state.question is not None
            return replace(verdict_of(request, writer.state.question.published, writer.epoch), took=watch.claim())
        table = outcomes.outcomes(made, writer.ledger, writer.state)
        if absent := outcomes.missing(table):
            raise ShardsFailed(f"{counted_of(absent, len(made), 'shard')} no result")
        storage, job = request.storage, request.job
        audited = _last(auditing.audited(engine, storage, uri, job, table), writer, Audited())
        _check_cover(request, made, discovery, audited, _revoke(writer, table, audited))
        spec = worker_spec(request, discovery.schema, revision=uri, epoch=writer.epoch)
        rescored, own, pairs = None, dict[str, AccumulatorFigures](), dict[str, gates.Repeated]()
        with watch.during("rescore"):
            if job.rescore.share and table.num_rows:
                again = sample(table, job.rescore.share, uri)
                rescored = _last(engine.rescore(spec, again), writer, Rescored())
        watch.turn_to("gates")
        amount = found(storage, job, request.date, discovery, None if request.limit else audited.counts.rows_in)
        if job.accumulators:
            own = _last(accumulated(engine.each, spec, table), writer, own)
        if unique_checks(job):
            pairs = _last(repeated(engine.each, storage, uri, job, table, audited.spills), writer, pairs)
        shown = replace(audited.metrics.results(), accumulators=own)
        others = baselines(storage, job, request.date)
        evidence = replace(
            collected(request, amount, audited, table, others), rescored=rescored, accumulators=own, repeated=pairs
        )
        if job.calls():
            evidence = replace(evidence, called=answers(request, _night(request, audited, shown)))
            writer.check()
        results = gates.evaluate(gates_of(job), evidence)
        watch.turn_to("manifest")
        index = _last(_index(request, discovery, engine, writer, uri, table, audited), writer, None)
        reused = outcomes.reused(table, job, index.row_s if index else 0.0)
        try:
            _check_kept(request)
            identity = identity_of(request, discovery.schema)
            run = job, request.run_id, request.date, scored.revision, identity, request.scoring.judging
            published, shards = write_manifest(
                *run, writer, uri, table, audited, shown, results, rescored, discovery.left_out, reused, index
            )
        except (StorageError, RunFailed):
            gates.enforce(results)  # whoever is called must learn first what the gates found
            raise
        gates.enforce(results)
        question = _ask(request, writer, published, results)
        verdict = Verdict(published, writer.epoch, results, shown, shards, reused, question)
    return replace(verdict, took=watch.claim())


def _index(
    request: RunRequest,
    discovery: Discovery,
    engine: Engine,
    writer: LedgerWriter,
    uri: str,
    table: pa.Table,
    audited: Audited,
) -> Generator[NightIndex | None, None, None]:
    """Make the index of the rows, if the job reuses rows. Yields None on a tick, and the index at the end. If few
    rows were scored, it has the earlier night's time for a row.
    """
    reuse = row_reuse(request, writer.state, discovery.schema)
    if reuse is None:
        return
    steps = indexed(engine.each, request.storage, uri, request.job, table, audited.runs, reuse.identities, writer.epoch)
    for made in steps:
        if made is not None and not made.row_s and reuse.index is not None:
            yield replace(made, row_s=reuse.index.row_s)
        else:
            yield made


def _check_kept(request: RunRequest) -> None:
    """Check that what scored is still what the run has kept of it."""
    for snapshot in request.scoring.snapshots:
        verify(request.storage, snapshot)
    verify_packages(request.job, request.scoring)


def _ask(
    request: RunRequest, writer: LedgerWriter, published: Published, results: tuple[gates.GateResult, ...]
) -> Question | None:
    """Ask a person in the ledger, if a gate says so and the run is to be published."""
    asking = tuple(map(failed_gate, gates.asking(results)))
    if not asking or not request.publish:
        return None
    question = Question(published, asking, utc(), utc(request.job.approval.deadline_h), request.flow_run)
    writer.append([question])
    return question


def _night(request: RunRequest, audited: Audited, shown: Figures) -> NightEvidence:
    """What the user's own checks are shown."""
    return NightEvidence(
        job=request.job.name,
        run_id=request.run_id,
        date=request.date,
        shards=audited.shards,
        **audited.counts.by_name,
        metrics=shown,
        last=night_before(request.storage, request.job, request.date),
    )


def _last(steps: Generator[T | None, None, None], writer: LedgerWriter, found: T) -> T:
    """What the last step of the work found, while no other writer holds the run. found: what there is without any."""
    with closing(steps):  # the error keeps it, and it would go on
        for step in steps:
            writer.check()
            found = found if step is None else step
    return found


def _revoke(writer: LedgerWriter, table: pa.Table, audited: Audited) -> int:
    """Revoke the receipts of shards with damaged parts, so that they are scored again. Returns their number."""
    damaged = table.filter(pc.is_in(table["shard"], value_set=pa.array(audited.damaged, pa.string())))
    if damaged.num_rows:
        writer.append([_revocation(line, audited.damaged[line["shard"]]) for line in outcomes.lines(damaged)])
    return len(damaged)


def _revocation(line: dict[str, Any], why: str) -> Revoked:
    uri = line["pieces"][0]["uri"]
    return Revoked(line["shard"], line["attempt"], "PartDamaged", why, uri=uri, counts=of_json(Counts, line))


def _check_cover(request: RunRequest, made: Plan, discovery: Discovery, audited: Audited, revoked: int) -> None:
    """The audit's verdict, shard by shard and over the whole plan."""
    findings = [f"shard {shard}: {why}" for shard, why in islice(audited.damaged.items(), MAX_FINDINGS)]
    problems = audited.problems
    if not request.limit:
        files = dict(
            zip(discovery.files["uri"].to_pylist(), map(sum, discovery.files["rows"].to_pylist()), strict=True)
        )
        wrong = check_plan_covers(outcomes.lines(made.table), files)
        findings, problems = findings + wrong, problems + len(wrong)
    counts = audited.counts
    if counts.rows_in != counts.rows_out + counts.rows_quarantined:
        problems += 1
        findings.append(f"{counts.rows_in} rows in, {counts.rows_out} out, {counts.rows_quarantined} quarantined")
    if audited.shards != len(made) and not problems:
        problems, findings = 1, [f"{audited.shards} of {len(made)} shards were audited"]
    if problems:
        again = "this shard" if revoked == 1 else f"these {revoked} shards"
        mend = f". Repeat the command: it scores {again} again" if revoked else ""
        raise AuditFailed(
            f"the files written do not prove the cover, {problems} findings: {'; '.join(findings)}{mend}", revoked
        )


def verdict_of(request: RunRequest, entry: Published, epoch: int) -> Verdict:
    """The verdict of an earlier command, from its manifest. epoch: of who takes it over."""
    manifest = read_manifest(request.storage, request.output, entry)
    shards = f"runs/{request.run_id}/r{entry.revision}/{manifest.shards.file}"
    return Verdict(entry, epoch, manifest.gates, manifest.metrics, shards, manifest.reused)


def collected(
    request: RunRequest,
    found: gates.Found,
    audited: Audited,
    table: pa.Table,
    others: Mapping[str, gates.Baseline],
) -> gates.Evidence:
    """The evidence, without what has its own step: rescored shards, repeated keys, answers of the user's checks.

    table: the lines of `outcomes.OUTCOMES` of the shards that were audited. others: as `evidence.baselines`.
    """
    return gates.Evidence(
        found,
        shards=table.num_rows,
        **audited.counts.by_name,
        metrics=audited.metrics,
        offenders=with_replays(request.job_path, request.words, table, audited.offenders),
        usage=outcomes.usage(table),
        baselines=others,
    )


def publish_run(request: RunRequest, scored: Scored, verdict: Verdict) -> Publication:
    """Make the revision visible, in one atomic act.

    Raises:
        Held: another writer has taken the run over since it was validated.
        Unanswered: a gate asks a person, who has not said yes.
        TakenBack: there was nothing to score, and a person took back what was published of it.
    """
    began, entry = time.time(), verdict.published
    if scored.finished:
        check_visible(request, entry)
        waiting.forget_failure(request)
        return shown_everywhere(request, entry, began, scored.number)
    if not request.publish:
        return Publication(entry.revision, 0, entry.manifest, time.time() - began)
    if verdict.question is not None:
        raise unanswered(verdict)
    uri = revs.revision_uri(request.run_uri, entry.revision)
    with leased(request, uri, "publish", keep=False, after=verdict.epoch) as writer:
        if gates.asking(verdict.gates) and not writer.state.approves(entry):
            raise unanswered(verdict)
        made = make_visible(request, writer, entry)
    return shown_everywhere(request, entry, began, *made)


def unanswered(verdict: Verdict) -> Unanswered:
    """The error of a run that must not be published before a person has said yes."""
    said = "; ".join(map(gates.told, gates.asking(verdict.gates)))
    return Unanswered(said, verdict.gates, question_name(verdict.published.checksum))


def make_visible(request: RunRequest, writer: LedgerWriter, entry: Published) -> tuple[int, str]:
    """Publish a revision under this lease.

    Returns the number of the snapshot, and why sweeping failed though readers see the revision.

    Raises:
        TakenBack: Results that it took over were taken back meanwhile.
    """
    uri = revs.revision_uri(request.run_uri, entry.revision)
    made = revs.read_plan(request.storage, uri, writer.state)
    assert made is not None
    unfinished, before = "", writer.state.published
    if writer.state.intent is None:
        check_sources(request, writer.ledger, writer.state)
    try:
        number = before.number if before else publish.publish(writer, request.output, request.run_id, entry)
        # Sweep only now, when no later plan can need a part, whoever continues and whenever this writer wakes up.
        revs.sweep(writer, uri, made)
        revs.mark_success(writer, uri, number, entry.manifest)
    except StorageError as error:
        # What readers see decides. The next command does what is left to do: `finish_publication`.
        intent = writer.state.intent
        if intent is None or publish.shown(request.storage, request.output, request.run_id) != entry:
            raise
        number, unfinished = intent.number, str(error)
    return number, unfinished


def finish_publication(request: RunRequest, newest: revs.Revision) -> bool:
    """Finish a publication that was begun, because before that nobody knows what readers will see.

    Returns whether there was one.
    """
    if newest.state.intent is None or newest.success is not None:
        return False
    with leased(request, newest.uri, "publish", keep=False, seen=newest) as writer:
        intent = writer.state.intent
        if intent is None:
            raise Held("this run was deleted while this command began; repeat it to see what is left")
        read_manifest(request.storage, request.output, intent.published)  # readers are not led to a damaged one
        make_visible(request, writer, intent.published)
    return True


def shown_everywhere(
    request: RunRequest, entry: Published, began: float, number: int, unfinished: str = ""
) -> Publication:
    """Commit what is published to the job's tables, and lead readers to it. began: when this began, in epoch seconds;
    the others are as in `Publication`.
    """
    left = commit_tables(request)
    behind = latest_view.refresh(request.storage, request.output, request.job.name, request.date)
    return Publication(entry.revision, number, entry.manifest, time.time() - began, unfinished, behind, left)


def commit_tables(request: RunRequest, dates: Collection[str] = ()) -> tuple[str, ...]:
    """Commit what is published to the job's tables. Returns a sentence for each table that could not be changed, and
    for each night that a table does not show, as `targets.commit` for a command about these dates, by default the
    request's.
    """
    return tuple(targets.commit(request.storage, request.output, request.job.output.tables, dates or {request.date}))


def check_visible(request: RunRequest, entry: Published) -> None:
    """Check that readers see this revision, which was published before.

    Raises:
        TakenBack: They do not.
    """
    shown = publish.shown(request.storage, request.output, request.run_id)
    if shown is None or shown.checksum != entry.checksum:
        raise TakenBack(
            f"r{entry.revision} of the run {request.run_id!r} was published before and rolled back or unpublished "
            "since: nothing was scored, and readers do not see it",
            request.run_id,
        )
