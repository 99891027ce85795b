"""A processor of Ray Data as a predictor. Imports vllm.

Between the user's two functions a row is what it is in Ray: its columns, what `preprocess` returned, and what vLLM
gave.
"""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from vllm import PoolingParams, SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from nightjar.inference.errors import AnswerInvalid, OutputInvalid, PromptInvalid
from nightjar.inference.job.finding import find, folder_of
from nightjar.inference.job.model import Job
from nightjar.inference.predictors.language.answers import Answer, fitting
from nightjar.inference.predictors.language.rayprocessor import followed
from nightjar.inference.predictors.language.requests import usage_of
from nightjar.inference.predictors.language.vllmrequests import VllmRequests, side_by_side
from nightjar.inference.records import Usage

RowFunction = Callable[[dict[str, Any]], Any]

_NOT_TAKEN = ("model", "multimodal_data", "mm_processor_kwargs", "multimodal_uuids", "tokenization_kwargs")
"""What `preprocess` may return in Ray, and is not followed: adapters of LoRA, pictures and sounds, and cuts."""

_PARAMS = ("sampling_params", "pooling_params", "tokenized_prompt")
"""What a row has no more when vLLM has answered it."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A row that is asked. row: as `postprocess` gets it, but for the answer. prompt: '' if only tokens are known."""

    row: Mapping[str, Any]
    prompt: str
    tokens: list[int]
    params: Any


@dataclass(frozen=True, slots=True)
class _Said(Answer):
    """An answer. given: what it adds to the row."""

    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class RayDataModel(VllmRequests):
    """The processor as a `Predictor`."""

    def __init__(self, job: Job, path: str) -> None:
        """path: the model's folder.

        Raises:
            JobError: The user's objects cannot be found or followed, or vLLM cannot load the model. Names the key.
        """
        found = {key: find(key, spec, folder_of(job)) for key, spec in job.objects().items()}
        self._config = followed(found["model.config"])
        self._before = _made(found.get("model.preprocess"))
        self._after = _made(found.get("model.postprocess"))
        self._types = job.model.output_types()
        most = job.model.options.get("requests_in_flight") or self._config.most
        super().__init__(job, path, self._config.engine, pools=self._config.pools, most=most)

    def requests(self, rows: Sequence[dict[str, Any]]) -> list[Any]:
        """As in `Requests`: what `preprocess` made of each row, as tokens; or the exception of a row."""
        found = super().requests(rows)
        with self.tokenising:
            found = [each if isinstance(each, Exception) else self._said(each) for each in found]
            texts = {row: each.prompt for row, each in enumerate(found) if isinstance(each, _Asked) and not each.tokens}
            # As Ray's stage and vLLM itself do it, whether a template has those tokens already or not.
            for row, tokens in zip(texts, self.tokens(list(texts.values()), special=True), strict=True):
                found[row] = dataclasses.replace(found[row], tokens=tokens)
        return [self._fitting(each) if isinstance(each, _Asked) else each for each in found]

    def request(self, row: dict[str, Any]) -> _Asked:
        """As in `Requests`; the prompt is not made yet."""
        made = _called("preprocess", self._before, dict(row), PromptInvalid)
        if taken := next((name for name in _NOT_TAKEN if name in made), None):
            raise PromptInvalid(f"model.preprocess returned {taken!r}, which is not followed here")
        data = {**row, **made}
        params = self._params(data)
        tokens = [] if self._config.tokenises else list(data.get("tokenized_prompt") or [])
        return _Asked({name: value for name, value in data.items() if name not in _PARAMS}, "", tokens, params)

    def order(self, prepared: Sequence[Any]) -> Sequence[int]:
        """Prompts that begin alike stand side by side."""
        return side_by_side([each.tokens if isinstance(each, _Asked) else each for each in prepared])

    async def answer(self, request: _Asked) -> tuple[Answer, Usage]:
        """As in `Requests`. A request that waits in vLLM's own queue is underway."""
        sent = time.monotonic()
        found = await self.engine.ask(request.tokens, request.params)
        seconds = time.monotonic() - sent
        given = {
            "prompt": request.prompt,
            "prompt_token_ids": list(request.tokens),
            "num_input_tokens": len(request.tokens),
            "generated_tokens": [],
            "generated_text": "",
            "num_generated_tokens": 0,
            "embeddings": None,
            "metrics": None,
            "logprobs": None,
            "prompt_logprobs": None,
            "params": str(request.params),
            "time_taken_llm": seconds,
            "__inference_error__": "",
        }
        if self._config.pools:
            given["embeddings"] = found.outputs.data.float().cpu().numpy()
            answer = _Said(prompt_tokens=len(request.tokens), vector=(), given=given)
            return answer, usage_of(answer, seconds)
        (said,) = found.outputs
        text, tokens = said.text, list(said.token_ids)
        if self._config.detokenises:
            text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        given |= {"generated_tokens": tokens, "generated_text": text, "num_generated_tokens": len(tokens)}
        given |= {"logprobs": _plain(said.logprobs), "prompt_logprobs": _plain(found.prompt_logprobs)}
        answer = _Said(
            text=text,
            finish_reason=said.finish_reason or "",
            prompt_tokens=len(request.tokens),
            output_tokens=len(tokens),
            cached_tokens=found.num_cached_tokens or 0,
            given=given,
        )
        return answer, usage_of(answer, seconds)

    def read(self, request: _Asked, answer: Answer) -> dict[str, Any]:
        """What `postprocess` makes of the row."""
        assert isinstance(answer, _Said)
        made = _called("postprocess", self._after, {**request.row, **answer.given}, AnswerInvalid)
        if gone := next((name for name in self._types if name not in made), None):
            raise AnswerInvalid(f"model.postprocess returned no {gone!r}, only {', '.join(made)}")
        return {
            name: fitting(name, made[name], kind, "model.postprocess returned") for name, kind in self._types.items()
        }

    def _params(self, data: Mapping[str, Any]) -> Any:
        """vLLM's parameters for one row."""
        key = "pooling_params" if self._config.pools else "sampling_params"
        if key not in data and not self._config.pools:
            raise PromptInvalid("model.preprocess returned no 'sampling_params'")
        given = dict(data.get(key) or {})
        try:
            if self._config.pools:
                return PoolingParams(**given, task="embed")
            if given.get("n", 1) != 1:
                raise ValueError("n: each row has one answer")
            form = given.pop("structured_outputs", None)
            structured = StructuredOutputsParams(**form) if form else None
            return SamplingParams(**given, structured_outputs=structured, output_kind=RequestOutputKind.FINAL_ONLY)
        except (TypeError, ValueError) as error:
            raise PromptInvalid(f"{key}: {error}") from None

    def _said(self, asked: _Asked) -> _Asked | Exception:
        """With its prompt, made by the chat template where the configuration has one."""
        if not self._config.templates:
            prompt = asked.row.get("prompt") or ""
            if not prompt and not asked.tokens:
                return PromptInvalid("the row has no 'prompt', or an empty one; model.preprocess returns it")
            return dataclasses.replace(asked, prompt=prompt)
        messages = asked.row.get("messages")
        if not messages:
            return PromptInvalid("the row has no 'messages', or none in them; model.preprocess returns them")
        by_user = messages[-1].get("role") == "user"
        prompt = self.text(
            messages, add_generation_prompt=by_user, continue_final_message=not by_user, **self._config.template
        )
        return prompt if isinstance(prompt, Exception) else dataclasses.replace(asked, prompt=prompt)

    def _fitting(self, asked: _Asked) -> _Asked | Exception:
        """What is asked, if its tokens are not too many."""
        if len(asked.tokens) + (not self._config.pools) <= self.engine.length:
            return asked
        return self.too_long(asked.tokens, "raise it in engine_kwargs of model.config, or cut prompts in preprocess")


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
