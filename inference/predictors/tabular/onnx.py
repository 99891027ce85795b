"""`uses: onnx`: an ONNX model, computed by onnxruntime, on the CPU or on a GPU.

The file has the operations, and onnxruntime computes them in its own way. So its version is part of a result's
identity.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.job.options import Option, flag, text
from nightjar.inference.predictors.adapter import Adapter, Predictor, needed
from nightjar.inference.predictors.batches import BATCH_FORMAT
from nightjar.inference.predictors.installed import versions
from nightjar.inference.predictors.tabular import features
from nightjar.inference.predictors.tabular.modelproto import ModelFiles, external_files

_BUILDS = ("onnxruntime", "onnxruntime-gpu")
"""The distributions that bring the module."""

_FILE = text(
    "file",
    "which .onnx file of the folder `model.path` is the model",
    "the only one",
    write="the name of a file in the folder of model.path",
)
_SHARED = flag(
    "shared",
    "weights in files of their own stay in these, shared by the actors of a node; small batches take longer, and the "
    "last bits of what is computed may differ",
)


class Onnx:
    """The `Adapter` of onnxruntime."""

    libraries: tuple[str, ...] = _BUILDS
    extra = "onnx"
    options: tuple[Option, ...] | None = (_FILE, _SHARED, BATCH_FORMAT)
    reads_arrow = True
    # Its own reports, where the user's code imports it before this adapter can switch them off.
    scratch: tuple[str, ...] = (os.path.expanduser("~/.cache/Microsoft/DeveloperTools/.onnxruntime/"),)  # noqa: PTH111

    def check_keys(self, job: Job) -> None:
        name = job.model.options.get("file", "model.onnx")
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise JobError(f"model.options.file: write the name of a file in the folder of model.path, not {name!r}")

    def fingerprint(self, job: Job) -> Mapping[str, str]:
        return versions("onnx", _BUILDS)

    def check_columns(self, job: Job, schema: pa.Schema) -> None:
        takes = "numbers, lists of numbers and texts only"
        features.check_types(job, schema, features.is_number_or_text, takes, "convert this one in a preprocess")

    def inspect(self, job: Job, path: str) -> None:
        _look(job, path)

    def warm(self) -> None:
        from nightjar.inference.predictors.tabular.session import runtime

        runtime()

    def load(self, job: Job, path: str | None) -> Predictor:
        from nightjar.inference.predictors.tabular.session import Session

        return Session(job, _look(job, needed(job, path)))

    def device_errors(self) -> tuple[type[BaseException], ...]:
        found = getattr(sys.modules.get("onnxruntime.capi.onnxruntime_pybind11_state"), "DeviceReset", None)
        return () if found is None else (found,)

    def devices(self) -> str:
        from nightjar.inference.predictors.tabular.session import describe_devices

        return describe_devices()


def _look(job: Job, path: str) -> ModelFiles:
    """Find the model's file and the files of its weights, and look whether all are there.

    Raises:
        JobError: One is missing, or the model's file is none, or not a whole one.
    """
    model = _model_file(job, Path(path))
    named = str(job.model.path).rstrip("/") + (f"/{model.relative_to(path)}" if model != Path(path) else "")
    try:
        weights = tuple(external_files(str(model)))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise JobError(f"model.path: {named} is not a readable ONNX model: {reason}; export it again") from error
    for name in weights:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise JobError(
                f"model.path: {named} keeps weights in {name!r}, outside of its own folder; save both in one"
            )
        if model == Path(path):
            raise JobError(
                f"model.path: {named} keeps weights in {name!r} beside it; name the folder of both, so that both are "
                "part of the model: " + (str(Path(named).parent) if "://" not in named else named.rpartition("/")[0])
            )
        if not (model.parent / name).is_file():
            raise JobError(f"model.path: {named} keeps weights in {name!r}, which is not beside it")
    return ModelFiles(model, weights)


def _model_file(job: Job, path: Path) -> Path:
    name = job.model.options.get("file")
    if not path.is_dir():
        if name is not None:
            raise JobError(f"model.options.file: model.path is no folder but the file {job.model.path}")
        return path
    found = sorted(each.relative_to(path).as_posix() for each in path.rglob("*.onnx") if each.is_file())
    if name is not None and name not in found:
        raise JobError(f"model.options.file: {job.model.path} holds no {name}" + _listed(found))
    if name is None and len(found) != 1:
        what = f"{len(found)} .onnx files" if found else "no .onnx file"
        also = f"{_listed(found)}; say which in model.options.file" if found else ""
        raise JobError(f"model.path: the folder {job.model.path} holds {what}{also}")
    return path / (name or found[0])


def _listed(found: Sequence[str]) -> str:
    return f": {', '.join(found[:10])}" if found else ""


ADAPTER: Adapter = Onnx()
