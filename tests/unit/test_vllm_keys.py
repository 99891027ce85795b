"""The keys of `uses: vllm` that are wrong whatever the model is; vLLM is not needed for these."""

from __future__ import annotations

from typing import Any

import pytest

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import check_keys, load_scorer
from nightjar.inference.predictors.prices import prices_of
from nightjar.inference.records import Usage


def job(*, gpus: float = 0, **model: Any) -> Job:
    keys = {"uses": "vllm", "path": "m/", "prompt": "{text}", "outputs": {"answer": "string"}}
    whole = {
        "name": "ask",
        "input": {"uri": "a"},
        "output": {"uri": "b"},
        "model": {name: value for name, value in {**keys, **model}.items() if value is not None},
        "resources": {"gpus": gpus, "actors": 4},
    }
    return Job.model_validate(whole)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"prompt": None}, "model.prompt: is required, or model.messages"),
        ({"sampling": {"n": 2}}, "model.sampling.n: each row has one answer"),
        ({"sampling": {"structured_outputs": {}}}, "write json_schema, regex or choice in model"),
        ({"choice": ["a", "b"], "sampling": {}}, "model.sampling: with model.choice the likeliest is taken"),
        ({"engine": {"model": "other"}}, "model.engine.model: model.path names the model"),
        ({"engine": "fast"}, "model.engine: write a mapping"),
        ({"gpus": 1.5}, "resources.gpus: the model is divided among whole GPUs, and not 1.5"),
        ({"cost": {"gpu_hour": 2}}, "model.cost.gpu_hour: resources.gpus is 0, so there is nothing to pay for"),
        ({"cost": {"currency": "EUR"}, "gpus": 1}, "model.cost.gpu_hour: write a number"),
        ({"regex": "(", "api": "completions"}, "model.regex: "),
        ({"regex": "a", "choice": ["a", "b"]}, "model.regex: model.choice is there, too; keep one of the two"),
        ({"truncate": "middle"}, "model.truncate: 'middle' is not one of left, right"),
        ({"api": "embeddings", "choice": ["a", "b"]}, "model.choice: is for answers, and a vector is none"),
        ({"choice": ["a", "b"], "outputs": {"a": "string"}}, "model.outputs.a: is the probability of this choice"),
        ({"choice": ["a", "b"], "outputs": {"probabilities": "float32[3]"}}, "write float32\\[2\\]"),
        ({"choice": ["a", "b"], "outputs": {"c": "string", "d": "string"}}, "there is only a text: the answer"),
    ],
)
def test_keys_that_make_no_sense_are_named(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=said):
        check_keys(job(**keys))


def test_keys_that_do_are_taken() -> None:
    """Choices with the probability of each, in the same words as of an endpoint."""
    outputs = {"said": "string", "yes": "float32", "probabilities": "list<float32>", "prompt_tokens": "int32"}
    check_keys(job(choice=["yes", "no"], outputs=outputs))
    check_keys(job(api="completions", regex="[0-9]+", truncate="left", engine={"max_model_len": 9}, gpus=2))


def test_a_gpu_costs_what_its_hours_cost() -> None:
    """Of as many workers as there are at once, however many there were: a lost one is replaced."""
    prices = prices_of(job(cost={"gpu_hour": 3.0, "currency": "EUR"}, gpus=2).model_copy())
    assert prices is not None
    assert prices.currency == "EUR"
    assert prices.cost(Usage(), 1, 1800.0) == 3.0
    assert prices.cost(Usage(), 5, 1800.0) == 4 * 3.0
    assert job(cost={"gpu_hour": 3.0}, gpus=2).scoring_keys() == job(gpus=2).scoring_keys()


def test_without_vllm_its_installation_is_said() -> None:
    pytest.importorskip("torch")
    try:
        import vllm  # noqa: F401
    except ImportError:
        with pytest.raises(
            JobError, match=r"the vllm adapter needs vllm; install it: pip install 'nightjar-batch\[vllm\]'"
        ):
            load_scorer(job(), "m")
    else:
        pytest.skip("vLLM is installed here")
