"""What a language model may be asked for, by the names that OpenAI's API has for it."""

from __future__ import annotations

from nightjar.inference.job.model import Job
from nightjar.inference.predictors.language.answers import Reader

CHAT, COMPLETIONS, EMBEDDINGS = "chat", "completions", "embeddings"

KEY_ENV = "OPENAI_API_KEY"
"""The environment variable with the key, if the job names none; without it none is sent."""


def reader_of(job: Job, *, probabilities: bool = False) -> Reader:
    """What reads the job's outputs. probabilities: whether the probability of each choice is known.

    Raises:
        JobError: They cannot be read out of what the model gives.
    """
    return Reader(job, vectors=job.model.options.get("api") == EMBEDDINGS, probabilities=probabilities)
