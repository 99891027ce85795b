"""Models of the Hugging Face Hub, at one commit. The Hub's own client fetches files and keeps them on the node.

`HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_CACHE` are the client's own settings. With `HF_HUB_OFFLINE=1` only what the node
has is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa

from nightjar.inference.errors import Denied, JobError, Missing, StorageError, Transient
from nightjar.inference.messages import install
from nightjar.inference.storage.protocol import Entry, ReadOnly

Entries = list[Entry]  # inside the class `list` is the method

_WEIGHTS = ".safetensors"
_BESIDE = (_WEIGHTS, ".json", ".jinja", ".md", ".model", ".py", ".tiktoken", ".txt", ".yaml")
"""Of a repository with weights as safetensors these are taken; other files hold the same weights once more."""


def commit_of(name: str, revision: str | None) -> str:
    """The commit of a branch or tag; of the main branch for None.

    Raises:
        JobError: There is none, or the Hub's client is not installed.
        StorageError: The Hub could not be asked.
    """
    hub = _client()
    where = f"model.path: hf://{name}" + (f"@{revision}" if revision else "")
    try:
        with _errors(f"hf://{name}@{revision or 'main'}"):
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

    def read(self, uri: str) -> bytes:
        return Path(self._fetched(uri)).read_bytes()

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
        hub, name = _client(), uri.removeprefix(self._root + "/")
        with _errors(uri):
            path: str = hub.hf_hub_download(
                self._name, name, revision=self._commit, local_files_only=_offline(), **_settings()
            )
        return path

    def _entries(self) -> Entries:
        if self._files is None:
            with _errors(self._root):
                found = self._kept() if _offline() else self._listed()
            self._files = sorted(found, key=lambda each: each.uri)
        return self._files

    def _listed(self) -> Entries:
        api = _client().HfApi(endpoint=_endpoint())
        tree = api.list_repo_tree(self._name, recursive=True, revision=self._commit)
        files = [each for each in tree if getattr(each, "size", None) is not None]
        return [Entry(f"{self._root}/{each.path}", each.size, each.blob_id) for each in files]

    def _kept(self) -> Entries:
        """What this node's cache has of the commit."""
        folder = Path(
            _client().snapshot_download(self._name, revision=self._commit, local_files_only=True, **_settings())
        )
        files = [path for path in folder.rglob("*") if path.is_file()]
        return [
            Entry(f"{self._root}/{path.relative_to(folder).as_posix()}", path.stat().st_size, self._commit)
            for path in files
        ]


def _client() -> Any:
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
def _errors(uri: str) -> Iterator[None]:
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
        raise Transient(f"{uri}: the Hub cannot be reached: {type(error).__name__}: {error}") from error
    except ValueError as error:
        raise StorageError(f"{uri}: {error}") from error
