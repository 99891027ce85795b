"""A transformers model as the predictors of texts use it: it sorts and packs texts. Imports torch.

Texts are tokenised without padding in `prepare`; `run` packs them by their lengths, calls the model, and puts what it
returns in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from nightjar.inference.job.model import Job
from nightjar.inference.predictors.arrays import Array
from nightjar.inference.predictors.modelfolder import ModelFolder
from nightjar.inference.predictors.packing import Packer
from nightjar.inference.predictors.placing import device_of_job
from nightjar.inference.predictors.textloading import load
from nightjar.inference.predictors.tokens import Tokeniser, Tokens

TOKENS, TOKENS_GPU = 2048, 65536
"""Rows × longest of a call of the model, if neither the size of micro-batches nor `options.batch_tokens` is set."""

Head = Callable[[Any, torch.Tensor], torch.Tensor]
"""From what the model returns, and the attention mask (rows, longest), to numbers (rows, width)."""

Keep = Callable[[Array, Any, torch.Tensor], None]
"""Gets the indices of texts, what the model returns for them, and the attention mask."""


class TextModel:
    """A model and its tokenizer on the job's device. Several threads may call it at once.

    tokenise: makes tokens of texts, or of pairs of texts. config: the model's. device: where it is.
    """

    def __init__(
        self,
        job: Job,
        folder: ModelFolder,
        auto: str,
        *,
        max_length: int | None = None,
        cut: str = "longest_first",
        **plain: Any,
    ) -> None:
        """auto, max_length, cut: as in `textloading.load`. plain: what `Tokeniser` does with each text.

        Raises:
            JobError: Model or tokenizer cannot be loaded.
        """
        self._place = device_of_job(job)
        loaded = load(job, folder, auto, max_length, cut)
        self._model = loaded.model.to(self._place)
        self._takes, self._pad = loaded.takes, loaded.pad
        self._packer = Packer(_budget(job, self._place.type == "cuda"))
        self.tokenise = Tokeniser(loaded.backend, types="token_type_ids" in loaded.takes, **plain)
        self.config = loaded.model.config
        self.device = str(self._place)

    @property
    def forced_tokens(self) -> int:
        """As in `adapter.Packing`."""
        return self._packer.forced

    def run(self, tokens: Tokens, width: int, head: Head) -> torch.Tensor:
        """Call the model for all texts. Returns float32 of shape (n, width) in the order of the texts, on the CPU."""
        found = torch.empty((len(tokens.lengths), width), dtype=torch.float32, device=self._place)

        def keep(rows: Array, raw: Any, mask: torch.Tensor) -> None:
            found[torch.from_numpy(rows).to(self._place)] = head(raw, mask).float()

        self.each(tokens, keep)
        return found.cpu()

    def each(self, tokens: Tokens, keep: Keep) -> None:
        """Call the model until `keep` has got what it returns for each text."""

        def call(rows: Array) -> None:
            padded = tokens.padded(rows, self._pad)
            given = {name: torch.from_numpy(padded[name]).to(self._place) for name in self._takes}
            keep(rows, self._model(**given), given["attention_mask"])

        with torch.inference_mode():
            self._packer.run(tokens.lengths, call)


class OfTexts:
    """Base of the predictors of texts."""

    _model: TextModel

    @property
    def forced_tokens(self) -> int:
        """As in `adapter.Packing`."""
        return self._model.forced_tokens


def _budget(job: Job, on_gpu: bool) -> int | None:
    asked: int | None = job.model.options.get("batch_tokens")
    if asked is None and not job.model.finds_size:
        return None  # a call is exactly the micro-batch
    return asked or (TOKENS_GPU if on_gpu else TOKENS)
