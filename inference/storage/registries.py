"""Places that hold models alone: the Hugging Face Hub (`hf://`) and MLflow (`models:/`, `runs:/`). They are only read.

`hf://org/name@main` and `models:/name@champion` say something else from day to day. `pinned` makes of them, once for a
run, what stays the same: `hf://org/name@<commit>` and `models:/name/7`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nightjar.inference.errors import JobError, StorageError

if TYPE_CHECKING:
    from nightjar.inference.storage.protocol import Storage

_HUB = re.compile(r"hf://(?P<id>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<revision>[^/\s]+))?(?P<rest>/[^\s@]*)?")
_MODELS = re.compile(r"models:/(?P<id>[^/@\s]+)(?:/(?P<version>\d+)|@(?P<alias>[^/\s]+))(?P<rest>/[^\s]*)?")
_RUNS = re.compile(r"runs:/(?P<id>[0-9a-f]+)(?P<rest>/[^\s]+)")
_COMMIT = re.compile(r"[0-9a-f]{40}")

FORMS = "hf://org/name@revision, models:/name/7, models:/name@alias or runs:/id/path"


def is_registered(path: str) -> bool:
    """Whether a path names a model in a registry."""
    return path.startswith(("hf://", "models:/", "runs:/"))


def check_registered(path: str, where: str) -> None:
    """Check the form of a path in a registry. where: the file and key that name it.

    Raises:
        JobError: It names no model.
    """
    if not any(form.fullmatch(path) for form in (_HUB, _MODELS, _RUNS)):
        raise JobError(f"{where}: {path!r} names no model; write {FORMS}, and a path in it if it holds several")


def pinned(path: str) -> str:
    """The path with what it means now: a commit of the Hub, a version of MLflow's registry.

    Raises:
        JobError: There is no such model, revision or alias; or the registry's client is not installed.
        StorageError: The registry could not be asked.
    """
    if found := _HUB.fullmatch(path):
        if _COMMIT.fullmatch(found["revision"] or ""):
            return path
        from nightjar.inference.storage.hub import commit_of

        return f"hf://{found['id']}@{commit_of(found['id'], found['revision'])}{found['rest'] or ''}"
    if (found := _MODELS.fullmatch(path)) and found["alias"]:
        from nightjar.inference.storage.mlflow import version_of

        return f"models:/{found['id']}/{version_of(found['id'], found['alias'])}{found['rest'] or ''}"
    return path


def root_of(uri: str) -> str:
    """The part of a pinned path that names the model: what one connection serves."""
    found = _HUB.fullmatch(uri) or _MODELS.fullmatch(uri) or _RUNS.fullmatch(uri)
    if found is None:
        raise StorageError(f"{uri!r} names no model; write {FORMS}")
    return uri.removesuffix(found["rest"] or "")


def connect(root: str) -> Storage:
    """The storage that serves this root."""
    if root.startswith("hf://"):
        from nightjar.inference.storage.hub import HubStorage

        return HubStorage(root)
    from nightjar.inference.storage.mlflow import ArtifactStorage

    return ArtifactStorage(root)
