"""A column of images as Pillow's images: from arrays height × width × channels, or from the bytes of files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from nightjar.inference.errors import JobError
from nightjar.inference.input.sources.pixels import normalised
from nightjar.inference.predictors.arrays import to_array
from nightjar.inference.predictors.tabular import features

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Channels → Pillow's name of them."""


def pictures(batch: Any, uses: str) -> list[Any]:
    """The images of any kind of batch with one column, each in RGB.

    Raises:
        JobError: There is not one column.
        ValueError, TypeError, OSError: A row is no image.
    """
    held = features.named(batch, uses)
    if len(held) != 1:
        raise JobError(f"model.features: the {uses} adapter takes one column of images; say which of {', '.join(held)}")
    ((name, column),) = held.items()
    return [_picture(name, value) for value in _values(column)]


def _values(column: Any) -> Iterator[Any]:
    values = to_array(column)
    yield from values if values.ndim > 1 else values.tolist()


def _picture(name: str, value: Any) -> Any:
    from PIL import Image

    if value is None:
        raise ValueError(f"feature {name!r} has a null, which is no image")
    if isinstance(value, bytes | bytearray | memoryview):
        with Image.open(io.BytesIO(value), formats=("JPEG", "PNG", "WEBP")) as opened:
            return normalised(opened).convert("RGB")
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim not in {2, 3}:
        what = f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
        raise TypeError(f"feature {name!r} holds {what}, and not height × width × channels of uint8, or a file's bytes")
    channels = value.shape[2] if value.ndim == 3 else 1
    if channels not in _MODES:
        raise ValueError(f"feature {name!r} has {channels} channels in its last dimension, and not 1, 3 or 4")
    plain = value[:, :, 0] if channels == 1 and value.ndim == 3 else value
    return Image.fromarray(np.ascontiguousarray(plain), _MODES[channels]).convert("RGB")
