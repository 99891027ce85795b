"""Where a torch model computes: the job's device, and its threads; and what is copied there. Imports torch."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
import xxhash

from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.predictors.adapter import SHARED_BYTES
from nightjar.inference.predictors.arrays import NUMERIC, Array
from nightjar.inference.predictors.tabular.filling import Filling


def device_of_job(job: ModelJob) -> torch.device:
    """The device for the job's model. Sets torch's number of threads for the process."""
    torch.set_num_threads(job.resources.cores)
    # Ray may be told of GPUs that do not exist, as in tests; the predictor's `device` then says the truth.
    on_gpu = job.resources.gpus > 0 and torch.cuda.is_available()
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def to_tensor(values: Array) -> torch.Tensor | Array:
    """Copy numbers into a tensor, because torch has no read-only tensor; return anything else unchanged."""
    return torch.from_numpy(np.array(values)) if values.dtype.kind in NUMERIC else values


def fill_tensor(filling: Filling, dtype: torch.dtype, device: torch.device, any_layout: bool = False) -> torch.Tensor:
    """Make a tensor with the values of a filling, in memory from which the device can copy.

    any_layout: whether the model takes a transposed tensor. Then columns that lie beside each other are filled one by
    one, as (F, n): four times as fast as into (n, F), where each column jumps from row to row (51 against 204 µs for
    16,384 × 20 float32).
    """
    floating = dtype.is_floating_point and dtype not in {torch.float16, torch.float64}
    fillable = torch.float32 if floating else dtype  # numpy has no bfloat16
    transposed = any_layout and filling.stacked
    shape = filling.shape[::-1] if transposed else filling.shape
    # The buffer is new each time: reuse saves little (50 µs), and outputs or a running copy may still refer to it.
    buffer = torch.empty(shape, dtype=fillable, pin_memory=device.type == "cuda")
    tensor = buffer.T if transposed else buffer
    filling.write(tensor.numpy())
    return tensor.to(dtype)


def describe_devices() -> str:
    """The GPUs that torch can use in this process, in words."""
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU here: models run on the CPU"
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"torch {torch.__version__} sees {len(names)}: {', '.join(names)}"


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
