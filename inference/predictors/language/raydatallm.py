"""`uses: ray.data.llm`: a processor of Ray Data, as its documentation has one, with vLLM in the actor itself.

A processor of Ray's own takes and returns blocks whose rows have no file and no number, and ends with the first row
that fails. So its parts are taken: the engine of `uses: vllm` follows the configuration, and `preprocess` and
`postprocess` are called for one row at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.job.options import Option, text, whole
from nightjar.inference.predictors.adapter import Adapter, Predictor, needed
from nightjar.inference.predictors.language.languagemodel import check_rescored
from nightjar.inference.predictors.language.rayprocessor import CONFIG, followed
from nightjar.inference.predictors.language.vllm import OnVllm, check_code_trusted, needing_vllm
from nightjar.inference.predictors.user import makes_no_callable

_NAMED = r"[\w.]+:\w+"


def _function(name: str, about: str) -> Option:
    return text(name, about, "the row itself", _NAMED, f'"module:name" of your function, as "summarise:{name}"')


class RayDataLLM(OnVllm):
    """The `Adapter` of such processors."""

    options: tuple[Option, ...] | None = (
        text(
            "config",
            f"your `{CONFIG}`; `model.path` takes the place of its `model_source`",
            "required",
            _NAMED,
            f'"module:name" of your {CONFIG}, as "summarise:config"',
            required=True,
        ),
        _function("preprocess", "makes of a row what is asked: `messages` or `prompt`, and `sampling_params`"),
        _function("postprocess", "makes of a row with its answer, as `generated_text`, the outputs"),
        whole("requests_in_flight", "requests that are underway at once, in each actor", "`max_pending_requests`"),
    )

    def check_keys(self, job: Job) -> None:
        """As `Adapter.check_keys`."""
        super().check_keys(job)
        check_rescored(job)

    def check_code(self, job: Job, found: Mapping[str, Any]) -> None:
        """As `TakesCode.check_code`."""
        check_code_trusted(job, followed(found["model.config"]).engine)
        for key in ("model.preprocess", "model.postprocess"):
            if (function := found.get(key)) is not None:
                _check_function(key, function)

    def check_columns(self, job: Job, schema: pa.Schema) -> None:
        """Only the code knows what it takes."""

    def load(self, job: Job, path: str | None) -> Predictor:
        """As `Adapter.load`."""
        with needing_vllm(job):
            from nightjar.inference.predictors.language.raydatallmmodel import RayDataModel
        return RayDataModel(job, needed(job, path))


def _check_function(key: str, function: Any) -> None:
    """Check that something takes a row, as Ray Data's `map` calls it.

    Raises:
        JobError: It does not.
    """
    if not callable(function) or makes_no_callable(function):
        raise JobError(f"{key}: is no function that takes a row")
    called = function.__call__ if inspect.isclass(function) else function
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called) or inspect.isgeneratorfunction(called):
        raise JobError(f"{key}: is async or a generator; write a function that takes a row and returns one")


ADAPTER: Adapter = RayDataLLM()
