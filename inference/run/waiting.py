"""Waits until tonight's input is there. It looks now and then, and holds no cluster meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from nightjar.inference.errors import GateFailed, Missing, Transient
from nightjar.inference.input.files import matching_files
from nightjar.inference.input.listing import input_folder
from nightjar.inference.input.lists import exists
from nightjar.inference.job.input import Wait
from nightjar.inference.job.model import Job
from nightjar.inference.storage.protocol import Storage, join
from nightjar.inference.validation.gates import GateResult

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
"""The shortest and longest time between two looks; listing a large bucket costs seconds, and money."""

_SAID_EVERY_S = 600.0
"""Seconds after which a run says again that it still waits, though nothing has changed."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """What a run waits for. what: in words, with its location. there: what was found so far. waited_s: seconds so
    far.
    """

    wait: Wait
    what: str
    there: str
    waited_s: float = 0.0

    @property
    def sentence(self) -> str:
        """For a person who watches."""
        since = f", for {self.waited_s / 60:.0f} min so far" if self.waited_s >= _SAID_EVERY_S else ""
        return f"waiting for {self.what} ({self.there}), at most {self.wait.for_}{since}"


def awaited(storage: Storage, job: Job) -> Awaited | None:
    """What the job waits for; None if it does not wait, or if the input is there."""
    if job.input.wait is None:
        return None
    if (listed := job.input.list_) and not exists(storage, listed):
        return Awaited(job.input.wait, job.input.shown, "it is not there")
    until = job.input.wait.until
    if isinstance(until, str):
        folders = iter([listed]) if listed else (input_folder(uri) for uri in job.input.uris)
        folder = next((each for each in folders if not _is_there(storage, each, until)), None)
        if folder is None:
            return None
        return Awaited(job.input.wait, f"{until} in {folder}", _counted(_files(storage, job)))
    files = _files(storage, job)
    what = "a file" if until == 1 else f"{until:,} files"
    return Awaited(job.input.wait, f"{what} in {job.input.shown}", _counted(files)) if files < until else None


def await_input(
    storage: Storage,
    job: Job,
    tell: Callable[[Awaited], None],
    *,
    patient: bool = True,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Return when the input is there. Returns whether the run had to wait.

    tell: called with what the run waits for: at first, when more has come, and every ten minutes. patient: False to
    look only once.

    Raises:
        GateFailed: The input did not come in time.
        StorageError: The storage refused; after an error that may pass, the run looks again.
    """
    began, pause, told, told_at = clock(), _FIRST_PAUSE_S, "", 0.0
    while True:
        waited_s = clock() - began
        try:
            now = awaited(storage, job)
            if now is None:
                return bool(told)
        except Transient as error:
            assert job.input.wait is not None
            now = Awaited(job.input.wait, f"the storage behind {job.input.shown}", str(error))
        left = now.wait.seconds - waited_s if patient else 0.0
        if left <= 0:
            raise _late(now, patient)
        if now.there != told or clock() - told_at >= _SAID_EVERY_S:
            tell(Awaited(now.wait, now.what, now.there, waited_s))
            told, told_at = now.there, clock()
        sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _late(awaited: Awaited, patient: bool) -> GateFailed:
    looked = f"Waited {awaited.wait.for_} for {awaited.what}" if patient else f"Looked once for {awaited.what}"
    sentence = (
        f"{looked}: not there ({awaited.there}), and nothing was scored. Repeat the command when it is, or raise "
        "input.wait.for."
    )
    verdict = GateResult("input.wait", False, awaited.there, f"{awaited.what} within {awaited.wait.for_}", sentence)
    return GateFailed(sentence, (verdict,))


def _is_there(storage: Storage, folder: str, marker: str) -> bool:
    """Whether the marker exists. It is not listed, because its name usually begins with `_` or `.`, as no input's
    does.
    """
    beside = folder.rpartition("/")[0]
    with suppress(Missing):
        storage.stat(join(folder, marker))
        return True
    with suppress(Missing):
        # The input may be one file, which has its marker beside it.
        storage.stat(folder)
        storage.stat(join(beside, marker))
        return True
    return False


def _files(storage: Storage, job: Job) -> int:
    return sum(1 for _ in matching_files(storage, job))


def _counted(files: int) -> str:
    return f"{files:,} file{'' if files == 1 else 's'} there"
