"""A language model that vLLM runs in this process. Imports vllm.

Prompts are made into tokens in batches, before they are asked; so a prompt that is too long is found then.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from vllm import PoolingParams, SamplingParams
from vllm.sampling_params import MAX_LOGPROB_TOKEN_IDS, RequestOutputKind, StructuredOutputsParams

from nightjar.inference.errors import JobError, PromptInvalid
from nightjar.inference.job.model import Job
from nightjar.inference.predictors.language.answers import Answer
from nightjar.inference.predictors.language.apis import CHAT, EMBEDDINGS, reader_of
from nightjar.inference.predictors.language.choices import Choices, Fork, choices
from nightjar.inference.predictors.language.prompts import Messages, prompt_of
from nightjar.inference.predictors.language.requests import usage_of
from nightjar.inference.predictors.language.vllmrequests import VllmRequests, side_by_side
from nightjar.inference.records import Usage

_CUTS = 8
"""The most times that a prompt is made shorter: a text that is cut may have more tokens than were counted."""


class VllmModel(VllmRequests):
    """The model as a `Predictor`."""

    def __init__(self, job: Job, path: str) -> None:
        """path: the model's folder.

        Raises:
            JobError: It cannot be loaded, or is not asked for what it can do. Names the key.
        """
        options = job.model.options
        self._api: str = options.get("api", CHAT)
        self._prompt, self._reader = prompt_of(job), reader_of(job, probabilities=True)
        super().__init__(
            job,
            path,
            options.get("engine", {}),
            pools=self._api == EMBEDDINGS,
            most=options.get("requests_in_flight"),
            columns=self._prompt.columns,
            key=f"model.{self._prompt.key}",
        )
        if self._api == CHAT and not self.tokenizer.chat_template:
            raise JobError(
                f"model.api: {job.model.path} has no chat template, so it cannot be asked as a chat; write "
                "api: completions, or choose a model that was made for chats"
            )
        self._truncate: str | None = options.get("truncate")
        self._choices = self._parted(options["choice"]) if "choice" in options else None
        self._sampling = _sampling(options, self.engine.sampling) if self._api != EMBEDDINGS else None
        answer = (self._sampling.max_tokens or 1) if self._sampling else 0
        self._longest = self.engine.length - (answer if self._truncate else min(1, answer))
        if self._longest < 1:
            raise JobError(
                f"model.sampling.max_tokens: {answer} leaves no room for a prompt, since model.engine.max_model_len is "
                f"{self.engine.length}"
            )

    def request(self, row: dict[str, Any]) -> Any:
        """The messages or the text for one row."""
        return self._prompt.messages(row) if self._api == CHAT else self._prompt.text(row)

    def read(self, request: Sequence[int], answer: Answer) -> dict[str, Any]:
        return self._reader.row(answer)

    def requests(self, rows: Sequence[dict[str, Any]]) -> list[Any]:
        """The tokens of each row's prompt, or the exception of a row that cannot be asked for."""
        found = super().requests(rows)
        asked = [row for row, each in enumerate(found) if not isinstance(each, Exception)]
        with self.tokenising:
            texts = {row: self._said(found[row]) for row in asked}
            good = [row for row in asked if isinstance(texts[row], str)]
            tokens = dict(zip(good, self._tokens([str(texts[row]) for row in good]), strict=True))
            for row in asked:
                found[row] = self._fitting(found[row], tokens[row]) if row in tokens else texts[row]
        return found

    def order(self, prepared: Sequence[Any]) -> Sequence[int]:
        """Prompts that begin alike stand side by side."""
        return side_by_side(prepared)

    async def answer(self, request: Sequence[int]) -> tuple[Answer, Usage]:
        """As in `Requests`. A request that waits in vLLM's own queue is underway."""
        sent = time.monotonic()
        if self._choices is not None:
            answer = await self._chosen(request, self._choices)
        elif self._sampling is None:
            found = await self.engine.ask(request, PoolingParams(task="embed"))
            answer = Answer(prompt_tokens=len(request), vector=found.outputs.data.tolist())
        else:
            found = await self.engine.ask(request, self._sampling)
            (said,) = found.outputs
            answer = Answer(
                text=said.text,
                finish_reason=said.finish_reason or "",
                prompt_tokens=len(request),
                output_tokens=len(said.token_ids),
                cached_tokens=found.num_cached_tokens or 0,
            )
        return answer, usage_of(answer, time.monotonic() - sent)

    async def _chosen(self, request: Sequence[int], known: Choices) -> Answer:
        """Ask at each place where the choices part which token follows."""
        # One after the other, so that each finds the prompt in the cache.
        found: dict[Fork, list[float]] = {}
        cached = 0
        for fork in known.forks:
            params = SamplingParams(
                max_tokens=1,
                temperature=0,
                logprob_token_ids=list(fork.tokens),
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            output = await self.engine.ask([*request, *fork.path], params)
            (first,) = output.outputs[0].logprobs
            found[fork] = [first[token].logprob for token in fork.tokens]
            cached = cached or output.num_cached_tokens or 0
        likely = known.probabilities(found)
        return Answer(
            text=self._named[likely.index(max(likely))],
            finish_reason="stop",
            prompt_tokens=len(request),
            output_tokens=len(known.forks),
            cached_tokens=cached,
            probabilities=likely,
        )

    def _parted(self, names: Sequence[str]) -> Choices:
        """The choices as tokens."""
        self._named = tuple(names)
        try:
            known = choices(self.tokens(names, special=False), self.tokenizer.eos_token_id)
        except ValueError as error:
            raise JobError(f"model.choice: {error}; word them otherwise") from None
        if (most := max((len(fork.tokens) for fork in known.forks), default=0)) > MAX_LOGPROB_TOKEN_IDS:
            raise JobError(
                f"model.choice: {most} tokens may follow at one place, and vLLM tells of {MAX_LOGPROB_TOKEN_IDS}"
            )
        return known

    def _said(self, asked: Messages | str) -> str | Exception:
        """The prompt as the model reads it, with its own template; or why there is none."""
        return asked if isinstance(asked, str) else self.text(asked, add_generation_prompt=True)

    def _tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each prompt. A template has the special ones already."""
        return self.tokens(texts, special=self._api != CHAT)

    def _fitting(self, asked: Messages | str, tokens: list[int]) -> list[int] | Exception:
        """The tokens of a prompt, if they are not too many; or those of what is left of it."""
        if len(tokens) <= self._longest:
            return tokens
        if self._truncate is None:
            return self.too_long(tokens, "raise it in model.engine, or cut prompts with model.truncate")
        if isinstance(asked, str):
            return tokens[: self._longest] if self._truncate == "right" else tokens[-self._longest :]
        return self._shorter(asked, tokens)

    def _shorter(self, asked: Messages, tokens: list[int]) -> list[int] | Exception:
        """The tokens of messages whose longest text is cut, so that no role and no part of the template is lost."""
        sizes = [len(each["content"]) if isinstance(each["content"], str) else 0 for each in asked]
        longest = sizes.index(max(sizes))
        for _ in range(_CUTS):
            content = asked[longest]["content"] if sizes[longest] else ""
            inside = self.tokens([content], special=False)[0]
            left = len(inside) - (len(tokens) - self._longest)
            if left <= 0:
                break
            kept = inside[:left] if self._truncate == "right" else inside[-left:]
            asked = [*asked]
            asked[longest] = {**asked[longest], "content": self.tokenizer.decode(kept)}
            text = self._said(asked)
            if isinstance(text, Exception):
                return text
            (tokens,) = self._tokens([text])
            if len(tokens) <= self._longest:
                return tokens
        return PromptInvalid(
            f"the prompt has {len(tokens):,} tokens, and without any text of its longest message still more than "
            f"{self._longest:,}; raise max_model_len in model.engine"
        )


def _sampling(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> SamplingParams:
    """How answers are chosen. defaults: the model's own.

    Raises:
        JobError: vLLM knows no such key, or no such value of one.
    """
    forms = {"json": options.get("json_schema"), "regex": options.get("regex")}
    wanted = {name: dict(form) if isinstance(form, Mapping) else form for name, form in forms.items() if form}
    given = dict(options.get("sampling", {}))
    try:
        return SamplingParams(
            **{"max_tokens": None, **defaults, **given},
            structured_outputs=StructuredOutputsParams(**wanted) if wanted else None,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
    except (TypeError, ValueError) as error:
        raise JobError(f"model.sampling: {error}") from None
