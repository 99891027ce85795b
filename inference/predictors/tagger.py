"""Labels the tokens of texts, and joins tokens of one entity. Imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from nightjar.inference.job.model import Job
from nightjar.inference.predictors import outputs
from nightjar.inference.predictors.arrays import Array
from nightjar.inference.predictors.modelfolder import ModelFolder
from nightjar.inference.predictors.textmodel import OfTexts, TextModel
from nightjar.inference.predictors.tokens import Tokens, text_columns

_OUTSIDE = "O"
"""The label of tokens that belong to nothing."""


@dataclass(slots=True)
class _Entity:
    """Tokens of one label. score: the sum over its tokens. start, end: its characters in the text."""

    label: str
    score: float
    tokens: int
    start: int
    end: int


class Tagger(OfTexts):
    """A model with one number for each token and label, as a `Predictor`."""

    def __init__(self, job: Job, folder: ModelFolder) -> None:
        self._types = job.model.output_types()
        self._model = TextModel(job, folder, "AutoModelForTokenClassification", spans=True)
        config = self._model.config
        self._labels = [str(config.id2label[place]) for place in range(config.num_labels)]
        self._joins = job.model.options.get("aggregation", "simple") == "simple"
        self.device = self._model.device

    def prepare(self, batch: Any) -> tuple[list[str], Tokens]:
        """Tokenise the texts."""
        (texts,) = text_columns(batch, "token-classification")
        return texts, self._model.tokenise(texts)

    def predict(self, prepared: tuple[list[str], Tokens]) -> dict[str, Any]:
        """Call the model. Returns the declared outputs."""
        texts, tokens = prepared
        if not texts:
            return outputs.empty(self._types)
        best, scores = np.empty(len(tokens.ids), np.int64), np.empty(len(tokens.ids), np.float32)

        def keep(rows: Array, raw: Any, mask: torch.Tensor) -> None:
            chances, labels = raw.logits.float().softmax(-1).max(-1)
            places, held = tokens.places(rows), mask.bool()
            best[places], scores[places] = labels[held].cpu().numpy(), chances[held].cpu().numpy()

        self._model.each(tokens, keep)
        found = [list(self._entities(tokens, row, best, scores)) for row in range(len(texts))]
        made: dict[str, list[list[Any]]] = {
            "entities": [[text[each.start : each.end] for each in row] for text, row in zip(texts, found, strict=True)],
            "labels": [[each.label for each in row] for row in found],
            "scores": [[each.score / each.tokens for each in row] for row in found],
            "starts": [[each.start for each in row] for row in found],
            "ends": [[each.end for each in row] for row in found],
        }
        return {name: pa.array(made[name], kind) for name, kind in self._types.items()}

    def _entities(self, tokens: Tokens, row: int, best: Array, scores: Array) -> Iterator[_Entity]:
        """The entities of a text. Neighbours of one label are one entity, unless the later one begins anew ("B-")."""
        assert tokens.spans is not None
        now: _Entity | None = None
        for place in range(tokens.starts[row], tokens.starts[row + 1]):
            start, end = map(int, tokens.spans[place])
            if start < 0:
                continue
            label, score = self._labels[best[place]], float(scores[place])
            begins, name = (label[0], label[2:]) if label[:2] in {"B-", "I-"} else ("", label)
            if now is not None and self._joins and now.label == name and begins != "B":
                now.score, now.tokens, now.end = now.score + score, now.tokens + 1, end
                continue
            if now is not None and now.label != _OUTSIDE:
                yield now
            now = _Entity(name if self._joins else label, score, 1, start, end)
        if now is not None and now.label != _OUTSIDE:
            yield now
