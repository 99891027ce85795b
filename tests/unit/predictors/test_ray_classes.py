"""What Ray Data takes besides plain classes and functions: async code."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from modeljobs import model_job
from nightjar.inference.predictors import load_scorer
from nightjar.inference.scoring.assignment import BatchSize
from nightjar.inference.scoring.microbatches import drained
from predicting import TABLE, MakeJob, jobs_in, score_table, scored


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
