"""A transformers model of images, and their processor, on the job's device. Imports torch.

Each image is prepared alone, and images that are of one size then are computed together, without padding. So what is
made of an image does not depend on the images beside it.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from nightjar.inference.job.model import Job
from nightjar.inference.predictors.modelfolder import ModelFolder
from nightjar.inference.predictors.pictures import pictures
from nightjar.inference.predictors.placing import device_of_job
from nightjar.inference.predictors.textloading import load_image_processor, load_model, quiet

Keep = Callable[[list[int], Any], None]
"""Gets the indices of images, and what the model returns for them."""


@dataclass(frozen=True, slots=True)
class Pixels:
    """The model's input for one image. height, width: of the image itself."""

    tensors: dict[str, torch.Tensor]
    height: int
    width: int


class ImageModel:
    """A model and its processor. Several threads may call it at once. device: where the model is."""

    def __init__(self, job: Job, folder: ModelFolder, auto: str) -> None:
        """auto: the class of transformers that loads the model.

        Raises:
            JobError: Model or processor cannot be loaded.
        """
        self._place = device_of_job(job)
        self._uses = job.model.uses
        with quiet(job) as transformers:
            self._model = load_model(job, folder, getattr(transformers, auto)).to(self._place)
            self.processor = load_image_processor(folder)
        self._takes = set(inspect.signature(self._model.forward).parameters)
        self._dtype = self._model.dtype
        self.config = self._model.config
        self.device = str(self._place)

    def prepare(self, batch: Any) -> list[Pixels]:
        """Decode, scale and normalise each image."""
        return [self._prepared(picture) for picture in pictures(batch, self._uses)]

    def each(self, images: list[Pixels], keep: Keep) -> None:
        """Call the model until `keep` has got what it returns for each image."""
        alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for row, image in enumerate(images):
            alike[tuple((name, tensor.shape) for name, tensor in image.tensors.items())].append(row)
        for rows in alike.values():
            names = images[rows[0]].tensors
            given = {name: torch.cat([images[row].tensors[name] for row in rows]).to(self._place) for name in names}
            with torch.inference_mode():
                keep(rows, self._model(**given))

    def _prepared(self, picture: Any) -> Pixels:
        made = self.processor(images=picture, return_tensors="pt")
        tensors = {name: tensor for name, tensor in made.items() if name in self._takes}
        return Pixels({name: self._cast(tensor) for name, tensor in tensors.items()}, picture.height, picture.width)

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor
