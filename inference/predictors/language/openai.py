"""`uses: openai`: a language model behind an endpoint that speaks OpenAI's API, as vLLM's and llama.cpp's servers do.

A request for each row, under the job's limits, with OpenAI's own client. The client's own retries are off: here all
requests share one policy. What the endpoint says is wrong with a row costs that row; what it says is wrong with all,
ends the run. A busy endpoint (429) is left alone by all requests for as long as it says, or until one is answered. A
request that fails, or is refused as too much, while another row is answered costs its row; if none is answered, the
endpoint is gone, and the shard is tried again later.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from nightjar.inference.errors import EndpointFailed, EndpointRefused, JobError, PromptInvalid
from nightjar.inference.job.deployment import is_address
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.job.options import keywords, number, text, whole
from nightjar.inference.messages import clip, counted, hide
from nightjar.inference.predictors.adapter import Predictor
from nightjar.inference.predictors.language.answers import CHAT, COMPLETIONS, CUT, EMBEDDINGS, KEY_ENV, Answer, Reader
from nightjar.inference.predictors.language.languagemodel import ASKED, COST, FORMS, LanguageModel, prompt_of
from nightjar.inference.predictors.language.requests import Requests


class OpenAI(LanguageModel):
    """The `Adapter` of such endpoints. The model computes elsewhere, and `model.version` says which one it is."""

    libraries = ("openai",)
    extra = "openai"
    cpu_only = True
    options = (
        text("url", "where the endpoint is", "required", "https?://.+", "a URL, as http://host:8000/v1", required=True),
        text("served_model", "the model's name there", "required", required=True),
        *ASKED,
        keywords("extra_body", "goes with each request, for what only this endpoint knows", "none", "a mapping"),
        whole("requests_in_flight", "requests that are underway at once, in each actor", "32"),
        number("timeout_s", "the longest wait for an answer, in seconds", "600", 0.1, 86400),
        COST,
        text("key_env", "the environment variable that has the key", f"`{KEY_ENV}`, if it is set"),
    )

    def check_keys(self, job: ModelJob) -> None:
        options = job.model.options
        if not is_address(options["url"]):
            raise JobError(f"model.url: write a URL, as http://host:8000/v1, not {options['url']!r}")
        url = urlsplit(options["url"])
        if "@" in url.netloc or url.query:
            raise JobError(
                f"model.url: has {'a query' if url.query else 'a name or a password before an @'}; leave them out, and "
                "name in model.key_env the variable that has the key"
            )
        super().check_keys(job)
        if (api := options.get("api", CHAT)) != CHAT and (key := next((key for key in FORMS if key in options), "")):
            raise JobError(f"model.{key}: is for api: {CHAT}, and not for {api}")
        if (cost := options.get(COST.name)) is None:
            return
        if job.model.name:
            raise JobError("model.cost: the tokens of several models are counted together; leave it out")
        if "output_mtok" not in cost and api != EMBEDDINGS:
            raise JobError("model.cost.output_mtok: is required, as answers have tokens, too; write 0 if they are free")

    def warm(self) -> None:
        import openai  # noqa: F401

    def load(self, job: ModelJob, path: str) -> Predictor:
        return Endpoint(job)


IN_FLIGHT = 32
TIMEOUT_S = 600.0
LONGEST_PAUSE_S = 60.0
"""The longest pause between two tries of a request, unless the endpoint asks for a longer one."""

LOOK_S = 0.25
"""Seconds between two looks whether the endpoint must still be left alone."""

BY_CHANCE = 1e-6
"""A row is lost to 429 if a row is refused so often by chance in fewer cases than this. A busy endpoint that answers
every second request refuses one of a thousand rows ten times."""

_BUSY = 429

_OF_THE_ROW = (400, 413, 422)
"""Statuses of answers that blame the request."""

_SOONER = 0.95
"""The part of `retry.stall_s` after which an endpoint that is too busy for all is given up."""

_OF_THE_JOB = {
    401: "the endpoint does not accept the key in {key}",
    403: "the endpoint does not allow this",
    404: "the endpoint has no such model, or nothing at this address",
}
"""Statuses of answers that hold for every row."""


class NoAnswer(Exception):
    """The endpoint says that all is well, and gives no answer: gateways report a fault like this."""


@dataclass(slots=True)
class _Refusals:
    """How often a row was refused as too much (429), beside what became of the other rows meanwhile.

    answered, refused: as those of the endpoint when the row was first asked. last: as `answered`, when it was last
    refused. own: how often it was refused. in_turn: how often since others were answered.
    """

    answered: int
    refused: int
    last: int
    own: int = 0
    in_turn: int = 0

    def count(self, answered: int) -> bool:
        """The row was refused once more. Returns whether others were answered since it was refused before, or asked."""
        meanwhile = answered > self.last
        self.own += 1
        self.in_turn = 1 if meanwhile else self.in_turn + 1
        self.last = answered
        return meanwhile

    def by_chance(self, answered: int, refused: int) -> float:
        """How probable it is that a row is refused so often, if each request is refused as often as those of the other
        rows are, and once more: a few that were all answered say little of how busy the endpoint is.
        """
        others = answered - self.answered
        again = refused - self.refused - self.own + 1
        return (again / (again + others)) ** self.own


class Endpoint(Requests):
    """The model behind an endpoint, as a `Predictor`."""

    elsewhere = True

    def __init__(self, job: ModelJob) -> None:
        options = job.model.options
        self.prompt, self.reader = prompt_of(job), Reader(job)
        super().__init__(job, options.get("requests_in_flight", IN_FLIGHT), self.prompt)
        self._api = options.get("api", CHAT)
        self._url = options["url"]
        self._key_env = options.get("key_env", KEY_ENV)
        self.device = urlsplit(self._url).netloc
        self._fixed = self._body(options)
        self._tries, self._backoff_s = job.whole.retry.attempts, job.whole.retry.backoff_s
        self._patience_s = job.whole.retry.stall_s
        self._answered = self._refused = 0
        self._answered_at = 0.0
        self._told_until = 0.0
        self._pause_until, self._pause_from = 0.0, 0
        self._control: dict[str, Any] | None = None
        import openai

        # Of the second kind are what the client makes of an answer that is no JSON, or has no vector.
        self._faults = (openai.APIError, ValueError, NoAnswer)  # a time-out is one of the first
        timeout = options.get("timeout_s", TIMEOUT_S)
        self._client = openai.AsyncOpenAI(base_url=self._url, api_key=_key(options), max_retries=0, timeout=timeout)
        self.at_end.append(self._client.close)

    def _body(self, options: Mapping[str, Any]) -> dict[str, Any]:
        fixed: dict[str, Any] = {"model": options["served_model"], **options.get("sampling", {})}
        if (schema := self.reader.schema) is not None:
            named = {"name": "answer", "schema": schema, "strict": True}
            fixed["response_format"] = {"type": "json_schema", "json_schema": named}
        if body := options.get("extra_body"):
            fixed["extra_body"] = body
        return fixed

    def request(self, row: dict[str, Any]) -> dict[str, Any]:
        if self._api == CHAT:
            return {**self._fixed, "messages": self.prompt.messages(row)}
        return {**self._fixed, "input" if self._api == EMBEDDINGS else "prompt": self.prompt.text(row)}

    def requests(self, rows: Sequence[dict[str, Any]]) -> list[Any]:
        made = super().requests(rows)
        if not self._answered:
            self._control = next((each for each in reversed(made) if not isinstance(each, Exception)), None)
        return made

    def read(self, request: Any, answer: Answer) -> dict[str, Any]:
        return self.reader.row(answer)

    async def answer(self, request: Any) -> Answer:
        """Ask until there is an answer, or it is clear that there is none. If none was answered meanwhile, one more
        request says whose fault that is: where few requests are underway, a row that fails holds up all the others.
        """
        try:
            return await self._answer(request)
        except EndpointFailed as error:
            if await self._answers_another(request):
                raise PromptInvalid(f"the endpoint answers another row, and not this one ({error})") from None
            raise

    async def _answers_another(self, request: Any) -> bool:
        """Whether the endpoint answers the row that it answered last or, if it has answered none, one of the same
        batch.
        """
        if self._control is None or self._control == request:
            return False
        try:
            await self._ask(self._control)
        except self._faults:
            return False
        return True

    async def _answer(self, request: Any) -> Answer:
        tried, began, answered = 0, time.monotonic(), self._answered
        refusals = _Refusals(answered, self._refused, answered)
        while True:
            while (left := self._left_alone()) > 0:
                await asyncio.sleep(min(left, LOOK_S))
            sent = time.monotonic()
            try:
                found = await self._ask(request)
            except self._faults as error:
                status = getattr(error, "status_code", 0)
                if status == _BUSY:
                    await asyncio.sleep(self._busy(error, refusals, began))
                    continue
                self._refuse(error, status)
                last = error
            else:
                self._answered, self._control = self._answered + 1, request
                self._answered_at = time.monotonic()
                return replace(found, seconds=time.monotonic() - sent, retries=tried + refusals.own)
            tried += 1
            if tried >= self._tries:
                raise self._given_up(last, answered, tried)
            await asyncio.sleep(min(LONGEST_PAUSE_S, self._backoff_s * 2 ** (tried - 1)) * random.uniform(0.5, 1.0))

    def _refuse(self, error: Exception, status: int) -> None:
        """Raise what is wrong, unless it may pass.

        Raises:
            PromptInvalid: The endpoint blames the request.
            EndpointRefused: It blames what all requests have in common.
        """
        if what := _OF_THE_JOB.get(status):
            if status == 401 and not os.environ.get(self._key_env):
                what = "the endpoint wants a key, and the variable {key} is not set where the model is asked"
            said = what.format(key=self._key_env)
            raise EndpointRefused(f"model.url: {said} ({self._url}): {_said(error)}") from None
        if isinstance(error, UnicodeEncodeError):
            raise PromptInvalid(f"the request cannot be sent: {_said(error)}") from None
        if status in _OF_THE_ROW:
            raise PromptInvalid(f"the endpoint refuses the request: {_said(error)}") from None

    def _given_up(self, error: Exception, answered: int, tried: int) -> Exception:
        """What a request that failed so often costs: its row, if others were answered since it began."""
        said = f"{tried} tries failed, the last with {type(error).__name__}: {_said(error)}"
        if self._answered > answered:
            return PromptInvalid(f"while other rows were answered, {said}")
        return EndpointFailed(f"model.url: {self._url} does not answer: {said}")

    def _busy(self, error: Exception, refusals: _Refusals, began: float) -> float:
        """Count a request that is refused as too much (429). Returns the seconds until it may be sent again; the others
        wait, too, if none was answered meanwhile, or if the endpoint says how long.

        began: when the row was first asked, on the monotonic clock.

        Raises:
            PromptInvalid: The endpoint answers others, and never this one.
            EndpointFailed: It has answered none for too long.
        """
        self._refused += 1
        meanwhile = refusals.count(self._answered)
        if refusals.own >= self._tries and refusals.by_chance(self._answered, self._refused) < BY_CHANCE:
            raise PromptInvalid(
                f"while other rows were answered, the endpoint refused the request as too much (429), "
                f"{counted(refusals.own, 'time')}: {_said(error)}"
            ) from None
        now = time.monotonic()
        # A little sooner than whoever watches the rows: only here it is known what the endpoint says.
        end = max(began, self._answered_at) + _SOONER * self._patience_s
        if now >= end:
            raise EndpointFailed(
                f"model.url: {self._url} has been too busy for any request for retry.stall_s = "
                f"{self._patience_s:g} s: {_said(error)}"
            ) from None
        pause = wanted = _retry_after(error)
        if pause is None:
            pause = min(LONGEST_PAUSE_S, self._backoff_s * 2 ** (refusals.in_turn - 1)) * random.uniform(0.5, 1.0)
            pause = min(pause, end - now)
        if wanted is not None and (not meanwhile or refusals.own == 1):
            self._told_until = max(self._told_until, now + pause)
        elif not meanwhile:
            self._pause_until, self._pause_from = max(self._pause_until, now + pause), self._answered
        return pause

    def _left_alone(self) -> float:
        """Seconds for which no request is sent. A pause that the endpoint did not ask for ends when one is answered."""
        until = self._told_until
        if self._answered == self._pause_from:
            until = max(until, self._pause_until)
        return until - time.monotonic()

    async def _ask(self, request: dict[str, Any]) -> Answer:
        if self._api == EMBEDDINGS:
            vectors = await self._client.embeddings.create(**request)
            vector = _first(vectors, "data").embedding
            return Answer(prompt_tokens=_tokens(vectors.usage, "prompt_tokens"), output_tokens=0, vector=vector)
        if self._api == COMPLETIONS:
            whole = await self._client.completions.create(**request)
            choice = _first(whole, "choices")
            return _answer(whole, choice, choice.text)
        chat = await self._client.chat.completions.create(**request)
        choice = _first(chat, "choices")
        said = choice.message
        return _answer(chat, choice, getattr(said, "content", None), getattr(said, "refusal", None))


def _first(found: Any, name: str) -> Any:
    """The only one of the answer's `choices`, or of its `data`. The client does not check what it is given.

    Raises:
        PromptInvalid: There is none: the endpoint blocks the request.
        NoAnswer: This is no answer.
    """
    given = getattr(found, name, None)
    if given == []:
        raise PromptInvalid(f"the endpoint gave no answer to the request (its {name} are empty)")
    if not given:
        said = getattr(found, "error", None) or found
        raise NoAnswer(f"the endpoint's answer has no {name}: {clip(str(said))}")
    return given[0]


def _why_none(finish_reason: str | None, refusal: str | None) -> str:
    """Why an answer has no text: a model that thinks first may use up its tokens before it answers."""
    if finish_reason == CUT:
        return "the model used up its tokens before it answered; raise max_tokens in model.sampling"
    return f"the model gave no answer{f': {refusal}' if refusal else ''}"


def _answer(found: Any, choice: Any, text: object, refusal: str | None = None) -> Answer:
    """An answer; without a text it is a refusal. The client does not check what it is given."""
    has_text = isinstance(text, str)
    return Answer(
        text=str(text) if has_text else "",
        finish_reason=choice.finish_reason or "",
        prompt_tokens=_tokens(found.usage, "prompt_tokens"),
        output_tokens=_tokens(found.usage, "completion_tokens"),
        cached_tokens=_tokens(getattr(found.usage, "prompt_tokens_details", None), "cached_tokens"),
        refusal="" if has_text else _why_none(choice.finish_reason, refusal),
    )


def _tokens(used: Any, name: str) -> int | None:
    """A count of the answer; None if it does not say. The client does not check what it is given."""
    count = getattr(used, name, None)
    return count if isinstance(count, int) else None


def _key(options: Mapping[str, Any]) -> str:
    """The key; it is hidden from everything that this process says."""
    name = options.get("key_env", KEY_ENV)
    key = os.environ.get(name, "")
    if not key and "key_env" in options:
        raise JobError(
            f"model.key_env: the variable {name} is not set where the model is asked; set it there, or hand it on: "
            f"resources: {{runtime_env: {{env_vars: {{{name}: ${{{name}}}}}}}}}"
        )
    hide([key] if key else [])
    return key or "none"


def _retry_after(error: Any) -> float | None:
    """Seconds that the endpoint asks to wait for; None if it does not say."""
    try:
        return max(0.0, float(error.response.headers.get("retry-after", "")))
    except ValueError:
        return None


def _said(error: Exception) -> str:
    """What the endpoint says, or what broke."""
    cause = error.__cause__
    return f"{error}{f' ({cause})' if cause is not None and str(cause) else ''}"


ADAPTER = OpenAI()
