"""`uses: keras`: a model that Keras saved, in its own archive (.keras) or in HDF5 (.h5), computed by Keras 3 on torch.
A SavedModel, the folder that `model.export()` writes, is a graph that only TensorFlow computes, and is refused.

The file has the layers and their weights, but not the code that computes with them. So the versions of Keras and torch
are part of a result's identity.
"""

from __future__ import annotations

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
from nightjar.inference.predictors.tabular.kerasfiles import ARCHIVE, HDF5, check_archive, check_hdf5
from nightjar.inference.predictors.tabular.torch import OnTorch

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
        if suffix not in (*ARCHIVE, *HDF5):
            raise JobError(f"model.path: {named} is not a .keras, .h5 or .hdf5 file; {_HOW}")
        try:
            if suffix in ARCHIVE:
                check_archive(file)
            else:
                check_hdf5(file)
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


ADAPTER: Adapter = Keras()
