"""`uses: keras`: a model that Keras saved, in its own archive (.keras) or in HDF5 (.h5), computed by Keras 3 on torch.
A SavedModel, the folder that `model.export()` writes, is a graph that only TensorFlow computes, and is refused.

The file has the layers and their weights, but not the code that computes with them. So the versions of Keras and torch
are part of a result's identity.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.job.options import Option
from nightjar.inference.predictors.adapter import Adapter, Predictor, needed
from nightjar.inference.predictors.batches import BATCH_FORMAT
from nightjar.inference.predictors.installed import versions
from nightjar.inference.predictors.tabular import features
from nightjar.inference.predictors.tabular.torch import OnTorch

_SUFFIXES = (".keras", ".h5", ".hdf5")
"""Suffixes of an archive and of HDF5; Keras tells them by these, too."""

_CONFIG = "config.json"
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_END = {0: (13, 40), 1: (13, 44), 2: (9, 28), 3: (9, 28)}
"""Version of an HDF5 superblock → where it has the bytes of an address, and where the address of the file's end is.

Source: "Disk Format: Level 0A" in the HDF5 File Format Specification."""

_HOW = "write one with model.save('model.keras')"


class Keras(OnTorch):
    """The `Adapter` of Keras. Its predictor is `kerasmodel.Model`."""

    libraries: tuple[str, ...] = ("keras",)
    extra = "keras"
    options: tuple[Option, ...] | None = (BATCH_FORMAT,)
    reads_arrow = True

    def check_keys(self, job: Job) -> None:
        """What the job has is in the file."""

    def fingerprint(self, job: Job) -> Mapping[str, str]:
        return versions("keras", ("keras",)) | versions("torch", ("torch",))

    def check_columns(self, job: Job, schema: pa.Schema) -> None:
        features.check_numbers(job, schema)

    def inspect(self, job: Job, path: str) -> None:
        named, file = str(job.model.path), Path(path)
        if (file / "saved_model.pb").is_file():
            raise JobError(
                f"model.path: {named} is a SavedModel, the folder that model.export() writes: a graph that only "
                f"TensorFlow computes; load the model where it was made, and {_HOW}, or score it with a class "
                "of your own"
            )
        suffix = file.suffix.lower()
        if suffix not in _SUFFIXES:
            raise JobError(f"model.path: {named} is not a .keras, .h5 or .hdf5 file; {_HOW}")
        try:
            if suffix == ".keras":
                _check_archive(file)
            else:
                _check_hdf5(file)
        except (OSError, zipfile.BadZipFile, ValueError, KeyError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise JobError(f"model.path: {named} is not a Keras model that can be read: {reason}; {_HOW}") from error

    def devices(self) -> str:
        """None but those of torch, which its own adapter names."""
        return ""

    def warm(self) -> None:
        from nightjar.inference.predictors.tabular.kerasmodel import keras_on_torch

        keras_on_torch()

    def load(self, job: Job, path: str | None) -> Predictor:
        from nightjar.inference.predictors.tabular.kerasmodel import load_keras

        path = needed(job, path)
        self.inspect(job, path)
        return load_keras(job, path)


def _check_archive(path: Path) -> None:
    """Check that an archive has the description of a model. Its weights are not read.

    Raises:
        ValueError, KeyError, BadZipFile, OSError: It is none, or not whole.
    """
    with zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read(_CONFIG))
        if not any(name.startswith("model.weights.") for name in archive.namelist()):
            raise ValueError("it has no weights")
    if not isinstance(config, dict):
        raise ValueError(f"its {_CONFIG} holds no object")  # noqa: TRY004 (the file's fault, not the caller's)


def _check_hdf5(path: Path) -> None:
    """Check that a file is HDF5, and as long as it says of itself.

    Raises:
        ValueError, OSError: It is none, or not whole.
    """
    with path.open("rb") as file:
        head = file.read(64)
    if not head.startswith(_SIGNATURE) or len(head) < 64 or head[8] not in _END:
        raise ValueError("it is not HDF5")
    width_at, end_at = _END[head[8]]
    if head[width_at] == 8:
        says, has = int.from_bytes(head[end_at : end_at + 8], "little"), path.stat().st_size
        if has < says:
            raise ValueError(f"it has {has:,} bytes, and should have {says:,}")


ADAPTER: Adapter = Keras()
