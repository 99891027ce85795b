"""Arrays of integers as short text."""

from __future__ import annotations

import base64
import zlib

import numpy as np


def pack(values: np.ndarray) -> str:
    """Encode non-negative integers: each in as few bytes as the largest needs, deflated."""
    width = np.min_scalar_type(int(values.max(initial=0))).newbyteorder("<")
    packed = base64.b64encode(zlib.compress(values.astype(width).tobytes()))
    return f"{width.itemsize}:{packed.decode('ascii')}"


def unpack(text: str) -> np.ndarray:
    """The inverse of `pack`, as int64."""
    width, _, packed = text.partition(":")
    raw = zlib.decompress(base64.b64decode(packed, validate=True))
    return np.frombuffer(raw, f"<u{width}").astype(np.int64)
