"""A transformers model that sorts and packs texts. Imports torch.

Texts are tokenised without padding; `run` packs them by their lengths, calls the model, and puts what it returns in the
order of the rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nightjar.inference.errors import JobError
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.predictors.arrays import Array, is_missing, to_array
from nightjar.inference.predictors.tabular import features
from nightjar.inference.predictors.tabular.ontorch import device_of_job
from nightjar.inference.predictors.transformers.loading import core_of, limit_of, load_text_model
from nightjar.inference.predictors.transformers.modelfolder import ModelFolder

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_AT_ONCE = 1024
"""Texts that go to the tokenizer together. What it returns for a token takes a hundred times the token's id."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of n texts, an array for each."""

    lengths: Array
    """The number of tokens of each text, of shape (n,)."""

    ids: list[Array]
    """The ids of the tokens, of shape (tokens,)."""

    types: list[Array]
    """Which text of a pair each token belongs to, of shape (tokens,); an empty list if the model has no such input."""

    spans: list[Array]
    """The first character of each token in its text and the one after the last, of shape (tokens, 2); (-1, -1) for a
    token that is in no text. An empty list if the predictor does not need them."""

    def padded(self, rows: Array, pad: int) -> dict[str, Array]:
        """The texts `rows` as a model takes them, each array of shape (rows, longest) and type int64.

        pad: the id that fills the end of the shorter texts, where `attention_mask` is 0.
        """
        lengths = self.lengths[rows]
        held = np.arange(lengths.max()) < lengths[:, None]
        found = {"input_ids": np.full(held.shape, pad, np.int64), "attention_mask": held.astype(np.int64)}
        found["input_ids"][held] = np.concatenate([self.ids[row] for row in rows])
        if self.types:
            found["token_type_ids"] = np.zeros(held.shape, np.int64)
            found["token_type_ids"][held] = np.concatenate([self.types[row] for row in rows])
        return found


def _spans(encoding: Any) -> Array:
    spans = np.array(encoding.offsets, np.int32).reshape(-1, 2)
    spans[np.array(encoding.special_tokens_mask, bool)] = -1
    return spans


def _texts(name: str, column: Any) -> list[str]:
    values: list[Any] = to_array(column).tolist()
    for value in values:
        if isinstance(value, str):
            continue
        if is_missing(value):
            raise ValueError(
                f"feature {name!r} has a null, which is no text; to score it as one, write the text in a preprocess"
            )
        raise TypeError(f"feature {name!r} holds {value!r}, which is no text")
    return values


# A batch costs what its longest text costs, times its rows. So the texts of a micro-batch are sorted by length, and
# packed into calls with rows × longest ≤ budget, of which padding takes little.
PADDING = 64
"""Of a call's budget, at most one part in so many is padding: 32 tokens on a CPU, which MiniLM computes in 8 ms. Less
padding would need more calls, each of which costs about as much. On a GPU this was not measured."""


def packed(lengths: Array, tokens: int | None) -> Iterator[Array]:
    """The indices of the rows of each call, the longest first; each row is in one call. lengths: tokens of each row.
    tokens: the most rows × longest of a call, but for a single row that is longer; None for all rows at once.
    """
    order = np.argsort(-lengths, kind="stable")
    first = 0
    while first < len(order):
        rows = order[first:]
        if tokens is not None:
            longest = int(lengths[rows[0]])
            rows = rows[: max(1, tokens // longest)]
            rows = rows[(longest - lengths[rows]).cumsum() <= tokens // PADDING]
        yield rows
        first += len(rows)


TOKENS, TOKENS_GPU = 2048, 65536
"""Rows × longest of a call of the model, if neither the size of micro-batches nor `options.batch_tokens` is set."""

Head = Callable[[Any, torch.Tensor], torch.Tensor]
"""From what the model returns, and the attention mask (rows, longest), to numbers (rows, width)."""

Keep = Callable[[Array, Any, torch.Tensor], None]
"""Gets the indices of texts, what the model returns for them, and the attention mask."""


class TextModel:
    """A model and its tokenizer on the job's device: the base of the predictors of texts. Several threads may call it
    at once.

    config: the model's. device: where it is.
    """

    most = 1
    """The most columns that the model reads."""

    def __init__(
        self,
        job: ModelJob,
        folder: ModelFolder,
        auto: str,
        *,
        max_length: int | None = None,
        cut: str = "longest_first",
        spans: bool = False,
        plain: Callable[[str], str] = str,
    ) -> None:
        """auto: the class of transformers that loads the model. max_length: the most tokens of a text, if the job says
        nothing; None for as many as model and tokenizer take. cut: which of two texts loses the tokens beyond that.
        spans: whether to make `Tokens.spans`. plain: makes of each text what the tokenizer gets.
        """
        self._place = device_of_job(job)
        model, tokenizer = load_text_model(job, folder, auto)
        known = {*tokenizer.model_input_names} & {*inspect.signature(model.forward).parameters}
        if "attention_mask" not in known or getattr(model.config, "summary_type", "") == "last":  # as FNet; as XLNet
            raise JobError(
                f"model.path: {folder.named} is a {type(model).__name__}, which reads the padding of shorter texts as "
                f"their words; the {job.model.uses} adapter takes models that read an attention mask"
            )
        limit = limit_of(job, folder, model, max_length or tokenizer.model_max_length)
        self._model, self._pad = model.to(self._place), tokenizer.pad_token_id
        self._takes = tuple(name for name in _INPUTS if name in known)
        self._budget = _budget(job, self._place.type == "cuda")
        self._core = core_of(tokenizer, limit, cut)  # which truncates and does not pad
        self._types, self._spans, self._plain = "token_type_ids" in known, spans, plain
        self._uses = job.model.uses
        self.config = model.config
        self.device = str(self._place)

    def prepare(self, batch: Any) -> Any:
        """Tokenise the texts, or the pairs of texts."""
        return self.tokenise(*self.columns(batch))

    def columns(self, batch: Any) -> list[list[str]]:
        """The columns of any kind of batch as texts: one, or at most two where texts are read as pairs.

        Raises:
            JobError: There are none, or more than `most`.
            TypeError, ValueError: A row is no text.
        """
        return [_texts(name, column) for name, column in features.few(batch, self._uses, "text", self.most).items()]

    def tokenise(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> Tokens:
        """Tokenise texts, or pairs of them.

        Raises:
            ValueError: The tokenizer finds nothing in one.
        """
        given: list[Any] = [self._plain(text) for text in texts]
        if seconds is not None:
            given = list(zip(given, map(self._plain, seconds), strict=True))
        encode = self._core.encode_batch if self._spans else self._core.encode_batch_fast
        ids: list[Array] = []
        types: list[Array] = []
        spans: list[Array] = []
        for first in range(0, len(given), _AT_ONCE):
            for encoding in encode(given[first : first + _AT_ONCE]):
                ids.append(np.array(encoding.ids, np.int32))
                if self._types:
                    types.append(np.array(encoding.type_ids, np.int8))
                if self._spans:
                    spans.append(_spans(encoding))
        lengths = np.array([len(each) for each in ids], np.int64)
        if 0 in lengths:
            raise ValueError(f"the tokenizer finds no token in {texts[lengths.tolist().index(0)]!r}")
        return Tokens(lengths, ids, types, spans)

    def run(self, tokens: Tokens, width: int, head: Head) -> torch.Tensor:
        """Call the model for all texts. Returns float32 of shape (n, width) in the order of the texts, on the CPU."""
        found = torch.empty((len(tokens.lengths), width), dtype=torch.float32, device=self._place)

        def keep(rows: Array, raw: Any, mask: torch.Tensor) -> None:
            found[torch.from_numpy(rows).to(self._place)] = head(raw, mask).float()

        self.each(tokens, keep)
        return found.cpu()

    def each(self, tokens: Tokens, keep: Keep) -> None:
        """Call the model until `keep` has got what it returns for each text."""
        with torch.inference_mode():
            for rows in packed(tokens.lengths, self._budget):
                padded = tokens.padded(rows, self._pad)
                given = {name: torch.from_numpy(padded[name]).to(self._place) for name in self._takes}
                keep(rows, self._model(**given), given["attention_mask"])


def _budget(job: ModelJob, on_gpu: bool) -> int | None:
    asked: int | None = job.model.options.get("batch_tokens")
    if asked is None and job.model.batch_size != "auto":
        return None  # a call is exactly the micro-batch
    return asked or (TOKENS_GPU if on_gpu else TOKENS)
