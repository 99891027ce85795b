"""The four steps of a run: discover, score, validate, publish. Each opens an epoch, does its part, and stops.

The flow's tasks call these, and so may a plain script. They pass each other small frozen records; whatever
matters is in the ledger, so that any step may be repeated, by anybody, at any time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference import witness
from nightjar.inference.engine import opened
from nightjar.inference.engine.protocol import Engine
from nightjar.inference.errors import (
    AuditFailed,
    Held,
    JobError,
    ShardsFailed,
    StorageError,
    TakenBack,
)
from nightjar.inference.identity.identity import verify_packages
from nightjar.inference.identity.snapshots import keep, verify
from nightjar.inference.input.discovery import Discovery
from nightjar.inference.input.discovery import discover as discover_input
from nightjar.inference.input.plan import Plan, make_plan
from nightjar.inference.job.model import type_name
from nightjar.inference.ledger import remarks
from nightjar.inference.ledger.ledger import LedgerWriter, Record, State
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.output import outcomes, places
from nightjar.inference.output import publications as publish
from nightjar.inference.output import revisions as revs
from nightjar.inference.output.parts import output_schema, readers_schema
from nightjar.inference.output.space import check_space
from nightjar.inference.records import Failed, encode, known
from nightjar.inference.run import outside
from nightjar.inference.run.campaign import Campaign, Listener
from nightjar.inference.run.lease import tenure
from nightjar.inference.run.request import (
    RunRequest,
    check_columns,
    check_request,
    identity_of,
    worker_spec,
)
from nightjar.inference.run.resume import (
    claim,
    limited,
    number_for,
    plan_in,
    probe,
    progress_of,
    retire,
    settle,
    succeed,
    why_again,
)
from nightjar.inference.run.samples import (
    Examined,
    Sampled,
    check_labels,
    examine,
    refuse_broken,
    sample_notes,
)
from nightjar.inference.run.waiting import awaited
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.preflight import Loaded, samples
from nightjar.inference.validation import gates
from nightjar.inference.validation.audit import MAX_FINDINGS, Audited, check_plan_covers
from nightjar.inference.validation.evidence import found, judge_input
from nightjar.inference.validation.gates import GateResult
from nightjar.inference.validation.manifest import write_manifest
from nightjar.inference.validation.offenders import with_replays
from nightjar.inference.validation.rescore import Rescored, sample


@dataclass(frozen=True)
class Checked:
    """What `check` found: the model's device, what it made of the samples, and what to know before the night.

    columns: name and Arrow type of each column of a part.
    """

    device: str
    sampled: Sampled
    columns: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Planned:
    """What would be scored. state: what the ledger has of it. again: what makes shards old that had a result."""

    plan: Plan
    state: State | None
    again: tuple[str, ...]


@dataclass(frozen=True)
class Scored:
    """What the score step leaves to the next one. `finished`: this very revision was published before.

    again: what made shards old that had a result.
    """

    revision: int
    epoch: int
    fingerprint: str
    finished: bool
    progress: Progress
    device: str = ""
    startup_s: float = 0.0
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    again: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What the validate step found. `manifest` and `shards` name the files written when every gate passed."""

    revision: int
    epoch: int
    gates: tuple[GateResult, ...]
    metrics: dict[str, Any]
    manifest: str
    checksum: str
    shards: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Publication:
    """The end of a run. `number` is the snapshot's; 0 when the job was told not to publish.

    unfinished: readers see it, but sweeping and `_SUCCESS` failed for this; running it again does them.
    behind: why `latest/` and `dates/` do not show it yet.
    """

    revision: int
    number: int
    manifest: str
    swept: int = 0
    seconds: float = 0.0
    unfinished: str = ""
    behind: str = ""


def discover(request: RunRequest) -> Discovery:
    """Find tonight's input and check it against the job. Writes nothing.

    Raises:
        JobError: nothing to score, or job, input, output and model do not fit together.
    """
    check_request(request)
    discovery = discover_input(request.storage, request.job)
    check_columns(request.job, discovery.schema)
    return discovery


def plan(request: RunRequest, discovery: Discovery) -> Planned:
    """What would be scored, and what the ledger already has. Writes nothing."""
    identity = identity_of(request, discovery.schema)
    newest = revs.newest_revision(request.storage, request.run_uri)
    previous = revs.read_plan(request.storage, newest.uri, newest.state, identity.fingerprint) if newest else None
    made = limited(
        make_plan(
            discovery, request.job, identity.fingerprint, None if request.fresh else previous, revs.planned_by(newest)
        ),
        request,
    )
    state = newest.state if newest and not request.fresh else None
    return Planned(made, state, why_again(request, identity, made, newest))


def look(request: RunRequest, discovery: Discovery) -> None:
    """The part of `check` that needs neither cluster nor model.

    Raises:
        JobError: what must be changed first.
    """
    check_labels(request.storage, request.job, discovery.schema, samples(make_plan(discovery, request.job, "")))


def check(request: RunRequest, discovery: Discovery) -> Checked:
    """Preflight without a run: cluster, storage, and the model on rows of several files.

    Raises:
        JobError, ClusterError: what must be changed first.
    """
    probe(request)
    check_space(request.job, request.output, discovery, discovery.rows)
    made = make_plan(discovery, request.job, "")
    spec = worker_spec(request, discovery.schema, rows=discovery.rows)
    with opened(request.engine) as engine:
        engine.check(request.job, descriptors=made.table.nbytes)
        loaded = engine.preflight(spec, samples(made), examine)
    sampled = loaded.sampled if isinstance(loaded, Examined) else Sampled()
    refuse_broken(request.job, sampled)
    outside.refuse(request.job, loaded.outside)
    warnings = [*_told(request, loaded), *([loaded.sample_error] if loaded.sample_error else [])]
    warnings += witness.sentences(loaded.outside)
    warnings += [
        gate.sentence for gate in judge_input(request.storage, request.job, request.date, discovery) if not gate.passed
    ]
    if lacking := awaited(request.storage, request.job):
        warnings.append(f"a run begun now would be {lacking.sentence}")
    if discovery.unread:
        warnings.append(discovery.unread)
    warnings += sample_notes(spec, sampled)
    columns = readers_schema(output_schema(request.job, discovery.schema))
    return Checked(
        loaded.device, sampled, tuple((each.name, type_name(each.type)) for each in columns), tuple(warnings)
    )


def _told(request: RunRequest, loaded: Loaded) -> list[str]:
    """What preflight saw that a person should know, whatever comes of it."""
    on_cpu = request.job.resources.gpus > 0 and loaded.device == "cpu"
    lost = "resources.gpus reserves GPUs, but the model runs on the CPU: torch finds no CUDA device there"
    return [*([lost] if on_cpu else []), *loaded.notes]


def score(request: RunRequest, discovery: Discovery, listener: Listener) -> Scored:
    """Score every shard the ledger does not have.

    Raises:
        Held: another writer holds the run.
        JobError, ClusterError: preflight found what must be changed first.
        GateFailed: there is too little input, or too much; nothing was scored.
        RunFailed: some shards have no result; the others are committed.
    """
    began = time.time()
    identity = identity_of(request, discovery.schema)
    claim(request)
    for snapshot in (request.scoring.code, request.scoring.model):
        keep(request.storage, request.output, snapshot)
    newest = revs.newest_revision(request.storage, request.run_uri)
    if newest and newest.sealed:
        settle(request, newest)
    # What it cannot do now is tried, and told of, again when this run is published.
    _lead_readers(request)
    if newest and newest.sealed:
        done = _finished(request, discovery, newest, identity.fingerprint)
        if done:
            return replace(done, seconds=time.time() - began)
    number = number_for(newest, request)
    if newest and not newest.sealed and number != newest.number:
        retire(request, newest)
    uri = revs.revision_uri(request.run_uri, number)
    with tenure(request, uri, "score", keep=True) as writer, opened(request.engine) as engine:
        if writer.state.intent is not None:
            raise Held("another writer published this run while this command began; repeat it to see what is left")
        made = plan_in(request, writer, uri, discovery, identity, newest)
        spec = worker_spec(
            request,
            discovery.schema,
            revision=uri,
            epoch=writer.epoch,
            segment=writer.number,
            rows=made.rows,
        )
        progress = progress_of(writer, made)
        campaign = Campaign(made, spec, engine, writer, identity.fingerprint, progress, listener, _only(request, made))
        listener(progress)
        gates.enforce(judge_input(request.storage, request.job, request.date, discovery))
        check_space(request.job, request.output, discovery, progress.rows - progress.rows_out)
        loaded = _preflight(engine, spec, made, writer, progress, listener)
        outside.learn(request.job, loaded, _told(request, loaded), writer)
        campaign.run()
        started = (campaign.first_event_at or time.time()) - began
        return Scored(
            number,
            writer.epoch,
            identity.fingerprint,
            finished=False,
            progress=progress,
            device=loaded.device,
            startup_s=started,
            seconds=time.time() - began,
            warnings=writer.state.about.notes(progress.cuts),
            again=writer.state.about.again,
        )


def validate(request: RunRequest, scored: Scored, discovery: Discovery, listener: Listener) -> Verdict:
    """Prove the cover from the files written, hold them against the gates, and write the manifest.

    Raises:
        AuditFailed: the files do not prove that every row is there once.
        GateFailed: a check said no.
    """
    began = time.time()
    uri = revs.revision_uri(request.run_uri, scored.revision)
    if scored.finished:
        return replace(_published_verdict(request, scored), seconds=time.time() - began)
    with (
        tenure(request, uri, "validate", keep=request.publish, after=scored.epoch) as writer,
        opened(request.engine) as engine,
    ):
        made = revs.read_plan(request.storage, uri, writer.state, scored.fingerprint)
        assert made is not None
        made = limited(made, request)
        table = outcomes.outcomes(made, writer.ledger, writer.state)
        if absent := outcomes.missing(table):
            raise ShardsFailed(f"{absent} of {len(made)} shards have no result", absent, len(made))
        audited = _audit(engine, request, uri, table, writer, listener, scored.progress)
        _check_cover(request, made, discovery, audited, _revoke(writer, table, audited))
        rescored = _rescore(engine, request, discovery, uri, table, writer)
        metrics = Metrics.from_bytes(audited.metrics)
        evidence = gates.Evidence(
            found(request.storage, request.job, request.date, discovery),
            shards=len(made),
            rows_in=audited.rows_in,
            rows_quarantined=audited.rows_quarantined,
            columns=metrics.columns,
            offenders=with_replays(request.job_path, request.words, table, audited.offenders),
            rescored=rescored,
        )
        results = gates.enforce(gates.evaluate(gates.gates_of(request.job), evidence))
        for snapshot in (request.scoring.code, request.scoring.model):
            verify(request.storage, snapshot)
        verify_packages(request.job, request.scoring)
        shown = metrics.results()
        identity = identity_of(request, discovery.schema)
        name, digest, listed = write_manifest(
            request.job,
            request.run_id,
            request.date,
            scored.revision,
            identity,
            writer,
            uri,
            table,
            audited,
            shown,
            results,
            rescored,
        )
        return Verdict(scored.revision, writer.epoch, results, shown, name, digest, listed, time.time() - began)


def publish_run(request: RunRequest, scored: Scored, verdict: Verdict) -> Publication:
    """Make the revision visible, in one atomic act.

    Raises:
        Held: another writer has taken the run over since it was validated.
        TakenBack: there was nothing to score, and a person took back what was published of it.
    """
    began = time.time()
    if scored.finished:
        number = _visible(request, scored, verdict)
        return Publication(scored.revision, number, verdict.manifest, behind=_lead_readers(request))
    if not request.publish:
        return Publication(scored.revision, 0, verdict.manifest, 0, time.time() - began)
    uri = revs.revision_uri(request.run_uri, scored.revision)
    with tenure(request, uri, "publish", keep=False, after=verdict.epoch) as writer:
        made = revs.read_plan(request.storage, uri, writer.state, scored.fingerprint)
        assert made is not None
        entry = publish.Published(scored.revision, verdict.manifest, verdict.checksum, request.date)
        swept, unfinished = 0, ""
        try:
            number = publish.publish(writer, request.output, request.run_id, entry)
            # Only now: no later plan can want a part back, whoever else continues and whenever this writer wakes.
            swept = revs.sweep(writer, uri, made)
            succeed(writer, uri, number, verdict.manifest)
        except StorageError as error:
            # What readers see decides. What is left to do is done by whoever runs it next: `settle`.
            intent = writer.state.intent
            if intent is None or publish.newest(request.storage, request.output).runs.get(request.run_id) != entry:
                raise
            number, unfinished = intent["number"], str(error)
    behind = _lead_readers(request)
    return Publication(scored.revision, number, verdict.manifest, swept, time.time() - began, unfinished, behind)


def _lead_readers(request: RunRequest) -> str:
    """Let `latest/` and `dates/` show what is published; returns what could not be done, and why."""
    return places.refresh(request.storage, request.output, request.job.name, request.date)


def _finished(request: RunRequest, discovery: Discovery, newest: revs.Revision, fingerprint: str) -> Scored | None:
    """Whether the newest, published revision is exactly what this run would make."""
    if request.fresh:
        return None
    previous = revs.read_plan(request.storage, newest.uri, newest.state, fingerprint)
    wanted = limited(make_plan(discovery, request.job, fingerprint, previous, revs.planned_by(newest)), request)
    if set(wanted.ids()) != newest.state.committed & set(wanted.ids()) or previous is None:
        return None
    if set(previous.ids()) != set(wanted.ids()):
        return None
    assert newest.state.intent is not None
    manifest = publish.read_manifest(
        request.storage, request.output, known(publish.Published, newest.state.intent["published"])
    )
    totals = manifest["totals"]
    progress = Progress(
        shards=totals["shards"],
        rows=totals["rows_in"],
        done_shards=totals["shards"],
        rows_out=totals["rows_out"],
        rows_quarantined=totals["rows_quarantined"],
        cuts=totals.get("batches_cut", 0),
        reused_shards=totals["shards"],
        reused_rows=totals["rows_in"],
    )
    notes = remarks.of_finished(manifest).notes(progress.cuts)
    return Scored(newest.number, newest.state.epoch, fingerprint, True, progress, warnings=notes)


def _only(request: RunRequest, made: Plan) -> frozenset[str]:
    """The shards asked for by name."""
    if unknown := sorted(set(request.shards) - set(made.ids())):
        raise JobError(f"--shard {unknown[0]}: the run {request.run_id!r} has no such shard; see `nightjar show`")
    return frozenset(request.shards)


def _preflight(
    engine: Engine, spec: WorkerSpec, made: Plan, writer: LedgerWriter, progress: Progress, listener: Listener
) -> Loaded:
    """Try labels and model, unless nothing is left to score."""
    left = next((shard for shard in made.shards() if shard.id not in writer.state.committed), None)
    if left is None:
        return Loaded("")
    places = samples(made)
    check_labels(spec.storage, spec.job, spec.schema, places, all_alike=True)
    engine.check(spec.job, descriptors=made.table.nbytes)
    doing = {"t": "doing", "step": "load"}
    writer.append([doing])
    progress.fold(doing)
    listener(progress)
    return engine.preflight(spec, places)


def _audit(
    engine: Engine,
    request: RunRequest,
    uri: str,
    table: pa.Table,
    writer: LedgerWriter,
    listener: Listener,
    progress: Progress,
) -> Audited:
    audited: Audited | None = None
    for step in engine.audit(request.storage, uri, request.job, table):
        writer.check()
        listener(progress)
        audited = step or audited
    assert audited is not None
    return audited


def _rescore(
    engine: Engine, request: RunRequest, discovery: Discovery, uri: str, table: pa.Table, writer: LedgerWriter
) -> Rescored | None:
    """Score a sample again, if the job asks for it."""
    share = request.job.audit.rescore
    if not share or not table.num_rows:
        return None
    spec = worker_spec(request, discovery.schema, revision=uri, epoch=writer.epoch)
    rescored: Rescored | None = None
    for step in engine.rescore(spec, sample(table, share, uri)):
        writer.check()
        rescored = step or rescored
    return rescored


def _revoke(writer: LedgerWriter, table: pa.Table, audited: Audited) -> int:
    """Take back the receipts of shards whose parts are damaged, so that they are scored again; returns how many."""
    damaged = table.filter(pc.is_in(table["shard"], value_set=pa.array(audited.damaged, pa.string())))
    if damaged.num_rows:
        writer.append([_revocation(line, audited.damaged[line["shard"]]) for line in outcomes.lines(damaged)])
    return len(damaged)


def _revocation(line: dict[str, Any], why: str) -> Record:
    failed = Failed(line["shard"], line["attempt"], "PartDamaged", why, uri=line["pieces"][0]["uri"])
    lost = {name: line[name] or 0 for name in ("rows_out", "rows_quarantined", "cuts")}
    return {**encode(failed), "t": "revoked", **lost}


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
    if audited.rows_in != audited.rows_out + audited.rows_quarantined:
        problems += 1
        findings.append(f"{audited.rows_in} rows in, {audited.rows_out} out, {audited.rows_quarantined} quarantined")
    if audited.shards != len(made) and not problems:
        problems, findings = 1, [f"{audited.shards} of {len(made)} shards were audited"]
    if problems:
        again = "this shard" if revoked == 1 else f"these {revoked} shards"
        mend = f". Repeat the command: it scores {again} again" if revoked else ""
        raise AuditFailed(
            f"the files written do not prove the cover, {problems} findings: {'; '.join(findings)}{mend}", revoked
        )


def _published_verdict(request: RunRequest, scored: Scored) -> Verdict:
    """The verdict of a revision that was published before, from its manifest."""
    finished = _finished_revision(request, scored)
    assert finished.state.intent is not None
    entry = known(publish.Published, finished.state.intent["published"])
    manifest = publish.read_manifest(request.storage, request.output, entry)
    results = tuple(map(gates.of_record, manifest["gates"]))
    shards = f"runs/{request.run_id}/r{scored.revision}/{manifest['shards']['file']}"
    return Verdict(scored.revision, scored.epoch, results, manifest["metrics"], entry.manifest, entry.checksum, shards)


def _finished_revision(request: RunRequest, scored: Scored) -> revs.Revision:
    """By its number: another command may have begun a newer one meanwhile."""
    return revs.read_revision(request.storage, request.run_uri, scored.revision)


def _visible(request: RunRequest, scored: Scored, verdict: Verdict) -> int:
    """The number this revision was published as."""
    shown = publish.newest(request.storage, request.output).runs.get(request.run_id)
    if shown is None or shown.checksum != verdict.checksum:
        raise TakenBack(
            f"r{scored.revision} of the run {request.run_id!r} was published before and rolled back or unpublished "
            "since: nothing was scored, and readers do not see it"
        )
    finished = _finished_revision(request, scored)
    assert finished.success is not None
    return int(finished.success["publication"])
