"""What an endpoint may do to requests, and what each costs: a row, the shard, the run, or only time."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from endpoints import Asked, Endpoint, Half, Hang, Reply, endpoint, fault, said, upper, vector
from lazily import lazily
from modeljobs import model_job
from nightjar.inference.errors import EndpointFailed, EndpointRefused, JobError, PromptInvalid
from nightjar.inference.job.model import Job
from nightjar.inference.job.modeljob import scoring_keys
from nightjar.inference.messages import HIDDEN, clip
from nightjar.inference.predictors import check_keys
from nightjar.inference.predictors.language.languagemodel import TokenPrices, prices_of
from nightjar.inference.predictors.language.requests import Answered
from nightjar.inference.usage import Usage
from support import is_true, wait_until

product = lazily("nightjar.inference.predictors.language.openai")
KEY = "sk-very-secret-key"


def job(
    url: str,
    *,
    retry: dict[str, Any] | None = None,
    actors: int = 1,
    rescoring: float = 0,
    checks: Any = (),
    **model: Any,
) -> Job:
    keys = {"uses": "openai", "url": url, "served_model": "m", "prompt": "{text}", "outputs": {"answer": "string"}}
    whole = {
        "name": "ask",
        "input": {"uri": "a"},
        "output": {"uri": "b"},
        "model": {name: value for name, value in {**keys, **model}.items() if value is not None},
        "retry": {"backoff_s": 0.01, **(retry or {})},
        "resources": {"actors": actors},
        "rescore": {"share": rescoring},
        "checks": checks,
    }
    found = Job.model_validate(whole)
    check_keys(found)
    return found


@contextmanager
def asking(behave: Any = upper, **keys: Any) -> Iterator[tuple[Endpoint, product.Endpoint]]:
    """A server, and a predictor that asks it."""
    with endpoint(behave) as server:
        yield server, product.Endpoint(model_job(job(server.url, **keys)))


def begun(model: product.Endpoint, *texts: str | None) -> Future[Answered]:
    return model.submit(model.prepare(pa.table({"text": pa.array(texts, pa.string())})))


def ask(model: product.Endpoint, *texts: str | None) -> Answered:
    return begun(model, *texts).result()


def first_fails(error: Reply | Exception, times: int = 1) -> Any:
    """Each text fails so often before it is answered."""

    def behave(asked: Asked) -> Reply:
        if asked.again >= times:
            return upper(asked)
        if isinstance(error, Exception):
            raise error
        return error

    return behave


def test_answers_come_in_the_order_of_the_rows() -> None:
    """Whatever the order in which the endpoint gives them."""

    def slowest_first(asked: Asked) -> Reply:
        time.sleep(0.2 if asked.text == "a" else 0.0)
        return upper(asked)

    with asking(slowest_first) as (server, model):
        found = ask(model, "a", "b", "c")
        assert found.outputs == {"answer": ["A", "B", "C"]}
        assert (found.usage.requests, found.usage.prompt_tokens, found.usage.output_tokens) == (3, 21, 9)
        assert server.asked[0].path == "/v1/chat/completions"
        assert (model.waiting, model.done) == (0, 3)


def test_a_row_that_cannot_be_asked_costs_itself() -> None:
    with asking() as (server, model):
        found = ask(model, "a", None, "", "d")
        answers = found.outputs["answer"]
        assert (answers[0], answers[3]) == ("A", "D")
        assert [str(answers[1]), str(answers[2])] == [
            "column 'text' has no value, which the prompt needs",
            "the prompt is empty",
        ]
        assert sorted(server.texts()) == ["a", "d"]
        assert found.usage.failed == 2


@pytest.mark.parametrize("status", [400, 413, 422])
def test_what_the_endpoint_says_of_a_row_costs_the_row(status: int) -> None:
    """Once: to ask again would not help."""
    wrong = "This model's maximum context length is 10 tokens"
    with asking(lambda a: fault(status, wrong) if a.text == "long" else upper(a)) as (server, model):
        found = ask(model, "a", "long")
        assert found.outputs["answer"][0] == "A"
        assert wrong in str(found.outputs["answer"][1])
        assert server.texts().count("long") == 1


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_an_answer_without_an_answer_costs_the_row(api: str) -> None:
    """As of a prompt that is blocked. The others are answered, and it is not asked again."""
    nothing = (200, {}, {"id": "a", "choices": []})
    with asking(lambda a: nothing if a.text == "blocked" else upper(a), api=api) as (server, model):
        answers = ask(model, "a", "blocked", "c").outputs["answer"]
        assert re.match(r"the endpoint gave no answer to the request \(its choices are empty\)", str(answers[1]))
        assert (answers[0], answers[2]) == ("A", "C")
        assert server.texts().count("blocked") == 1


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_it_says_of_all_rows_ends_the_run(status: int) -> None:
    with asking(lambda _: fault(status, "nope")) as (server, model):
        with pytest.raises(EndpointRefused, match=rf"model.url: .*{server.url}.*nope"):
            ask(model, "a")
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    "error",
    [fault(500), fault(503), Half(), fault(408), fault(409), fault(200), (200, {}, "busy"), (200, {}, {"id": "a"})],
    ids=["500", "503", "half", "408", "409", "200 with an error", "200 with a text", "200 with nothing"],
)
def test_what_may_pass_is_asked_again(error: Reply | Exception) -> None:
    with asking(first_fails(error, 2)) as (server, model):
        found = ask(model, "a", "b")
        assert found.outputs == {"answer": ["A", "B"]}
        assert (found.usage.requests, found.usage.retries) == (6, 4)
        assert len(server.asked) == 6


def test_a_request_that_hangs_is_asked_again() -> None:
    with asking(first_fails(Hang()), timeout_s=0.3) as (_, model):
        assert ask(model, "a").outputs == {"answer": ["A"]}


def test_an_endpoint_that_is_gone_costs_the_shard_and_not_its_rows() -> None:
    with asking(lambda _: fault(500, "broken")) as (server, model):
        with pytest.raises(EndpointFailed, match=r"does not answer: 3 tries failed, the last with .*broken"):
            ask(model, *(str(row) for row in range(40)))
        assert model.waiting == 0
        assert len(server.asked) <= 4 * 40
    gone = product.Endpoint(model_job(job("http://127.0.0.1:9/v1")))
    with pytest.raises(EndpointFailed, match="does not answer: 3 tries failed, the last with APIConnectionError"):
        ask(gone, "a")


@pytest.mark.parametrize("status", [500, 200], ids=["an error", "a 200 that says an error"])
def test_a_request_that_always_fails_while_others_are_answered_costs_its_row(status: int) -> None:
    def behave(asked: Asked) -> Reply:
        time.sleep(0.02)
        return fault(status, "killed") if asked.text == "bad" else upper(asked)

    with asking(behave, requests_in_flight=2, retry={"backoff_s": 0.1}) as (server, model):
        found = ask(model, "bad", *"abcdefghijklmnop")
        assert re.search(r"while other rows were answered, 3 tries failed, .*killed", str(found.outputs["answer"][0]))
        assert found.outputs["answer"][1:] == list("ABCDEFGHIJKLMNOP")
        assert server.texts().count("bad") == 3


@pytest.mark.parametrize("status", [500, 429])
@pytest.mark.parametrize("texts", [("bad", "a", "b"), ("a", "b", "bad")], ids=["first", "last"])
def test_a_row_that_always_fails_costs_itself_also_if_no_other_is_underway(status: int, texts: tuple[str, ...]) -> None:
    def behave(asked: Asked) -> Reply:
        return fault(status, "too much") if asked.text == "bad" else upper(asked)

    with asking(behave, requests_in_flight=1, retry={"stall_s": 1}) as (_, model):
        found = dict(zip(texts, ask(model, *texts).outputs["answer"], strict=True))
        assert isinstance(found.pop("bad"), PromptInvalid)
        assert found == {"a": "A", "b": "B"}


def test_a_busy_endpoint_is_left_alone_by_all_for_as_long_as_it_says() -> None:
    busy: list[float] = []

    def behave(asked: Asked) -> Reply:
        if not busy:
            busy.append(time.monotonic())
            return fault(429, "slow down", Retry_After="0.5")
        return upper(asked)

    with asking(behave, requests_in_flight=1) as (server, model):
        found = ask(model, "a", "b", "c")
        assert found.outputs == {"answer": ["A", "B", "C"]}
        assert found.usage.retries == 1
        assert min(each.at for each in server.asked[1:]) >= busy[0] + 0.5


def test_an_endpoint_that_is_too_busy_for_all_is_given_up() -> None:
    with (
        asking(lambda _: fault(429, "quota"), retry={"stall_s": 0.3}) as (_, model),
        pytest.raises(EndpointFailed, match=r"too busy for any request for retry.stall_s = 0.3 s: .*quota"),
    ):
        ask(model, "a")


def test_a_row_that_is_always_refused_as_too_much_costs_itself_and_no_time_of_the_others() -> None:
    """As of a prompt that is longer than all that may be asked for in a minute."""
    too_large = "Request too large for m on tokens per min (TPM): Limit 30000, Requested 45000."
    others = [f"text {row}" for row in range(80)]

    def behave(asked: Asked) -> Reply:
        time.sleep(0 if asked.text == "long" else 0.05)
        return fault(429, too_large) if asked.text == "long" else upper(asked)

    with asking(behave, requests_in_flight=4, retry={"backoff_s": 0.5, "stall_s": 10}) as (server, model):
        found = begun(model, "long", *others).result(timeout=30)
        assert found.outputs["answer"][1:] == [text.upper() for text in others]
        lost = found.outputs["answer"][0]
        assert isinstance(lost, PromptInvalid)
        said = r"^while other rows were answered, the endpoint refused the request as too much \(429\), [3-6] times: "
        assert re.match(said, str(lost))
        assert too_large in str(lost)
        assert 3 <= server.texts().count("long") <= 6
        times = sorted(each.at for each in server.asked if each.text != "long")
        assert max(after - before for before, after in itertools.pairwise(times)) < 0.5, "the others went on"


def test_a_row_is_not_lost_to_a_busy_endpoint_that_refuses_others_as_often() -> None:
    """It answers few requests at a time, whichever comes first, and refuses the rest. Rows are refused again and
    again, and all are answered in the end.
    """
    free = threading.Semaphore(2)

    def behave(asked: Asked) -> Reply:
        if asked.again < 6 or not free.acquire(blocking=False):
            return fault(429, "slow down")
        try:
            time.sleep(0.01)
            return upper(asked)
        finally:
            free.release()

    with asking(behave, requests_in_flight=8, retry={"backoff_s": 0.01}) as (server, model):
        texts = [f"text {row}" for row in range(40)]
        found = ask(model, *texts)
        assert found.outputs["answer"] == [text.upper() for text in texts]
        assert len(server.asked) >= 7 * len(texts)


def test_the_pause_of_all_is_short_again_when_one_was_answered() -> None:
    """The endpoint stands still for some tries, then refuses one request now and then."""

    def behave(asked: Asked) -> Reply:
        if asked.text == "a" and asked.again < 4:
            return fault(429, "slow down")
        return fault(429, "slow down") if asked.text == "b" and not asked.again else upper(asked)

    with asking(behave, requests_in_flight=1, retry={"backoff_s": 0.2}) as (server, model):
        ask(model, "a", "b")
        times = {text: [each.at for each in server.asked if each.text == text] for text in "ab"}
        assert times["a"][4] - times["a"][3] >= 0.8, "the fourth pause is 8 × 0.2 s, or half of it"
        assert times["b"][1] - times["b"][0] < 0.4, "the first is 0.2 s at most"


def test_no_more_requests_are_underway_than_may_and_batches_share_the_places() -> None:
    def slow(asked: Asked) -> Reply:
        time.sleep(0.6 if asked.text == "slow" else 0.05)
        return upper(asked)

    with asking(slow, requests_in_flight=4) as (server, model):
        one, two = begun(model, "slow", "a", "b"), begun(model, *"cdefgh")
        assert two.result().outputs["answer"] == list("CDEFGH")
        assert not one.done(), "the second batch did not wait for the slowest row of the first"
        assert one.result().outputs["answer"] == ["SLOW", "A", "B"]
        assert server.most == 4


def test_a_batch_that_is_cancelled_asks_no_more() -> None:
    def slow(asked: Asked) -> Reply:
        time.sleep(0.1)
        return upper(asked)

    with asking(slow, requests_in_flight=1) as (server, model):
        batch = begun(model, *"abcdefghijkl")
        wait_until(lambda: server.asked, 5, "the first request is there")
        batch.cancel()
        wait_until(lambda: model.waiting == 0, 5, "nothing waits")
        asked = len(server.asked)
        assert not is_true(lambda: len(server.asked) > asked + 1, 0.5)


def test_vectors_and_completions_are_asked_for_too() -> None:
    with asking(lambda _: vector([1.0, 2.0]), api="embeddings", outputs={"v": "float32[2]"}) as (server, model):
        assert ask(model, "a").outputs == {"v": [[1.0, 2.0]]}
        assert (server.asked[0].path, server.asked[0].body["input"]) == ("/v1/embeddings", "a")
    with asking(upper, api="completions") as (server, model):
        assert ask(model, "a").outputs == {"answer": ["A"]}
        assert (server.asked[0].path, server.asked[0].body["prompt"]) == ("/v1/completions", "a")


def test_what_the_job_says_goes_with_each_request() -> None:
    keys = {"sampling": {"max_tokens": 5, "temperature": 0}, "extra_body": {"top_k": 3}, "choice": ["A", "B"]}
    with asking(lambda _: said('{"choice": "A"}'), **keys) as (server, model):
        assert ask(model, "a").outputs == {"answer": ["A"]}
        body = server.asked[0].body
        assert (body["model"], body["max_tokens"], body["temperature"], body["top_k"]) == ("m", 5, 0, 3)
        assert body["response_format"]["json_schema"]["schema"]["properties"]["choice"]["enum"] == ["A", "B"]


def test_the_key_comes_from_the_environment_and_is_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_KEY", KEY)
    with asking(lambda _: fault(401, f"{KEY} is wrong"), key_env="OTHER_KEY") as (server, model):
        with pytest.raises(EndpointRefused) as raised:
            ask(model, "a")
        assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
        assert KEY not in clip(str(raised.value))
        assert HIDDEN in clip(str(raised.value))


def test_an_endpoint_that_wants_a_key_where_none_is_set_does_not_refuse_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with (
        asking(lambda _: fault(401, "no key")) as (_, model),
        pytest.raises(EndpointRefused, match="wants a key, and the variable OPENAI_API_KEY is not set"),
    ):
        ask(model, "a")


def test_a_key_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTHER_KEY", raising=False)
    with pytest.raises(JobError, match=r"model.key_env: the variable OTHER_KEY is not set where the model is asked"):
        product.Endpoint(model_job(job("http://127.0.0.1:9/v1", key_env="OTHER_KEY")))


def test_an_answer_without_a_text_costs_the_row() -> None:
    def refuses(asked: Asked) -> Reply:
        status, headers, body = said("")
        body["choices"][0]["message"] |= {"content": None, "refusal": "I will not"}
        return status, headers, body

    with asking(refuses) as (_, model):
        assert str(ask(model, "a").outputs["answer"][0]) == "the model gave no answer: I will not"


@pytest.mark.parametrize("message", [None, {"content": [{"type": "text", "text": "A"}]}, {"role": "assistant"}])
def test_an_answer_of_another_form_costs_the_row(message: object) -> None:
    """The client checks nothing of what it is given."""

    def answers(asked: Asked) -> Reply:
        status, headers, body = said("A")
        if asked.text == "odd":
            body["choices"][0]["message"] = message
        return status, headers, body

    with asking(answers) as (_, model):
        found = ask(model, "a", "odd").outputs["answer"]
        assert (found[0], str(found[1])) == ("A", "the model gave no answer")


def test_a_text_that_cannot_be_sent_costs_the_row() -> None:
    """Half of a character of two, as a text that was cut in JSON has."""
    chats = [f'[{{"role": "user", "content": "{text}"}}]' for text in ("a", r"\ud83d")]
    with asking(prompt=None, messages="text") as (server, model):
        found = ask(model, *chats)
        assert (found.outputs["answer"][0], found.usage.failed, server.texts()) == ("A", 1, ["a"])
        assert "cannot be sent" in str(found.outputs["answer"][1])


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_counts_that_an_answer_does_not_have_are_none(api: str) -> None:
    def answers(asked: Asked) -> Reply:
        status, headers, body = upper(asked)
        del body["usage"]["completion_tokens"]
        return status, headers, body

    with asking(answers, api=api) as (_, model):
        found = ask(model, "a")
        assert (found.outputs["answer"], found.usage.output_tokens) == (["A"], 0)
        assert found.usage.prompt_tokens > 0


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": None}])
def test_counts_that_the_endpoint_does_not_say_are_null(usage: object) -> None:
    def answers(asked: Asked) -> Reply:
        status, headers, body = upper(asked)
        body["usage"] = usage
        return status, headers, body

    counts = {"prompt_tokens": "int32", "output_tokens": "int32", "cached_tokens": "int32"}
    with asking(answers, outputs={"answer": "string", **counts}) as (_, model):
        found = ask(model, "a", "b")
        assert found.outputs == {"answer": ["A", "B"], **{name: [None, None] for name in counts}}
        assert (found.usage.requests, found.usage.prompt_tokens, found.usage.longest_prompt) == (2, 0, 0)


def test_a_completion_without_a_text_costs_the_row() -> None:
    def answers(asked: Asked) -> Reply:
        status, headers, body = upper(asked)
        body["choices"][0]["text"] = None
        return status, headers, body

    with asking(answers, api="completions") as (_, model):
        assert str(ask(model, "a").outputs["answer"][0]) == "the model gave no answer"


def test_a_model_that_thinks_until_its_tokens_are_used_up_costs_the_row_and_its_tokens_count() -> None:
    """Servers with a parser of thoughts give no text then."""

    def thinks(asked: Asked) -> Reply:
        status, headers, body = said("", reason="length")
        body["choices"][0]["message"]["content"] = None
        return status, headers, body

    with asking(thinks) as (_, model):
        found = ask(model, "a")
        assert "the model used up its tokens before it answered; raise max_tokens" in str(found.outputs["answer"][0])
        assert (found.usage.failed, found.usage.cut, found.usage.output_tokens) == (1, 1, 3)


def test_what_answers_took_is_counted_as_the_field_names_it() -> None:
    """Why they ended, the longest prompt, and the time of the requests that were answered."""
    reasons = {"a": "stop", "b": "length", "c": "content_filter"}

    def behave(asked: Asked) -> Reply:
        if asked.text == "b" and not asked.again:
            time.sleep(0.3)
            return fault(500)
        time.sleep(0.05)
        return said("x", reason=reasons[asked.text], prompt_tokens=ord(asked.text))

    with asking(behave) as (_, model):
        used = ask(model, *"abc").usage
        assert (used.stopped, used.cut, used.ended_otherwise, used.prompts) == (1, 1, 1, 3)
        assert (used.longest_prompt, used.prompt_tokens) == (ord("c"), sum(map(ord, "abc")))
        assert 150 <= used.answering_ms < 300 + 150, "without the request that failed"
    with asking(lambda _: vector([1.0]), api="embeddings", outputs={"v": "float32[1]"}) as (_, model):
        used = ask(model, "a").usage
        assert (used.stopped, used.cut, used.ended_otherwise) == (0, 0, 0), "a vector does not end"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"prompt": None}, "model.prompt: is required, or model.messages"),
        ({"url": "ftp://x"}, "model.url: write a URL, as http://host:8000/v1, not 'ftp://x'"),
        ({"url": "http://[::1/v1"}, "model.url: write a URL, as http://host:8000/v1, not"),
        ({"url": "http://host:99999/v1"}, "model.url: write a URL, as http://host:8000/v1, not"),
        ({"sampling": {"n": 3}}, "model.sampling.n: each row has one answer; leave it out"),
        ({"url": "http://me:secret@x/v1"}, "model.url: has a name or a password before an @; leave them out"),
        ({"served_model": None}, "model.served_model: write a text, not None"),
        ({"promt": "x"}, "model.promt: the openai adapter knows only the options .*did you mean 'prompt'"),
        ({"api": "embeddings", "sampling": {}}, "model.sampling: is for answers, and a vector is none"),
        ({"json_schema": {"type": "object", "properties": {}}, "choice": ["a", "b"]}, "model.choice is there, too"),
        ({"api": "completions", "choice": ["a", "b"]}, "model.choice: is for api: chat, and not for completions"),
        ({"api": "completions", "prompt": None, "messages": "m"}, "model.messages: are for api: chat"),
        ({"messages": [{"role": "user"}], "prompt": None}, "model.messages: write a list of"),
        ({"json_schema": {"type": "array"}}, "model.json_schema: must be of an object"),
        ({"rescoring": 0.1}, "rescore.differing: is required, as a language model may answer otherwise"),
        ({"api": "embeddings", "checks": [{"answers": {"cut": 0}}]}, "checks: a vector is no answer that is cut"),
        ({"cost": 0.15}, r"model.cost: write a mapping, as {input_mtok: 0.15, output_mtok: 0.6}, not 0.15"),
        ({"cost": {"output_mtok": 1}}, r"model.cost.input_mtok: write a number from 0 to 1e\+09, not None"),
        ({"cost": {"input_mtok": -1}}, r"model.cost.input_mtok: write a number from 0 to 1e\+09, not -1"),
        ({"cost": {"input_mtok": 1}}, "model.cost.output_mtok: is required, as answers have tokens, too"),
        ({"cost": {"input_tok": 1}}, "model.cost.input_tok: the openai adapter knows only .*did you mean 'input_mtok'"),
        ({"cost": {"input_mtok": 1, "currency": "$ 5"}}, "model.cost.currency: write letters, as USD"),
        ({"requests_in_flight": 0}, "model.requests_in_flight: write a whole number from 1 on"),
    ],
)
def test_keys_that_make_no_sense_are_named(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        job(**{"url": "http://here/v1", **keys})


def test_how_fast_it_is_asked_and_what_it_costs_is_no_part_of_a_result() -> None:
    prices = {"input_mtok": 1, "output_mtok": 2}
    slow = job("http://here/v1", requests_in_flight=1, timeout_s=5, key_env="A", cost=prices)
    assert scoring_keys(slow) == scoring_keys(job("http://here/v1"))
    assert scoring_keys(job("http://here/v1", sampling={"seed": 1})) != scoring_keys(job("http://here/v1"))


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        ({"input_mtok": 0.15, "output_mtok": 0.6}, 0.15 * 3 + 0.6 * 2),
        ({"input_mtok": 0.15, "output_mtok": 0.6, "cached_mtok": 0.05}, 0.15 * 2 + 0.05 + 0.6 * 2),
        ({"input_mtok": 0.15, "output_mtok": 0.6, "cached_mtok": 0}, 0.15 * 2 + 0.6 * 2),
    ],
)
def test_tokens_of_the_cache_have_a_price_of_their_own_if_the_job_names_one(
    cost: dict[str, Any], expected: float
) -> None:
    used = Usage(requests=9, prompt_tokens=3_000_000, output_tokens=2_000_000, cached_tokens=1_000_000)
    prices = prices_of(job("http://here/v1", cost=cost))
    assert prices is not None
    assert prices.cost(used) == pytest.approx(expected)


def test_without_prices_nothing_is_said_of_a_cost() -> None:
    """An option of this name is the user's own where a predictor is."""
    assert prices_of(job("http://here/v1")) is None
    vectors = job("http://here/v1", api="embeddings", outputs={"v": "float32[2]"}, cost={"input_mtok": 2})
    assert prices_of(vectors) == TokenPrices(2, 0, 2)
    own = {"uses": "model:Model", "outputs": {"a": "string"}, "options": {"cost": {"input_mtok": 1}}}
    assert (
        prices_of(Job.model_validate({"name": "a", "input": {"uri": "a"}, "output": {"uri": "b"}, "model": own}))
        is None
    )
