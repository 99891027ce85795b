"""What Ray Data takes besides plain classes and functions: async code, and subclasses of its `TorchInference`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from modeljobs import model_job
from predicting import TABLE, MakeJob, jobs_in, scored

from lazily import lazily
from nightjar.inference.errors import JobError, OutputInvalid
from nightjar.inference.predictors import load_scorer
from nightjar.inference.predictors.user import check_usable, imported
from nightjar.inference.scoring.batchsize import BatchSize
from nightjar.inference.scoring.microbatches import drained, score_table

torch = lazily("torch")


@pytest.fixture
def make_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeJob]:
    with jobs_in(tmp_path, monkeypatch) as make:
        yield make


@pytest.mark.parametrize(
    "code",
    [
        "class Predictor:\n async def __call__(self, batch):\n  return {'score': batch['a'] * 2}",
        "class Predictor:\n async def __call__(self, batch):\n  for x in batch['a']:\n   yield {'score': [x * 2]}",
        "async def Predictor(batch):\n return {'score': batch['a'] * 2}",
        "async def double(batch):\n return {'score': batch['a'] * 2}\n"
        "class Predictor:\n def __call__(self, batch):\n  return double(batch)",
    ],
    ids=["class", "generator", "function", "unmarked"],
)
def test_async_code_is_waited_for(make_job: MakeJob, code: str) -> None:
    assert scored(make_job(code), TABLE) == {"score": [2.0, 4.0, 6.0]}


TOGETHER = """
import asyncio

class Predictor:
    async def __call__(self, batch):
        self.waiting, self.all = len(batch["a"]), asyncio.Event()
        return {"score": await asyncio.gather(*map(self.one, batch["a"]))}

    async def one(self, x):
        self.waiting -= 1
        if not self.waiting:
            self.all.set()
        await self.all.wait()
        return x * 2
"""


def test_requests_of_a_batch_run_together(make_job: MakeJob) -> None:
    """Each row waits until all rows are there."""
    assert scored(make_job(TOGETHER), TABLE) == {"score": [2.0, 4.0, 6.0]}


SOME_FAIL = """
import asyncio

asked = []

class Predictor:
    async def __call__(self, batch):
        return {"score": await asyncio.gather(*map(self.one, batch["a"]), return_exceptions=True)}

    async def one(self, x):
        await asyncio.sleep(0)
        asked.append(x)
        if x == 2:
            raise ConnectionError("the line is cut")
        return x * 2
"""


def test_a_request_that_fails_costs_its_row_and_no_other_is_asked_again(make_job: MakeJob) -> None:
    job = make_job(SOME_FAIL)
    done = drained(score_table(TABLE, load_scorer(model_job(job), None), BatchSize(3), job.models[0].output_types()))
    assert done.outputs["score"].to_pylist() == [2.0, 6.0]
    (failure,) = done.failures
    assert (failure.row, failure.error, failure.message) == (1, "ConnectionError", "the line is cut")
    assert 'raise ConnectionError("the line is cut")' in failure.traceback
    import mine  # type: ignore[import-not-found]

    assert mine.asked == [1, 2, 3]


def test_what_async_code_started_goes_on_between_two_batches(make_job: MakeJob) -> None:
    """An engine's own loop: it is the same one for all batches, and it is not stopped by the end of a batch."""
    code = (
        "import asyncio, threading\nbetween = threading.Event()\n"
        "class Predictor:\n"
        " task = None\n"
        " async def engine(self):\n  await self.go.wait()\n  between.set()\n"
        " async def __call__(self, batch):\n"
        "  if self.task is None:\n   self.go = asyncio.Event()\n   self.task = asyncio.ensure_future(self.engine())\n"
        "   asyncio.get_running_loop().call_later(0.05, self.go.set)\n"
        "  return {'score': batch['a']}"
    )
    scorer = load_scorer(model_job(make_job(code)), None)
    scorer(TABLE)
    import mine  # type: ignore[import-not-found]

    assert isinstance(mine.between, threading.Event)
    assert mine.between.wait(60)
    assert scorer(TABLE)["score"].to_pylist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("body", ["raise Odd('row 7')", "raise Odd('row 7')\n yield 1"], ids=["coroutine", "generator"])
def test_what_async_code_raises_passes_through_unchanged(make_job: MakeJob, body: str) -> None:
    scorer = load_scorer(
        model_job(make_job(f"class Odd(Exception): pass\nasync def f(batch):\n {body}", uses="mine:f")), None
    )
    with pytest.raises(Exception, match="row 7") as caught:
        scorer(TABLE)
    assert type(caught.value).__name__ == "Odd"


def test_a_preprocess_may_be_async(make_job: MakeJob) -> None:
    code = "async def prep(batch):\n return {'a': batch['a'] + 1}\ndef f(batch):\n return {'score': batch['a']}"
    assert scored(make_job(code, uses="mine:f", job={"preprocess": "mine:prep"}), TABLE) == {"score": [2.0, 3.0, 4.0]}


INFERENCE = """
import torch
from ray.data.util.torch_inference import TorchInference

class Predictor(TorchInference):
    def initialize(self, factor=2):
        self.factor = factor

    def get_device(self):
        return torch.device("DEVICE")

    def process_on_device(self, input_batch, collated_tensors, collated_other):
        a = collated_tensors["a"]
        assert a.device.type == "DEVICE" and not torch.is_grad_enabled() and collated_other is None
        return {"score": a * self.factor + collated_tensors["b"]}
"""


def device() -> str:
    """Where torch computes on this machine."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def test_a_subclass_of_torch_inference_works_unchanged(make_job: MakeJob) -> None:
    job = make_job(INFERENCE.replace("DEVICE", device()), options={"factor": 3})
    scorer = load_scorer(model_job(job), None)
    assert scorer.device.startswith(device())
    assert scorer(TABLE)["score"].to_pylist() == [13.0, 26.0, 39.0]


def test_tensors_in_parts_are_joined_and_the_rest_is_handed_on(make_job: MakeJob) -> None:
    """`collate` and `process_on_device` may each return a pair; what is no tensor goes to the next step."""
    code = INFERENCE.replace("DEVICE", device()) + (
        "    def collate(self, input_batch):\n"
        "        a = torch.from_numpy(input_batch.pop('a').copy())\n"
        "        return {'a': [a[:1], a[1:]], 'b': a}, 'words'\n"
        "    def process_on_device(self, input_batch, collated_tensors, collated_other):\n"
        "        assert sorted(input_batch) == ['a', 'b']\n"
        "        a = collated_tensors['a']\n"
        "        return [a, [a, a]], collated_other + str(len(a))\n"
        "    def finalize(self, input_batch, output_tensors, output_other):\n"
        "        first, (second, third) = output_tensors\n"
        "        assert output_other == 'words3' and first.device.type == 'cpu'\n"
        "        return {'score': (first + second + third).numpy()}\n"
    )
    assert scored(make_job(code), TABLE) == {"score": [3.0, 6.0, 9.0]}


def test_what_is_no_tensor_names_the_class_and_the_method(make_job: MakeJob) -> None:
    code = INFERENCE.replace("DEVICE", "cpu").replace('return {"score"', 'return "none"\n        return {"score"')
    with pytest.raises(OutputInvalid, match=r"Predictor\.process_on_device returned a str; return a tensor"):
        scored(make_job(code), TABLE)


def test_an_unknown_option_of_torch_inference_is_found_without_constructing_it(make_job: MakeJob) -> None:
    job = make_job(INFERENCE.replace("DEVICE", "cpu"), options={"factr": 3})
    with pytest.raises(JobError, match=r"model\.options: mine:Predictor cannot be called: .*'factr'.*factor=2"):
        check_usable(job, imported(job))
