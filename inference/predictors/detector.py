"""Finds objects in images with a transformers model. Imports torch."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.predictors.imagemodel import ImageModel, Pixels
from nightjar.inference.predictors.modelfolder import ModelFolder


class Detector:
    """A model that finds any number of objects in an image, as a `Predictor`."""

    def __init__(self, job: Job, folder: ModelFolder, threshold: float) -> None:
        """threshold: objects with a lower score are left out."""
        self._types = job.model.output_types()
        self._model = ImageModel(job, folder, "AutoModelForObjectDetection")
        self._labels = self._model.config.id2label
        self._threshold = threshold
        if not hasattr(self._model.processor, "post_process_object_detection"):
            raise JobError(f"model.path: the image processor of {folder.named} is not one for object-detection")
        self.device = self._model.device
        self.prepare = self._model.prepare

    def predict(self, prepared: list[Pixels]) -> dict[str, Any]:
        """Call the model. Returns the declared outputs."""
        found: list[dict[str, list[Any]]] = [{} for _ in prepared]

        def keep(rows: list[int], raw: Any) -> None:
            sizes = [(prepared[row].height, prepared[row].width) for row in rows]
            finish = self._model.processor.post_process_object_detection
            for row, each in zip(rows, finish(raw, self._threshold, sizes), strict=True):
                found[row] = {
                    "labels": [str(self._labels[place]) for place in each["labels"].tolist()],
                    "scores": each["scores"].tolist(),
                    "boxes": each["boxes"].tolist(),
                }

        self._model.each(prepared, keep)
        return {name: pa.array([row[name] for row in found], kind) for name, kind in self._types.items()}
