"""A job for one of its models, and the objects of the user's own that a job names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nightjar.inference.job.model import Job
from nightjar.inference.job.model_sections import NamedModel, Preprocess
from nightjar.inference.job.resources import Resources


@dataclass(frozen=True, slots=True)
class ModelJob:
    """What the job `whole` says of one of its models."""

    whole: Job
    model: NamedModel

    @property
    def preprocess(self) -> Preprocess | None:
        """The step before this model."""
        step = self.model.preprocess or self.whole.preprocess
        return step if step and step.uses else None

    @property
    def resources(self) -> Resources:
        """Of a process that scores with it: for a staged model of a worker of the CPU stage, wherever it is called."""
        need, stage = self.whole.resources, self.whole.stage
        return need.model_copy(update={"gpus": 0.0, "cpus": stage.cpus}) if self.model.staged and stage else need

    @property
    def begins_apart(self) -> bool:
        """Whether a CPU stage has something to do for it."""
        return self.preprocess is not None or self.model.staged

    @property
    def key(self) -> str:
        """The key of the model, for messages: `model`, or `models.<name>`."""
        return f"models.{self.model.name}" if self.model.name else "model"

    def objects(self) -> dict[str, str]:
        """The user's objects that the job names for the model, "module:name" by key."""
        step, options = self.preprocess, self.model.options
        named: dict[str, Any] = {"model.uses": self.model.uses, "preprocess": step.uses if step else None}
        for name in self.model.framework.code:
            named[f"{self.model.options_key}.{name}"] = options.get(name)
        return {key: spec for key, spec in named.items() if isinstance(spec, str) and ":" in spec}


def model_jobs(job: Job) -> tuple[ModelJob, ...]:
    """The job for each of its models, in order."""
    return tuple(ModelJob(job, model) for model in job.models)


def objects_of(job: Job) -> dict[str, str]:
    """The user's objects that score, "module:name" by key; of several models below `models.<name>.`."""
    return {
        f"models.{each.model.name}.{key}" if each.model.name else key: spec
        for each in model_jobs(job)
        for key, spec in each.objects().items()
    }


def modules_of(job: Job) -> dict[str, str]:
    """The user's modules that score or read, by key."""
    named = {**objects_of(job), **({"input.format": job.input.own} if job.input.own else {})}
    return {key: spec.partition(":")[0] for key, spec in named.items()}
