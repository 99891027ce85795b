"""`uses: vllm`: a language model that vLLM runs in the actor itself.

vLLM's engine is in the actor's own process, and not in one beside it: if either dies, both do, and no process is left
that keeps a GPU.
"""

from __future__ import annotations

import os.path
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.job.options import Option, choice, keywords, text, whole
from nightjar.inference.predictors.adapter import Adapter, Predictor, check_trusted, needed
from nightjar.inference.predictors.installed import missing, versions
from nightjar.inference.predictors.language.languagemodel import ASKED, LanguageModel
from nightjar.inference.predictors.tabular.torch import OnTorch
from nightjar.inference.predictors.transformers.modelfolder import look

_OURS = {
    "n": "each row has one answer",
    "structured_outputs": "write json_schema, regex or choice in model",
    "output_kind": "an answer is handed on when it is whole",
}
"""Keys of vLLM's sampling parameters that have no meaning here, and why."""

_FOLDERS = {"tokenizer", "model", "hf_config_path", "generation_config"}
"""Keys of vLLM's engine, or of a mapping in it, whose folders are read. It writes into those of others."""


class OnVllm(OnTorch):
    """Base of the adapters whose models vLLM runs."""

    libraries: tuple[str, ...] = ("vllm", "transformers")
    extra = "vllm"
    reads_arrow = True

    def check_keys(self, job: Job) -> None:
        """As `Adapter.check_keys`."""
        if job.resources.gpus > 1 and job.resources.gpus % 1:
            raise JobError(f"resources.gpus: the model is divided among whole GPUs, and not {job.resources.gpus:g}")

    def fingerprint(self, job: Job) -> Mapping[str, str]:
        """As `Adapter.fingerprint`."""
        return versions(job.model.uses, ("vllm",)) | versions(job.model.uses, ("transformers",))

    def inspect(self, job: Job, path: str) -> None:
        """As `Adapter.inspect`."""
        look(job, Path(path), str(job.model.path))

    def device_errors(self) -> tuple[type[BaseException], ...]:
        """As `Adapter.device_errors`. An engine that failed takes no further request."""
        engine = sys.modules.get("nightjar.inference.predictors.language.vllmengine")
        return () if engine is None else (engine.EngineFailed,)

    def devices(self) -> str:
        """None but those of torch, which its own adapter names."""
        return ""

    def warm(self) -> None:
        """As `Adapter.warm`."""
        import nightjar.inference.predictors.language.vllmrequests  # noqa: F401 (the import itself is the purpose)


class VLLM(LanguageModel, OnVllm):
    """The `Adapter` of vLLM."""

    probabilities = True
    options: tuple[Option, ...] | None = (
        *ASKED,
        text("regex", "each answer has this form, a regular expression", "none"),
        choice(
            "truncate",
            ("left", "right"),
            "a prompt that is too long loses its beginning or its end: of messages, the longest one does",
            "such a row has no answer",
        ),
        keywords("engine", "goes to vLLM's engine, as `{max_model_len: 2048, dtype: bfloat16}`", "vLLM's", "a mapping"),
        whole("requests_in_flight", "requests that are underway at once, in each actor", "5/4 of what vLLM runs"),
    )

    def check_keys(self, job: Job) -> None:
        """As `Adapter.check_keys`."""
        OnVllm.check_keys(self, job)
        LanguageModel.check_keys(self, job)
        options = job.model.options
        for key, why in _OURS.items():
            if key in options.get("sampling", {}):
                raise JobError(f"model.sampling.{key}: {why}; leave it out")
        if "choice" in options and "sampling" in options:
            raise JobError("model.sampling: with model.choice the likeliest is taken, and none is drawn; leave it out")
        if "model" in options.get("engine", {}):
            raise JobError("model.engine.model: model.path names the model; leave it out")
        check_code_trusted(job, options.get("engine", {}))

    def reads(self, job: Job) -> tuple[str, ...]:
        """As `Reads`: what `engine` names, as the tokenizer or a draft model."""
        model = str(job.model.path).rstrip("/")
        found = dict.fromkeys(_named("", job.model.options.get("engine", {})))
        return tuple(each for each in found if not f"{each}/".startswith(f"{model}/"))

    def load(self, job: Job, path: str | None) -> Predictor:
        """As `Adapter.load`."""
        with needing_vllm(job):
            from nightjar.inference.predictors.language.vllmmodel import VllmModel
        return VllmModel(job, needed(job, path))


def _named(key: str, value: Any) -> Iterator[str]:
    """The files and folders that are read, of those that a value of vLLM's engine names."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _named(name, each)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from _named(key, each)
    elif isinstance(value, str) and _is_read(key, value):
        yield value


def _is_read(key: str, path: str) -> bool:
    """Whether a value of the engine is the path of something that is read. Without a slash it is rather a choice."""
    # A text that is no path may be too long for one, which `Path` would raise.
    return "/" in path and (os.path.isfile(path) or (key in _FOLDERS and os.path.isdir(path)))  # noqa: PTH112, PTH113


def check_code_trusted(job: Job, engine: Mapping[str, Any]) -> None:
    """Check that the job trusts the code in the model's folder, if vLLM's engine is to run that.

    Raises:
        JobError: It does not.
    """
    if engine.get("trust_remote_code"):
        check_trusted(job, "a folder whose code trust_remote_code runs", "leave that key out")


@contextmanager
def needing_vllm(job: Job) -> Iterator[None]:
    """In this context vLLM is imported.

    Raises:
        JobError: It is not installed. Says how to install it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        raise missing(job.model.uses, ("vllm",)) from error


ADAPTER: Adapter = VLLM()
