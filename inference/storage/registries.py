"""Registries of models, which are only read: a commit of the Hugging Face Hub; a version in MLflow's registry, or what
a run of MLflow has logged. Each registry's own client reads it; the Hub's keeps files on the node.

`HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_CACHE` are settings of the Hub's client; `HF_HUB_OFFLINE=1` allows only
files that the node has. `MLFLOW_TRACKING_URI`, `MLFLOW_REGISTRY_URI` and others say where MLflow's server is.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import Denied, JobError, Missing, StorageError, Transient
from nightjar.inference.messages import install
from nightjar.inference.storage.locations import COMMIT, HUB, MODELS, without_password
from nightjar.inference.storage.protocol import Entry, ReadOnly


def pinned(path: str) -> str:
    """The path with what it means now: a commit of the Hub, a version of MLflow's registry.

    `hf://org/name@main` and `models:/name@champion` mean something else from day to day; a run resolves them once.

    Raises:
        JobError: There is no such model, revision or alias; the registry's client is not installed; or the environment
            names no server of MLflow.
        StorageError: The registry could not be asked.
    """
    if found := HUB.fullmatch(path):
        if COMMIT.fullmatch(found["revision"] or ""):
            return path
        return f"hf://{found['id']}@{_commit_of(found['id'], found['revision'])}{found['rest'] or ''}"
    if (found := MODELS.fullmatch(path)) and found["alias"]:
        return f"models:/{found['id']}/{_version_of(found['id'], found['alias'])}{found['rest'] or ''}"
    return path


# ---- the Hugging Face Hub -----------------------------------------------------------------------------------

Entries = list[Entry]  # inside the class `list` is the method

_WEIGHTS = ".safetensors"
_BESIDE = (_WEIGHTS, ".json", ".jinja", ".md", ".model", ".py", ".tiktoken", ".txt", ".yaml")
"""Of a repository with weights as safetensors these are taken; other files hold the same weights once more."""


def _commit_of(name: str, revision: str | None) -> str:
    """The commit of a branch or tag; of the main branch for None. Raises as `pinned`."""
    hub = _hub()
    where = f"model.path: hf://{name}" + (f"@{revision}" if revision else "")
    try:
        with _hub_errors(f"hf://{name}@{revision or 'main'}"):
            if _offline():
                return Path(hub.snapshot_download(name, revision=revision, **_settings(), local_files_only=True)).name
            return str(hub.HfApi(endpoint=_endpoint()).model_info(name, revision=revision).sha)
    except Missing as error:
        raise JobError(f"{where}: {error}") from error


class HubStorage(ReadOnly):
    """One commit of one repository as a `Storage`."""

    def __init__(self, root: str) -> None:
        """root: `hf://org/name@commit`."""
        self._root = root
        self._name, _, self._commit = root.removeprefix("hf://").partition("@")
        self._files: Entries | None = None

    def list(self, folder: str, after: str = "") -> Iterator[Entry]:
        """The files below a folder. Of the whole repository, those that hold the weights once more are left out."""
        found = [each for each in self._entries() if each.uri.startswith(folder.rstrip("/") + "/") and each.uri > after]
        whole = folder.rstrip("/") == self._root and any(each.uri.endswith(_WEIGHTS) for each in found)
        return (each for each in found if not whole or each.uri.endswith(_BESIDE))

    def stat(self, uri: str) -> Entry:
        for each in self._entries():
            if each.uri == uri:
                return each
        raise Missing(f"{uri} does not exist")

    def open(self, uri: str) -> pa.NativeFile:
        """As `Storage.open`. The file is fetched whole, unless this node has it."""
        return pa.OSFile(self._fetched(uri))

    def copy(self, source: str, target: str) -> None:
        """Give the file in the client's cache a second name on this node, so that it does not lie on the disk twice.

        Raises:
            StorageError: Also if the two places are in two file systems.
        """
        path = os.path.realpath(self._fetched(source))
        try:
            os.link(path, target)
        except OSError as error:
            raise StorageError(f"{source}: {path} cannot be linked to {target}: {error.strerror}") from error

    def _fetched(self, uri: str) -> str:
        hub, name = _hub(), uri.removeprefix(self._root + "/")
        with _hub_errors(uri):
            path: str = hub.hf_hub_download(
                self._name, name, revision=self._commit, local_files_only=_offline(), **_settings()
            )
        return path

    def _entries(self) -> Entries:
        if self._files is None:
            with _hub_errors(self._root):
                found = self._kept() if _offline() else self._listed()
            self._files = sorted(found, key=lambda each: each.uri)
        return self._files

    def _listed(self) -> Entries:
        api = _hub().HfApi(endpoint=_endpoint())
        tree = api.list_repo_tree(self._name, recursive=True, revision=self._commit)
        files = [each for each in tree if getattr(each, "size", None) is not None]
        return [Entry(f"{self._root}/{each.path}", each.size, each.blob_id) for each in files]

    def _kept(self) -> Entries:
        """What this node's cache has of the commit."""
        folder = Path(_hub().snapshot_download(self._name, revision=self._commit, local_files_only=True, **_settings()))
        files = [path for path in folder.rglob("*") if path.is_file()]
        return [
            Entry(f"{self._root}/{path.relative_to(folder).as_posix()}", path.stat().st_size, self._commit)
            for path in files
        ]


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise JobError(
            f"model.path: models of the Hugging Face Hub need huggingface_hub; install it: {install('hub')}"
        ) from error
    return huggingface_hub


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def _settings() -> dict[str, Any]:
    """Read now, because the client reads them only when it is imported."""
    return {"endpoint": _endpoint(), "cache_dir": os.environ.get("HF_HUB_CACHE") or None}


@contextmanager
def _hub_errors(uri: str) -> Iterator[None]:
    import httpx
    from huggingface_hub import errors

    try:
        yield
    except errors.LocalEntryNotFoundError as error:
        if _offline():
            raise Missing(f"{uri} is not in this machine's cache, and HF_HUB_OFFLINE is set") from error
        raise Transient(f"{uri}: the Hub cannot be reached: {error}") from error
    except errors.GatedRepoError as error:
        raise Denied(f"{uri}: the Hub asks for a token (HF_TOKEN) of somebody who was given access") from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        raise Missing(f"{uri} does not exist on the Hub, or needs a token (HF_TOKEN)") from error
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", 0)
        kind = Denied if status in {401, 403} else Transient
        raise kind(f"{uri}: the Hub answered {status}") from error
    except (httpx.TransportError, OSError) as error:
        # An error of the network is httpx's, and of a download that was cut short one without an errno.
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
            raise StorageError(
                f"{uri}: this machine's cache does not take it: {error}; HF_HUB_CACHE names another place for it"
            ) from error
        raise Transient(f"{uri}: the Hub cannot be reached: {type(error).__name__}: {error}") from error
    except ValueError as error:
        raise StorageError(f"{uri}: {error}") from error


# ---- MLflow -------------------------------------------------------------------------------------------------

_GONE = {"RESOURCE_DOES_NOT_EXIST", "NOT_FOUND", "INVALID_PARAMETER_VALUE"}


def _version_of(name: str, alias: str) -> str:
    """The version of a registered model to which an alias points now. Raises as `pinned`."""
    uri = f"models:/{name}@{alias}"
    mlflow = _mlflow()
    try:
        with _mlflow_errors(uri):
            return str(mlflow.MlflowClient().get_model_version_by_alias(name, alias).version)
    except Missing as error:
        raise JobError(f"model.path: {error}") from error


class ArtifactStorage(ReadOnly):
    """The files of one model version, or of one run, as a `Storage`."""

    def __init__(self, root: str) -> None:
        """root: `models:/name/7` or `runs:/id`."""
        _mlflow()
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        self._root = root
        with _mlflow_errors(root):
            self._artifacts: Any = get_artifact_repository(root if root.startswith("models:") else f"{root}/")

    def list(self, folder: str, after: str = "") -> Iterator[Entry]:
        with _mlflow_errors(folder):
            found = sorted(self._below(folder.removeprefix(self._root).strip("/")), key=lambda each: each.uri)
        return (each for each in found if each.uri > after)

    def stat(self, uri: str) -> Entry:
        with _mlflow_errors(uri):
            parent = uri.removeprefix(self._root).strip("/").rpartition("/")[0]
            for each in self._artifacts.list_artifacts(parent or None):
                if f"{self._root}/{each.path}" == uri and not each.is_dir:
                    return self._entry(each)
        raise Missing(f"{uri} does not exist")

    def open(self, uri: str) -> pa.NativeFile:
        """As `Storage.open`. The file is fetched whole; it goes when it is closed."""
        with tempfile.TemporaryDirectory() as folder, _mlflow_errors(uri):
            return pa.OSFile(self._artifacts.download_artifacts(uri.removeprefix(self._root).strip("/"), folder))

    def _below(self, folder: str) -> Iterator[Entry]:
        for each in self._artifacts.list_artifacts(folder or None):
            if each.is_dir:
                yield from self._below(each.path)
            else:
                yield self._entry(each)

    def _entry(self, found: Any) -> Entry:
        return Entry(f"{self._root}/{found.path}", int(found.file_size or 0), self._root)


def _mlflow() -> Any:
    try:
        import mlflow
    except ImportError as error:
        raise JobError(f"model.path: models of MLflow need mlflow-skinny; install it: {install('mlflow')}") from error
    if not (os.environ.get("MLFLOW_REGISTRY_URI") or os.environ.get("MLFLOW_TRACKING_URI")):
        raise JobError("model.path: set MLFLOW_TRACKING_URI to the address of MLflow's server, here and on every node")
    return mlflow


@contextmanager
def _mlflow_errors(uri: str) -> Iterator[None]:
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
