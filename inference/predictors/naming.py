"""Errors about a model's keys say which model is meant, if the job has several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job


@contextmanager
def naming(job: Job) -> Iterator[None]:
    """In this context an error about the job begins with the model's name. job: of `Job.each`.

    Raises:
        JobError: The one that was raised in the context.
    """
    try:
        yield
    except JobError as error:
        if job.model.called:
            error.args = (f"models.{job.model.called}: {error}", *error.args[1:])
        raise
