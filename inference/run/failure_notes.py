"""Keeps why a run ended, if no step could: its process was lost or stopped, or no step had begun."""

from __future__ import annotations

import json
from contextlib import suppress

from nightjar.inference.errors import Held, Interrupted, JobError, Missing, StorageError, TakenBack
from nightjar.inference.jsonform import of_json
from nightjar.inference.ledger.endings import Ended, of_error
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.output import revisions as revs
from nightjar.inference.records import encode
from nightjar.inference.run.request import RunRequest
from nightjar.inference.storage.protocol import join

_NOTE = "not-begun.json"
_MAX_TRIES = 10
"""The most tries. A live step appends about every second, and may be faster than this process each time."""


def keep(request: RunRequest, error: BaseException, step: str) -> None:
    """Keep why this flow run ended, unless one of its steps did. Does nothing if the storage is away.

    If a step had begun, the reason goes into the ledger. Else it goes into a note beside the revisions, if the output
    belongs to this job, or if it is the free one of a night of an `output.uri` with {date}. The note claims no output.
    step: where it ended, if no step had begun.
    """
    with suppress(StorageError, Held):
        newest = revs.newest_revision(request.storage, request.run_uri)
        if newest is not None and newest.success is None and newest.begun_by(request.flow_run):
            _end(request, newest, error)
        elif not isinstance(error, Interrupted | TakenBack):
            _note(request, of_error(error, step, publish=request.publish, engine=request.engine))


def note_of(request: RunRequest) -> Ended | None:
    """Why the last try of a run could not begin, if that was kept."""
    try:
        kept = json.loads(request.storage.read(join(request.run_uri, _NOTE)))
        return of_json(Ended, kept) if kept["job"] == request.job.name else None
    except (Missing, ValueError, LookupError, TypeError, AttributeError):
        return None  # a note that somebody overwrote is ignored


def forget(request: RunRequest) -> None:
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


def _note(request: RunRequest, ended: Ended | None) -> None:
    try:
        owner = request.check_owner()
    except JobError:
        return
    if owner is None and not request.dated:
        return  # the first try of a job that is wrong leaves nothing
    if ended is not None:
        content = json.dumps({"job": request.job.name, **encode(ended)}).encode()
        request.storage.write(join(request.run_uri, _NOTE), content)
