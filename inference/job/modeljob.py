"""What of a job scores: each of its models, the objects of the user's own, and the keys that decide the outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nightjar.inference.job.model import Job
from nightjar.inference.job.model_sections import NamedModel, Preprocess
from nightjar.inference.job.resources import Resources
from nightjar.inference.job.seams import UNCOUNTED_SOURCES
from nightjar.inference.storage.locations import is_registered


@dataclass(frozen=True, slots=True)
class ModelJob:
    """What the job `whole` says of one of its models."""

    whole: Job
    model: NamedModel

    @property
    def preprocess(self) -> Preprocess | None:
        """The step before this model."""
        return self.model.preprocess or self.whole.preprocess

    @property
    def resources(self) -> Resources:
        """Of a process that scores with it."""
        return self.whole.resources

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


def scoring_keys(job: Job) -> dict[str, Any]:
    """Everything in a job that can change an output, and nothing else, as JSON: part of every shard's identity."""
    # Jobs without these keys keep the identity that they had before there were any.
    options = as_json(dict(sorted(job.input.options.items())))
    declared: dict[str, Any] = {
        "input.partitions": job.input.partitions,
        "input.schema": job.input.declared,
        "input.where": job.input.where,
        "input.format": counted_format(job),
        "profile": sorted(job.profiling),
        "profile.share": job.profile.share if job.profiling else None,
        **(_comparing_keys(job) if job.label is not None else {}),
        "resources.runtime_env": job.resources.runtime_env.identity(),
    }
    return {
        **{key: given for key, given in (declared | {"input.options": options}).items() if given},
        **_models_keys(job),
        "carry": job.carry,
        "label": job.label,
        "checks": sorted(job.measured_columns),
        "format": job.output.format,
        "gpu": job.resources.gpus > 0,
    }


def counted_format(job: Job) -> str:
    """The format that the job names for its input, if rows might be read otherwise without it; '' if not."""
    given = job.input.format or ""
    return "" if given in UNCOUNTED_SOURCES else given


def _comparing_keys(job: Job) -> dict[str, Any]:
    """How labels are compared that are there at once: it changes the states of each part."""
    asked = job.evaluation
    return {
        "evaluation.task": None if asked.task == "binary" else asked.task,
        "evaluation.prediction": asked.prediction,
        "evaluation.group": asked.group,
        "evaluation.k": asked.k if asked.task == "ranking" else None,
        "slices": sorted(job.slicing),
    }


def row_keys_of(job: ModelJob) -> dict[str, Any]:
    """Everything in a job that can change a row's output of one model, but for the values that the model gets of it."""
    need = job.resources
    return {**_model_keys(job), "gpu": need.gpus > 0, "resources.runtime_env": need.runtime_env.identity()}


def _models_keys(job: Job) -> dict[str, Any]:
    if not job.several:
        return _model_keys(*model_jobs(job))
    # The order of the models is the order of their columns, so they are a list of pairs.
    return {"models": [(each.model.name, _model_keys(each)) for each in model_jobs(job)], "rows": job.output.rows}


def _model_keys(job: ModelJob) -> dict[str, Any]:
    model = job.model.model_dump(include={"uses", "version", "features", "outputs", "batch_size", "options"})
    # Column order matters to readers, so outputs are a list of pairs.
    model["outputs"] = list(job.model.outputs.items())
    aside = job.model.framework.aside
    model["options"] = as_json({name: given for name, given in job.model.options.items() if name not in aside})
    if job.model.path and is_registered(job.model.path):
        model["path"] = job.model.path  # the version that a registry has of it
    step = job.preprocess
    options = {"preprocess.options": as_json(step.options)} if step and step.options else {}
    return {**options, "model": model, "preprocess": step.uses if step else None}


# ---- YAML values as JSON ------------------------------------------------------------------------------------

_IN_ORDER = "mapping"


def as_json(value: Any) -> Any:
    """Convert a YAML value. Dates, sets and bytes become pairs of type and value.

    A mapping becomes a list of pairs, unless its keys are texts in sorted order: a predictor may depend on the order of
    a mapping, and 1 is another key than "1".
    """
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and list(value) == sorted(value):
            return {key: as_json(inner) for key, inner in value.items()}
        return [_IN_ORDER, [[as_json(key), as_json(inner)] for key, inner in value.items()]]
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return [type(value).__name__, sorted(map(repr, value)) if isinstance(value, set) else repr(value)]


def mapping(value: Any) -> dict[str, Any] | None:
    """The mapping in a value that `as_json` made, with its keys as text; None for any other value."""
    if isinstance(value, dict):
        return value
    if not (isinstance(value, list) and len(value) == 2 and value[0] == _IN_ORDER and isinstance(value[1], list)):
        return None
    pairs = [pair for pair in value[1] if isinstance(pair, list) and len(pair) == 2]
    return {str(key): inner for key, inner in pairs} if len(pairs) == len(value[1]) else None
