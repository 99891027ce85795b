"""Two runs of a job side by side: their figures, how far their columns are apart, and the rows that moved most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nightjar.inference.errors import JobError
from nightjar.inference.history.row_diff import RowsCompared, key_of, moved
from nightjar.inference.ledger.lines import Published
from nightjar.inference.metrics.drift import Drift, compare_columns
from nightjar.inference.metrics.figures import Evaluation, Figures, Slice, SliceFigures
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
    """Two runs: before, and now. columns: as of `compare_columns`. undescribed: the runs whose
    columns were not described, so that none is compared. drawn: run → its rows that are described, where these were
    drawn out of more. recounted: the accumulators whose code is not the same in both, so that their figures may differ
    for that alone. rows: what moved, row by row; null if the rows were not joined. unjoined: why not; empty if nobody
    asked for it.
    """

    job: str
    before: str
    now: str
    figures: tuple[FigureCompared, ...]
    columns: tuple[Drift, ...]
    undescribed: tuple[str, ...] = ()
    drawn: Mapping[str, int] = field(default_factory=dict)
    recounted: tuple[str, ...] = ()
    rows: RowsCompared | None = None
    unjoined: str = ""


def diff(request: RunRequest, before: str, now: str, *, key: Sequence[str] = (), rows: int = ROWS) -> RunsCompared:
    """Compare two runs of a job that passed their gates, also row by row.

    key: the columns by which a row is found in both; default: those that the job itself calls a key, if there are any.
    rows: the most rows to name of each output; 0: the rows are not read.

    Raises:
        JobError: A run did not pass, or a file of it is not the one that was published; or its rows have no such key.
        StorageError: The storage refused or failed.
    """
    storage, output = request.storage, request.output
    found = compare(storage, request.job.name, output, before, now)
    if not rows:
        return found
    chosen = tuple(dict.fromkeys(key)) or key_of(request.job)
    if not chosen:
        return replace(found, unjoined=_NO_KEY)
    runs = [(run, *_passed(storage, output, run)) for run in (before, now)]
    try:
        return replace(found, rows=moved(storage, output, runs, chosen, rows))
    except JobError as error:
        if key:
            raise
        return replace(found, unjoined=f"the rows were not joined: {error}")


def compare(storage: Storage, job: str, output: str, before: str, now: str) -> RunsCompared:
    """Compare two runs of a job that passed their gates, without reading their rows. job: its name.

    Raises:
        JobError: A run did not, or its manifest or profile is not the one that was published.
    """
    manifests = [_passed(storage, output, run)[1] for run in (before, now)]
    runs = list(zip((before, now), manifests, strict=True))
    profiles = [(read_profile(storage, output, run, each), run, each) for run, each in runs if each.profile]
    metrics = [by_latest(storage, revision_in(output, run, each.revision), each.metrics) for run, each in runs]
    compared = compare_columns(profiles[0][0], profiles[1][0]) if len(profiles) == 2 else []
    one, other = (_figures(each, found.evaluation) for each, found in zip(manifests, metrics, strict=True))
    return RunsCompared(
        job=job,
        before=before,
        now=now,
        figures=(
            *(FigureCompared(name, one.get(name), other.get(name)) for name in dict.fromkeys([*one, *other])),
            *_slices(*metrics),
        ),
        columns=tuple(replace(each, groups=()) for each in compared),
        undescribed=tuple(run for run, each in runs if not each.profile),
        drawn={run: profile.rows for profile, run, each in profiles if profile.rows < each.totals.rows_out},
        recounted=tuple(recounted(*(each.metrics for each in manifests))),
    )


def recounted(before: Figures, now: Figures) -> Iterator[str]:
    """The accumulators of both runs whose class is not the same."""
    for name, found in now.accumulators.items():
        other = before.accumulators.get(name, found)
        if (other.uses, other.code) != (found.uses, found.code):
            yield name


def _passed(storage: Storage, output: str, run: str) -> tuple[Published, Manifest]:
    if (found := run_manifest(storage, output, run)) is not None:
        return found
    # A person who took a night back wants to see what was wrong with it.
    if (taken_back := published_before(storage, run_folder(output, run))) is not None:
        return taken_back, read_manifest(storage, output, taken_back)
    raise JobError(f"no run {run!r} in {output} passed its gates; `nightjar runs JOB` lists the runs")


def _figures(manifest: Manifest, found: Evaluation | None) -> Mapping[str, float]:
    """The figures of a run, by name. found: its newest evaluation."""
    totals = manifest.totals
    figures: dict[str, float] = {"rows": totals.rows_in, "quarantined": totals.rows_quarantined}
    if found is None:
        return figures | manifest.metrics.own()
    return {
        **figures,
        "labelled": found.rows,
        **({"positives": found.positives} if found.positives is not None else {}),
        **{name: each.value for name, each in found.metrics.items()},
        **manifest.metrics.own(),
    }


def _slices(before: Figures, now: Figures) -> Iterator[FigureCompared]:
    """The first figure of slices; of each column those that have the most rows now."""
    lead = now.evaluation.lead if now.evaluation else ""
    for column, sliced in now.slices.items():
        earlier = {each.value: each for each in before.slices.get(column, SliceFigures()).slices}
        for each in sliced.slices[:_SLICES]:
            values = (_figure(lead, found) for found in (earlier.get(each.value), each))
            yield FigureCompared(f"{lead} {column}={each.called}", *values)


def _figure(name: str, of: Slice | None) -> float | None:
    found = of.evaluation.metrics.get(name) if of else None
    return found.value if found else None
