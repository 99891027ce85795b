"""The user's code, imported and looked at before anything is started: is it a predictor, does it take its options?

In a process of its own and for a bounded time: an import can run anything, end its process, or hang.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from nightjar.inference.errors import JobError, NightjarError
from nightjar.inference.job import Job
from nightjar.inference.predictors import user

PATIENCE_S = 60.0
"""Longest time for the imports. Slower ones are left to preflight, which waits as long as the job allows."""

_IMPORTED = "imported"


def inspect_code(job: Job, *, elsewhere: bool = False, patience_s: float = PATIENCE_S) -> str:
    """Look at what `model.uses` and `preprocess` name; a note where that did not come to an end, else empty.

    elsewhere: it is scored on other machines: what cannot be imported on this one says nothing of them.

    Raises:
        JobError: it cannot be found or imported, is no predictor, or does not take its options or the model's path.
    """
    if ":" not in job.model.uses and job.preprocess is None:
        return ""
    spawn = multiprocessing.get_context("spawn")
    answers, answer = spawn.Pipe(duplex=False)
    child = spawn.Process(target=_child, args=(answer, job), name="nightjar inspection")
    child.start()
    answer.close()
    try:
        return _answered(answers, child, elsewhere, patience_s)
    finally:
        # It has answered or never will; what its imports started, threads too, may go on for ever.
        child.kill()
        child.join()


def _answered(answers: Connection, child: SpawnProcess, elsewhere: bool, patience_s: float) -> str:
    imported = False
    while answers.poll(patience_s):
        try:
            found = answers.recv()
        except EOFError:
            child.join()
            found = JobError(f"model.uses: importing the job's code ended its process ({_how(child.exitcode or 0)})")
        if found is None:
            return ""
        if found != _IMPORTED:
            if imported or not elsewhere:
                raise found
            return f"on this machine, {found}"
        imported = True
    return f"model.uses: importing the code took longer than {patience_s:g} s here; every worker has to do it"


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _child(answer: Connection, job: Job) -> None:
    """Sends `_IMPORTED`, and then None or what is wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it ends it
    sys.dont_write_bytecode = True  # nothing is left behind in the job's folder
    os.dup2(2, 1)  # what an import prints must not get into `--json`
    try:
        targets = user.imported(job)
        answer.send(_IMPORTED)
        user.check_usable(job, targets)
    except NightjarError as error:
        answer.send(error)
    else:
        answer.send(None)
