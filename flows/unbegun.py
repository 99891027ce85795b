"""What becomes of a run that could not begin: its reason is kept, and whom the job says is told."""

from __future__ import annotations

from nightjar.inference.errors import NightjarError
from nightjar.inference.run import reasons
from nightjar.inference.run.request import RunRequest


def could_not_begin(request: RunRequest, error: NightjarError, step: str) -> None:
    """Tell why, and keep it; that nobody could be told is a note of the error. step: where it ended.

    The message goes first, because a storage that is away holds up what is kept there.
    """
    if request.job.notify is not None:
        from nightjar.flows import notifying  # with it Prefect is imported, which takes seconds

        if problem := notifying.failed(request, error, begun=False):
            error.add_note(problem)
    reasons.keep(request, error, step)
