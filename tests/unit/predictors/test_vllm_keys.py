"""What can be tested of `uses: vllm` without vLLM: keys that are wrong whatever the model is, and the order at exit."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from modeljobs import model_job
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
    check_keys(job(api="completions", regex="[0-9]+", engine={"max_model_len": 9}, gpus=2))


def test_without_vllm_its_installation_is_said() -> None:
    pytest.importorskip("torch")
    try:
        import vllm  # noqa: F401
    except ImportError:
        with pytest.raises(
            JobError, match=r"the vllm adapter needs vllm; install it: pip install 'nightjar-batch\[vllm\]'"
        ):
            load_scorer(model_job(job()), "m")
    else:
        pytest.skip("vLLM is installed here")


FAKE = """
import atexit, sys, threading, time
from dataclasses import make_dataclass
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

from nightjar.inference.predictors.language import vllmengine

class FakeEngine(MagicMock):
    from_engine_args = classmethod(lambda cls, args: cls())

def import_vllm():
    args = SimpleNamespace(EngineArgs=make_dataclass("EngineArgs", ["model", "disable_log_stats"]))
    sys.modules["vllm"] = ModuleType("vllm")
    sys.modules["vllm.engine.arg_utils"] = args
    sys.modules["vllm.platforms"] = MagicMock()
    sys.modules["vllm.v1.engine.llm_engine"] = SimpleNamespace(LLMEngine=FakeEngine)
    atexit.register(lambda: print("vLLM's own hook:", [each.name for each in threading.enumerate()]))

vllmengine.import_vllm = import_vllm
"""

AT_EXIT = """
engine = vllmengine.Engine("m", {})
engine._engine.engine_core.shutdown = lambda: (time.sleep(1), print("the engine has ended"))
"""


def test_at_exit_the_engines_end_before_what_vllm_registered_when_it_was_imported() -> None:
    """Otherwise vLLM's threads outlive what they use, and C++ aborts the process."""
    done = subprocess.run([sys.executable, "-c", FAKE + AT_EXIT], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["the engine has ended", "vLLM's own hook: ['MainThread']"]


UNLOADABLE = """
def refuse(args):
    raise OSError(f"no config.json in {args.model}")

FakeEngine.from_engine_args = refuse
try:
    vllmengine.Engine("/copies/m", {}, "hf://org/m@1")
except vllmengine.JobError as error:
    print(error)
"""


def test_a_model_that_vllm_cannot_load_is_named_as_the_job_names_it() -> None:
    """And not by the local copy, which nobody knows."""
    done = subprocess.run([sys.executable, "-c", FAKE + UNLOADABLE], capture_output=True, text=True, check=True)
    said, _ = done.stdout.splitlines()
    assert said == "model.path: vLLM cannot load hf://org/m@1: OSError: no config.json in hf://org/m@1"
