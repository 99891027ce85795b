"""A run that could not begin: its reason is kept beside its revisions, and the job's notification is sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from nightjar.inference.errors import NightjarError, StorageError
from nightjar.inference.run.request import RunRequest, date_named, is_run_id, make_request
from nightjar.inference.storage.lake import LakeStorage


def could_not_begin(request: RunRequest, error: NightjarError, step: str) -> None:
    """Send the job's notification, and keep the reason. step: where the run ended.

    The notification goes first, because storage that is away delays the rest. If it cannot be sent, the error gets a
    note.
    """
    from nightjar.inference.run import waiting

    if request.job.notify is not None:
        from nightjar.flows import notifying  # with it Prefect is imported, which takes seconds

        if problem := notifying.failed(request, error, begun=False):
            error.add_note(problem)
    waiting.keep_failure(request, error, step)


def request_to_begin(job: str | Path, **given: Any) -> RunRequest:
    """The request for a run that is to begin; for `given` see `make_request`.

    If code or model is missing, or the run's folder cannot be read, the reason is kept and the notification sent. If
    the job file cannot be read, or the command's options are wrong, only the error is raised.

    Raises:
        NightjarError: As `make_request`.
    """
    try:
        return make_request(job, **given)
    except NightjarError as error:
        if (meant := _meant(job, given)) is not None:
            could_not_begin(meant, error, "discover")
        raise


def _meant(job: str | Path, given: dict[str, Any]) -> RunRequest | None:
    """The run for which no request could be made, if the job file and the options identify it."""
    given = {**given, "scores": False}
    try:
        return make_request(job, **given)
    except StorageError:
        # The run's folder has its date; if neither the options nor the name do, the run counts as new.
        name = given.get("run_id")
        if name is not None and not is_run_id(name):
            return None
        day = given.get("date") or date_named(name or "")
        alone = {**given, "run_id": None, "date": str(day) if day else None}
        with suppress(NightjarError):
            found = make_request(job, **alone, storage=LakeStorage())
            return replace(found, run_id=name or found.run_id)
    except NightjarError:
        return None
    return None


@contextmanager
def telling(request: RunRequest, step: str) -> Iterator[None]:
    """Call `could_not_begin` if the block fails."""
    try:
        yield
    except NightjarError as error:
        could_not_begin(request, error, step)
        raise
