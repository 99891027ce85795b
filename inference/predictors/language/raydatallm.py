"""`uses: ray.data.llm`: a processor of Ray Data, as its documentation has one, with vLLM in the actor itself.

A processor of Ray's own takes and returns blocks whose rows have no file and no number, and ends with the first row
that fails. So its parts are taken: the engine of `uses: vllm` follows the configuration, and `preprocess` and
`postprocess` are called for one row at a time.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from nightjar.inference.errors import AnswerInvalid, JobError, OutputInvalid, PromptInvalid
from nightjar.inference.job.finding import find, folder_of
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.job.options import Option, text, whole
from nightjar.inference.job.sections import SPEC
from nightjar.inference.predictors.adapter import Predictor
from nightjar.inference.predictors.language.answers import Answer, fitting
from nightjar.inference.predictors.language.languagemodel import check_rescored
from nightjar.inference.predictors.language.vllm import OnVllm, check_code_trusted
from nightjar.inference.predictors.language.vllmengine import Asked, VllmRequests, params_of
from nightjar.inference.predictors.user import makes_no_callable

RAY_CONFIG = "vLLMEngineProcessorConfig"
"""The configuration of Ray Data's processors that is followed."""

_TASKS = ("generate", "embed")

_REFUSED = {
    "dynamic_lora_loading_path": "LoRA is not loaded; merge it into the model's weights",
    "runtime_env": "write resources.runtime_env in the job",
}
"""Keys that are not followed, and what to do."""

_MULTIMODAL = "prepare_multimodal_stage"


@dataclass(frozen=True, slots=True)
class Followed:
    """What is followed of a configuration; the rest says where and how often it runs, as the job's `resources` do."""

    engine: Mapping[str, Any]
    """The keys for vLLM's engine."""

    pools: bool
    """Whether vectors are asked for, and no answers."""

    templates: bool
    """Whether messages go through the chat template."""

    tokenises: bool
    """Whether prompts are made into tokens before vLLM has them; if not, `preprocess` may return the tokens."""

    detokenises: bool
    """Whether vLLM's tokens are made into the text by the tokenizer; if not, the text is vLLM's own."""

    template: Mapping[str, Any] = field(default_factory=dict)
    """The keywords for the chat template."""

    most: int | None = None
    """The requests that are underway at once; None if the configuration says nothing."""


def followed(config: Any) -> Followed:
    """Read a configuration.

    Raises:
        JobError: It is another one, or asks for what is not followed. Names that.
    """
    if RAY_CONFIG not in [kind.__name__ for kind in type(config).__mro__ if kind.__module__.partition(".")[0] == "ray"]:
        raise JobError(
            f"model.config: is a {type(config).__name__}, and not a {RAY_CONFIG} of ray.data.llm; an endpoint, as of "
            "Ray Serve or SGLang, is asked with uses: openai"
        )
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


def _function(name: str, about: str) -> Option:
    return text(name, about, "the row itself", SPEC, f'"module:name" of your function, as "summarise:{name}"')


class RayDataLLM(OnVllm):
    """The `Adapter` of such processors."""

    options = (
        text(
            "config",
            f"your `{RAY_CONFIG}`; `model.path` takes the place of its `model_source`",
            "required",
            SPEC,
            f'"module:name" of your {RAY_CONFIG}, as "summarise:config"',
            required=True,
        ),
        _function("preprocess", "makes of a row what is asked: `messages` or `prompt`, and `sampling_params`"),
        _function("postprocess", "makes of a row with its answer, as `generated_text`, the outputs"),
        whole("requests_in_flight", "requests that are underway at once, in each actor", "`max_pending_requests`"),
    )

    def check_keys(self, job: ModelJob) -> None:
        super().check_keys(job)
        check_rescored(job)

    def check_code(self, job: ModelJob, found: Mapping[str, Any]) -> None:
        check_code_trusted(job, followed(found["model.config"]).engine)
        for key in ("model.preprocess", "model.postprocess"):
            if (function := found.get(key)) is not None:
                _check_function(key, function)

    def load(self, job: ModelJob, path: str) -> Predictor:
        return RayDataModel(job, path)


def _check_function(key: str, function: Any) -> None:
    """Check that something takes a row, as Ray Data's `map` calls it."""
    if not callable(function) or makes_no_callable(function):
        raise JobError(f"{key}: is no function that takes a row")
    called = function.__call__ if inspect.isclass(function) else function
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called) or inspect.isgeneratorfunction(called):
        raise JobError(f"{key}: is async or a generator; write a function that takes a row and returns one")


RowFunction = Callable[[dict[str, Any]], Any]

_NOT_TAKEN = ("model", "multimodal_data", "mm_processor_kwargs", "multimodal_uuids", "tokenization_kwargs")
"""What `preprocess` may return in Ray, and is not followed: adapters of LoRA, pictures and sounds, and cuts."""

_PARAMS = ("sampling_params", "pooling_params", "tokenized_prompt")
"""What a row has no more when vLLM has answered it."""


class RayDataModel(VllmRequests):
    """The processor as a `Predictor`."""

    def __init__(self, job: ModelJob, path: str) -> None:
        found = {key: find(key, spec, folder_of(job.whole)) for key, spec in job.objects().items()}
        self._config = followed(found["model.config"])
        self._before = _made(found.get("model.preprocess"))
        self._after = _made(found.get("model.postprocess"))
        self._types = job.model.output_types()
        most = job.model.options.get("requests_in_flight") or self._config.most
        super().__init__(
            job,
            path,
            self._config.engine,
            pools=self._config.pools,
            special=True,  # as Ray's stage and vLLM itself do it, whether a template has them already or not
            most=most,
            shorter="raise it in engine_kwargs of model.config, or cut prompts in preprocess",
        )

    def request(self, row: dict[str, Any]) -> Asked:
        made = _called("preprocess", self._before, dict(row), PromptInvalid)
        if taken := next((name for name in _NOT_TAKEN if name in made), None):
            raise PromptInvalid(f"model.preprocess returned {taken!r}, which is not followed here")
        data = {**row, **made}
        params = self._params(data)
        tokens = [] if self._config.tokenises else list(data.get("tokenized_prompt") or [])
        kept = {name: value for name, value in data.items() if name not in _PARAMS}
        return Asked(params, self._prompt(kept, bool(tokens)), tokens, kept)

    def read(self, request: Asked, answer: Answer) -> dict[str, Any]:
        made = _called("postprocess", self._after, {**request.row, **self._given(request, answer)}, AnswerInvalid)
        if gone := next((name for name in self._types if name not in made), None):
            raise AnswerInvalid(f"model.postprocess returned no {gone!r}, only {', '.join(made)}")
        return {
            name: fitting(name, made[name], kind, "model.postprocess returned") for name, kind in self._types.items()
        }

    def _given(self, request: Asked, answer: Answer) -> dict[str, Any]:
        """What the answer adds to the row, as in Ray."""
        vector = None if answer.vector is None else np.array(answer.vector, np.float32)
        said = None if answer.vector is not None else answer.output.outputs[0]
        tokens = list(said.token_ids) if said else []
        detokenised = bool(said) and self._config.detokenises
        return {
            "prompt": request.prompt,
            "prompt_token_ids": list(request.tokens),
            "num_input_tokens": len(request.tokens),
            "generated_tokens": tokens,
            "generated_text": self.tokenizer.decode(tokens, skip_special_tokens=True) if detokenised else answer.text,
            "num_generated_tokens": len(tokens),
            "embeddings": vector,
            "metrics": None,
            "logprobs": _plain(said.logprobs) if said else None,
            "prompt_logprobs": _plain(answer.output.prompt_logprobs) if said else None,
            "params": str(request.params),
            "time_taken_llm": answer.seconds,
            "__inference_error__": "",
        }

    def _params(self, data: Mapping[str, Any]) -> Any:
        key = "pooling_params" if self._config.pools else "sampling_params"
        if key not in data and not self._config.pools:
            raise PromptInvalid("model.preprocess returned no 'sampling_params'")
        from vllm import PoolingParams

        given = dict(data.get(key) or {})
        try:
            if self._config.pools:
                return PoolingParams(**given, task="embed")
            if given.get("n", 1) != 1:
                raise ValueError("n: each row has one answer")
            form = given.pop("structured_outputs", None)
            return params_of(given, form)
        except (TypeError, ValueError) as error:
            raise PromptInvalid(f"{key}: {error}") from None

    def _prompt(self, row: Mapping[str, Any], tokenised: bool) -> str:
        """The prompt for a row, made by the chat template where the configuration has one."""
        if not self._config.templates:
            prompt: str = row.get("prompt") or ""
            if not prompt and not tokenised:
                raise PromptInvalid("the row has no 'prompt', or an empty one; model.preprocess returns it")
            return prompt
        messages = row.get("messages")
        if not messages:
            raise PromptInvalid("the row has no 'messages', or none in them; model.preprocess returns them")
        by_user = messages[-1].get("role") == "user"
        return self.text(
            messages, add_generation_prompt=by_user, continue_final_message=not by_user, **self._config.template
        )


def _made(function: Any) -> RowFunction | None:
    """The user's function; a class is constructed, as Ray Data does."""
    made: Any = function() if inspect.isclass(function) else function
    return None if made is None else cast(RowFunction, made)


def _called(
    name: str, function: RowFunction | None, row: dict[str, Any], blamed: type[OutputInvalid]
) -> Mapping[str, Any]:
    """What the user's function returns for a row. blamed: the error, if there is nothing of use."""
    if function is None:
        return row
    try:
        found = function(row)
    except Exception as error:
        raise blamed(f"model.{name} raised {type(error).__name__}: {error}") from error
    if not isinstance(found, Mapping):
        raise blamed(f"model.{name} returned {type(found).__name__}; return a dict")
    return found


def _plain(places: Any) -> list[Any] | None:
    """vLLM's logarithms of probabilities as dicts, as they are in Ray."""
    if places is None:
        return None
    return [place and {token: dataclasses.asdict(each) for token, each in place.items()} for place in places]


ADAPTER = RayDataLLM()
