"""The micro-batches for which memory suffices: learned once, and remembered for the next night."""

from __future__ import annotations

from nightjar.inference.errors import Missing
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.output import publications
from nightjar.inference.run.request import RunRequest
from nightjar.inference.validation.manifest import read_manifest


def ceiling(request: RunRequest, fingerprint: str, progress: Progress) -> int:
    """The most rows of a micro-batch for `batch_size: auto`, as this run or the latest published night has found out.

    0 if none had too little memory, or if that night was scored under another fingerprint: another model or code needs
    other memory. `--fresh` finds out again.

    Raises:
        JobError: The latest night's manifest is not the one that was published.
    """
    if request.job.model.batch_size != "auto" or request.fresh:
        return 0
    if progress.batch_rows:
        return progress.batch_rows
    runs = publications.newest(request.storage, request.output).runs
    if not runs:
        return 0
    latest = max(runs, key=lambda run: (runs[run].date, run == runs[run].date, run))
    try:
        manifest = read_manifest(request.storage, request.output, runs[latest])
    except Missing:  # its files were removed
        return 0
    return manifest.totals.batch_rows if manifest.fingerprint == fingerprint else 0
