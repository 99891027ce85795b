"""Two runs of a job side by side: their figures, how far their columns are apart, and the rows that moved most."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from nightjar.inference.arrow_types import row_bytes, type_name
from nightjar.inference.errors import Damaged, JobError, Missing
from nightjar.inference.history.joinkeys import NOT_CARRIED, check_columns, check_kinds
from nightjar.inference.history.joins import Pairing, RunRows
from nightjar.inference.history.movement import Movement, OutputMoved, incomparable, kind_of
from nightjar.inference.job.checks import UniqueCheck
from nightjar.inference.job.model import Job
from nightjar.inference.job.sections import LINEAGE
from nightjar.inference.ledger.lines import Published
from nightjar.inference.metrics.drift import Drift, compare_columns
from nightjar.inference.metrics.figures import Figures, Slice, SliceFigures
from nightjar.inference.metrics.profile import Profile
from nightjar.inference.output.nights import Files, blocks, deleted, night_of
from nightjar.inference.output.revisions import revision_in, run_folder
from nightjar.inference.output.visibility import published_before
from nightjar.inference.run.request import RunRequest
from nightjar.inference.storage.protocol import Storage
from nightjar.inference.validation.evaluations import by_latest
from nightjar.inference.validation.evidence import run_manifest
from nightjar.inference.validation.manifest import Manifest, read_manifest, read_profile

_SLICES = 10
"""The most slices of a column that are compared."""

ROWS = 20
"""The most rows that are named of each output, if nobody says otherwise."""

_NO_KEY = (
    "the rows were not joined: name the columns by which a row is found in both runs, --key COLUMN (if both scored the "
    "same files: --key _file --key _row), or write late_labels.key or a check {unique: […]} into the job"
)


@dataclass(frozen=True, slots=True)
class FigureCompared:
    """A figure of both runs; None where a run does not have it."""

    name: str
    before: float | None
    now: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsCompared:
    """Two runs: before, and now."""

    job: str
    """The name of the job."""

    before: str
    """The name of the first run."""

    now: str
    """The name of the second run."""

    figures: tuple[FigureCompared, ...]
    """Figures by name: rows, labels, metrics and the user's own figures; then of slices the first metric."""

    columns: tuple[Drift, ...]
    """How far columns are apart that are described in both runs, as of `compare_columns`, without groups."""

    undescribed: tuple[str, ...] = ()
    """The runs whose columns were not described, or by another version, so that no column is compared."""

    drawn: Mapping[str, int] = field(default_factory=dict)
    """Run → its rows that are described, where these were drawn out of more."""

    rows: RowsCompared | None = None
    """What moved, row by row; null if the rows were not joined."""

    unjoined: str = ""
    """Why the rows were not joined; empty if they were, or if nobody asked for it."""


def diff(request: RunRequest, before: str, now: str, *, key: Sequence[str] = (), rows: int = ROWS) -> RunsCompared:
    """Compare two runs of a job that passed their gates, also row by row.

    key: the columns by which a row is found in both; default: those that the job itself calls a key, if there are any.
    rows: the most rows to name of each output; 0: the rows are not read.

    Raises:
        JobError: A run did not pass, or a file of it is not the one that was published; or its rows have no such key.
        StorageError: The storage refused or failed.
    """
    runs = [(run, *_passed(request.storage, request.output, run)) for run in (before, now)]
    found = _without_rows(request, [(run, manifest) for run, _, manifest in runs])
    if not rows:
        return found
    chosen = tuple(dict.fromkeys(key)) or _key_of(request.job)
    if not chosen:
        return replace(found, unjoined=_NO_KEY)
    try:
        return replace(found, rows=_moved(request, runs, chosen, rows))
    except JobError as error:
        if key:
            raise
        return replace(found, unjoined=f"the rows were not joined: {error}")


def _without_rows(request: RunRequest, runs: Sequence[tuple[str, Manifest]]) -> RunsCompared:
    """The figures and columns of two runs: before, and now; each with its name."""
    storage, output, (before, now) = request.storage, request.output, runs
    uris = [revision_in(output, run, each.revision) for run, each in runs]
    profiles = list[tuple[Profile, str, Manifest]]()
    for uri, (run, each) in zip(uris, runs, strict=True):
        with suppress(Damaged):  # another version wrote it
            if each.profile:
                profiles.append((read_profile(storage, uri, each.profile), run, each))
    metrics = [by_latest(storage, uri, each.metrics) for uri, (_, each) in zip(uris, runs, strict=True)]
    compared = compare_columns(profiles[0][0], profiles[1][0]) if len(profiles) == 2 else []
    one, other = (_figures(each, found) for (_, each), found in zip(runs, metrics, strict=True))
    return RunsCompared(
        job=request.job.name,
        before=before[0],
        now=now[0],
        figures=(
            *(FigureCompared(name, one.get(name), other.get(name)) for name in dict.fromkeys([*one, *other])),
            *_slices(*metrics),
        ),
        columns=tuple(replace(each, groups=()) for each in compared),
        undescribed=tuple(run for run, each in runs if run not in [described for _, described, _ in profiles]),
        drawn={run: profile.rows for profile, run, each in profiles if profile.rows < each.totals.rows_out},
    )


def _passed(storage: Storage, output: str, run: str) -> tuple[Published, Manifest]:
    if (found := run_manifest(storage, output, run)) is not None:
        return found
    # A person who took a night back wants to see what was wrong with it.
    if (taken_back := published_before(storage, run_folder(output, run))) is not None:
        return taken_back, read_manifest(storage, output, taken_back)
    raise JobError(f"no run {run!r} in {output} passed its gates; `nightjar runs JOB` lists the runs")


def _figures(manifest: Manifest, metrics: Figures) -> Mapping[str, float]:
    """The figures of a run, by name. metrics: with those of its newest evaluation."""
    totals, found = manifest.totals, metrics.evaluation
    figures: dict[str, float] = {"rows": totals.rows_in, "quarantined": totals.rows_quarantined}
    if found is not None:
        figures["labelled"] = found.rows
        figures |= {"positives": found.positives} if found.positives is not None else {}
        figures |= {name: each.value for name, each in found.metrics.items()}
    return figures | metrics.own()


def _slices(before: Figures, now: Figures) -> Iterator[FigureCompared]:
    """The first figure of slices; of each column those that have the most rows now."""
    lead = next((each.evaluation.lead for each in (now, before) if each.evaluation and each.evaluation.lead), "")
    for column, sliced in now.slices.items() if lead else ():
        earlier = {each.value: each for each in before.slices.get(column, SliceFigures()).slices}
        for each in sliced.slices[:_SLICES]:
            values = (_figure(lead, found) for found in (earlier.get(each.value), each))
            yield FigureCompared(f"{lead} {column}={each.called}", *values)


def _figure(name: str, of: Slice | None) -> float | None:
    found = of.evaluation.metrics.get(name) if of else None
    return found.value if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsCompared:
    """The rows of two runs, joined by a key."""

    key: tuple[str, ...]
    """The columns of the key."""

    joined: int
    """The rows that both runs have."""

    before: RunRows
    """The rows of the first run: how many there are, and how many were not joined."""

    now: RunRows
    """The rows of the second run: how many there are, and how many were not joined."""

    outputs: tuple[OutputMoved, ...]
    """How far each output moved: first the outputs of the second run, then those that only the first one has."""


@dataclass(frozen=True, slots=True)
class _Run:
    """One of the two runs. outputs: the columns that are neither carried nor lineage."""

    files: Files
    schema: pa.Schema
    outputs: tuple[str, ...]


def _key_of(job: Job) -> tuple[str, ...]:
    """The columns that the job itself calls a row's key: of its late labels, or of its first check on keys."""
    if job.late_labels:
        return job.late_labels.key
    return next((check.unique for check in job.checks if isinstance(check, UniqueCheck)), ())


def _moved(
    request: RunRequest, runs: Sequence[tuple[str, Published, Manifest]], key: Sequence[str], most: int
) -> RowsCompared:
    """Join the rows of two runs, before and now, and find those whose outputs moved most. most: rows to name of each
    output.
    """
    before, now = (_run(request.storage, request.output, *each) for each in runs)
    called = (f"the run {before.files.run_id}", f"the run {now.files.run_id}")
    for each, name in zip((before, now), called, strict=True):
        if not each.files.rows:
            raise JobError(f"{name} has no rows that could be joined")
        check_columns("key", key, each.schema.names, name, NOT_CARRIED)
    check_kinds(key, before.schema, now.schema, called)
    outputs = _outputs(before, now, len(key), most)
    movements = {name: each for name, each in outputs.items() if isinstance(each, Movement)}
    wanted = list(movements)
    # Packed bytes tell of texts and lists of any length; unpacked ones of numbers that pack well.
    wide = row_bytes(pa.schema([before.schema.field(name) for name in (*key, *wanted)]))
    size = max(int(each.files.rows * wide) for each in (before, now))
    packed = max(each.files.bytes for each in (before, now))
    with tempfile.TemporaryDirectory(prefix="nightjar-diff-") as folder:
        pairing = Pairing(Path(folder), key, max(before.files.rows, now.files.rows), max(size, packed))
        joined = 0
        one, other = (blocks(each.files, [*key, *wanted]) for each in (before, now))
        for pairs in pairing.pairs(one, other, wanted):
            joined += len(pairs.keys)
            for name, movement in movements.items():
                movement.update(pairs.keys, pairs.before[name], pairs.now[name])
    return RowsCompared(
        key=tuple(key),
        joined=joined,
        before=pairing.before,
        now=pairing.now,
        outputs=tuple(each.results() if isinstance(each, Movement) else each for each in outputs.values()),
    )


def _run(storage: Storage, output: str, run: str, entry: Published, manifest: Manifest) -> _Run:
    try:
        files = night_of(storage, output, 0, run, entry)
        schema = files.dataset().schema
    except Missing as error:
        raise Missing(deleted(run, f" ({error})", entry.date)) from error
    aside = {*manifest.identity.get("carry", ()), *LINEAGE}
    return _Run(files, schema, tuple(name for name in schema.names if name not in aside))


def _outputs(before: _Run, now: _Run, key: int, most: int) -> dict[str, Movement | OutputMoved]:
    """What will measure each output, or why it is not compared. key: its number of columns."""
    found: dict[str, Movement | OutputMoved] = {}
    for name in dict.fromkeys((*now.outputs, *before.outputs)):
        one, other = (each.schema.field(name).type if name in each.outputs else None for each in (before, now))
        told = (None if one is None else type_name(one), None if other is None else type_name(other))
        if why := incomparable(one, other, (before.files.run_id, now.files.run_id)):
            found[name] = OutputMoved(output=name, why=why, types=told)
        else:
            found[name] = Movement(name, kind_of(one), told, most, key)
    return found
