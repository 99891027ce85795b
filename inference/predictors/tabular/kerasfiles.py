"""Looks into the files that Keras writes, without Keras: whether they are whole."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

ARCHIVE, HDF5 = (".keras",), (".h5", ".hdf5")
"""Suffixes of the two kinds of files; Keras tells them by these, too."""

_CONFIG = "config.json"
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_END = {0: (13, 40), 1: (13, 44), 2: (9, 28), 3: (9, 28)}
"""Version of an HDF5 superblock → where it has the bytes of an address, and where the address of the file's end is.

Source: "Disk Format: Level 0A" in the HDF5 File Format Specification."""


def check_archive(path: Path) -> None:
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
