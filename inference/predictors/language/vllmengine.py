"""vLLM's engine in this process, which one thread steps, and the base of the predictors that ask it.

vLLM's own asynchronous engine runs in a process of its own, which lives on when the one that asks it is killed, and
keeps its GPU. Here both are one process. With several GPUs vLLM starts further processes, which end with this one.
"""

from __future__ import annotations

import asyncio
import atexit
import copy
import gc
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import import_module
from itertools import count
from typing import Any

from nightjar.inference.errors import JobError, PromptInvalid
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.messages import nearest
from nightjar.inference.predictors.adapter import is_memory, unloadable
from nightjar.inference.predictors.language.answers import Answer
from nightjar.inference.predictors.language.languagemodel import Messages, Prompt
from nightjar.inference.predictors.language.requests import Requests

Params = Any
"""vLLM's `SamplingParams`, or `PoolingParams` for vectors."""


def params_of(given: Mapping[str, Any], form: Mapping[str, Any] | None = None) -> Params:
    """How vLLM chooses an answer. form: the one that it must have, as keywords of vLLM's `StructuredOutputsParams`.

    Raises:
        TypeError, ValueError: vLLM knows no such key, or not its value.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    structured = StructuredOutputsParams(**form) if form else None
    return SamplingParams(**given, structured_outputs=structured, output_kind=RequestOutputKind.FINAL_ONLY)


def import_vllm() -> None:
    """Import vLLM, with settings that it reads when it is imported.

    Raises:
        ImportError: It is not installed.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    # Otherwise it tells its makers about each process that runs it.
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # On a CPU it binds its threads to the same cores in each process: all actors of a machine would share them.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    import_module("vllm")


class EngineFailed(Exception):
    """The engine failed, and takes no further request: its process must end."""


_ENDS_S = 30.0
"""The longest wait for an engine that was told to end: one that hangs must not hold its process."""


class _Engines:
    """The engines of this process. Whichever ends destroys what vLLM has in common for all; so none is ended while
    another one lives or is being loaded.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._living: list[Any] = []
        self._closed: list[Any] = []
        self.ending: list[threading.Thread] = []
        """Those that were told to end."""

    def load(self, make: Callable[[], Any]) -> Any:
        """Load an engine, after those that nobody uses any more have given their memory back."""
        gc.collect()
        self.wait()
        with self._lock:
            engine = make()
            self._living.append(engine)
        return engine

    def end(self, engine: Any) -> None:
        """This engine is used no more. Not to be called by a finaliser, which may run in the thread that loads."""
        with self._lock:
            self._living.remove(engine)
            self._closed.append(engine)
            if not self._living:
                for each in self._closed:
                    each.engine_core.shutdown()
                self._closed.clear()

    def wait(self) -> None:
        """Wait for those that were told to end, but not for ever for one that hangs."""
        while self.ending:
            self.ending.pop().join(_ENDS_S)


_ENGINES = _Engines()


@cache
def _wait_at_exit() -> None:
    """Wait at exit for the engines that are closed by then."""
    atexit.register(_ENGINES.wait)


@dataclass(frozen=True, slots=True)
class _Request:
    """A request, and the answer to be, in the loop that waits for it. name: unique in this engine."""

    name: str
    tokens: Sequence[int]
    params: Params
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]


class Engine:
    """A loaded model that answers many requests at once.

    most: the requests that it runs at once. length: the most tokens of a prompt and its answer together. device: where
    it runs.
    """

    def __init__(self, path: str, given: Mapping[str, Any], named: str | None = None, **defaults: Any) -> None:
        """path: the model's folder. given: of the job, for vLLM's engine. named: the model as the job has it. defaults:
        where the job says nothing.
        """
        import_vllm()
        from vllm.engine.arg_utils import EngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.llm_engine import LLMEngine

        # vLLM's threads must end before the process does, or C++ aborts it. Exit hooks run last in, first out: engines
        # are closed, then waited for, then what vLLM registered when it was imported runs.
        _wait_at_exit()

        known = {each.name for each in fields(EngineArgs)}
        if unknown := sorted(set(given) - known):
            raise JobError(f"model.engine.{unknown[0]}: vLLM's engine knows no such key{nearest(unknown[0], known)}")
        keys = {"disable_log_stats": True, **defaults, **given, "model": path}
        try:
            self._engine = _ENGINES.load(lambda: LLMEngine.from_engine_args(EngineArgs(**keys)))
        except Exception as error:
            if is_memory(error):
                raise
            raise unloadable("vLLM", named, path, error) from error
        config = self._engine.vllm_config
        self.most: int = config.scheduler_config.max_num_seqs
        self.length: int = config.model_config.max_model_len
        self.sampling: Mapping[str, Any] = config.model_config.get_diff_sampling_param()
        kind = current_platform.device_type
        self.device = f"{kind}:0" if kind == "cuda" else str(kind)
        self._asked: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._dropped: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._running: dict[str, _Request] = {}
        self._names = map(str, count())
        self._failed: EngineFailed | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="nightjar-vllm")
        self._thread.start()
        atexit.register(self.close)

    def tokenizer(self) -> Any:
        """The model's tokenizer, as transformers has it. The engine uses it, too; copy it for another thread."""
        return self._engine.get_tokenizer()

    def close(self) -> None:
        """Have the thread end, so that the engine's memory is freed; requests that are underway have no answer. Does
        not wait.
        """
        self._asked.put(None)
        _ENGINES.ending.append(self._thread)
        atexit.unregister(self.close)

    async def ask(self, tokens: Sequence[int], params: Params) -> Any:
        """Ask, and wait for vLLM's own output.

        Raises:
            PromptInvalid: vLLM refuses this request.
            EngineFailed: There is no engine any more.
        """
        loop = asyncio.get_running_loop()
        asked = _Request(next(self._names), tokens, params, loop, loop.create_future())
        self._asked.put(asked)
        if self._failed is not None:  # looked at last: then nobody takes what was put there
            raise self._failed
        try:
            return await asked.answer
        except asyncio.CancelledError:
            self._dropped.put(asked.name)
            raise

    def _run(self) -> None:
        """Step the engine for as long as there are requests; then wait for one."""
        try:
            while True:
                while not self._running or not self._asked.empty():
                    if (asked := self._asked.get()) is None:
                        _ENGINES.end(self._engine)
                        return
                    self._add(asked)
                while not self._dropped.empty():
                    self._drop(self._dropped.get())
                if self._running:
                    self._tell(self._engine.step())
        except BaseException as error:  # noqa: BLE001 (whatever it is, all that wait are told)
            self._fail(EngineFailed(f"vLLM's engine failed: {type(error).__name__}: {error}"))

    def _add(self, asked: _Request) -> None:
        from vllm import TokensPrompt
        from vllm.exceptions import VLLMClientError

        prompt = TokensPrompt(prompt_token_ids=list(asked.tokens))
        try:
            self._engine.add_request(asked.name, prompt, asked.params)
        except (VLLMClientError, ValueError) as error:
            _settle([(asked, PromptInvalid(f"vLLM refuses the request: {error}"))])
        else:
            self._running[asked.name] = asked

    def _drop(self, name: str) -> None:
        """Nobody waits for this any more."""
        if self._running.pop(name, None) is not None:
            self._engine.abort_request([name])

    def _tell(self, outputs: Sequence[Any]) -> None:
        done = {each.request_id: each for each in outputs if each.finished and each.request_id in self._running}
        _settle([(self._running.pop(name), each) for name, each in done.items()])

    def _fail(self, failed: EngineFailed) -> None:
        self._failed = failed
        while not self._asked.empty():
            if (asked := self._asked.get()) is not None:
                self._running[asked.name] = asked
        _settle([(asked, failed) for asked in self._running.values()])


def _settle(answered: Sequence[tuple[_Request, Any]]) -> None:
    """Tell those who wait, in their own loop; once for all, as a loop is woken by each call."""

    def tell() -> None:
        for asked, found in answered:
            if asked.answer.done():
                continue
            if isinstance(found, Exception):
                asked.answer.set_exception(found)
            else:
                asked.answer.set_result(found)

    if answered:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            answered[0][0].loop.call_soon_threadsafe(tell)


@dataclass(frozen=True, slots=True)
class Asked:
    """A row that is asked."""

    params: Params
    """vLLM's parameters for the row."""

    prompt: str
    """The prompt as the model reads it; '' if only its tokens are known."""

    tokens: Sequence[int] = ()
    """The tokens of the prompt; none before they are made."""

    row: Mapping[str, Any] = field(default_factory=dict)
    """Of `ray.data.llm` the row after `preprocess`."""


class VllmRequests(Requests):
    """Base of these predictors, whose requests are `Asked`."""

    def __init__(
        self,
        job: ModelJob,
        path: str,
        given: Mapping[str, Any],
        *,
        pools: bool,
        special: bool,
        most: int | None,
        shorter: str,
        prompt: Prompt | None = None,
    ) -> None:
        """path: the model's folder. given: of the job, for vLLM's engine. pools: whether it gives vectors, and no
        answers. special: whether the tokenizer adds its special tokens to a prompt. most: the requests that are
        underway at once; None for 5/4 of those that vLLM runs. shorter: what to do about a prompt that is too long.
        prompt: as `Requests`.
        """
        defaults: dict[str, Any] = {"tensor_parallel_size": max(1, int(job.resources.gpus))}
        if defaults["tensor_parallel_size"] > 1:
            defaults["distributed_executor_backend"] = "mp"  # in an actor vLLM might ask Ray for GPUs of its own
        if pools:
            defaults["runner"] = "pooling"
        self.engine = Engine(path, given, job.model.path, **defaults)
        self._pools, self._special, self._shorter = pools, special, shorter
        weakref.finalize(self, self.engine.close)
        self.device = self.engine.device
        self.tokenizer = copy.deepcopy(self.engine.tokenizer())
        self._tokenising = threading.Lock()
        super().__init__(job, most or self.engine.most + self.engine.most // 4, prompt)

    def requests(self, rows: Sequence[dict[str, Any]]) -> list[Any]:
        """As in `Requests`, with the tokens of each row's prompt."""
        with self._tokenising:
            found = super().requests(rows)
            texts = {row: each.prompt for row, each in enumerate(found) if isinstance(each, Asked) and not each.tokens}
            made = self.tokens(list(texts.values()), special=self._special)
            for row, tokens in zip(texts, made, strict=True):
                found[row] = replace(found[row], tokens=tokens)
        return [each if isinstance(each, Exception) else self._fitting(each) for each in found]

    def order(self, prepared: Sequence[Any]) -> Sequence[int]:
        """Prompts that begin alike stand side by side, so that vLLM has their beginnings in its cache."""
        tokens = [list(each.tokens) if isinstance(each, Asked) else [] for each in prepared]
        return sorted(range(len(tokens)), key=tokens.__getitem__)

    async def answer(self, request: Asked) -> Answer:
        """As in `Requests`. A request that waits in vLLM's own queue is underway."""
        sent = time.monotonic()
        found = await self.engine.ask(request.tokens, request.params)
        seconds, prompt_tokens = time.monotonic() - sent, len(request.tokens)
        if self._pools:
            vector = found.outputs.data.tolist()
            return Answer(
                prompt_tokens=prompt_tokens,
                output_tokens=0,
                cached_tokens=0,
                vector=vector,
                output=found,
                seconds=seconds,
            )
        (said,) = found.outputs
        return Answer(
            text=said.text,
            finish_reason=said.finish_reason or "",
            prompt_tokens=prompt_tokens,
            output_tokens=len(said.token_ids),
            cached_tokens=found.num_cached_tokens or 0,
            output=found,
            seconds=seconds,
        )

    def text(self, messages: Messages, **keywords: Any) -> str:
        """Messages as the model reads them, with its template. keywords: of transformers' `apply_chat_template`.

        Raises:
            PromptInvalid: The template refuses them.
        """
        try:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False, **keywords))
        except Exception as error:  # a template raises whatever it likes, and blames these messages
            raise PromptInvalid(f"the model's chat template refuses the messages: {error}") from error

    def tokens(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        """The tokens of each text. special: with those that the tokenizer adds to a text."""
        return list(self.tokenizer(list(texts), add_special_tokens=special)["input_ids"]) if texts else []

    def _fitting(self, asked: Asked) -> Asked | PromptInvalid:
        longest = self.engine.length - (not self._pools)  # an answer has a token at least
        if len(asked.tokens) <= longest:
            return asked
        return PromptInvalid(
            f"the prompt has {len(asked.tokens):,} tokens, and max_model_len is {self.engine.length:,} with the "
            f"answer; {self._shorter}"
        )
