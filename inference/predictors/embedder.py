"""Embeds texts: pools the vectors that a model gives to a text's tokens. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import torch

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import outputs
from nightjar.inference.predictors.recipe import Recipe
from nightjar.inference.predictors.textmodel import OfTexts, TextModel
from nightjar.inference.predictors.tokens import Tokens, text_columns

Pool = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From vectors (rows, longest, width) and the attention mask (rows, longest) to vectors (rows, width)."""


class Embedder(OfTexts):
    """A model whose tokens are pooled, as a `Predictor`."""

    def __init__(self, job: Job, recipe: Recipe) -> None:
        (self._name,) = job.model.outputs
        self._types = job.model.output_types()
        self._pool = _POOLS[recipe.pooling]
        self._normalize = recipe.normalize
        self._model = TextModel(
            job,
            recipe.folder,
            "AutoModel",
            max_length=recipe.max_length,
            strip=recipe.strip,
            lower=recipe.lower,
            prompt=recipe.prompt,
        )
        self.device = self._model.device
        self._width = int(self._model.config.hidden_size)
        _check_width(self._types[self._name], self._name, self._width)

    def prepare(self, batch: Any) -> Tokens:
        """Tokenise the texts."""
        return self._model.tokenise(*text_columns(batch, "embed"))

    def predict(self, prepared: Tokens) -> dict[str, Any]:
        """Call the model. Returns the vectors."""
        if not len(prepared.lengths):
            return outputs.empty(self._types)
        return {self._name: self._model.run(prepared, self._width, self._vectors)}

    def _vectors(self, raw: Any, mask: torch.Tensor) -> torch.Tensor:
        vectors = self._pool(raw.last_hidden_state.float(), mask)
        return torch.nn.functional.normalize(vectors, dim=1) if self._normalize else vectors


def _mean(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = mask.to(tokens.dtype)
    return torch.bmm(weights[:, None], tokens)[:, 0] / weights.sum(1, keepdim=True)


def _cls(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return tokens[:, 0]


def _max(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return tokens.masked_fill(mask[:, :, None] == 0, -torch.inf).amax(1)


def _last(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return tokens[torch.arange(len(tokens), device=tokens.device), mask.sum(1) - 1]


_POOLS: dict[str, Pool] = {"mean": _mean, "cls": _cls, "max": _max, "last": _last}


def _check_width(kind: pa.DataType, name: str, width: int) -> None:
    if pa.types.is_fixed_size_list(kind) and kind.list_size != width:
        raise JobError(
            f"model.outputs.{name}: the job declares {kind.list_size} numbers, and the model makes {width} of each "
            f"text; write float32[{width}]"
        )
