"""Looks into the files that Keras writes, without Keras: whether they are whole, and whether they hold Python code."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from nightjar.inference.errors import JobError

ARCHIVE, HDF5 = (".keras",), (".h5", ".hdf5")
"""Suffixes of the two kinds of files; Keras tells them by these, too."""

_CONFIG = "config.json"
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_END = {0: (13, 40), 1: (13, 44), 2: (9, 28), 3: (9, 28)}
"""Version of an HDF5 superblock → where it has the bytes of an address, and where the address of the file's end is.

Source: "Disk Format: Level 0A" in the HDF5 File Format Specification."""


def check_archive(path: Path, named: str, allow_code: bool) -> None:
    """Check that an archive has the description of a model. Its weights are not read.

    named: how the job names it, for messages.

    Raises:
        JobError: It holds Python code, and the job does not allow that.
        ValueError, KeyError, BadZipFile, OSError: It is none, or not whole.
    """
    with zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read(_CONFIG))
        if not any(name.startswith("model.weights.") for name in archive.namelist()):
            raise ValueError("it has no weights")
    if not isinstance(config, dict):
        raise ValueError(f"its {_CONFIG} holds no object")  # noqa: TRY004 (the file's fault, not the caller's)
    check_no_code(config, named, allow_code)


def check_weights(path: Path) -> None:
    """Check every byte of an archive against its checksums.

    Raises:
        ValueError, BadZipFile, OSError: It was changed.
    """
    with zipfile.ZipFile(path) as archive:
        if (broken := archive.testzip()) is not None:
            raise ValueError(f"{broken} in it was changed")


def check_hdf5(path: Path) -> None:
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


def check_no_code(config: Any, named: str, allowed: bool) -> None:
    """Check that the description of a model holds no Python code, as that of a `Lambda` layer does.

    Raises:
        JobError: It does, and the job does not allow it.
    """
    if not allowed and (layer := _with_code(config)):
        raise JobError(
            f"model.path: {named} holds Python code in the layer {layer!r}, which loading it would run; if you trust "
            "whoever made the file, set model.allow_pickle: true"
        )


def _with_code(held: Any) -> str:
    """The name of a layer made of code; empty if there is none."""
    if isinstance(held, list):
        return next((found for each in held if (found := _with_code(each))), "")
    if not isinstance(held, dict):
        return ""
    if held.get("class_name") in {"Lambda", "__lambda__"}:
        inner = held.get("config")
        return str(inner.get("name", "lambda")) if isinstance(inner, dict) else "lambda"
    return _with_code(list(held.values()))
