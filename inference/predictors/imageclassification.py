"""`uses: image-classification`: the label of each image, and its score, by a Hugging Face model in a folder."""

from __future__ import annotations

from nightjar.inference.job.model import Job
from nightjar.inference.job.options import Option
from nightjar.inference.predictors.adapter import Adapter, Predictor
from nightjar.inference.predictors.folderadapter import OF_IMAGES, ImageAdapter
from nightjar.inference.predictors.modelfolder import ModelFolder
from nightjar.inference.predictors.textclassification import FUNCTION


class ImageClassification(ImageAdapter):
    """The `Adapter` of models that classify images."""

    options: tuple[Option, ...] | None = (*OF_IMAGES, FUNCTION)

    def check_values(self, job: Job) -> None:
        """Only the model knows its labels."""

    def loaded(self, job: Job, folder: ModelFolder) -> Predictor:
        from nightjar.inference.predictors.imageclassifier import ImageClassifier

        return ImageClassifier(job, folder)


ADAPTER: Adapter = ImageClassification()
