"""The user's own code, unchanged: `uses: "module:Name"` and `preprocess: "module:name"`.

A class with `__init__(**options)` and `__call__(batch)`, as written for Ray Data's `map_batches`, is constructed once
per actor. A function gets the options as keywords. Either may be async. Errors pass through unchanged.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Mapping
from functools import cache, partial
from typing import Any

from nightjar.inference.errors import JobError, raised, traced
from nightjar.inference.job.finding import find, folder_of
from nightjar.inference.job.model import Job
from nightjar.inference.job.modeljob import ModelJob, model_jobs, objects_of
from nightjar.inference.predictors.adapter import Adapter, Predictor, adapter_of, naming

BatchFunction = Callable[[Any], Any]


class Own(Adapter):
    """The `Adapter` of the user's own classes and functions, which get the same batches as from Ray Data.

    Only the code knows which keys, columns and files it takes. It is part of the identity already. `warm` does not
    import it: it is imported from the run's snapshot, where its imports are noted.
    """

    options = None
    reads_arrow = False

    def check_code(self, job: ModelJob, found: Mapping[str, Any]) -> None:
        for key, target in found.items():
            _keywords(key, job.model.uses, target, _options(job, job.model.path), job.model.path)

    def load(self, job: ModelJob, path: str) -> Predictor:
        """Find and construct the predictor with its options and the model's path."""
        target, given = find("model.uses", job.model.uses, folder_of(job.whole)), path or None
        return _Called(_ready("model.uses", job.model.uses, target, _options(job, given), given))


class _Called:
    """A callable as a `Predictor`. It prepares its batches itself."""

    def __init__(self, function: BatchFunction) -> None:
        self.predict = partial(_called, function)
        self.device = device_of(function)

    def prepare(self, batch: Any) -> Any:
        return batch


ADAPTER = Own()

_MAKING = threading.Lock()
"""Two threads that prepare batches must not make a loop each."""


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One for all of the user's code, in a thread of its own, as in Ray Data's actors: what that started in it, as an
    engine that schedules requests, goes on between two batches.
    """
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="nightjar-async").start()
    return loop


def _called(function: BatchFunction, batch: Any) -> Any:
    """What the user's code returns; of a coroutine its result, of an async generator its pieces."""
    raw = function(batch)
    if inspect.isasyncgen(raw):
        return _pieces(raw)
    return _result(raw) if inspect.iscoroutine(raw) else raw


def _result(running: Coroutine[Any, Any, Any]) -> Any:
    with _MAKING:
        loop = _loop()
    return asyncio.run_coroutine_threadsafe(running, loop).result()


def _pieces(pieces: AsyncIterator[Any]) -> Generator[Any, None, None]:
    end = object()

    async def following() -> Any:
        return await anext(pieces, end)

    while (piece := _result(following())) is not end:
        yield piece


def load_preprocess(job: ModelJob) -> BatchFunction | None:
    """The callable of `preprocess` (a class is constructed once); None if the job has none.

    Raises:
        JobError: It cannot be found, or does not take its options.
    """
    if job.preprocess is None:
        return None
    spec, options = job.preprocess.uses, dict(job.preprocess.options)
    target = find("preprocess", spec, folder_of(job.whole))
    return partial(_called, _ready("preprocess", spec, target, options, None))


def imported(job: Job) -> dict[str, Any]:
    """The objects of the user's that the job names, by key. They are imported but not called.

    Raises:
        JobError: An object cannot be found, or its module cannot be imported.
    """
    return {key: find(key, spec, folder_of(job)) for key, spec in objects_of(job).items()}


def check_usable(job: Job, targets: Mapping[str, Any]) -> None:
    """Check that the imported objects can be called with the job's options, without calling them.

    targets: as `imported` returns them.

    Raises:
        JobError: An object is not a predictor, or does not take its options or the model's path.
    """
    for each in model_jobs(job):
        named = f"models.{each.model.name}." if each.model.name else ""
        found = {key.removeprefix(named): target for key, target in targets.items() if key.startswith(named)}
        step, prepares = each.preprocess, found.pop("preprocess", None)
        with naming(each):
            adapter_of(each).check_code(each, found)
            if step is not None and prepares is not None:
                _keywords("preprocess", step.uses, prepares, step.options, None)


def built(job: ModelJob, key: str) -> Any:
    """What a factory of the user's makes. key: the option that names it."""
    spec = job.objects()[key]
    target = find(key, spec, folder_of(job.whole))
    keywords = factory_keywords(job, key, target)
    try:
        return target(**keywords)
    except Exception as error:
        raise traced(JobError(f"{key}: {spec} failed with {raised(error)}"), error) from error


def factory_keywords(job: ModelJob, key: str, target: Any) -> dict[str, Any]:
    """The keywords for an imported factory."""
    spec, keywords = job.objects()[key], dict(job.model.options.get("args", {}))
    if not callable(target) or inspect.iscoroutinefunction(target):
        what = "async" if callable(target) else f"a {type(target).__name__}"
        raise JobError(f"{key}: {spec} is {what}, not a function or class that makes the model")
    _check_arguments("model.options.args", spec, target, keywords, positional=0)
    return keywords


def _options(job: ModelJob, model_path: str | None) -> dict[str, Any]:
    options = {key: value for key, value in job.model.options.items() if key != "batch_format"}
    if model_path is not None and "path" in options:
        raise JobError("model.options.path: the predictor gets model.path as `path`; remove one of the two keys")
    return options


def device_of(predictor: Any) -> str:
    """The device that the user's model names, or that of its torch modules; 'cpu' if neither is known."""
    if (device := getattr(predictor, "device", None)) is not None and not callable(device):
        return str(device)
    torch: Any = sys.modules.get("torch")
    held = getattr(predictor, "__dict__", {}).values() if torch is not None else ()
    modules = (value for value in held if isinstance(value, torch.nn.Module))
    return next((str(parameter.device) for module in modules for parameter in module.parameters()), "cpu")


def _ready(key: str, spec: str, target: Any, options: dict[str, Any], path: str | None) -> BatchFunction:
    """Construct a class, or bind a function's keywords. The result takes a batch."""
    keywords = _keywords(key, spec, target, options, path)
    is_class = inspect.isclass(target)
    made: BatchFunction = target(**keywords) if is_class else partial(target, **keywords)
    return made


def _keywords(key: str, spec: str, target: Any, options: Mapping[str, Any], path: str | None) -> dict[str, Any]:
    """The keywords for a class's constructor, or for a function besides the batch."""
    if not callable(target):
        raise JobError(f"{key}: {spec} is a {type(target).__name__}, not a class or function")
    if makes_no_callable(target):
        raise JobError(f"{key}: class {spec} has no __call__(batch); give it one")
    where, keywords = key.replace("model.uses", "model") + ".options", dict(options)
    if path is not None:
        where, keywords["path"] = f"{where}, with model.path as `path`", path
    _check_arguments(where, spec, target, keywords, positional=0 if inspect.isclass(target) else 1)
    return keywords


def makes_no_callable(target: Any) -> bool:
    """Whether it is a class whose objects cannot be called."""
    # `dir`, because `hasattr` is true for every class: calling a class constructs it.
    return inspect.isclass(target) and "__call__" not in dir(target)


def _check_arguments(where: str, spec: str, target: Any, keywords: Mapping[str, Any], positional: int) -> None:
    """Name an unknown or missing option before the call, so that nobody has to read a TypeError. where: it is given."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # written in C: only a call would tell
        return
    try:
        signature.bind(*[None] * positional, **keywords)
    except TypeError as error:
        raise JobError(f"{where}: {spec} cannot be called: {error}; it takes {signature}") from None
