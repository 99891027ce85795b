"""A language model that vLLM runs: what it answers, whatever the prompt is, and what is lost when its process dies.

`make test-vllm` runs these in an environment of their own, with vLLM's build for CPUs and the model of `make llm`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("vllm", reason="make test-vllm has vLLM")

from modeljobs import model_job
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import JobError, PromptInvalid
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import check_keys, load_scorer
from nightjar.inference.predictors.language.requests import Answered
from support import ROOT, Lake

EXAMPLE = ROOT / "examples" / "llm"
ENGINE = {"max_model_len": 512, "dtype": "float32", "enforce_eager": True, "max_num_seqs": 8, "seed": 0}
GREEDY = {"max_tokens": 12, "temperature": 0}
ASKED = ["What is the capital of France?", "Name a colour.", "Count to three."]

SCHEMA = {
    "type": "object",
    "properties": {"digit": {"type": "integer", "minimum": 0, "maximum": 9}, "fits": {"type": "boolean"}},
    "required": ["digit", "fits"],
    "additionalProperties": False,
}

KILLER = """
import os
import torch
from vllm.v1.sample.logits_processor import LogitsProcessor

class Killer(LogitsProcessor):
    def __init__(self, config, device, is_pin_memory):
        pass
    def is_argmax_invariant(self):
        return True
    def apply(self, logits):
        return logits
    def update_state(self, update):
        for _, _, prompt, _ in (update.added if update else ()):
            if prompt and len(prompt) == __LENGTH__:
                __END__
"""


PROCESSOR = """
from ray.data.llm import vLLMEngineProcessorConfig

config = vLLMEngineProcessorConfig(
    model_source="unsloth/Llama-3.1-8B-Instruct",
    engine_kwargs={ENGINE},
    concurrency=1,
    batch_size=64,
)


def preprocess(row):
    if row["text"] == "raise":
        raise KeyError("no such thing")
    return dict(
        messages=[{"role": "user", "content": row["text"]}],
        sampling_params=dict(temperature=0, max_tokens=len(row["text"]) % 2 + 4),
    )


def postprocess(row):
    assert "sampling_params" not in row
    if row["text"] == "drop":
        return dict(answer=row["generated_text"])
    return dict(answer=row["generated_text"], tokens=row["num_generated_tokens"], **row)
"""
"""As in Ray's documentation. The number of tokens differs from row to row."""


@pytest.fixture(scope="session")
def smollm() -> str:
    """The model's folder."""
    subprocess.run([sys.executable, EXAMPLE / "prepare.py"], check=True)
    return str(EXAMPLE / "models" / "smollm2")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")


def job(model: str, **keys: Any) -> Job:
    given = {"uses": "vllm", "path": model, "prompt": "{text}", "engine": ENGINE, "outputs": {"answer": "string"}}
    found = Job.model_validate({"name": "ask", "input": {"uri": "a"}, "output": {"uri": "b"}, "model": given | keys})
    check_keys(found)
    return found


def ask(model: str, texts: Sequence[str | None], **keys: Any) -> Answered:
    scorer: Any = load_scorer(model_job(job(model, **keys)), model)
    found: Answered = scorer.submit(scorer.prepare(pa.table({"text": pa.array(texts, pa.string())}))).result()
    return found


@pytest.fixture(scope="module")
def direct(smollm: str) -> Iterator[Any]:
    """The same model in transformers: tokens in, the logarithm of each token's probability out."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(smollm), AutoModelForCausalLM.from_pretrained(smollm)

    class Direct:
        def tokens(self, text: str) -> list[int]:
            messages = [{"role": "user", "content": text}]
            prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            return self.of(prompt)

        def of(self, text: str) -> list[int]:
            return list(tokenizer(text, add_special_tokens=False).input_ids)

        def next(self, tokens: Sequence[int]) -> Any:
            with torch.no_grad():
                return torch.log_softmax(model(torch.tensor([list(tokens)])).logits[0, -1], -1).numpy()

        def greedy(self, text: str, most: int) -> str:
            tokens = self.tokens(text)
            found: list[int] = []
            while (
                len(found) < most and (token := int(self.next([*tokens, *found]).argmax())) != model.config.eos_token_id
            ):
                found.append(token)
            return str(tokenizer.decode(found, skip_special_tokens=True))

    yield Direct()


def test_greedy_answers_are_those_of_the_model_itself(smollm: str, direct: Any) -> None:
    """And prompts that cannot be asked cost their own rows alone."""
    odd = [None, "", "word " * 100_000, "\x00\x01\x1b[31m"]
    found = ask(smollm, [*ASKED, *odd], sampling=GREEDY, outputs={"answer": "string", "output_tokens": "int32"})
    answers = found.outputs["answer"]
    assert answers[:3] == [direct.greedy(text, 12) for text in ASKED]
    assert all(0 < count <= 12 for count in found.outputs["output_tokens"][:3])
    reasons = ["'text' has no value", "the prompt is empty", "the prompt has 100,0.. tokens, and max_model_len is 512"]
    for error, reason in zip(answers[3:6], reasons, strict=True):
        assert isinstance(error, PromptInvalid)
        assert re.search(reason, str(error))
    assert isinstance(answers[6], str)
    assert (found.usage.requests, found.usage.failed) == (4, 3)


def test_the_probability_of_each_choice_is_that_of_its_tokens(smollm: str, direct: Any) -> None:
    """As transformers computes them, renormalised where the choices part."""
    named = ["good", "bad", "bad weather"]
    found = ask(
        smollm, ASKED, choice=named, outputs={"said": "string", "good": "float64", "probabilities": "list<float64>"}
    )
    good, bad, weather = (direct.of(name) for name in named)
    assert weather[: len(bad)] == bad
    for row, text in enumerate(ASKED):
        prompt = direct.tokens(text)
        first = direct.next(prompt)[[good[0], bad[0]]]
        share = np.exp(first) / np.exp(first).sum()
        after = direct.next([*prompt, *bad])[[direct.of("<|im_end|>")[0], weather[len(bad)]]]
        ends = np.exp(after) / np.exp(after).sum()
        wanted = [share[0], share[1] * ends[0], share[1] * ends[1]]
        assert found.outputs["probabilities"][row] == pytest.approx(wanted, abs=2e-3)
        assert found.outputs["good"][row] == found.outputs["probabilities"][row][0]
        assert found.outputs["said"][row] == named[int(np.argmax(wanted))]


def test_answers_have_the_form_that_the_job_asks_for(smollm: str) -> None:
    """One that is cut before it has it costs its row."""
    regex = r"[0-9]{4}-[0-9]{2}"
    dates = ask(smollm, ASKED, regex=regex, sampling={"max_tokens": 20, "temperature": 0}).outputs["answer"]
    assert all(len(each) == 7 and each[4] == "-" for each in dates)
    cut = ask(smollm, ASKED[:1], regex=regex, sampling={"max_tokens": 2, "temperature": 0}).outputs["answer"]
    assert "was cut after 2 tokens, before it had the form of model.regex" in str(cut[0])


def test_vectors_of_prompts(smollm: str) -> None:
    """Of length 1, and texts that mean the same lie nearer to each other."""
    texts = ["The cat sleeps.", "A cat is sleeping.", "Interest rates rose by 2 %."]
    found = ask(smollm, texts, api="embeddings", outputs={"vector": "float32[576]"}).outputs["vector"]
    near = np.array(found) @ np.array(found).T
    assert np.diag(near) == pytest.approx(1.0, abs=1e-3)
    assert near[0, 1] > near[0, 2]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"engine": {"max_modl_len": 3}}, "model.engine.max_modl_len: .*did you mean 'max_model_len'"),
        ({"sampling": {"temprature": 1}}, "model.sampling: .*temprature"),
    ],
)
def test_what_vllm_does_not_know_is_an_error_of_the_job(smollm: str, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=said):
        load_scorer(model_job(job(smollm, **keys)), smollm)


def ready(lake: Lake, model: str, texts: list[str | None], **changes: Any) -> Lake:
    """A lake of texts, and a job that asks about them."""
    lake.write_texts(texts, 8)
    keys = {
        "uses": "vllm",
        "path": model,
        "prompt": "{text}",
        "sampling": GREEDY,
        "engine": ENGINE,
        "outputs": {"answer": "string", "finish_reason": "string"},
    }
    lake.write_job(**{"input__shard_rows": 8, "model": keys, "carry": ["id"], **changes})
    return lake


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "raise RuntimeError('the device is gone')"])
def test_a_prompt_that_kills_the_engine_is_found(
    lake: Lake, smollm: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: Any, end: str, direct: Any
) -> None:
    """It is quarantined, and every other row of the shards that died with it is answered."""
    texts: list[str | None] = [f"Say {row}" for row in range(60)]
    texts[45] = "Say the word that nobody survives " + "now " * 40
    length = len(direct.tokens(texts[45]))
    # Of the job's own folder the process sees only what the job names.
    plugins = tmp_path_factory.mktemp("plugins")
    (plugins / "killer.py").write_text(KILLER.replace("__LENGTH__", str(length)).replace("__END__", end))
    monkeypatch.syspath_prepend(str(plugins))
    ready(
        lake,
        smollm,
        texts,
        model__engine={**ENGINE, "logits_processors": ["killer:Killer"]},
        retry__max_quarantined=0.1,
        retry__attempts=8,
    ).run(engine=LOCAL)
    assert lake.published()["id"].tolist() == [row for row in range(60) if row != 45]
    assert lake.quarantined()["_row"].tolist() == [45]


def test_a_night_accounts_for_every_prompt(lake: Lake, smollm: str) -> None:
    """Structured answers are published, each other row is quarantined with its own reason."""
    texts: list[str | None] = [f"Say {row}" for row in range(20)]
    texts[3], texts[7], texts[12] = None, "word " * 100_000, ""
    (lake.folder / "schema.json").write_text(json.dumps(SCHEMA))
    lake = ready(
        lake,
        smollm,
        texts,
        model__json_schema="schema.json",
        model__sampling={"max_tokens": 60, "temperature": 0},
        model__outputs={"digit": "int8", "fits": "bool"},
        retry__max_quarantined=0.5,
    )
    lake.run(engine=LOCAL)
    rows, lost = lake.published(), lake.quarantined()
    assert sorted([*rows["id"], *lost["_row"]]) == list(range(20))
    assert {3, 7, 12} <= set(lost["_row"])
    assert rows["digit"].between(0, 9).all()
    assert set(lost["error"]) <= {"PromptInvalid", "AnswerInvalid"}


def test_a_process_may_end_right_after_its_engine_was_closed(smollm: str) -> None:
    """C++ aborts a process that ends while one of vLLM's threads runs, and these weights take long to give back."""
    script = (
        "from nightjar.inference.predictors.language.vllmengine import Engine\n"
        f"Engine({smollm!r}, { ({**ENGINE, 'dtype': 'bfloat16'})!r}).close()\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_processor_of_ray_data_gives_the_answers_of_the_model(lake: Lake, smollm: str, direct: Any) -> None:
    """Each row has its own parameters, and a row that one of the user's functions fails costs itself."""
    texts = [*ASKED, "raise", "drop", "word " * 600]
    lake.write_texts(texts, 8)
    (lake.folder / "summarise.py").write_text(PROCESSOR.replace("{ENGINE}", repr(ENGINE)))
    model = {
        "uses": "ray.data.llm",
        "path": smollm,
        "config": "summarise:config",
        "preprocess": "summarise:preprocess",
        "postprocess": "summarise:postprocess",
        "outputs": {"answer": "string", "tokens": "int32"},
    }
    lake.write_job(model=model, carry=["id"], retry__max_quarantined=0.9)
    lake.run(engine=LOCAL)
    rows, lost = lake.published(), lake.quarantined()
    assert rows["answer"].tolist() == [direct.greedy(text, len(text) % 2 + 4) for text in ASKED]
    assert rows["tokens"].tolist() == [len(direct.of(answer)) for answer in rows["answer"]]
    assert lost["message"].tolist() == [
        "model.preprocess raised KeyError: 'no such thing'",
        "model.postprocess returned no 'tokens', only answer",
        lost["message"].iloc[2],
    ]
    assert 'raise KeyError("no such thing")' in lost["traceback"].iloc[0]
    assert re.match("the prompt has 6.. tokens, and max_model_len is 512", lost["message"].iloc[2])
