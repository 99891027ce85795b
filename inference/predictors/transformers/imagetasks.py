"""The adapters of Hugging Face models of images, one for each task."""

from __future__ import annotations

import pyarrow as pa

from nightjar.inference.arrow_types import is_list, is_number, is_text
from nightjar.inference.job.model import Job
from nightjar.inference.job.options import Option, number
from nightjar.inference.predictors.adapter import Adapter, Predictor
from nightjar.inference.predictors.transformers.folderadapter import FUNCTION, OF_IMAGES, ImageAdapter, check_made
from nightjar.inference.predictors.transformers.modelfolder import ModelFolder


class ImageClassification(ImageAdapter):
    """`uses: image-classification`: the label of each image, and its score, by a Hugging Face model in a folder."""

    options: tuple[Option, ...] | None = (*OF_IMAGES, FUNCTION)

    def check_values(self, job: Job) -> None:
        """Only the model knows its labels."""

    def loaded(self, job: Job, folder: ModelFolder) -> Predictor:
        from nightjar.inference.predictors.transformers.imagemodel import ImageClassifier

        return ImageClassifier(job, folder)


THRESHOLD = 0.5
OBJECTS = {"labels": "list<string>", "scores": "list<float32>", "boxes": "list<float32[4]>"}
"""The outputs, each a list with an item for each object. A box is left, top, right, bottom, in pixels of the image."""

_THRESHOLD = number("threshold", "objects with a lower score are left out", f"`{THRESHOLD}`", 0, 1)


class ObjectDetection(ImageAdapter):
    """`uses: object-detection`: what a Hugging Face model in a folder finds in each image, with scores and boxes."""

    options: tuple[Option, ...] | None = (*OF_IMAGES, _THRESHOLD)

    def check_values(self, job: Job) -> None:
        check_made(job, OBJECTS, _is_object_list)

    def loaded(self, job: Job, folder: ModelFolder) -> Predictor:
        from nightjar.inference.predictors.transformers.imagemodel import Detector

        return Detector(job, folder, job.model.options.get("threshold", THRESHOLD))


def _is_object_list(name: str, kind: pa.DataType) -> bool:
    if not is_list(kind) or pa.types.is_fixed_size_list(kind):
        return False
    item = kind.value_type
    if name == "boxes":
        return is_list(item) and getattr(item, "list_size", 4) in {4, -1} and is_number(item.value_type)
    return is_text(item) if name == "labels" else is_number(item)


IMAGE_CLASSIFICATION: Adapter = ImageClassification()
OBJECT_DETECTION: Adapter = ObjectDetection()
