"""What becomes of a run that could not begin: its reason is kept, and whom the job says is told."""

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
    """Tell why, and keep it; that nobody could be told is a note of the error. step: where it ended.

    The message goes first, because a storage that is away holds up what is kept there.
    """
    from nightjar.inference.run import failure_notes

    if request.job.notify is not None:
        from nightjar.flows import notifying  # with it Prefect is imported, which takes seconds

        if problem := notifying.failed(request, error, begun=False):
            error.add_note(problem)
    failure_notes.keep(request, error, step)


def request_to_begin(job: str | Path, **given: Any) -> RunRequest:
    """The request for a run that is to begin. given: as `make_request` takes it.

    Where code or model cannot be had, or what is kept of the run cannot be read, it is known which run was meant, so
    its reason is kept and told. A job file that cannot be read names nobody to tell; and words of the command that are
    wrong are for whoever typed them.

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
    """The run that was meant where no request for it could be made; None if that cannot be known."""
    given = {**given, "scores": False}
    try:
        return make_request(job, **given)
    except StorageError:
        # The job file alone says whom to tell. A run's date is in its folder, unless the command or the name says it:
        # it is taken for a new run, as one is that has no such folder.
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
def telling(request: RunRequest, step: str, unless: tuple[type[NightjarError], ...] = ()) -> Iterator[None]:
    """Keep why the block fails before a night has begun, and tell whom the job says.

    step: where that is. unless: errors after which nights have begun, which tell for themselves.
    """
    try:
        yield
    except unless:
        raise
    except NightjarError as error:
        could_not_begin(request, error, step)
        raise
