"""The job of a job's only model, as adapters and scorers take it."""

from __future__ import annotations

from nightjar.inference.job.model import Job
from nightjar.inference.job.modeljob import ModelJob, model_jobs


def model_job(job: Job) -> ModelJob:
    (only,) = model_jobs(job)
    return only
