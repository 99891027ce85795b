"""The user's code, imported and looked at before anything is started: is it a predictor, does it take its options?

In a process of its own and for a bounded time: an import can run anything, end its process, or hang. As wherever it
scores, the code is that of the snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nightjar.inference.errors import JobError, NightjarError
from nightjar.inference.identity.missing import explained
from nightjar.inference.predictors import user
from nightjar.inference.run.child import Child, WorkLost
from nightjar.inference.run.request import RunRequest
from nightjar.inference.scoring.assignment import enter_copy

PATIENCE_S = 60.0
"""Longest time for the imports. Slower ones are left to preflight, which waits as long as the job allows."""

_IMPORTED = "imported"


class Inspection:
    """A look at what `model.uses` and `preprocess` name. It has begun; what it imports is ended with the context."""

    def __init__(self, request: RunRequest, *, silent: bool = False) -> None:
        """silent: what the imports print goes nowhere, else to standard error."""
        self._child = Child(_look, request, silent=silent) if request.job.modules() else None

    def __enter__(self) -> Inspection:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        if self._child is not None:
            self._child.end()

    def found(self, *, elsewhere: bool = False, patience_s: float = PATIENCE_S) -> str:
        """Wait for it; a note where it did not come to an end, else empty.

        elsewhere: it is scored on other machines: what cannot be imported on this one says nothing of them.

        Raises:
            JobError: it cannot be found or imported, is no predictor, or does not take its options or the model's path.
        """
        return _found(self._child, elsewhere, patience_s) if self._child is not None else ""


def inspect_code(request: RunRequest, *, elsewhere: bool = False, patience_s: float = PATIENCE_S) -> str:
    """An `Inspection`, waited for at once."""
    with Inspection(request) as inspection:
        return inspection.found(elsewhere=elsewhere, patience_s=patience_s)


def _found(child: Child, elsewhere: bool, patience_s: float) -> str:
    imported = False
    try:
        for _ in child.answers(patience_s):
            imported = True
    except TimeoutError:
        return f"model.uses: importing the code took longer than {patience_s:g} s here; every worker has to do it"
    except WorkLost as lost:
        found: NightjarError = JobError(f"model.uses: importing the job's code {lost.how}")
    except NightjarError as error:
        found = error
    else:
        return ""
    if imported or not elsewhere:
        raise found
    return f"on this machine, {found}"


def _look(request: RunRequest) -> Iterator[str]:
    """Yields `_IMPORTED` once it is, and then nothing, or raises what is wrong."""
    job, _ = enter_copy(request.storage, request.job, request.scoring.code, Path(request.cache))
    try:
        targets = user.imported(job)
    except JobError as error:
        cause = error.__cause__ or error
        raise explained(error, cause, request.scoring.left_out, request.job.folder, job.folder) from error
    yield _IMPORTED
    user.check_usable(job, targets)
