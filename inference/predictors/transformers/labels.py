"""The outputs of a model that scores labels: the best one, its score, all scores, or those of labels by their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nightjar.inference.errors import JobError
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.messages import clip, nearest
from nightjar.inference.predictors.arrays import Array

_MADE = ("label", "score", "scores")


class LabelOutputs:
    """Makes the declared outputs of scores of shape (n, labels)."""

    def __init__(self, job: ModelJob, labels: Sequence[str]) -> None:
        """labels: in the order of the scores."""
        self._labels = np.array(labels, object)
        self._columns = {name: place for place, name in enumerate(labels) if name not in _MADE}
        self._types = job.model.output_types()
        for name in self._types:
            if name not in {*_MADE, *self._columns}:
                raise JobError(
                    f"model.outputs: the {job.model.uses} adapter does not make {name!r}; it makes label, score, "
                    f"scores (one number for each label), and the score of a label by its name: "
                    + clip(", ".join(labels))
                    + nearest(name, [*_MADE, *self._columns])
                )

    def of(self, scores: Array) -> dict[str, Any]:
        """The declared outputs by name."""
        best = scores.argmax(1)
        made = {"label": self._labels[best], "score": scores[np.arange(len(scores)), best], "scores": scores}
        return {name: made[name] if name in _MADE else scores[:, self._columns[name]] for name in self._types}


class LabelHead(LabelOutputs):
    """Makes the declared outputs of logits of shape (n, labels)."""

    def __init__(self, job: ModelJob, config: Any) -> None:
        """config: the model's, of transformers."""
        self.width = int(config.num_labels)
        super().__init__(job, [str(config.id2label[place]) for place in range(self.width)])
        self._function = job.model.options.get("function") or _function_of(config)

    def scores(self, logits: Any) -> Any:
        """The float32 scores of logits; both are tensors of torch."""
        logits = logits.float()
        if self._function == "softmax":
            return logits.softmax(-1)
        return logits.sigmoid() if self._function == "sigmoid" else logits


def _function_of(config: Any) -> str:
    """What makes scores of logits, as the pipeline of transformers decides it."""
    if config.problem_type == "regression":
        return "none"
    several = config.problem_type == "multi_label_classification"
    return "sigmoid" if several or config.num_labels == 1 else "softmax"
