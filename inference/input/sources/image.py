"""Images: each file is one row, decoded by Pillow. What is wrong with a file costs that row.

The options are those of `input.options`. The columns are `image`, height × width × channels of uint8; `path`, the
file's location; and with `label: folder` the name of the file's folder as `label`.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nightjar.inference.errors import InputCorrupt
from nightjar.inference.input.sources.binary import OneRowSource
from nightjar.inference.input.sources.protocol import Description
from nightjar.inference.job.options import Option, choice, flag
from nightjar.inference.storage.protocol import Entry, Storage, file_name
from nightjar.inference.tensors import VariableShapedTensor, of_variable_shape

if TYPE_CHECKING:
    from PIL.Image import Image as Decoded


_EXPANDED, _PNG_EXPANDED = 15, 40
"""The assumed ratio of an image's pixels in memory to a file's size. Drawings and screens are packed more than photos.
"""

_CHANNELS = {"RGB": 3, "RGBA": 4, "L": 1}


@dataclass(frozen=True)
class Image(OneRowSource):
    """The source of images."""

    size: tuple[int, int] | None = None
    """Height and width to scale to, in pixels; None for those of each file."""

    mode: str = "RGB"
    """Pillow's name of the channels."""

    label: str | None = None
    """What the column `label` has: `folder`, the name of the file's folder. None for no such column."""

    upright: bool = True
    """Whether to turn images by their EXIF orientation."""

    name = "image"
    suffixes = (".jpg", ".jpeg", ".png", ".webp")
    extra = "images"
    options = (
        Option(
            "size",
            {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2, "maxItems": 2},
            "the file's",
            "each image is scaled to it, bilinearly; then the column is a tensor of one shape",
            "[height, width] in pixels",
        ),
        choice("mode", [*_CHANNELS], "channels, by Pillow's name"),
        choice("label", ["folder"], "`folder`: a column `label` with the name of the file's folder", "no label"),
        flag("upright", "turned as the camera noted in EXIF; else as the pixels are stored", "`true`"),
    )

    def describe(self, storage: Storage, entry: Entry) -> Description:
        """Nothing is read. A file that is no image is a row, too: reading it will say what it is."""
        self.imported("PIL.Image")
        if self.size is not None:
            decoded = self.size[0] * self.size[1] * _CHANNELS[self.mode]
        else:
            decoded = entry.size * (_PNG_EXPANDED if file_name(entry.uri).lower().endswith(".png") else _EXPANDED)
        return Description(self.schema(), (1,), (max(1, decoded + entry.size),))

    def named(self, uri: str) -> dict[str, pa.Array]:
        label = {"label": pa.array([uri.split("/")[-2]], pa.string())} if self.label else {}
        return super().named(uri) | label

    def decoded(self, uri: str, data: bytes) -> dict[str, pa.Array]:
        return {"image": self._tensor(self._pixels(uri, data))}

    def schema(self) -> pa.Schema:
        kind = VariableShapedTensor(pa.uint8())
        if self.size is not None:
            kind = pa.fixed_shape_tensor(pa.uint8(), (*self.size, _CHANNELS[self.mode]))
        label = [("label", pa.string())] if self.label else []
        return pa.schema([("image", kind), ("path", pa.string()), *label])

    def _pixels(self, uri: str, data: bytes) -> npt.NDArray[np.uint8]:
        """Height × width × channels. Raises as `decoded`."""
        if not data:
            raise InputCorrupt(f"{uri}: an empty file, not an image")
        pillow = self.imported("PIL.Image")
        try:
            # Pillow refuses an image of more than 178,956,970 pixels: a file of a few KB may claim to have any number.
            image = pillow.open(io.BytesIO(data), formats=("JPEG", "PNG", "WEBP"))
            values = np.asarray(self._as_asked(image))
        except MemoryError:
            raise
        except pillow.UnidentifiedImageError:
            raise InputCorrupt(f"{uri}: not a JPEG, PNG or WebP image, or damaged") from None
        except Exception as error:
            # A decoder raises whatever it happens to meet in a damaged file.
            raise InputCorrupt(f"{uri}: an image that cannot be decoded: {error}") from error
        return values.reshape(*values.shape[:2], _CHANNELS[self.mode])

    def _as_asked(self, image: Decoded) -> Decoded:
        image = eight_bits(image, upright=self.upright)
        converted = image if image.mode == self.mode else image.convert(self.mode)
        if self.size is None:
            return converted
        height, width = self.size
        return converted.resize((width, height), self.imported("PIL.Image").Resampling.BILINEAR)

    def _tensor(self, values: npt.NDArray[np.uint8]) -> pa.Array:
        if self.size is None:
            return of_variable_shape(values)
        flat, kind = pa.array(values.reshape(-1)), self.schema().field("image").type
        return pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(flat, len(flat)))


SOURCE = Image()


def eight_bits(image: Decoded, *, upright: bool = True) -> Decoded:
    """The image with the higher 8 of 16 bits, turned as its EXIF orientation says unless `upright` is false.

    Pillow keeps the higher bits of colours only; its conversion of grey makes every value above 255 a 255.
    """
    from PIL import Image as Pillow
    from PIL import ImageOps

    if upright:
        ImageOps.exif_transpose(image, in_place=True)
    return Pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8)) if image.mode.startswith("I") else image
