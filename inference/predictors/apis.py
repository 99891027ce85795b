"""The interfaces of OpenAI's API that an endpoint may be asked through."""

from __future__ import annotations

from nightjar.inference.job.model import Job
from nightjar.inference.predictors.answers import Reader

CHAT, COMPLETIONS, EMBEDDINGS = "chat", "completions", "embeddings"

KEY_ENV = "OPENAI_API_KEY"
"""The environment variable with the key, if the job names none; without it none is sent."""


def reader_of(job: Job) -> Reader:
    """What reads the job's outputs.

    Raises:
        JobError: They cannot be read out of what the endpoint gives.
    """
    return Reader(job, vectors=job.model.options.get("api") == EMBEDDINGS)
