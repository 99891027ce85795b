"""Models of MLflow: a version in the model registry, or what a run has logged. MLflow's own client reads them.

`MLFLOW_TRACKING_URI`, `MLFLOW_REGISTRY_URI` and the client's other variables say where the server is.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import JobError, Missing, StorageError, Transient
from nightjar.inference.messages import install
from nightjar.inference.storage.locations import without_password
from nightjar.inference.storage.protocol import Entry, ReadOnly

_GONE = {"RESOURCE_DOES_NOT_EXIST", "NOT_FOUND", "INVALID_PARAMETER_VALUE"}


def version_of(name: str, alias: str) -> str:
    """The version of a registered model to which an alias points now.

    Raises:
        JobError: There is no such model or alias, MLflow is not installed, or no server is named.
        StorageError: The server could not be asked.
    """
    uri = f"models:/{name}@{alias}"
    mlflow = _client()
    try:
        with _errors(uri):
            return str(mlflow.MlflowClient().get_model_version_by_alias(name, alias).version)
    except Missing as error:
        raise JobError(f"model.path: {error}") from error


class ArtifactStorage(ReadOnly):
    """The files of one model version, or of one run, as a `Storage`."""

    def __init__(self, root: str) -> None:
        """root: `models:/name/7` or `runs:/id`."""
        _client()
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        self._root = root
        with _errors(root):
            self._artifacts: Any = get_artifact_repository(root if root.startswith("models:") else f"{root}/")

    def list(self, folder: str, after: str = "") -> Iterator[Entry]:
        with _errors(folder):
            found = sorted(self._below(folder.removeprefix(self._root).strip("/")), key=lambda each: each.uri)
        return (each for each in found if each.uri > after)

    def stat(self, uri: str) -> Entry:
        with _errors(uri):
            parent = uri.removeprefix(self._root).strip("/").rpartition("/")[0]
            for each in self._artifacts.list_artifacts(parent or None):
                if f"{self._root}/{each.path}" == uri and not each.is_dir:
                    return self._entry(each)
        raise Missing(f"{uri} does not exist")

    def open(self, uri: str) -> pa.NativeFile:
        """As `Storage.open`. The file is fetched whole; it goes when it is closed."""
        with tempfile.TemporaryDirectory() as folder:
            return pa.OSFile(self._fetched(uri, folder))

    def read(self, uri: str) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            return Path(self._fetched(uri, folder)).read_bytes()

    def _fetched(self, uri: str, folder: str) -> str:
        with _errors(uri):
            path: str = self._artifacts.download_artifacts(uri.removeprefix(self._root).strip("/"), folder)
        return path

    def _below(self, folder: str) -> Iterator[Entry]:
        for each in self._artifacts.list_artifacts(folder or None):
            if each.is_dir:
                yield from self._below(each.path)
            else:
                yield self._entry(each)

    def _entry(self, found: Any) -> Entry:
        return Entry(f"{self._root}/{found.path}", int(found.file_size or 0), self._root)


def _client() -> Any:
    try:
        import mlflow
    except ImportError as error:
        raise JobError(f"model.path: models of MLflow need mlflow-skinny; install it: {install('mlflow')}") from error
    if not (os.environ.get("MLFLOW_REGISTRY_URI") or os.environ.get("MLFLOW_TRACKING_URI")):
        raise JobError("model.path: set MLFLOW_TRACKING_URI to the address of MLflow's server, here and on every node")
    return mlflow


@contextmanager
def _errors(uri: str) -> Iterator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        said = without_password(str(error).partition("\n")[0])
        if error.error_code in _GONE:
            raise Missing(f"{uri} does not exist: {said}") from error
        raise Transient(f"{uri}: MLflow cannot be asked: {said}") from error
    except OSError as error:
        raise StorageError(f"{uri}: {error}") from error
