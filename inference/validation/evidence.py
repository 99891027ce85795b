"""Collects the gates' evidence about the input, from tonight's discovery and from earlier published nights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from nightjar.inference.errors import Damaged, Missing
from nightjar.inference.input.plan import Discovery
from nightjar.inference.job.checks import LAST, DriftCheck, RowsCheck
from nightjar.inference.job.model import Job
from nightjar.inference.ledger.endings import VALIDATED
from nightjar.inference.ledger.lines import Published
from nightjar.inference.output import publications as publish
from nightjar.inference.output.parts import checksum
from nightjar.inference.output.revisions import newest_revision, revision_in, run_folder
from nightjar.inference.storage.protocol import Storage, beginning, join
from nightjar.inference.validation.evaluations import by_latest
from nightjar.inference.validation.gates import Baseline, Evidence, Found, GateResult, NightEvidence, evaluate
from nightjar.inference.validation.gates.drift import DriftGate
from nightjar.inference.validation.gates.rules import gates_of, input_gates
from nightjar.inference.validation.manifest import Manifest, manifest_of, read_manifest, read_profile


def found(storage: Storage, job: Job, date: str, discovery: Discovery, rows: int | None = None) -> Found:
    """Describe the whole input as it was found, also if the run is limited; the last night only if a check needs it.

    date: the run's logical date. rows: the rows of the whole input that match, if all were read and counted.
    """
    compares = any(isinstance(check, RowsCheck) and check.rows.against for check in job.checks)
    last = night_before(storage, job, date) if compares else None
    files, known, uncounted = discovery.files.num_rows, discovery.rows, discovery.uncounted
    if job.input.where:
        known, uncounted = 0, files  # which of the rows match is not known
    if uncounted and rows is not None:
        return Found(files, rows, discovery.unreadable, last)
    return Found(files, known, discovery.unreadable, last, uncounted)


def judge_input(storage: Storage, job: Job, date: str, discovery: Discovery) -> tuple[GateResult, ...]:
    """Judge before anything is scored: the gates on the input, and those on drift that have no run to compare with.

    Raises:
        JobError: The manifest of a run to compare with is not the one that was published.
    """
    judged = evaluate(input_gates(job), Evidence(found(storage, job, date, discovery)))
    return (*judged, *_without_baseline(storage, job))


def _without_baseline(storage: Storage, job: Job) -> Iterator[GateResult]:
    """The checks on drift that must fail, one for each run that is named and is not there."""
    named: dict[str, DriftGate] = {}
    for rule in gates_of(job):
        if isinstance(rule.gate, DriftGate) and rule.on_fail == "block" and rule.gate.against != LAST:
            named.setdefault(rule.gate.against, rule.gate)
    for run, gate in named.items():
        if run_manifest(storage, job.output.uri, run) is None:
            yield gate.nothing(_no_run(run))


def _no_run(run: str) -> str:
    return f"no run {run!r} is published, or was validated without being published"


def baselines(storage: Storage, job: Job, date: str) -> dict[str, Baseline]:
    """The nights that the checks on drift compare with, as the job names them.

    Raises:
        JobError: A manifest or profile is not the one that was published.
    """
    checks = job.checks if job.judged else ()
    names = {check.against for check in checks if isinstance(check, DriftCheck)}
    return {name: baseline(storage, job.output.uri, date, name) for name in names}


def baseline(storage: Storage, output: str, date: str, name: str) -> Baseline:
    """A night to compare with. name: as in `DriftCheck.against`.

    Raises:
        JobError: A manifest or profile is not the one that was published.
    """
    run = name
    if name == LAST:
        if (found := next(earlier_nights(storage, output, date), None)) is None:
            return Baseline(name, None, "no earlier night is published")
        run, day, manifest = found
    elif named := run_manifest(storage, output, run):
        day, manifest = named[0].date, named[1]
    else:
        return Baseline(name, None, _no_run(run))
    called = day if run == day else f"the run {run} of {day}"
    if name == LAST:
        called += ", the last published night"
    if manifest.profile is None:
        return Baseline(called, None, f"the columns of {called} were not described")
    try:
        return Baseline(called, read_profile(storage, revision_in(output, run, manifest.revision), manifest.profile))
    except Damaged:
        return Baseline(called, None, f"another version of Nightjar wrote the profile of {called}", unreadable=True)


def run_manifest(storage: Storage, output: str, run: str) -> tuple[Published, Manifest] | None:
    """A run that readers see, with its manifest; or what a run would have published whose newest revision passed its
    gates and was not to be published. None if there is neither.

    Raises:
        JobError: The manifest is not the one that was published, or another version wrote it.
    """
    if entry := publish.newest(storage, output).runs.get(run):
        return entry, read_manifest(storage, output, entry)
    newest = newest_revision(storage, run_folder(output, run))
    if newest is None or newest.state.ended is None or newest.state.ended.outcome != VALIDATED:
        return None
    manifests = beginning(storage, join(newest.uri, "manifest-"))
    file = max(entry.uri for entry in manifests if entry.uri.endswith(".json"))
    raw = storage.read(file)
    found = manifest_of(raw, file)
    if any(gate.verdict == "block" for gate in found.gates):
        return None  # of a later command, which was killed before it said so
    name = file.removeprefix(output).lstrip("/")
    return Published(newest.number, name, checksum(raw), found.date), found


def night_before(storage: Storage, job: Job, date: str) -> NightEvidence | None:
    """The published run of the latest date before this one, or None, with the figures of labels that came later. A run
    whose files were removed does not count.

    Raises:
        JobError: Its manifest is not the one that was published.
        Damaged: Its newest evaluation cannot be read.
    """
    if (found := next(earlier_nights(storage, job.output.uri, date), None)) is None:
        return None
    run, day, manifest = found
    totals, revision = manifest.totals, revision_in(job.output.uri, run, manifest.revision)
    return NightEvidence(
        job=job.name,
        run_id=run,
        date=day,
        shards=totals.shards,
        **totals.by_name,
        metrics=by_latest(storage, revision, manifest.metrics),
    )


def earlier_nights(storage: Storage, output: str, date: str) -> Iterator[tuple[str, str, Manifest]]:
    """Each date's published run before this date, the latest first: its run, its date and its manifest."""
    runs = publish.newest(storage, output).runs
    # If a date has several runs, the run named after the date counts, as it does for readers of the latest night.
    before = sorted((entry.date, run == entry.date, run) for run, entry in runs.items() if entry.date < date)
    told = ""
    for day, _, run in reversed(before):
        if day == told:
            continue
        with suppress(Missing):
            manifest = read_manifest(storage, output, runs[run])
            told = day
            yield run, day, manifest
