"""Grey images of 16 bits a pixel, as some PNG files are, with 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image


def with_8_bits(image: Image) -> Image:
    """The image with the higher 8 of 16 bits, if it is a grey one of 16 bits; any other image as it is.

    Pillow itself does so with colours of 16 bits, and other decoders do so with both. But where Pillow converts grey,
    every value above 255 becomes 255.
    """
    if not image.mode.startswith("I"):
        return image
    from PIL import Image as Pillow

    return Pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
