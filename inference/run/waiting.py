"""A run without a ledger: it waits until its input is there, without a cluster. What it waits for, and why it could not
begin, is kept beside its revisions, for `nightjar status`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from nightjar.inference.errors import (
    GateFailed,
    Held,
    Interrupted,
    JobError,
    Missing,
    StorageError,
    TakenBack,
    Transient,
)
from nightjar.inference.input.files import matching_files
from nightjar.inference.input.listing import input_folder, there
from nightjar.inference.job.input import Wait
from nightjar.inference.job.model import Job
from nightjar.inference.jsonform import of_bytes, of_json, to_bytes
from nightjar.inference.ledger.endings import Ended, of_error, utc
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import Holder, can_be_asked, is_dead, this_holder
from nightjar.inference.messages import counted
from nightjar.inference.output import revisions as revs
from nightjar.inference.records import encode
from nightjar.inference.run.request import RunRequest, record_run
from nightjar.inference.storage.protocol import Storage, join
from nightjar.inference.validation.gates import GateResult

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
"""The shortest and longest time between two looks; listing a large bucket costs seconds, and money."""

_SAID_EVERY_S = 600.0
"""Seconds after which a run says again that it still waits, though nothing has changed."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """Input that a run waits for."""

    wait: Wait
    """`input.wait` of the job."""

    what: str
    """The input in words, with its location."""

    there: str
    """In words, the part of it that is there."""

    waited_s: float = 0.0
    """Seconds since the wait began."""

    @property
    def sentence(self) -> str:
        """One line for the terminal, the log and the run's page."""
        since = f", for {self.waited_s / 60:.0f} min so far" if self.waited_s >= _SAID_EVERY_S else ""
        return f"waiting for {self.what} ({self.there}), at most {self.wait.for_}{since}"


def awaited(storage: Storage, job: Job) -> Awaited | None:
    """The input that the job waits for; None if it does not wait, or if the input is there."""
    if job.input.wait is None:
        return None
    if (listed := job.input.list_) and there(storage, listed) is None:
        return Awaited(job.input.wait, job.input.shown, "it is not there")
    until = job.input.wait.until
    if isinstance(until, str):
        folders = iter([listed]) if listed else (input_folder(uri) for uri in job.input.uris)
        folder = next((each for each in folders if not _is_there(storage, each, until)), None)
        if folder is None:
            return None
        return Awaited(job.input.wait, f"{until} in {folder}", f"{counted(_files(storage, job), 'file')} there")
    files = _files(storage, job)
    what = "a file" if until == 1 else f"{until:,} files"
    if files >= until:
        return None
    return Awaited(job.input.wait, f"{what} in {job.input.shown}", f"{counted(files, 'file')} there")


def await_input(
    storage: Storage,
    job: Job,
    tell: Callable[[Awaited], None],
    *,
    patient: bool = True,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait until the input is there. Returns whether the run had to wait.

    tell: called at first, when more input has come, and every ten minutes. patient: False to look only once.

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


_WAITS = "waits.json"

SILENT_S = 1800.0
"""Seconds without a sign of life after which a process on another machine is silent; clocks may differ by minutes. A
sign of life is what a run says: `_SAID_EVERY_S`."""


@dataclass(frozen=True, slots=True)
class Waits:
    """A wait of a process before its run begins: a file beside the run's revisions, of the last one that said so."""

    job: str
    """The name of the job."""

    sentence: str
    """What it waits for."""

    holder: Holder
    """The process, and since when it waits."""

    seen: str
    """The process's last sign of life, in UTC, as ISO 8601."""

    @property
    def silent(self) -> bool:
        """Whether the process, on another machine, gives no sign of life."""
        return not can_be_asked(self.holder) and self.seen < utc(-SILENT_S / 3600)

    def __str__(self) -> str:
        gone = f"; no sign of life of it since {self.seen}: it is gone, or does not reach the output"
        return f"{self.sentence} ({self.holder}){gone if self.silent else ''}"


@contextmanager
def keeping(request: RunRequest) -> Iterator[Callable[[str], None]]:
    """Keep the last sentence given to the yielded function in a file, until the end of the block.

    Does nothing if the output belongs to another job, or if the storage is away.
    """
    holder, uri = this_holder("waits", request.flow_run, request.engine), join(request.run_uri, _WAITS)
    kept = False

    def keep(sentence: str) -> None:
        nonlocal kept
        with suppress(StorageError, JobError):
            if request.check_owner() is not None:  # of a wait nothing is left in a free output
                record_run(request)
            told = Waits(request.job.name, sentence, holder, utc())
            request.storage.write(uri, to_bytes(told))
            kept = True

    try:
        yield keep
    finally:
        with suppress(StorageError):
            # Another process that waits for this run may have written the file since.
            if kept and (told := waits(request)) is not None and told.holder == holder:
                request.storage.delete([uri])


def waits(request: RunRequest, after: str = "") -> Waits | None:
    """The wait of a run; None if no process waits that may be alive.

    after: ignore a wait that began before this time, in UTC, as ISO 8601.
    """
    try:
        found = of_bytes(Waits, request.storage.read(join(request.run_uri, _WAITS)))
    except (Missing, ValueError, LookupError, TypeError, AttributeError):
        return None  # a damaged file is ignored
    mine = found.job == request.job.name and found.holder.at >= after
    return found if mine and not is_dead(found.holder) else None


_NOTE = "not-begun.json"
_MAX_TRIES = 10
"""The most tries. A live step appends about every second, and may be faster than this process each time."""


def keep_failure(request: RunRequest, error: BaseException, step: str) -> None:
    """Keep why this flow run ended, unless one of its steps did. Does nothing if the storage is away.

    If a step had begun, the reason goes into the ledger. Else it goes into a note beside the revisions, if the output
    belongs to this job, or if it is the free one of a night of an `output.uri` with {date}. The note claims no output.
    step: where it ended, if no step had begun.
    """
    with suppress(StorageError, Held, JobError):
        newest = revs.newest_revision(request.storage, request.run_uri)
        begun = newest is not None and newest.success is None and newest.begun_by(request.flow_run)
        if newest is not None and begun and not _of_earlier_try(request, newest):
            _end(request, newest, error)
        elif not _is_no_end(request, error, newest) and (request.check_owner() is not None or request.dated):
            ended = of_error(error, step, publish=request.publish, engine=request.engine)
            if ended is not None:
                with suppress(StorageError):  # one that cannot be read may be what ended the run
                    record_run(request)
                content = json.dumps({"job": request.job.name, **encode(ended)}).encode()
                request.storage.write(join(request.run_uri, _NOTE), content)


def _is_no_end(request: RunRequest, error: BaseException, newest: revs.Revision | None) -> bool:
    """Whether a run stands as before: it was interrupted before it began, or its newest revision was taken back."""
    taken_back = isinstance(error, TakenBack) and error.run == request.run_id
    return isinstance(error, Interrupted) or (taken_back and newest is not None and newest.sealed)


def _of_earlier_try(request: RunRequest, newest: revs.Revision) -> bool:
    """Whether the revision ended in an earlier try of this flow run, and no step has begun since."""
    state = newest.state
    return state.holder is None and state.ended is not None and state.ended.at < request.again_since


def note_of(request: RunRequest) -> Ended | None:
    """Why the last try of a run could not begin, if that was kept."""
    try:
        kept = json.loads(request.storage.read(join(request.run_uri, _NOTE)))
        return of_json(Ended, kept) if kept["job"] == request.job.name else None
    except (Missing, ValueError, LookupError, TypeError, AttributeError):
        return None  # a note that somebody overwrote is ignored


def forget_failure(request: RunRequest) -> None:
    """Remove why earlier tries of this run could not begin: one has come to its end since, and wrote no ledger. Does
    nothing if the storage is away.
    """
    with suppress(StorageError):
        request.storage.delete([join(request.run_uri, _NOTE)])


def _end(request: RunRequest, newest: revs.Revision, error: BaseException) -> None:
    """End the lease of a step of this flow run that is lost or must stop."""
    for _ in range(_MAX_TRIES):
        state = newest.state
        last = state.openers[-1][1]
        if last.flow_run != request.flow_run or (state.holder is None and state.ended is not None):
            return  # somebody else goes on with it, or the step has kept why
        ended = of_error(error, last.task, publish=request.publish)
        try:
            writer = open_epoch(
                request.storage,
                newest.uri,
                this_holder(last.task, request.flow_run, request.engine),
                lease_s=request.lease_s,
                seen=newest.state,
            )
        except Held:
            newest = revs.read_revision(request.storage, request.run_uri, newest.number)
            continue
        writer.stop(release=True, ending=ended)
        return
