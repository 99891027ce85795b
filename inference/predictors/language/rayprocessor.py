"""What a configuration of Ray Data's processors asks for. Seen on Ray 2.60; imports nothing of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nightjar.inference.errors import JobError

CONFIG = "vLLMEngineProcessorConfig"

_INSTEAD = {
    "HttpRequestProcessorConfig": "for an endpoint of OpenAI's API write uses: openai and its url",
    "ServeDeploymentProcessorConfig": "for a deployment that speaks OpenAI's API write uses: openai and its url",
    "SGLangEngineProcessorConfig": "start SGLang's server, and write uses: openai and its url",
}
"""Other configurations, and what a job says in their place."""

_TASKS = ("generate", "embed")

_REFUSED = {
    "dynamic_lora_loading_path": "LoRA is not loaded; merge it into the model's weights",
    "runtime_env": "write resources.runtime_env in the job",
}
"""Keys that are not followed, and what to do."""

_MULTIMODAL = "prepare_multimodal_stage"


@dataclass(frozen=True, slots=True)
class Followed:
    """What is followed of a configuration; the rest says where and how often it runs, as the job's `resources` do.

    engine: for vLLM's engine. pools: whether vectors are asked for, and no answers. templates, tokenises, detokenises:
    whether messages go through the chat template, whether prompts are made into tokens before vLLM has them, and
    whether its tokens are made into the text. template: for the chat template. most: the requests that are underway at
    once; None if it says nothing.
    """

    engine: Mapping[str, Any]
    pools: bool
    templates: bool
    tokenises: bool
    detokenises: bool
    template: Mapping[str, Any] = field(default_factory=dict)
    most: int | None = None


def followed(config: Any) -> Followed:
    """Read a configuration.

    Raises:
        JobError: It is another one, or asks for what is not followed. Names that.
    """
    kinds = [kind.__name__ for kind in type(config).__mro__ if kind.__module__.partition(".")[0] == "ray"]
    if CONFIG not in kinds:
        if other := next((kind for kind in kinds if kind in _INSTEAD), None):
            raise JobError(f"model.config: is a {other}, and not a {CONFIG}; {_INSTEAD[other]}")
        raise JobError(f"model.config: is a {type(config).__name__}, and not a {CONFIG} of ray.data.llm")
    for key, advice in _REFUSED.items():
        if getattr(config, key):
            raise JobError(f"model.config: {key} is not followed: {advice}")
    if config.task_type not in _TASKS:
        raise JobError(
            f"model.config: task_type {config.task_type!r} is not followed, only {' and '.join(_TASKS)}; "
            "uses: text-classification has classifiers"
        )
    if _stage(config, _MULTIMODAL)["enabled"]:
        raise JobError(f"model.config: {_MULTIMODAL} is not followed: prompts are texts alone")
    template = _stage(config, "chat_template_stage")
    most = config.max_pending_requests
    return Followed(
        engine={key: value for key, value in config.engine_kwargs.items() if key not in {"task_type", "model"}},
        pools=config.task_type == "embed",
        templates=template["enabled"],
        tokenises=_stage(config, "tokenize_stage")["enabled"],
        detokenises=_stage(config, "detokenize_stage")["enabled"],
        template={"chat_template": template.get("chat_template"), **(template.get("chat_template_kwargs") or {})},
        most=most if most and most > 0 else None,
    )


def renamed(error: BaseException | None) -> str:
    """Today's name of what code of an older Ray asks for, if that is why the code cannot be imported; else ''."""
    # An ImportError has the module's name, and pydantic's ValidationError that of the class.
    if isinstance(error, ImportError) and error.name == "ray.data.llm":
        return "Ray calls it build_processor now, no longer build_llm_processor; model.config needs neither"
    if getattr(error, "title", "") == CONFIG:
        return "the key of the model is model_source now, no longer model"
    return ""


def _stage(config: Any, name: str) -> dict[str, Any]:
    """What a configuration says of a stage: `enabled`, and the stage's other keys."""
    given = getattr(config, name)
    if isinstance(given, bool):
        return {"enabled": given}
    stage = {"enabled": True, **(given if isinstance(given, Mapping) else given.model_dump())}
    if stage.get("runtime_env"):
        raise JobError(f"model.config: {name}.runtime_env is not followed: {_REFUSED['runtime_env']}")
    if stage.get("model_source") not in (None, config.model_source):
        raise JobError(f"model.config: {name}.model_source is not followed: model.path has the tokenizer, too")
    return stage
