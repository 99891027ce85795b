"""Whether tonight's input is there, and waiting until it is: a look now and then, which holds no cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from nightjar.inference.errors import GateFailed, Missing, Transient
from nightjar.inference.input.files import matching_files
from nightjar.inference.input.listing import input_folder
from nightjar.inference.job.model import Job, Wait
from nightjar.inference.storage.protocol import Storage, join
from nightjar.inference.validation.gates import GateResult

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
"""Between two looks: a listing of a large bucket costs seconds, and money."""

_SAID_EVERY_S = 600.0
"""So often a run says that it still waits, though nothing has changed."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """What a run waits for. what: in words, with its place. there: what of it was found. waited_s: so far."""

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
    """What the job waits for, if it is to wait and that is not there yet."""
    if job.input.wait is None:
        return None
    until, folder = job.input.wait.until, input_folder(job.input.uri)
    if isinstance(until, str):
        if _is_there(storage, folder, until):
            return None
        return Awaited(job.input.wait, f"{until} in {folder}", _counted(_files(storage, job)))
    files = _files(storage, job)
    what = "a file" if until == 1 else f"{until:,} files"
    return Awaited(job.input.wait, f"{what} in {job.input.uri}", _counted(files)) if files < until else None


def await_input(
    storage: Storage,
    job: Job,
    tell: Callable[[Awaited], None],
    *,
    patient: bool = True,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Return once the input is there; whether it had to be waited for.

    tell: is told what is waited for, at first, when more of it has come, and every ten minutes. patient: false to look
    once only.

    Raises:
        GateFailed: it was not there in time.
        StorageError: what says no to the look; what may pass is looked at again.
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
            now = Awaited(job.input.wait, f"the storage behind {job.input.uri}", str(error))
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
    """Asked for by its name: a marker begins with `_` or `.` as a rule, and such files are no input."""
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
