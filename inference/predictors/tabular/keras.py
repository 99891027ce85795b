"""`uses: keras`: a model that Keras saved, in its own archive (.keras) or in HDF5 (.h5), computed by Keras 3 on torch.
A SavedModel, the folder that `model.export()` writes, is a graph that only TensorFlow computes, and is refused.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from packaging.version import Version

from nightjar.inference.errors import JobError
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.predictors.adapter import Predictor, unloadable
from nightjar.inference.predictors.arrays import from_tensor, is_tensor
from nightjar.inference.predictors.batches import BATCH_FORMAT
from nightjar.inference.predictors.tabular import features
from nightjar.inference.predictors.tabular.filling import Input, columns_of, fillings
from nightjar.inference.predictors.tabular.ontorch import OnTorch, device_of_job, fill_tensor
from nightjar.inference.process import environment

if TYPE_CHECKING:
    import torch

_SUFFIXES = (".keras", ".h5", ".hdf5")
"""Suffixes of an archive and of HDF5; Keras tells them by these, too."""

_IMPORT = threading.Lock()
_SAFE_SINCE = "3.15"
"""Files get around the `safe_mode` of older releases."""


class Keras(OnTorch):
    """The `Adapter` of Keras."""

    libraries = ("keras",)
    counted = (libraries, ("torch",))
    extra = "keras"
    options = (BATCH_FORMAT,)

    def check_columns(self, job: ModelJob, schema: pa.Schema) -> None:
        features.check_numbers(job, schema)

    def inspect(self, job: ModelJob, path: str) -> None:
        if Path(path).suffix.lower() not in _SUFFIXES:
            raise JobError(
                f"model.path: {job.model.path} is not a .keras, .h5 or .hdf5 file; load the model where it was made, "
                "and write one with model.save('model.keras')"
            )

    def warm(self) -> None:
        keras_on_torch()

    def load(self, job: ModelJob, path: str) -> Predictor:
        self.inspect(job, path)
        keras = keras_on_torch()
        if Version(keras.__version__) < Version(_SAFE_SINCE):
            raise JobError(f"model.uses: the keras adapter needs Keras {_SAFE_SINCE} or newer, not {keras.__version__}")
        device = device_of_job(job)
        with keras.device(_named(device)):
            return Model(job, keras, _loaded(job, keras, Path(path)), device)


def keras_on_torch() -> Any:
    """The module keras, computing with torch.

    When it is imported, Keras reads its backend and its usual types from the environment, and from a file in the home
    folder, which it writes if there is none. A model must score alike on each node; so neither counts here.

    Raises:
        ImportError: It is not installed.
        JobError: Something else has imported it with another backend.
    """
    with _IMPORT, tempfile.TemporaryDirectory() as empty:
        settings = {} if "keras" in sys.modules else {"KERAS_BACKEND": "torch", "KERAS_HOME": empty}
        with environment(settings):
            import keras
    if (backend := keras.backend.backend()) != "torch":
        raise JobError(
            f"model.uses: the keras adapter computes with torch, and this process has already imported Keras with "
            f"{backend}; set KERAS_BACKEND=torch before the import"
        )
    return keras


def _loaded(job: ModelJob, keras: Any, path: Path) -> Any:
    try:
        if path.suffix.lower() == ".keras":
            with zipfile.ZipFile(path) as archive:
                if (broken := archive.testzip()) is not None:
                    raise ValueError(f"{broken} in it was changed")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # advice for whoever wrote the layers
            return keras.saving.load_model(path, compile=False, safe_mode=not job.model.trusted)
    except Exception as error:
        first = _first(error)
        line = str(first).strip().partition("\n")[0]
        more = (
            "a model with layers of your own needs a class of your own to score it, and Python code in it (a Lambda "
            "layer) needs model.trusted: true"
        )
        raise unloadable("Keras", job.model.path, path, f"{type(first).__name__}: {line}", more) from error


def _first(error: BaseException) -> BaseException:
    """The error that began it. Keras wraps it in others, which print the model's whole description."""
    before = error.__cause__ or error.__context__
    return error if before is None else _first(before)


class Model:
    """A model as a `Predictor`. `fillings` says which features its inputs get."""

    def __init__(self, job: ModelJob, keras: Any, model: Any, device: torch.device) -> None:
        self.device = str(device)
        self._place = device
        self._keras = keras
        self._model = model
        self._types = job.model.output_types()
        self._struct = _struct(job, model)
        self._inputs = [_input(each) for each in keras.tree.flatten(self._struct)]
        self._no_grad = import_module("torch").no_grad

    def prepare(self, batch: Any) -> list[torch.Tensor]:
        found = fillings(self._inputs, columns_of(batch, "keras"))
        return [fill_tensor(filling, filling.input.dtype, self._place) for filling in found]

    def predict(self, prepared: list[torch.Tensor]) -> dict[str, Any]:
        moved = [tensor.to(self._place, non_blocking=True) for tensor in prepared]
        given = self._keras.tree.pack_sequence_as(self._struct, moved)
        with self._no_grad(), self._keras.device(_named(self._place)):
            return self._by_name(self._model(given, training=False))

    def _by_name(self, raw: Any) -> dict[str, Any]:
        if is_tensor(raw):
            return features.by_column(from_tensor(raw), self._types, "the model")
        names = [str(name) for name in self._model.output_names]
        if not isinstance(raw, Mapping) and set(self._types) <= set(names):
            raw = dict(zip(names, raw, strict=True))
        return features.by_name(raw, list(self._types), "model")


def _struct(job: ModelJob, model: Any) -> Any:
    """The model's inputs as it takes them: one, or several in a list or a dict."""
    inputs = getattr(model, "inputs", None)
    if not inputs:
        raise JobError(
            f"model.path: {job.model.path} is a {type(model).__name__} that does not say its inputs; save a Sequential "
            "or functional model with them, or score it with a class of your own"
        )
    return getattr(model, "input", inputs[0])  # a Sequential one has a single input


def _named(device: torch.device) -> str:
    """A device, as Keras has it."""
    return str(device).replace("cuda", "gpu")


def _input(tensor: Any) -> Input:
    dtype = getattr(import_module("torch"), str(tensor.dtype), None)
    batch, *rest = tensor.shape
    if dtype is None:
        raise JobError(f"model.path: input {tensor.name!r} of the model takes {tensor.dtype}, which no column can fill")
    if batch is not None:
        raise JobError(
            f"model.path: the model takes only batches of {batch} (input {tensor.name!r}); build it without a "
            "batch_size, and save it again"
        )
    return Input(tensor.name, tuple(rest), dtype)


ADAPTER = Keras()
