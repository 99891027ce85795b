"""A Keras model as a predictor: takes feature columns, returns named outputs. Keras computes with torch."""

from __future__ import annotations

import sys
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version

from nightjar.inference.environ import environment
from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import outputs
from nightjar.inference.predictors.installed import missing
from nightjar.inference.predictors.tabular import features
from nightjar.inference.predictors.tabular.filling import fillings, numbers
from nightjar.inference.predictors.tabular.placing import device_of_job, fill_tensor

_IMPORT = threading.Lock()
_SAFE_SINCE = "3.15"
"""Files get around the `safe_mode` of older releases."""


def keras_on_torch() -> Any:
    """The module keras, computing with torch.

    When it is imported, Keras reads its backend and its usual types from the environment, and from a file in the home
    folder, which it writes if there is none. A model must score alike on each node; so neither counts here.

    Raises:
        ImportError: It is not installed.
        JobError: Something else has imported it with another backend.
    """
    with _IMPORT, tempfile.TemporaryDirectory() as empty, environment(_settings(empty)):
        import keras
    if (backend := keras.backend.backend()) != "torch":
        raise JobError(
            f"model.uses: the keras adapter computes with torch, and this process has already imported Keras with "
            f"{backend}; set KERAS_BACKEND=torch before the import"
        )
    return keras


def _settings(home: str) -> dict[str, str]:
    """What Keras is told by the environment, if it is still to be imported."""
    return {} if "keras" in sys.modules else {"KERAS_BACKEND": "torch", "KERAS_HOME": home}


def load_keras(job: Job, path: str) -> Model:
    """Load the model onto the job's device. Sets torch's number of threads for the process.

    Raises:
        JobError: Keras is not installed, or cannot load the model, or columns cannot fill its inputs.
    """
    try:
        keras = keras_on_torch()
    except ImportError as error:
        raise missing("keras", ("keras",)) from error
    if Version(keras.__version__) < Version(_SAFE_SINCE):
        raise JobError(f"model.uses: the keras adapter needs Keras {_SAFE_SINCE} or newer, not {keras.__version__}")
    device = device_of_job(job)
    with keras.device(_named(device)):
        return Model(job, keras, _loaded(job, keras, Path(path)), device)


def _loaded(job: Job, keras: Any, path: Path) -> Any:
    named = str(job.model.path)
    try:
        if path.suffix.lower() == ".keras":
            _check_weights(path)
        else:
            _check_layers(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # advice for whoever wrote the layers
            return keras.saving.load_model(path, compile=False, safe_mode=not job.model.trusted)
    except Exception as error:
        first = _first(error)
        said = str(first).replace(str(path), named).strip().partition("\n")[0]
        raise JobError(
            f"model.path: Keras cannot load {named}: {type(first).__name__}: {said}; a model with layers of your own "
            "needs a class of your own to score it, and Python code in it (a Lambda layer) needs model.trusted: true"
        ) from error


def _check_weights(path: Path) -> None:
    """Check every byte of an archive against its checksums.

    Raises:
        ValueError, BadZipFile, OSError: It was changed.
    """
    with zipfile.ZipFile(path) as archive:
        if (broken := archive.testzip()) is not None:
            raise ValueError(f"{broken} in it was changed")


def _first(error: BaseException) -> BaseException:
    """The error that began it. Keras wraps it in others, which print the model's whole description."""
    before = error.__cause__ or error.__context__
    return error if before is None else _first(before)


def _check_layers(path: Path) -> None:
    import h5py

    with h5py.File(path, "r") as file:
        if "model_config" not in file.attrs:
            raise ValueError("the file holds weights alone, without the layers; save the whole model: model.save(…)")


@dataclass(frozen=True, slots=True)
class _Input:
    """One input of the model. rest: its shape after the batch dimension, None for a dimension of any size."""

    name: str
    dtype: torch.dtype
    rest: tuple[int | None, ...]


class Model:
    """A model as a `Predictor`. Several threads may call it at once.

    A model with one input gets all features stacked to shape (n, F), or one feature in the input's shape. A model with
    several inputs gets a feature for each, matched by name if the names are the same.
    """

    def __init__(self, job: Job, keras: Any, model: Any, device: torch.device) -> None:
        self.device = str(device)
        self._place = device
        self._keras = keras
        self._model = model
        self._types = job.model.output_types()
        self._struct = _struct(job, model)
        self._inputs = [_input(each) for each in keras.tree.flatten(self._struct)]

    def prepare(self, batch: Any) -> list[torch.Tensor]:
        """Convert the columns of a Table or batch to the model's inputs, in memory from which the device can copy."""
        columns = {name: numbers(name, column, "keras") for name, column in features.named(batch, "keras").items()}
        found = fillings(self._inputs, [each.name for each in self._inputs], columns)
        return [fill_tensor(filling, filling.input.dtype, self._place) for filling in found]

    def predict(self, prepared: list[torch.Tensor]) -> dict[str, Any]:
        """Call the model. Returns its outputs by name."""
        if not len(prepared[0]):  # not every layer takes an input without rows
            return outputs.empty(self._types)
        moved = [tensor.to(self._place, non_blocking=True) for tensor in prepared]
        given = self._keras.tree.pack_sequence_as(self._struct, moved)
        with torch.no_grad(), self._keras.device(_named(self._place)):
            return self._by_name(self._model(given, training=False))

    def _by_name(self, raw: Any) -> dict[str, Any]:
        if isinstance(raw, torch.Tensor):
            plain = raw.float() if raw.dtype == torch.bfloat16 else raw  # numpy has no bfloat16
            return outputs.by_column(plain.cpu().numpy(), self._types, "the model")
        names = [str(name) for name in self._model.output_names]
        if not isinstance(raw, Mapping) and set(self._types) <= set(names):
            raw = dict(zip(names, raw, strict=True))
        return outputs.in_order(raw, list(self._types), "model")


def _struct(job: Job, model: Any) -> Any:
    """The model's inputs as it takes them: one, or several in a list or a dict.

    Raises:
        JobError: It does not say them, as a model of a class of its own.
    """
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


def _input(tensor: Any) -> _Input:
    dtype = getattr(torch, str(tensor.dtype), None)
    batch, *rest = tensor.shape
    if dtype is None:
        raise JobError(f"model.path: input {tensor.name!r} of the model takes {tensor.dtype}, which no column can fill")
    if batch is not None:
        raise JobError(
            f"model.path: the model takes only batches of {batch} (input {tensor.name!r}); build it without a "
            "batch_size, and save it again"
        )
    return _Input(tensor.name, dtype, tuple(rest))
