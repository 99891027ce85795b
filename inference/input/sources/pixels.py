"""What every decoder of images does: it turns the image upright, and keeps 8 bits of each channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image


def normalised(image: Image, *, upright: bool = True) -> Image:
    """The image with the higher 8 of 16 bits, turned as its EXIF orientation says unless `upright` is false.

    Pillow keeps the higher bits of colours only; its conversion of grey makes every value above 255 a 255.
    """
    from PIL import Image as Pillow
    from PIL import ImageOps

    if upright:
        ImageOps.exif_transpose(image, in_place=True)
    return Pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8)) if image.mode.startswith("I") else image
