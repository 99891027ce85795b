"""Imports the user's code before anything is started, and checks that it is a predictor and takes its options.

This happens in a separate process and for a limited time, because an import can run anything, end its process, or hang.
The code is that of the snapshot, as when it scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import JobError, NightjarError
from nightjar.inference.identity.code import explained
from nightjar.inference.job.modeljob import modules_of
from nightjar.inference.predictors import user
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.user_checks import check_calls
from nightjar.inference.scoring.accumulating import check_classes
from nightjar.inference.scoring.assignment import enter
from nightjar.inference.scoring.child import Child, WorkLost, prepare

PATIENCE_S = 60.0
"""The longest time in seconds for the imports. Slower imports are left to preflight, which waits as long as the job
allows."""

_IMPORTED = "imported"


class Inspection:
    """A running check of the code that the job names: `model.uses`, `preprocess`, checks and accumulators of its
    own. The end of the context ends its process.
    """

    def __init__(self, request: RunRequest, *, silent: bool = False) -> None:
        """silent: discard what the imports print; else it goes to standard error."""
        if request.engine == LOCAL:
            prepare()  # preflight is in such a process, too
        job = request.job
        named = modules_of(job)
        self._child = Child(_look, request, silent=silent) if named or job.beside() else None
        # That of most of the code, for messages about all of it.
        self._key = "model.uses" if named else "checks" if job.calls() else "accumulators"
        self._installs = bool(job.resources.runtime_env.pip)

    def __enter__(self) -> Inspection:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        if self._child is not None:
            self._child.end()

    def found(self, *, elsewhere: bool = False, patience_s: float = PATIENCE_S) -> str:
        """Wait for the check. Returns a note if it did not finish, else an empty text.

        elsewhere: other machines score, so a failing import on this machine is only a note.

        Raises:
            JobError: The code cannot be found or imported, is not a predictor, or does not take its options or the
            model's path.
        """
        imported, key = False, self._key
        try:
            for _ in self._child.answers(patience_s) if self._child is not None else ():
                imported = True
        except TimeoutError:
            return f"{key}: importing the code took longer than {patience_s:g} s here; every worker has to do it"
        except WorkLost as lost:
            found: NightjarError = JobError(f"{key}: importing the job's code {lost.how}")
        except NightjarError as error:
            found = error
        else:
            return ""
        # What the run installs for its processes may be missing here.
        if imported or not (elsewhere or self._installs):
            raise found
        return f"on this machine, {found}"


def inspect_code(request: RunRequest, *, elsewhere: bool = False, patience_s: float = PATIENCE_S) -> str:
    """Start an `Inspection` and wait for it."""
    with Inspection(request) as inspection:
        return inspection.found(elsewhere=elsewhere, patience_s=patience_s)


def _look(request: RunRequest) -> Iterator[str]:
    """Yield `_IMPORTED` when the code is imported; then return, or raise what is wrong."""
    job = enter(request)
    try:
        targets = user.imported(job)
    except JobError as error:
        cause = error.__cause__ or error
        raise explained(error, cause, request.job.folder, job.folder) from error
    check_calls(request, job)
    check_classes(request, job)
    yield _IMPORTED
    user.check_usable(job, targets)
