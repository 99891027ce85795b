"""Why a run ended, kept where no step could: its process was lost or stopped, or nothing had been begun."""

from __future__ import annotations

import json
import time
from contextlib import suppress

from nightjar.inference.errors import (
    Held,
    Interrupted,
    JobError,
    Missing,
    StorageError,
    TablesBehind,
    TakenBack,
)
from nightjar.inference.ledger.endings import Ended, of_error, of_record
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.ledger.ledger import open_epoch
from nightjar.inference.output import publications as publish
from nightjar.inference.output import revisions as revs
from nightjar.inference.run.request import RunRequest
from nightjar.inference.storage.protocol import Storage, join

_NOTES = "not-begun"
_MAX_TRIES = 10
"""A step that still lives appends every second or so, and may overtake this that often."""


def keep(request: RunRequest, error: BaseException, step: str) -> None:
    """Keep why this flow run ended the run, unless a step of its own did; nothing, where the storage is away.

    In the ledger, if a step had begun. Else in a note beside the revisions, if the output is this job's: a run
    that never began must not claim a place. step: where it ended, if it had not begun.
    """
    with suppress(StorageError, Held):
        newest = revs.newest_revision(request.storage, request.run_uri)
        if newest is not None and newest.success is None and newest.begun_by(request.flow_run):
            _end(request, newest, error)
        elif not isinstance(error, Interrupted | TakenBack | TablesBehind):
            _note(request, of_error(error, step, publish=request.publish))


def note_of(storage: Storage, run_uri: str, job: str) -> Ended | None:
    """Why the run could not begin when it was last tried, if that was kept."""
    try:
        notes = [entry.uri for entry in storage.list(join(run_uri, _NOTES))]
        kept = json.loads(storage.read(notes[-1])) if notes else None
        return of_record(kept) if kept and kept["job"] == job else None
    except Missing:
        return None
    except (ValueError, LookupError, TypeError, AttributeError):
        return None  # A note is no promise: one that somebody wrote over says nothing.


def _end(request: RunRequest, newest: revs.Revision, error: BaseException) -> None:
    """End the lease of a step of this flow run that did not: it is lost, or must stop."""
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
                this_holder(last.task, request.flow_run),
                lease_s=request.lease_s,
                seen=(newest.ledger, newest.state),
            )
        except Held:
            newest = revs.read_revision(request.storage, request.run_uri, newest.number)
            continue
        writer.stop(release=True, ending=ended)
        return


def _note(request: RunRequest, ended: Ended | None) -> None:
    try:
        publish.check_owner(request.storage, request.output, request.job.name)
        request.storage.read(join(request.output, "job.json"))
    except (JobError, Missing):
        return
    if ended is not None:
        content = json.dumps({"job": request.job.name, **ended.as_record()}).encode()
        # By time, and never rewritten, as everything here.
        request.storage.create(join(request.run_uri, _NOTES, f"{time.time_ns():020d}.json"), content)
