"""Makes the model's input of a photo's file: the middle of it, 224 × 224, as the model was trained."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image, ImageOps

SIZE = 224


def decode(batch: dict[str, Any]) -> dict[str, Any]:
    """From the bytes of n files to floats of shape (n, channels, height, width)."""
    return {"pixels": np.stack([_pixels(content) for content in batch["bytes"]])}


def _pixels(content: bytes) -> np.ndarray[Any, Any]:
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB")
    middle = ImageOps.fit(image, (SIZE, SIZE), Image.Resampling.BICUBIC)
    return ((np.asarray(middle, np.float32) - 127) / 128).transpose(2, 0, 1)
