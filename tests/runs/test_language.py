"""A language model behind an endpoint: each prompt ends once, and none is asked for twice without need."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import steps
import steps as run
from endpoints import Asked, Endpoint, Hang, Reply, endpoint, fault, said, upper
from forks import forks_have
from nightjar.flows.finished_run import FinishedRun, Launched
from nightjar.flows.pages.ending import closing_text, run_result, summary
from nightjar.inference.errors import GateFailed, JobError, ProcessSpoilt, RunFailed, ShardsFailed
from nightjar.inference.predictors.language import answers as reading
from nightjar.inference.records import Event, Failed, Receipt
from nightjar.inference.scoring import attempts
from nightjar.inference.scoring.assignment import Assignment
from nightjar.inference.scoring.streaming import StreamingWorker
from nightjar.inference.usage import NOTHING_SPENT
from support import ONCE, Lake, is_true, wait_until

ROWS, SHARD = 60, 10

CLIENT = ("nightjar.inference.predictors.language.openai", "openai.resources.chat", "jsonschema.validators")
"""What a process imports that asks an endpoint."""

HANGS = """
import time

def prep(batch):
    until = time.monotonic() + 600 * ("text 25" in batch["text"].tolist())
    while time.monotonic() < until:
        time.sleep(0.05)
    return batch
"""

SCHEMA = {
    "type": "object",
    "properties": {"length": {"type": "integer"}, "word": {"type": "string"}},
    "required": ["length", "word"],
}


class Server:
    """An endpoint whose behaviour a test may change while it runs. paid: what was answered."""

    def __init__(self) -> None:
        self.behave: Any = upper
        self.server = Endpoint()
        self.paid: list[str] = []

    def __call__(self, asked: Asked) -> Reply:
        found: Reply = self.behave(asked)
        if found[0] == 200:
            self.paid.append(asked.text)
        return found

    def asked(self) -> list[str]:
        """What was asked since the last look."""
        texts = self.server.texts()
        self.server.asked.clear()
        return sorted(texts)


@pytest.fixture(scope="module", autouse=True)
def _client_is_imported() -> Iterator[None]:
    with forks_have(*CLIENT):
        yield


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    with endpoint(found) as found.server:
        yield found


def ready(lake: Lake, server: Server, *, texts: list[str | None] | None = None, **changes: Any) -> Lake:
    """A lake of one file of texts, and a job that asks the endpoint."""
    given = texts or [f"text {row}" for row in range(ROWS)]
    lake.write_texts(given, SHARD)
    model = {
        "uses": "openai",
        "url": server.server.url,
        "served_model": "m",
        "prompt": "Say {text}",
        "outputs": {"answer": "string"},
    }
    lake.write_job(**{"input__shard_rows": SHARD, "model": model, "carry": ["id"], **changes})
    return lake


def test_each_prompt_is_answered_once_and_what_it_took_is_said(lake: Lake, server: Server) -> None:
    """In the receipts, the manifest, and the run's figures."""
    ran = ready(lake, server, model__outputs={"answer": "string", "output_tokens": "int32"}).run()
    rows = lake.published()
    assert rows["answer"].tolist() == [f"SAY TEXT {row}" for row in range(ROWS)]
    assert set(rows["output_tokens"]) == {3}
    usage = ran.scored.progress.usage
    assert (usage.requests, usage.prompt_tokens, usage.output_tokens, usage.failed) == (ROWS, 7 * ROWS, 3 * ROWS, 0)
    receipts = [record["usage"] for record in lake.records() if record["t"] == "receipt"]
    assert [each["requests"] for each in receipts] == [SHARD] * (ROWS // SHARD)
    manifest = json.loads((lake.out / ran.publication.manifest).read_text())
    assert manifest["totals"]["usage"]["output_tokens"] == 3 * ROWS


def test_the_closing_lines_the_page_and_the_json_say_what_was_asked_and_how_fast(lake: Lake, server: Server) -> None:
    """In the words of the field: rates, time per token, the prefix cache, the longest prompt, why answers ended."""

    def behave(asked: Asked) -> Reply:
        row = int(asked.text.rsplit(" ", 1)[1])
        status, headers, body = said("x", reason="length" if row == 8 else "stop", prompt_tokens=10 + row)
        body["usage"]["prompt_tokens_details"] = {"cached_tokens": 5}
        return status, headers, body

    server.behave = behave
    ran = ready(lake, server).run()
    assert not any(line.startswith("  cost") for line in closing_text(launched(lake, ran)).splitlines())
    job = lake.job_path.read_text()
    prices = {"input_mtok": 100, "output_mtok": 50, "cached_mtok": 10, "currency": "USD"}
    lake.job_path.write_text(job.replace("uses: openai", f"uses: openai\n  cost: {json.dumps(prices)}"))
    done = launched(lake, ran)
    cost = 100 * 2070 / 1e6 + 10 * 300 / 1e6 + 50 * 180 / 1e6
    assert f"\n  cost       {cost:.4f} USD, by the prices in model.cost\n" in closing_text(done)
    assert run_result(done).token_cost == round(cost, 6)
    assert run_result(launched(lake, lake.run())).token_cost == round(cost, 6), "prices make no result old"
    text, page = closing_text(done), summary(done.run, "")[1]
    known = "13% from the prefix cache, longest prompt 69"
    tokens = f"60 requests: 2,370 in ({known}), 180 out; answers ended: 59 stop, 1 length"
    rates = r"[\d.,]+ prompts/s, [\d,]+ input tokens/s, [\d,]+ output tokens/s, [\d.]+ ms per output token in a request"
    assert f"\n  tokens     {tokens}\n" in text
    assert re.search(rf"\n  rates      {rates}\n", text)
    assert f"| tokens | {tokens} |" in page
    assert re.search(rf"\| rates \| {rates} \|", page)
    usage, speeds = run_result(done).usage, run_result(done).token_rates
    seconds = ran.scored.progress.steady_s
    assert (usage.stopped, usage.cut, usage.longest_prompt, usage.cached_tokens) == (59, 1, 69, 300)
    assert speeds.prompts_per_s == pytest.approx(ROWS / seconds, abs=0.001)
    assert speeds.input_tokens_per_s == pytest.approx(2370 / seconds, abs=0.001)
    assert f"| cost | {cost:.4f} USD, by the prices in model.cost |" in page
    again = closing_text(launched(lake, lake.run()))
    assert f"\n  tokens     {tokens}\n" in again
    assert "rates" not in again, "nothing was asked"


def launched(lake: Lake, ran: Any) -> Launched:
    """As the command has it in the end."""
    return Launched(FinishedRun(lake.request(), ran.scored, ran.verdict, ran.publication))


def test_rows_without_an_answer_are_quarantined_each_with_its_own_reason(lake: Lake, server: Server) -> None:
    """A prompt that is too long, one that is null, an answer that is cut, and one that does not follow the schema."""
    (lake.folder / "schema.json").write_text(json.dumps(SCHEMA))

    def behave(asked: Asked) -> Reply:
        word = asked.text.removeprefix("Say ")
        if word == "long":
            return fault(400, "maximum context length is 10 tokens")
        if word == "cut":
            return said('{"length": 3, "wo', reason="length")
        if word == "odd":
            return said('{"length": "three", "word": "odd"}')
        return said(json.dumps({"length": len(word), "word": word}))

    server.behave = behave
    texts: list[str | None] = [f"text {row}" for row in range(ROWS)]
    texts[5], texts[15], texts[16], texts[47], texts[59] = "long", None, "cut", "odd", "\x01\x1b[31m"
    ready(
        lake,
        server,
        texts=texts,
        model__json_schema="schema.json",
        model__outputs={"word": "string", "length": "int16"},
        retry__max_quarantined=0.1,
    ).run()
    rows, lost = lake.published(), lake.quarantined()
    assert rows["id"].tolist() == [row for row in range(ROWS) if row not in {5, 15, 16, 47}]
    assert rows["length"].iloc[-1] == len("\x01\x1b[31m")
    assert lost["_row"].tolist() == [5, 15, 16, 47]
    assert lost["error"].tolist() == ["PromptInvalid", "PromptInvalid", "AnswerInvalid", "AnswerInvalid"]
    reasons = ["maximum context", "has no value", "cut after 3 tokens", "'three' is not of type 'integer'"]
    for message, reason in zip(lost["message"], reasons, strict=True):
        assert reason in message


def cut_at(*rows: int) -> Any:
    """The answers to these rows are cut."""

    def behave(asked: Asked) -> Reply:
        cut = int(asked.text.rsplit(" ", 1)[1]) in rows
        return said('{"word": "x' if cut else '{"word": "x"}', reason="length" if cut else "stop")

    return behave


def test_a_night_with_too_many_cut_answers_is_not_published(lake: Lake, server: Server) -> None:
    """With a higher limit nothing is asked again."""
    server.behave = cut_at(7, 8, 25, 31, 59)
    with pytest.raises(GateFailed, match=r"5 of 60 answers were cut .* the 4 that checks\[0\].answers.cut"):
        ready(lake, server, checks=[{"answers": {"cut": 0.08}}]).run()
    server.asked()
    lake.job_path.write_text(lake.job_path.read_text().replace("0.08", "0.1"))
    lake.run()
    assert server.asked() == []
    assert len(lake.published()) == ROWS


def test_answers_that_are_cut_before_they_follow_a_schema_count_with_those_that_are_cut(
    lake: Lake, server: Server
) -> None:
    """Their rows are in the quarantine, with their reason."""
    server.behave = cut_at(7)
    ready(
        lake,
        server,
        model__json_schema={"type": "object", "properties": {"word": {"type": "string"}}},
        model__outputs={"word": "string"},
        checks=[{"answers": {"cut": 0}}],
        retry__max_quarantined=0.1,
    )
    with pytest.raises(GateFailed, match="1 of 60 answers was cut"):
        lake.run()
    assert lake.quarantined()["_row"].tolist() == [7]


def test_check_says_that_the_answers_of_its_sample_do_not_pass(lake: Lake, server: Server) -> None:
    server.behave = cut_at(7)
    request = ready(lake, server, checks=[{"answers": {"cut": 0}}]).request(engine="local")
    notes = steps.check(request, steps.discover(request)).warnings
    assert any(note.startswith("answers.cut does not pass on the sample: 1 of ") for note in notes), notes


@pytest.mark.parametrize(("differing", "passes"), [(0.05, True), (0.04, False)])
def test_answers_of_a_second_scoring_may_differ_in_so_many_rows(
    lake: Lake, server: Server, differing: float, passes: bool
) -> None:
    """One is another text, one does not follow the schema any more, and one has another number; all others agree."""
    (lake.folder / "schema.json").write_text(json.dumps(SCHEMA))
    asked: Counter[str] = Counter()

    def behave(request: Asked) -> Reply:
        word = request.text.removeprefix("Say ")
        asked[word] += 1
        again = scored.is_set()
        if again and word == "text 7":
            return said("no JSON")
        length = 0 if again and word == "text 21" else len(word)
        return said(json.dumps({"length": length, "word": "else" if again and word == "text 20" else word}))

    scored = threading.Event()
    server.behave = behave
    outputs = {"word": "string", "length": "int16"}
    ready(
        lake,
        server,
        model__json_schema="schema.json",
        model__outputs=outputs,
        rescore={"share": 1, "differing": differing},
        retry__max_quarantined=0.1,
    )
    request = lake.request()
    found = run.discover(request)
    first = run.score(request, found)
    scored.set()
    try:
        gates = run.validate(request, first, found).gates
    except GateFailed as failed:
        gates = failed.gates
    (gate,) = [each for each in gates if each.name == "rescore"]
    assert gate.passed is passes
    assert gate.observed.startswith(f"3 of {ROWS} rows of {ROWS // SHARD} shards differ")


def test_the_rows_of_the_next_shards_take_the_places_that_a_slow_row_leaves_free(lake: Lake, server: Server) -> None:
    """The slowest row of the first shard is answered only when rows of the last one were asked."""
    last = threading.Event()

    def behave(asked: Asked) -> Reply:
        if asked.text == f"Say text {ROWS - 1}":
            last.set()
        if asked.text == "Say text 3" and asked.again and not last.wait(30):
            return fault(400, "no row of the last shard was asked")
        return upper(asked)

    server.behave = behave
    ready(lake, server, model__requests_in_flight=4).run()
    assert len(lake.published()) == ROWS
    order = [record["shard"] for record in lake.records() if record["t"] == "receipt"]
    first = next(iter(lake.planned().shards())).id
    assert order.index(first) > 0, "other shards were written before the first one"


def test_a_key_that_expires_in_mid_run_ends_it_and_only_what_is_missing_is_asked_again(
    lake: Lake, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence, and nothing of what was committed is paid twice."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-for-a-while")

    def expires(asked: Asked) -> Reply:
        number = int(asked.text.rsplit(" ", 1)[1])
        if number < 35 or not committed(lake):  # preflight asks for some of these rows, too
            return upper(asked)
        is_true(lambda: len(committed(lake)) >= 3, 30)  # on a busy machine receipts come later than answers
        return fault(401, "key expired")

    server.behave = expires
    ready(lake, server, model__requests_in_flight=1)
    with pytest.raises(RunFailed, match=r"model.url: the endpoint does not accept the key .*key expired"):
        lake.run()
    done = committed(lake)
    assert 3 <= len(done) < ROWS // SHARD
    server.behave = upper
    server.asked()
    lake.run()
    missing = [shard for shard in lake.planned().shards() if shard.id not in done]
    rows = [row for shard in missing for row in range(shard.pieces[0].first_row, shard.pieces[0].first_row + SHARD)]
    again = server.asked()
    assert set(again) >= {f"Say text {row}" for row in rows}
    # Preflight asks a few rows, too.
    assert sum(again.count(f"Say text {row}") == 1 for row in rows) >= len(rows) - 20
    assert lake.published()["answer"].tolist() == [f"SAY TEXT {row}" for row in range(ROWS)]


def test_an_endpoint_that_goes_away_costs_no_row(lake: Lake, server: Server) -> None:
    """Its shards fail, as they do if the storage is away, and the next command goes on."""

    gone = threading.Event()

    def behave(asked: Asked) -> Reply:
        in_preflight = not any(record["t"] == "packages" for record in lake.records())
        if in_preflight or (int(asked.text.rpartition(" ")[2]) < ROWS / 2 and not gone.is_set()):
            return upper(asked)
        wait_until(lambda: len(committed(lake)) >= 2, 60, "two shards are committed")
        gone.set()
        return fault(503)

    server.behave = behave
    ready(lake, server, model__requests_in_flight=2)
    with pytest.raises(ShardsFailed, match="does not answer"):
        lake.run()
    server.behave = upper
    lake.run()
    assert len(lake.published()) == ROWS
    assert not (lake.revision() / "quarantine").exists()


def test_the_size_of_micro_batches_says_nothing_to_a_model_that_is_asked_for_one_row(
    lake: Lake, server: Server
) -> None:
    ready(lake, server, model__batch_size=3).run()
    assert len(lake.published()) == ROWS


def test_another_schema_is_another_result(lake: Lake, server: Server) -> None:
    """It is a file beside the job, and its content scores."""
    server.behave = lambda asked: said('{"length": 1, "word": "x"}')
    path = lake.folder / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    ready(lake, server, model__json_schema="schema.json", model__outputs={"word": "string"}).run()
    path.write_text(json.dumps(SCHEMA | {"required": ["word"]}))
    ran = lake.run()
    assert ran.scored.progress.reused_shards == 0
    path.unlink()
    with pytest.raises(JobError, match=r"schema\.json: no such document"):
        lake.run()


def test_a_column_that_the_input_has_not_is_named_with_its_key(lake: Lake, server: Server) -> None:
    """Before anything is asked."""
    with pytest.raises(JobError, match=r"model\.prompt: 'txt' is not a column of the input; did you mean 'text'"):
        ready(lake, server, model__prompt="Say {txt}").run()
    assert server.asked() == []


def test_a_preprocess_that_raises_for_a_row_costs_the_row(lake: Lake, server: Server) -> None:
    lake.write_model(
        "def prep(batch):\n"
        "    if 'text 23' in batch['text'].tolist():\n"
        "        raise ValueError('not this one')\n"
        "    return {'text': [text.upper() for text in batch['text']]}\n"
    )
    ready(lake, server, preprocess="model:prep", retry__max_quarantined=0.1).run()
    assert lake.quarantined()["_row"].tolist() == [23]
    assert lake.published()["answer"].tolist() == [f"SAY TEXT {row}" for row in range(ROWS) if row != 23]


@pytest.mark.parametrize("form", ["numpy", "pandas"])
@pytest.mark.parametrize("key", ["messages", "prompt"])
def test_lists_are_read_behind_a_preprocess_as_without_one(lake: Lake, server: Server, key: str, form: str) -> None:
    """Its batches hold arrays in their place, also within each other."""
    tags = [[f"tag {row}"] * (row % 3) for row in range(SHARD)]
    parts = [[{"type": "text", "text": each} for each in held] for held in tags]
    chats = [[{"role": "user", "content": [*held, {"type": "text", "text": "say"}]}] for held in parts]
    server.behave = lambda asked: said(json.dumps(asked.body["messages"]))
    template = {"messages": "chat", "prompt": None} if key == "messages" else {"prompt": "{tags}"}
    changes = {f"model__{name}": value for name, value in template.items()}
    lake.write_model("def prep(batch):\n    return batch\n")
    ready(lake, server, preprocess="model:prep", model__batch_format=form, **changes)
    columns = {"id": list(range(SHARD)), "chat": chats, "tags": tags}
    pq.write_table(pa.table(columns), lake.folder / "data" / "texts.parquet")
    lake.run()
    wanted = chats if key == "messages" else [[{"role": "user", "content": json.dumps(each)}] for each in tags]
    assert [json.loads(answer) for answer in lake.published()["answer"]] == wanted


def test_a_value_that_is_missing_in_pandas_costs_its_row(lake: Lake, server: Server) -> None:
    """Whatever stands for it, as NA."""
    lake.write_model("def prep(batch):\n    return batch.assign(text=batch['text'].astype('string'))\n")
    changes = {"preprocess": "model:prep", "model__batch_format": "pandas"}
    ready(lake, server, texts=["a", None, "c"], retry__max_quarantined=0.5, **changes).run()
    assert lake.published()["answer"].tolist() == ["SAY A", "SAY C"]
    (message,) = lake.quarantined()["message"]
    assert message.startswith("column 'text' has no value")


def test_a_shard_of_which_no_row_is_asked_is_an_empty_part(lake: Lake, server: Server) -> None:
    ready(lake, server, input__where=f"id < {SHARD} OR id >= {ROWS - SHARD}").run()
    wanted = [*range(SHARD), *range(ROWS - SHARD, ROWS)]
    assert lake.published()["answer"].tolist() == [f"SAY TEXT {row}" for row in wanted]
    assert lake.snapshot().number == 1


def test_a_shard_that_keeps_an_unreadable_row_alone_costs_that_row(lake: Lake, server: Server) -> None:
    """Nobody knows whether the condition takes it."""
    ready(lake, server, input__format="jsonl", input__where="id < 0", retry__max_quarantined=1.0)
    lake.to_json_lines()
    (path,) = (lake.folder / "data").iterdir()
    path.write_text(path.read_text().replace('"text": "text 23"', '"text": {}'))
    lake.run()
    assert lake.quarantined()["_row"].tolist() == [23]
    assert not len(lake.published())


@pytest.mark.system
def test_the_time_in_which_rows_are_prepared_is_not_that_in_which_none_is_answered(lake: Lake, server: Server) -> None:
    """A whole shard is prepared at once; with the answers that takes longer than either may."""
    lake.write_model("import time\n\ndef prep(batch):\n    time.sleep(6)\n    return batch\n")

    def slowly(asked: Asked) -> Reply:
        time.sleep(6)
        return upper(asked)

    server.behave = slowly
    step = {"uses": "model:prep", "placement": "fused"}
    ready(lake, server, preprocess=step, retry__stall_s=10)
    shard, *_ = lake.planned().shards()
    events = list(StreamingWorker(lake.worker_spec()).process([Assignment(shard)]))
    assert isinstance(events[-1], Receipt), events[-1]


@pytest.mark.parametrize("where", ["prep", "read_piece"])
def test_a_hang_before_any_row_is_asked_ends_the_process_and_is_named(
    lake: Lake, server: Server, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """In the user's preprocess, and in reading. The shard that hangs is charged."""
    lake.write_model(HANGS)
    step = {"uses": "model:prep", "placement": "fused"}
    ready(lake, server, **({"preprocess": step} if where == "prep" else {}), retry__stall_s=5)
    first, second, third, *_ = lake.planned().shards()
    if where == "read_piece":
        real, over = attempts.read_piece, threading.Event()

        def read_piece(storage: Any, job: Any, piece: Any, *others: Any) -> Any:
            if piece in third.pieces:
                over.wait(600)
            return real(storage, job, piece, *others)

        monkeypatch.setattr(attempts, "read_piece", read_piece)
    events: list[Event] = []
    said = r"no progress for retry.stall_s = 5 s, in " + ("prep " if where == "prep" else "wait ")
    worker = StreamingWorker(lake.worker_spec())
    with pytest.raises(ProcessSpoilt, match=said):
        events.extend(worker.process([Assignment(first), Assignment(second)]))
        for event in worker.process([Assignment(third)]):
            events.append(event)
    if where == "read_piece":
        over.set()
    assert {each.shard for each in events if isinstance(each, Receipt)} == {first.id, second.id}
    (failed,) = (each for each in events if isinstance(each, Failed))
    assert (failed.shard, failed.died, failed.cause) == (third.id, True, "Stalled")
    assert failed.message.endswith(f"its process was ended while {third.pieces[0].uri} was read or written")


@pytest.mark.system
def test_a_hang_in_the_preprocess_costs_its_row(lake: Lake, server: Server) -> None:
    lake.write_model(HANGS)
    limits = {"retry__stall_s": 5, "retry__max_quarantined": 0.1}
    preprocess = {"uses": "model:prep", "placement": "fused"}
    ran = ready(lake, server, preprocess=preprocess, **limits).run(engine="local")
    (lost,) = lake.quarantined().to_dict("records")
    assert (lost["_row"], lost["error"]) == (25, "ProcessDied")
    assert ran.scored.progress.spent == NOTHING_SPENT, "of rows that are asked for side by side no time is one shard's"
    assert lost["message"].startswith("Stalled: no progress for retry.stall_s = 5 s, in prep")


def test_an_answer_that_does_not_fit_costs_its_row_and_no_other_of_its_shard(lake: Lake, server: Server) -> None:
    """Each row says what was wrong with it. A key that the schema does not require is null where no row has it."""

    def behave(asked: Asked) -> Reply:
        row = int(asked.text.rsplit(" ", 1)[1])
        return said(json.dumps({"rating": 2.5 if row == 5 else row, "seen": {"a": "x"}}))

    server.behave = behave
    seen = {"type": "object", "properties": {"a": {"type": "string"}, "note": {"type": "string"}}, "required": ["a"]}
    ready(
        lake,
        server,
        model__json_schema={"type": "object", "properties": {"rating": {"type": "number"}, "seen": seen}},
        model__outputs={"rating": "int32", "seen": "struct<a: string, note: string>"},
        retry__max_quarantined=0.1,
    ).run()
    rows, lost = lake.published(), lake.quarantined()
    assert rows["rating"].tolist() == [row for row in range(ROWS) if row != 5]
    assert rows["seen"].tolist() == [{"a": "x", "note": None}] * (ROWS - 1)
    assert lost["_row"].tolist() == [5]
    assert lost["message"].tolist() == ["the answer has 2.5 as 'rating', which is no int32"]


def test_an_output_that_fits_none_of_its_rows_together_costs_the_row_that_is_at_fault(
    lake: Lake, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody looked at it before: halves of the rows are tried, and nothing is asked again. The file has a row
    that cannot be read, too.
    """
    monkeypatch.setattr(reading, "fitting", lambda _name, value, *_: value)
    server.behave = lambda asked: said(json.dumps({"rating": 2.5 if asked.text.endswith(" 5") else 1}))
    ready(
        lake,
        server,
        input__format="jsonl",
        model__json_schema={"type": "object", "properties": {"rating": {"type": "number"}}},
        model__outputs={"rating": "int32"},
        retry__max_quarantined=0.1,
    )
    lake.to_json_lines()
    (path,) = (lake.folder / "data").iterdir()
    path.write_text(path.read_text().replace('"text": "text 3"', '"text": {}'))
    (shard, *_) = lake.planned().shards()
    *_, receipt = StreamingWorker(lake.worker_spec()).process([Assignment(shard)])
    assert isinstance(receipt, Receipt), receipt
    assert (receipt.rows_out, receipt.rows_quarantined) == (shard.rows - 2, 2)
    assert len(server.asked()) == shard.rows - 1


def test_preflight_asks_for_its_sample_alone(lake: Lake, server: Server) -> None:
    """What preparing costs is not measured: each row is paid for."""
    lake.write_model("def prep(batch):\n    return batch\n")
    ready(lake, server, preprocess="model:prep").run()
    assert len(server.paid) == ROWS + 8


def test_a_model_that_answers_nothing_any_more_is_given_up(lake: Lake, server: Server) -> None:
    def hangs(asked: Asked) -> Reply:
        if len(committed(lake)) >= 2:
            raise Hang
        return upper(asked)

    server.behave = hangs
    ready(lake, server, model__requests_in_flight=1, retry__stall_s=2, retry__attempts=1)
    with pytest.raises(ShardsFailed, match=r"no row was answered for retry.stall_s = 2 s"):
        lake.run()


def test_a_shard_that_takes_too_long_says_so(lake: Lake, server: Server) -> None:
    """Rows of others are answered meanwhile, so the process does not hang."""

    def behave(asked: Asked) -> Reply:
        if asked.text == "Say text 3" and asked.again:
            raise Hang
        return upper(asked)

    server.behave = behave
    ready(lake, server, retry__shard_s=1, retry__attempts=1)
    with pytest.raises(ShardsFailed, match=r"this attempt takes longer than retry.shard_s = 1 s"):
        lake.run()


def test_the_key_is_nowhere(lake: Lake, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """In no ledger, manifest, part or log, and in no error, though the endpoint repeats it."""
    key = "sk-0123456789-secret"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    server.behave = lambda asked: (
        fault(400, f"{key} has no right to this") if asked.text.endswith(" 7") else upper(asked)
    )
    ready(lake, server, retry__max_quarantined=0.1).run()
    assert server.server.asked[0].headers["authorization"] == f"Bearer {key}"
    assert "has no right to this" in lake.quarantined()["message"][0]
    assert list(holders(lake.folder, key.encode())) == []


def holders(folder: Path, what: bytes) -> Iterator[Path]:
    """The files that hold these bytes, Parquet files read as tables."""
    for path in folder.rglob("*"):
        if path.is_file() and (what in path.read_bytes() or (path.suffix == ".parquet" and what in content(path))):
            yield path


def content(path: Path) -> bytes:
    return str(pq.read_table(path).to_pylist()).encode()


def committed(lake: Lake) -> set[str]:
    """The shards with a receipt."""
    return {record["shard"] for record in lake.records() if record["t"] == "receipt"}


SHORT_ONCE = (
    ONCE
    + '''
def score(batch):
    """The length of each text; once, when the test says so, a value is missing."""
    short = (Path(__LIVE__) / "later").exists() and len(batch["text"]) > 1 and once("tried")
    return {"n": [len(text) for text in batch["text"]][short:]}
'''
)


def test_what_an_attempt_that_failed_took_is_in_no_receipt(lake: Lake, server: Server) -> None:
    """Not in that of the shard after it, either."""

    def behave(asked: Asked) -> Reply:
        if any(record["t"] == "packages" for record in lake.records()):  # preflight is over
            (lake.folder / "later").touch()
        return upper(asked)

    server.behave = behave
    lake.write_model(SHORT_ONCE)
    ready(lake, server)
    asks = {**yaml.safe_load(lake.job_path.read_text())["model"], "name": "ask", "features": ["text"]}
    measures = {"name": "measure", "uses": "model:score", "features": ["text"], "outputs": {"n": "int64"}}
    lake.write_job(input__shard_rows=SHARD, models=[asks, measures], model=None, carry=["id"])
    with pytest.raises(ShardsFailed, match="1 of 6 shards has no result"):
        lake.run(engine="local")
    receipts = [record["usage"] for record in lake.records() if record["t"] == "receipt"]
    assert [each["requests"] for each in receipts] == [SHARD] * 5
