"""`uses: vllm`: a language model that vLLM runs in the actor itself.

vLLM's engine is in the actor's own process, and not in one beside it: if either dies, both do, and no process is left
that keeps a GPU.
"""

from __future__ import annotations

import math
import os.path
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from nightjar.inference.errors import JobError
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.job.options import keywords, text, whole
from nightjar.inference.predictors.adapter import Predictor, check_trusted
from nightjar.inference.predictors.language.answers import CHAT, EMBEDDINGS, Answer, Reader
from nightjar.inference.predictors.language.languagemodel import ASKED, LanguageModel, prompt_of
from nightjar.inference.predictors.language.vllmengine import Asked, EngineFailed, VllmRequests, import_vllm, params_of
from nightjar.inference.predictors.tabular.ontorch import OnTorch
from nightjar.inference.predictors.transformers.modelfolder import look

_FOLDERS = {"tokenizer", "model", "hf_config_path", "generation_config"}
"""Keys of vLLM's engine, or of a mapping in it, whose folders are read. It writes into those of others."""


class OnVllm(OnTorch):
    """Base of the adapters whose models vLLM runs."""

    libraries = ("vllm", "transformers")
    counted = (("vllm",), ("transformers",))
    extra = "vllm"

    def check_keys(self, job: ModelJob) -> None:
        if job.resources.gpus > 1 and job.resources.gpus % 1:
            raise JobError(f"resources.gpus: the model is divided among whole GPUs, and not {job.resources.gpus:g}")

    def inspect(self, job: ModelJob, path: str) -> None:
        look(job, Path(path), str(job.model.path))

    def device_errors(self) -> tuple[type[BaseException], ...]:
        """An engine that failed takes no further request."""
        return (EngineFailed,)

    def warm(self) -> None:
        import_vllm()


class VLLM(LanguageModel, OnVllm):
    """The `Adapter` of vLLM."""

    probabilities = True
    not_followed: ClassVar[Mapping[str, str]] = {
        **LanguageModel.not_followed,
        "structured_outputs": "write json_schema, regex or choice in model",
        "output_kind": "an answer is handed on when it is whole",
    }
    options = (
        *ASKED,
        text("regex", "each answer has this form, a regular expression", "none"),
        keywords("engine", "goes to vLLM's engine, as `{max_model_len: 2048, dtype: bfloat16}`", "vLLM's", "a mapping"),
        whole("requests_in_flight", "requests that are underway at once, in each actor", "5/4 of what vLLM runs"),
    )

    def check_keys(self, job: ModelJob) -> None:
        OnVllm.check_keys(self, job)
        LanguageModel.check_keys(self, job)
        options = job.model.options
        if "choice" in options and "sampling" in options:
            raise JobError("model.sampling: with model.choice the likeliest is taken, and none is drawn; leave it out")
        if "model" in options.get("engine", {}):
            raise JobError("model.engine.model: model.path names the model; leave it out")
        check_code_trusted(job, options.get("engine", {}))

    def reads(self, job: ModelJob) -> tuple[str, ...]:
        """The files that `engine` names, as the tokenizer or a draft model."""
        model = str(job.model.path).rstrip("/")
        found = dict.fromkeys(_named("", job.model.options.get("engine", {})))
        return tuple(each for each in found if not f"{each}/".startswith(f"{model}/"))

    def load(self, job: ModelJob, path: str) -> Predictor:
        return VllmModel(job, path)


def _named(key: str, value: Any) -> Iterator[str]:
    """The files and folders that are read, of those that a value of vLLM's engine names."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _named(name, each)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from _named(key, each)
    elif isinstance(value, str) and _is_read(key, value):
        yield value


def _is_read(key: str, path: str) -> bool:
    """Whether a value of the engine is the path of something that is read. Without a slash it is rather a choice."""
    # A text that is no path may be too long for one, which `Path` would raise.
    return "/" in path and (os.path.isfile(path) or (key in _FOLDERS and os.path.isdir(path)))  # noqa: PTH112, PTH113


def check_code_trusted(job: ModelJob, engine: Mapping[str, Any]) -> None:
    """Check that the job trusts the code in the model's folder, if vLLM's engine is to run that."""
    if engine.get("trust_remote_code"):
        check_trusted(job, "a folder whose code trust_remote_code runs", "leave that key out")


Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Choices:
    """Answers as tokens. forks: where they part: by the tokens that they share, those that may follow."""

    answers: tuple[Tokens, ...]
    forks: Mapping[Tokens, Tokens]

    def probabilities(self, found: Mapping[Tokens, Mapping[int, float]]) -> list[float]:
        """The probability of each answer; their sum is 1.

        found: by fork, the logarithm of the probability of each of its tokens, up to a constant.
        """
        likely = []
        for answer in self.answers:
            product = 1.0
            for place, token in enumerate(answer):
                if (logarithms := found.get(answer[:place])) is not None:
                    most = max(logarithms.values())
                    powers = {each: math.exp(logarithm - most) for each, logarithm in logarithms.items()}
                    product *= powers[token] / sum(powers.values())
            likely.append(product)
        return likely


def choices(answers: Sequence[Sequence[int]], end: int) -> Choices:
    """Find where the answers part. end: the token that ends an answer which another one goes on from.

    Raises:
        ValueError: Two of them are the same.
    """
    known = [tuple(answer) for answer in answers]
    if len(set(known)) < len(known):
        raise ValueError("two answers have the same tokens")
    ended = tuple(
        (*answer, end) if any(other[: len(answer)] == answer for other in known if other != answer) else answer
        for answer in known
    )
    following: dict[Tokens, dict[int, None]] = defaultdict(dict)
    for answer in ended:
        for place, token in enumerate(answer):
            following[answer[:place]][token] = None
    return Choices(ended, {path: tuple(tokens) for path, tokens in following.items() if len(tokens) > 1})


class VllmModel(VllmRequests):
    """The model as a `Predictor`."""

    def __init__(self, job: ModelJob, path: str) -> None:
        options = job.model.options
        self._api: str = options.get("api", CHAT)
        self._prompt, self._reader = prompt_of(job), Reader(job, probabilities=True)
        super().__init__(
            job,
            path,
            options.get("engine", {}),
            pools=self._api == EMBEDDINGS,
            special=self._api != CHAT,  # a template has them already
            most=options.get("requests_in_flight"),
            shorter="raise it in model.engine, or cut prompts in a preprocess",
            prompt=self._prompt,
        )
        if self._api == CHAT and not self.tokenizer.chat_template:
            raise JobError(
                f"model.api: {job.model.path} has no chat template, so it cannot be asked as a chat; write "
                "api: completions, or choose a model that was made for chats"
            )
        self._choices = self._parted(options["choice"]) if "choice" in options else None
        self._params = _params(options, self.engine.sampling)

    def request(self, row: dict[str, Any]) -> Asked:
        if self._api == CHAT:
            return Asked(self._params, self.text(self._prompt.messages(row), add_generation_prompt=True))
        return Asked(self._params, self._prompt.text(row))

    def read(self, request: Asked, answer: Answer) -> dict[str, Any]:
        return self._reader.row(answer)

    async def answer(self, request: Asked) -> Answer:
        """As in `Requests`. Choices are asked for at each place where they part: which token follows?"""
        if (known := self._choices) is None:
            return await super().answer(request)
        sent = time.monotonic()
        # One after the other, so that each finds the prompt in the cache.
        found: dict[Tokens, dict[int, float]] = {}
        cached = 0
        for path, tokens in known.forks.items():
            asked = {"max_tokens": 1, "temperature": 0, "logprob_token_ids": list(tokens), "detokenize": False}
            output = await self.engine.ask([*request.tokens, *path], params_of(asked))
            (first,) = output.outputs[0].logprobs
            found[path] = {token: first[token].logprob for token in tokens}
            cached = cached or output.num_cached_tokens or 0
        likely = known.probabilities(found)
        return Answer(
            text=self._named[likely.index(max(likely))],
            finish_reason="stop",
            prompt_tokens=len(request.tokens),
            output_tokens=len(known.forks),
            cached_tokens=cached,
            probabilities=likely,
            seconds=time.monotonic() - sent,
        )

    def _parted(self, names: Sequence[str]) -> Choices:
        from vllm.sampling_params import MAX_LOGPROB_TOKEN_IDS

        self._named = tuple(names)
        try:
            known = choices(self.tokens(names, special=False), self.tokenizer.eos_token_id)
        except ValueError as error:
            raise JobError(f"model.choice: {error}; word them otherwise") from None
        if (most := max(map(len, known.forks.values()), default=0)) > MAX_LOGPROB_TOKEN_IDS:
            raise JobError(
                f"model.choice: {most} tokens may follow at one place, and vLLM tells of {MAX_LOGPROB_TOKEN_IDS}"
            )
        return known


def _params(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> Any:
    """How answers are chosen, or that vectors are asked for. defaults: the model's own."""
    from vllm import PoolingParams

    if options.get("api") == EMBEDDINGS:
        return PoolingParams(task="embed")
    forms = {"json": options.get("json_schema"), "regex": options.get("regex")}
    wanted = {name: dict(form) if isinstance(form, Mapping) else form for name, form in forms.items() if form}
    try:
        return params_of({"max_tokens": None, **defaults, **options.get("sampling", {})}, wanted)
    except (TypeError, ValueError) as error:
        raise JobError(f"model.sampling: {error}") from None


ADAPTER = VLLM()
