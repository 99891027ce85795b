"""Weights as they lie in their file, mapped into memory: all processes of a node then share them. Imports torch.

torch copies the weights of an exported program and of TorchScript into memory of the process that loads them. In the
file each tensor has the same bytes, uncompressed. So when torch has loaded a model, its tensors are pointed at the
file, and the copies are freed. A write to such a tensor changes a copy of the page, and never the file.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
import xxhash

from nightjar.inference.predictors.adapter import SHARED_BYTES

_SMALLEST = 1 << 16
"""The smallest tensor that is mapped, in bytes. All smaller ones of a model are a small part of it."""

_ALIGNED = 64
"""torch aligns the tensors in its files to so many bytes, as it does in memory."""

_HEADER = 30
"""Bytes before the name of a member in a zip file; the lengths of its name and of its extra field are the last four.

Source: "Local file header" in APPNOTE.TXT of PKWARE."""


def keep_in_file(tensors: Iterable[torch.Tensor], path: str) -> None:
    """Point tensors at the same bytes of the zip file from which they were loaded.

    Only contents that are equal to the bit are replaced, so no output changes. Types, shapes, strides and what shares
    memory with what stay as they were. Smaller files than `SHARED_BYTES` are left alone.
    """
    size = Path(path).stat().st_size
    if size < SHARED_BYTES:
        return
    file = torch.UntypedStorage.from_file(path, False, size)
    places = {_key(file[first:last]): (first, last) for first, last in _members(path)}
    found: dict[int, tuple[int, int] | None] = {}
    for tensor in tensors:
        held = tensor.untyped_storage()
        if held.device.type != "cpu" or held.nbytes() < _SMALLEST:
            continue
        if held.data_ptr() not in found:
            found[held.data_ptr()] = places.get(_key(held))
        if place := found[held.data_ptr()]:
            shape, strides, offset = tensor.size(), tensor.stride(), tensor.storage_offset()
            empty = torch.empty(0, dtype=tensor.dtype)
            tensor.data = empty.set_(file[place[0] : place[1]], offset, shape, strides)


def _members(path: str) -> Iterator[tuple[int, int]]:
    """The first byte of each large uncompressed member, and the first one after it."""
    with zipfile.ZipFile(path) as archive, Path(path).open("rb") as file:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED or member.file_size < _SMALLEST:
                continue
            file.seek(member.header_offset)
            lengths = struct.unpack("<HH", file.read(_HEADER)[-4:])
            first = member.header_offset + _HEADER + sum(lengths)
            if first % _ALIGNED == 0:
                yield first, first + member.file_size


def _key(content: torch.UntypedStorage) -> tuple[int, bytes]:
    """Length and hash of some bytes."""
    view = torch.empty(0, dtype=torch.uint8).set_(content)
    return content.nbytes(), xxhash.xxh3_128(view.numpy().data).digest()
