"""The keys of `uses: vllm` that are wrong whatever the model is; vLLM is not needed for these."""

from __future__ import annotations

from typing import Any

import pytest

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import check_keys, load_scorer


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
