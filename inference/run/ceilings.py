"""The micro-batches for which memory suffices: learned once, and remembered for the next night."""

from __future__ import annotations

from nightjar.inference.errors import JobError, Missing
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.output import publications
from nightjar.inference.run.request import RunRequest
from nightjar.inference.validation.manifest import read_manifest


def ceilings(request: RunRequest, fingerprint: str, progress: Progress) -> tuple[int, ...]:
    """For each model the most rows of a micro-batch for `batch_size: auto`, as this run or the latest published night
    has found out.

    0, or nothing for all, if none had too little memory, or if that night was scored under another fingerprint: another
    model or code needs other memory. `--fresh` finds out again.
    """
    if all(not each.model.finds_size for each in request.job.each) or request.fresh:
        return ()
    models = len(request.job.each)
    if progress.backoffs.rows:
        return progress.ceilings or (progress.backoffs.rows,) * models
    runs = publications.newest(request.storage, request.output).runs
    if not runs:
        return ()
    latest = max(runs, key=lambda run: (runs[run].date, run == runs[run].date, run))
    try:
        manifest = read_manifest(request.storage, request.output, runs[latest])
    except (Missing, JobError):  # its files were removed or damaged; without it the size is found out again
        return ()
    totals = manifest.totals
    return totals.ceilings or (totals.batch_rows,) * models if manifest.fingerprint == fingerprint else ()
