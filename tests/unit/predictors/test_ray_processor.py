"""Which configurations of Ray Data's processors are followed. Ray's own classes make them; vLLM is not needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray.data.llm import HttpRequestProcessorConfig, SGLangEngineProcessorConfig, vLLMEngineProcessorConfig

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.job.modeljob import modules_of
from nightjar.inference.predictors import check_keys
from nightjar.inference.predictors.adapter import missing
from nightjar.inference.predictors.language.raydatallm import followed
from nightjar.inference.predictors.user import check_usable, imported

CODE = """
from ray.data.llm import vLLMEngineProcessorConfig

config = vLLMEngineProcessorConfig(model_source="m", engine_kwargs={"max_model_len": 64})

def preprocess(row):
    return {"messages": [{"role": "user", "content": row["text"]}], "sampling_params": {"max_tokens": 8}}

class Postprocess:
    def __call__(self, row):
        return {"answer": row["generated_text"]}

class Nothing:
    pass

async def later(row):
    return row

def many(row):
    yield row

number = 3
"""


def config(**keys: Any) -> Any:
    return vLLMEngineProcessorConfig(model_source="m", **keys)


def test_what_is_documented_is_followed() -> None:
    found = followed(config(engine_kwargs={"max_model_len": 64, "model": "other"}, concurrency=2, batch_size=64))
    assert dict(found.engine) == {"max_model_len": 64}
    assert (found.pools, found.templates, found.tokenises, found.detokenises) == (False, True, True, True)
    assert found.most is None


def test_stages_may_be_switched_off_and_have_keys() -> None:
    found = followed(
        config(
            task_type="embed",
            max_pending_requests=7,
            tokenize_stage=False,
            detokenize_stage={"enabled": False},
            chat_template_stage={"chat_template": "{{ messages }}", "chat_template_kwargs": {"think": False}},
        )
    )
    assert (found.pools, found.templates, found.tokenises, found.detokenises) == (True, True, False, False)
    assert dict(found.template) == {"chat_template": "{{ messages }}", "think": False}
    assert found.most == 7


def test_a_bound_that_ray_takes_for_none_is_none() -> None:
    assert followed(config(max_pending_requests=-1)).most is None


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"dynamic_lora_loading_path": "s3://lora"}, "dynamic_lora_loading_path is not followed: LoRA is not loaded"),
        ({"runtime_env": {"env_vars": {}, "pip": ["x"]}}, "runtime_env is not followed: write resources.runtime_env"),
        ({"task_type": "classify"}, "task_type 'classify' is not followed, only generate and embed"),
        ({"prepare_multimodal_stage": True}, "prepare_multimodal_stage is not followed: prompts are texts alone"),
        ({"tokenize_stage": {"model_source": "n"}}, "tokenize_stage.model_source is not followed"),
        ({"detokenize_stage": {"runtime_env": {"pip": ["x"]}}}, "detokenize_stage.runtime_env is not followed"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=f"model.config: {said}"):
        followed(config(**keys))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (HttpRequestProcessorConfig(url="http://a"), "is a HttpRequestProcessorConfig, .* uses: openai"),
        (SGLangEngineProcessorConfig(model_source="m"), "is a SGLangEngineProcessorConfig, .* uses: openai"),
        ({"model_source": "m"}, "is a dict, and not a vLLMEngineProcessorConfig of ray.data.llm"),
    ],
)
def test_another_configuration_is_named_with_what_to_write_for_it(other: Any, said: str) -> None:
    with pytest.raises(JobError, match=said):
        followed(other)


def job(folder: Path, **keys: Any) -> Job:
    (folder / "summarise.py").write_text(CODE)
    model = {
        "uses": "ray.data.llm",
        "path": "m/",
        "config": "summarise:config",
        "outputs": {"answer": "string"},
        **keys,
    }
    whole = {"name": "ask", "input": {"uri": "a"}, "output": {"uri": "b"}, "model": model}
    return Job.model_validate(whole).model_copy(update={"folder": str(folder)})


def test_the_users_objects_are_checked_before_a_row_is_asked(tmp_path: Path) -> None:
    asked = job(tmp_path, preprocess="summarise:preprocess", postprocess="summarise:Postprocess")
    check_keys(asked)
    assert set(modules_of(asked).values()) == {"summarise"}
    check_usable(asked, imported(asked))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"config": "summarise:preprocess"}, "model.config: is a function, and not a"),
        ({"preprocess": "summarise:number"}, "model.preprocess: is no function that takes a row"),
        ({"postprocess": "summarise:Nothing"}, "model.postprocess: is no function that takes a row"),
        ({"preprocess": "summarise:later"}, "model.preprocess: is async or a generator"),
        ({"preprocess": "summarise:many"}, "model.preprocess: is async or a generator"),
        ({"preprocess": "summarise:preproces"}, "model.preprocess: module 'summarise' .* did you mean 'preprocess'"),
    ],
)
def test_objects_of_another_kind_are_named(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    asked = job(tmp_path, **keys)
    with pytest.raises(JobError, match=said):
        check_usable(asked, imported(asked))


def test_a_second_scoring_says_how_many_answers_may_differ(tmp_path: Path) -> None:
    asked = job(tmp_path)
    with pytest.raises(JobError, match=r"rescore\.differing: is required"):
        check_keys(asked.model_copy(update={"rescore": asked.rescore.model_copy(update={"share": 0.1})}))


def test_code_of_the_models_folder_runs_only_if_the_job_trusts_it(tmp_path: Path) -> None:
    code = CODE.replace('{"max_model_len": 64}', '{"trust_remote_code": True}')
    for trusted in (False, True):
        asked = job(tmp_path, trusted=trusted)
        (tmp_path / "summarise.py").write_text(code)
        if trusted:
            check_usable(asked, imported(asked))
        else:
            with pytest.raises(JobError, match=r"^model\.path: .*trust_remote_code runs, .*model\.trusted: true"):
                check_usable(asked, imported(asked))


def test_the_extra_that_is_missing_is_one_that_exists(tmp_path: Path) -> None:
    asked = job(tmp_path)
    with pytest.raises(JobError, match=r"the ray\.data\.llm adapter needs vllm; .*'nightjar-batch\[vllm\]'$"):
        raise missing(asked.models[0].uses, "vllm")
