"""Asks the functions of the user's own that judge a night (`{call: "mychecks:no_flagged_customers"}`).

They run in a separate process, because the user's code may end the process, hang in it, or change its state. Their code
is that of the snapshot that the run began with. Whatever goes wrong with them becomes the answer that the night does
not pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nightjar.inference.errors import JobError, raised
from nightjar.inference.job.finding import find
from nightjar.inference.job.model import Job
from nightjar.inference.messages import clip
from nightjar.inference.run.request import RunRequest
from nightjar.inference.scoring.assignment import aside_folder, enter
from nightjar.inference.scoring.child import Child, WorkLost
from nightjar.inference.validation.gates import Judgement, NightEvidence


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
        return str(error)
    return f"{key}: {spec} {failed}"


def _ask(request: RunRequest, key: str, spec: str, night: NightEvidence) -> Iterator[Judgement | str]:
    job = enter(request)
    try:
        function = find(key, spec, aside_folder(request, job))
    except JobError as error:
        yield clip(str(error))
        return
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
