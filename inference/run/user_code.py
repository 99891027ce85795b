"""Imports the user's code before anything is started, and checks that it is a predictor and takes its options; and asks
the user's own checks about the night, before it is published.

This happens in a separate process and for a limited time, because an import can run anything, end its process, or hang.
The code is that of the snapshot, as when it scores.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import JobError, NightjarError, raised
from nightjar.inference.identity.code import explained
from nightjar.inference.job.finding import find
from nightjar.inference.job.model import Job
from nightjar.inference.job.modeljob import modules_of
from nightjar.inference.messages import clip
from nightjar.inference.predictors import user
from nightjar.inference.run.request import RunRequest
from nightjar.inference.scoring.accumulating import check_classes
from nightjar.inference.scoring.assignment import aside_folder, enter
from nightjar.inference.scoring.child import Child, WorkLost, prepare
from nightjar.inference.validation.gates import Judgement, NightEvidence

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
        self._key = next(iter({**named, **job.beside()}), "")  # for messages about all of the code
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


def answers(request: RunRequest, night: NightEvidence) -> dict[str, Judgement | str]:
    """The answer of each function that the job calls, or why it gave none, by the check's key: `checks[2].call`.

    Each may take `retry.stall_s`, as any step of the user's code may.
    """
    return {key: _answer(request, key, spec, night) for key, spec in request.job.calls().items()}


def _answer(request: RunRequest, key: str, spec: str, night: NightEvidence) -> Judgement | str:
    patience_s = request.job.retry.stall_s
    try:
        with Child(_ask, request, key, spec, night) as child:
            (answer,) = child.answers(patience_s)
        assert isinstance(answer, Judgement | str)
        return answer
    except TimeoutError:
        failed = f"gave no answer within retry.stall_s = {patience_s:g} s"
    except WorkLost as lost:
        failed = lost.how
    except JobError as error:
        return clip(str(error))
    return f"{key}: {spec} {failed}"


def _ask(request: RunRequest, key: str, spec: str, night: NightEvidence) -> Iterator[Judgement | str]:
    function = find(key, spec, aside_folder(request, enter(request)))
    try:
        said = function(night)
    except BaseException as error:  # noqa: BLE001 (also sys.exit and Ctrl-C of the function's own)
        yield f"{key}: {spec} failed with {clip(raised(error, installed=True))}"
        return
    yield _told(key, spec, said)


def _told(key: str, spec: str, said: Any) -> Judgement | str:
    """What a function returned, or why that is no verdict."""
    if isinstance(said, bool | np.bool_):
        return Judgement(bool(said))
    if isinstance(said, str) and said.strip():
        return Judgement(False, clip(said))
    if isinstance(said, Judgement) and isinstance(said.passed, bool | np.bool_):
        return Judgement(bool(said.passed), *(clip(str(text)) for text in (said.sentence, said.observed, said.limit)))
    what = "an empty text" if isinstance(said, str) else "None" if said is None else f"a {type(said).__name__}"
    return f"{key}: {spec} returned {what}; return True, False, a sentence that says why not, or a Judgement"


def check_calls(request: RunRequest, job: Job) -> None:
    """Check that the functions can be found and take a night, without calling them. job: in this process's copy of the
    folder.

    Raises:
        JobError: One cannot. Names the key.
    """
    folder = aside_folder(request, job) if request.job.calls() else Path()
    for key, spec in request.job.calls().items():
        target = find(key, spec, folder)
        if not callable(target) or inspect.isclass(target) or inspect.iscoroutinefunction(target):
            what = "async" if inspect.iscoroutinefunction(target) else f"a {type(target).__name__}"
            what = "a class" if inspect.isclass(target) else what
            raise JobError(f"{key}: {spec} is {what}, not a plain function that is given the night's evidence")
        try:
            inspect.signature(target).bind(None)
        except TypeError as error:
            raise JobError(f"{key}: {spec} cannot be called with the night's evidence alone: {error}") from None
        except ValueError:  # written in C: only a call would tell
            continue
