"""Classifies texts with a transformers model. Imports torch."""

from __future__ import annotations

from typing import Any

import torch

from nightjar.inference.job.model import Job
from nightjar.inference.predictors import outputs
from nightjar.inference.predictors.labels import LabelOutputs
from nightjar.inference.predictors.modelfolder import ModelFolder
from nightjar.inference.predictors.textmodel import OfTexts, TextModel
from nightjar.inference.predictors.tokens import Tokens, text_columns


class Classifier(OfTexts):
    """A model with one number for each of its labels, as a `Predictor`."""

    def __init__(self, job: Job, folder: ModelFolder) -> None:
        self._types = job.model.output_types()
        self._model = TextModel(job, folder, "AutoModelForSequenceClassification")
        config = self._model.config
        self._width = int(config.num_labels)
        self._made = LabelOutputs(job, [str(config.id2label[place]) for place in range(self._width)])
        self._function = job.model.options.get("function") or function_of(config)
        self.device = self._model.device

    def prepare(self, batch: Any) -> Tokens:
        """Tokenise the texts, or the pairs of texts."""
        return self._model.tokenise(*text_columns(batch, "text-classification", most=2))

    def predict(self, prepared: Tokens) -> dict[str, Any]:
        """Call the model. Returns the declared outputs."""
        if not len(prepared.lengths):
            return outputs.empty(self._types)
        return self._made.of(self._model.run(prepared, self._width, self._scores).numpy())

    def _scores(self, raw: Any, _: torch.Tensor) -> torch.Tensor:
        return scores_of(raw.logits.float(), self._function)


def scores_of(logits: torch.Tensor, function: str) -> torch.Tensor:
    """The scores that a function (`softmax`, `sigmoid`, `none`) makes of logits."""
    if function == "softmax":
        return logits.softmax(-1)
    return logits.sigmoid() if function == "sigmoid" else logits


def function_of(config: Any) -> str:
    """What makes scores of logits, as the pipeline of transformers decides it."""
    if config.problem_type == "regression":
        return "none"
    several = config.problem_type == "multi_label_classification"
    return "sigmoid" if several or config.num_labels == 1 else "softmax"
