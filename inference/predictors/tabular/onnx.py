"""`uses: onnx`: an ONNX model, computed by onnxruntime, on the CPU or on a GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.job.options import flag, text
from nightjar.inference.messages import nearest
from nightjar.inference.predictors.adapter import Adapter, Predictor, unloadable
from nightjar.inference.predictors.arrays import Array, is_empty, is_missing, to_array
from nightjar.inference.predictors.batches import BATCH_FORMAT
from nightjar.inference.predictors.tabular import features
from nightjar.inference.predictors.tabular.filling import Filling, Input, fillings, required_numbers, shape_of

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

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_WIDTHS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bool")
_TYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(double)": np.dtype(np.float64),
    "tensor(string)": np.dtype(object),
    **{f"tensor({width})": np.dtype(width) for width in _WIDTHS},
}
"""onnxruntime's names of types → those of numpy."""


class Onnx(Adapter):
    """The `Adapter` of onnxruntime."""

    libraries = _BUILDS
    counted = (_BUILDS,)
    extra = "onnx"
    options = (_FILE, _SHARED, BATCH_FORMAT)
    # Its own reports, where the user's code imports it before this adapter can switch them off.
    scratch = (os.path.expanduser("~/.cache/Microsoft/DeveloperTools/.onnxruntime/"),)  # noqa: PTH111

    def check_keys(self, job: ModelJob) -> None:
        name = job.model.options.get("file", "model.onnx")
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise JobError(f"model.options.file: write the name of a file in the folder of model.path, not {name!r}")

    def check_columns(self, job: ModelJob, schema: pa.Schema) -> None:
        features.check_types(job, schema, features.is_number_or_text, "numbers, lists of numbers and texts only")

    def inspect(self, job: ModelJob, path: str) -> None:
        _model_file(job, Path(path))

    def warm(self) -> None:
        runtime()

    def load(self, job: ModelJob, path: str) -> Predictor:
        return Session(job, path)

    def device_errors(self) -> tuple[type[BaseException], ...]:
        found = getattr(sys.modules.get("onnxruntime.capi.onnxruntime_pybind11_state"), "DeviceReset", None)
        return () if found is None else (found,)

    def devices(self) -> str:
        try:
            onnxruntime = runtime()
        except ImportError:
            return ""
        has = "can use CUDA" if _CUDA in onnxruntime.get_available_providers() else "has no CUDA: models run on the CPU"
        return f"onnxruntime {onnxruntime.__version__} {has}"


class Session:
    """A model as a `Predictor`. Several threads may call it at once."""

    def __init__(self, job: ModelJob, path: str) -> None:
        self._types = job.model.output_types()
        self._listed = job.model.features is not None
        self._session = _start(job, path)
        self._inputs = [_input(node) for node in self._session.get_inputs()]
        self._takes_text = any(each.dtype == object for each in self._inputs)
        self._fetched = _fetched(self._session.get_outputs(), list(self._types))
        self.device = "cuda:0" if _CUDA in self._session.get_providers() else "cpu"

    def prepare(self, batch: Any) -> dict[str, Array]:
        held = features.named(batch)
        self._check_names(list(held))
        columns = {name: self._values(name, column) for name, column in held.items()}
        found = fillings(self._inputs, columns)
        return {filling.input.name: _tensor(filling) for filling in found}

    def predict(self, prepared: dict[str, Array]) -> dict[str, Any]:
        raw = self._session.run(self._fetched, prepared)
        if self._fetched == list(self._types):
            return dict(zip(self._types, raw, strict=True))
        return features.by_column(raw[0], self._types, f"output {self._fetched[0]!r} of the model")

    def _values(self, name: str, column: Any) -> Array:
        """A column as numbers, or as an array of objects: texts, or nothing but missing values, whose type nobody
        knows before the column has its input.
        """
        if features.is_category(column) or (self._takes_text and is_empty(column)):
            return to_array(column).astype(object)
        return required_numbers(name, column, "onnx")

    def _check_names(self, columns: list[str]) -> None:
        """Check that columns which do not have the inputs' names are meant to fill them in the order of the job."""
        inputs = [each.name for each in self._inputs]
        if len(inputs) > 1 and set(inputs) < set(columns):
            raise JobError(f"model.features: the model takes only {', '.join(inputs)}; write features: {inputs}")
        if len(inputs) > 1 and not self._listed and set(inputs).isdisjoint(columns):
            raise JobError(
                f"model.features: the model has an input {inputs[0]!r}, which is not among the columns it gets: "
                f"{', '.join(columns)}; to fill the inputs in the order of columns with other names, list these"
            )


def _model_file(job: ModelJob, path: Path) -> Path:
    """The model's file: `model.path` itself, or the one in this folder that the job means.

    Raises:
        JobError: There is none, or the job does not say which.
    """
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


def runtime() -> Any:
    """The module onnxruntime. Its first import in a process starts nothing that reports to its makers.

    It would send what it is used for to Microsoft, and keep that in a file in the home folder, in each process that
    scores. A variable in the environment allows it: ORT_DISABLE_TELEMETRY=0.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


def _start(job: ModelJob, path: str) -> Any:
    """A session of onnxruntime on the job's device. path: the local copy; messages name the job's path."""
    file, onnxruntime = _model_file(job, Path(path)), runtime()
    wanted = _CUDA if job.resources.gpus else _CPU
    if wanted is _CUDA:
        onnxruntime.preload_dlls()  # of CUDA, where torch or NVIDIA's packages have brought them
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job.resources.cores
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what goes wrong is raised, too
    if job.model.options.get("shared"):
        # Packed for its products of matrices, weights would be a copy of each process's own.
        options.add_session_config_entry("session.disable_prepacking", "1")
    try:
        kept = _give_weights(options, file) if Path(path).is_dir() else []
        session = onnxruntime.InferenceSession(str(file), options, providers=[wanted])
        del kept
    except Exception as error:
        more = "if weights lie in files beside the model, model.path is the folder of both"
        raise unloadable("onnxruntime", job.model.path, path, error, more) from error
    if wanted not in session.get_providers():
        raise JobError(
            f"resources.gpus: onnxruntime {onnxruntime.__version__} as installed here cannot start {wanted}; install "
            "onnxruntime-gpu[cuda,cudnn] in its place (pip uninstall onnxruntime first), or write gpus: 0"
        )
    return session


def _give_weights(options: Any, file: Path) -> list[Array]:
    """Tell onnxruntime where the weights are. Returns what must stay in memory until the session is made.

    Files that are too large to travel with a run are links to where they are, and onnxruntime refuses weights that lie
    outside of the model's folder. If all files beside the model lie in one other folder, it maps them from there; else
    it gets their content.
    """
    here = file.parent
    beside = {each.relative_to(here): each for each in here.rglob("*") if each != file and each.is_file()}
    if not any(each.is_symlink() for each in beside.values()):
        return []
    folders = {str(each.resolve()).removesuffix(f"/{name}") for name, each in beside.items()}
    if len(folders) == 1 and Path(folder := folders.pop()).is_dir():
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        return []
    held = {str(name): np.memmap(each, np.uint8, "r") for name, each in beside.items() if each.stat().st_size}
    contents: list[Array] = [*held.values()]
    options.add_external_initializers_from_files_in_memory([*held], contents, [len(content) for content in contents])
    return contents


def _input(node: Any) -> Input:
    dtype = _TYPES.get(node.type)
    if dtype is None or not node.shape:
        raise JobError(f"model.path: input {node.name!r} of the model is {_described(node)}, which no column can fill")
    batch, *rest = node.shape
    if isinstance(batch, int):
        raise JobError(
            f"model.path: the model takes only batches of {batch} (input {node.name!r}); export it with a first "
            "dimension of any size (dynamic_shapes of torch.onnx.export)"
        )
    return Input(node.name, tuple(size if isinstance(size, int) else None for size in rest), dtype)


def _described(node: Any) -> str:
    """An input or output, for a message: its type and shape."""
    shape = ", ".join("any" if size is None else str(size) for size in node.shape or ())
    return f"{node.type} of shape ({shape})" if node.shape else str(node.type)


def _tensor(filling: Filling) -> Array:
    target = np.empty(filling.shape, filling.input.dtype)
    for name, column in filling.columns.items():
        _check_kind(name, column, filling.input)
    filling.write(target)
    return target


def _check_kind(name: str, column: Array, taker: Input) -> None:
    """Check that a column holds what the input takes.

    Raises:
        JobError: It holds text and the input takes numbers, or the other way round.
        ValueError: A row has a null, which the input cannot hold.
        TypeError: A row has an object that is no text. onnxruntime would take what `str` makes of it.
    """
    takes, holds = ("text" if dtype.hasobject else "numbers" for dtype in (taker.dtype, column.dtype))
    if takes == holds == "numbers":
        return
    if any(map(is_missing, column.flat)):
        raise ValueError(f"feature {name!r} has a null, and input {taker.name!r} of the model takes {takes}")
    if takes != holds:
        raise JobError(
            f"model.features: {name!r} holds {holds}, and input {taker.name!r} of the model takes {takes}, in shape "
            f"{shape_of(taker.rest)}"
        )
    for value in column.flat:
        if not isinstance(value, str):
            raise TypeError(f"feature {name!r} holds {value!r}, which is no text")


def _fetched(nodes: Sequence[Any], declared: list[str]) -> list[str]:
    """The model's outputs to ask for: those that the job declares by name, or the model's only one."""
    has = {node.name: node for node in nodes}
    chosen = declared if set(declared) <= has.keys() else list(has)
    if len(chosen) > 1 and chosen is not declared:
        wrong = next(name for name in declared if name not in has)
        said = "; ".join(f"{name}: {_described(node)}" for name, node in has.items())
        raise JobError(f"model.outputs: the model has no output {wrong!r}; it has {said}" + nearest(wrong, has))
    for name in chosen:
        if not has[name].type.startswith("tensor("):
            raise JobError(
                f"model.outputs: output {name!r} of the model is {has[name].type}, and not a tensor; export a model of "
                "skl2onnx with options={'zipmap': False}"
            )
    return chosen


ADAPTER = Onnx()
