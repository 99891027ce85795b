"""Classifies images with a transformers model. Imports torch."""

from __future__ import annotations

from typing import Any

import torch

from nightjar.inference.job.model import Job
from nightjar.inference.predictors import outputs
from nightjar.inference.predictors.classifier import function_of, scores_of
from nightjar.inference.predictors.imagemodel import ImageModel, Pixels
from nightjar.inference.predictors.labels import LabelOutputs
from nightjar.inference.predictors.modelfolder import ModelFolder


class ImageClassifier:
    """A model with one number for each of its labels, as a `Predictor`."""

    def __init__(self, job: Job, folder: ModelFolder) -> None:
        self._types = job.model.output_types()
        self._model = ImageModel(job, folder, "AutoModelForImageClassification")
        config = self._model.config
        self._width = int(config.num_labels)
        self._made = LabelOutputs(job, [str(config.id2label[place]) for place in range(self._width)])
        self._function = job.model.options.get("function") or function_of(config)
        self.device = self._model.device
        self.prepare = self._model.prepare

    def predict(self, prepared: list[Pixels]) -> dict[str, Any]:
        """Call the model. Returns the declared outputs."""
        if not prepared:
            return outputs.empty(self._types)
        found = torch.empty((len(prepared), self._width))

        def keep(rows: list[int], raw: Any) -> None:
            found[rows] = scores_of(raw.logits.float(), self._function).cpu()

        self._model.each(prepared, keep)
        return self._made.of(found.numpy())
