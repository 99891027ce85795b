"""What the predictors that ask an engine of vLLM share: the engine, the tokenizer, and the order of prompts.

Imports vllm.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from nightjar.inference.errors import PromptInvalid
from nightjar.inference.job.model import Job
from nightjar.inference.predictors.language.prompts import Messages
from nightjar.inference.predictors.language.requests import Requests
from nightjar.inference.predictors.language.vllmengine import Engine


class VllmRequests(Requests):
    """Base of these predictors."""

    def __init__(
        self,
        job: Job,
        path: str,
        given: Mapping[str, Any],
        *,
        pools: bool,
        most: int | None,
        columns: tuple[str, ...] = (),
        key: str = "",
    ) -> None:
        """path: the model's folder. given: of the job, for vLLM's engine. pools: whether it gives vectors, and no
        answers. most: the requests that are underway at once; None for 5/4 of those that vLLM runs. columns, key: as
        `Requests`.

        Raises:
            JobError: It cannot be loaded. Names the key.
        """
        defaults: dict[str, Any] = {"tensor_parallel_size": max(1, int(job.resources.gpus))}
        if defaults["tensor_parallel_size"] > 1:
            defaults["distributed_executor_backend"] = "mp"  # in an actor vLLM might ask Ray for GPUs of its own
        if pools:
            defaults["runner"] = "pooling"
        self.engine = Engine(path, given, **defaults)
        weakref.finalize(self, self.engine.close)
        self.device = self.engine.device
        self.tokenizer = copy.deepcopy(self.engine.tokenizer())
        self.tokenising = threading.Lock()
        """Held while the tokenizer or its template is used."""
        super().__init__(job, most or self.engine.most + self.engine.most // 4, columns, key)

    def text(self, messages: Messages, **keywords: Any) -> str | Exception:
        """Messages as the model reads them, with its template; or why there is no such text. keywords: of
        transformers' `apply_chat_template`.
        """
        try:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False, **keywords))
        except Exception as error:  # noqa: BLE001 (a template raises whatever it likes, and blames these messages)
            return PromptInvalid(f"the model's chat template refuses the messages: {error}")

    def tokens(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        """The tokens of each text. special: with those that the tokenizer adds to a text."""
        return list(self.tokenizer(list(texts), add_special_tokens=special)["input_ids"]) if texts else []

    def too_long(self, tokens: Sequence[int], advice: str) -> PromptInvalid:
        """Why a prompt of these tokens cannot be asked. advice: what to do about it."""
        most = self.engine.length
        return PromptInvalid(
            f"the prompt has {len(tokens):,} tokens, and max_model_len is {most:,} with the answer; {advice}"
        )


def side_by_side(prompts: Sequence[list[int] | Exception]) -> list[int]:
    """The rows in an order in which prompts that begin alike follow each other, so that vLLM has their beginnings in
    its cache.
    """
    tokens = [[] if isinstance(prompt, Exception) else prompt for prompt in prompts]
    return sorted(range(len(tokens)), key=tokens.__getitem__)
