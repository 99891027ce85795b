"""A transformers model that sorts and packs texts, and the predictor of each task of texts. Imports torch.

Texts are tokenised without padding in `prepare`; `run` packs them by their lengths, calls the model, and puts what it
returns in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import outputs
from nightjar.inference.predictors.arrays import Array
from nightjar.inference.predictors.outofmemory import is_memory
from nightjar.inference.predictors.tabular.placing import device_of_job
from nightjar.inference.predictors.transformers.labels import LabelHead, LabelOutputs
from nightjar.inference.predictors.transformers.modelfolder import ModelFolder
from nightjar.inference.predictors.transformers.recipe import Recipe
from nightjar.inference.predictors.transformers.textloading import load
from nightjar.inference.predictors.transformers.tokens import Tokeniser, Tokens, text_columns

# A batch costs what its longest text costs, times its rows. So the texts of a micro-batch are sorted by length, and
# packed into calls with rows × longest ≤ budget, of which padding takes little. Imports no framework.
PADDING = 64
"""Of a call's budget, at most one part in so many is padding: 32 tokens on a CPU, which MiniLM computes in 8 ms. Less
padding would need more calls, each of which costs about as much. On a GPU this was not measured."""

Call = Callable[[Array], None]
"""Gets the indices of rows, the longest first; computes these, and keeps what came out."""


class Packer:
    """Packs rows into calls of the model. Keeps what it learns about memory as long as the process lives.

    tokens: the most rows × longest of a call; None for all rows at once, until memory does not suffice. forced: the
    same if lack of memory reduced it, else 0. alone: rows of at least so many tokens have a call each, because one of
    them did not fit alone.
    """

    def __init__(self, tokens: int | None) -> None:
        self.tokens = tokens
        self.forced = 0
        self.alone: int | None = None

    def run(self, lengths: Array, call: Call) -> None:
        """Call the model until each row was in one call that succeeded. lengths: tokens of each row.

        A call that runs out of memory is repeated with half of what did not fit.

        Raises:
            Exception: Whatever a call raises; one that means too little memory only for a row that does not fit alone.
        """
        order = np.argsort(-lengths, kind="stable")
        first, before = 0, (self.tokens, self.forced)
        while first < len(order):
            longest = int(lengths[order[first]])
            rows = order[first : first + self._rows(longest, len(order))]
            if self.tokens is not None:
                rows = rows[(longest - lengths[rows]).cumsum() <= self.tokens // PADDING]
            if len(rows) == 1:
                self._single(rows, longest, call, before)
            elif not self._fits(rows, call):
                self.tokens = self.forced = len(rows) * longest // 2
                continue
            first, before = first + len(rows), (self.tokens, self.forced)

    def _rows(self, longest: int, most: int) -> int:
        if self.alone is not None and longest >= self.alone:
            return 1
        return most if self.tokens is None else max(1, self.tokens // longest)

    def _fits(self, rows: Array, call: Call) -> bool:
        """Whether memory sufficed. The exception is gone afterwards: its frames would hold the memory."""
        try:
            call(rows)
        except Exception as error:
            if not is_memory(error):
                raise
            return False
        return True

    def _single(self, rows: Array, longest: int, call: Call, before: tuple[int | None, int]) -> None:
        """Call the model with one row. If it does not fit alone, the budget is what it was before this row's calls."""
        try:
            call(rows)
        except Exception as error:
            if is_memory(error):
                (self.tokens, self.forced), self.alone = before, longest
            raise


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


class Classifier(OfTexts):
    """A model with one number for each of its labels, as a `Predictor`."""

    def __init__(self, job: Job, folder: ModelFolder) -> None:
        self._types = job.model.output_types()
        self._model = TextModel(job, folder, "AutoModelForSequenceClassification")
        self._head = LabelHead(job, self._model.config)
        self.device = self._model.device

    def prepare(self, batch: Any) -> Tokens:
        """Tokenise the texts, or the pairs of texts."""
        return self._model.tokenise(*text_columns(batch, "text-classification", most=2))

    def predict(self, prepared: Tokens) -> dict[str, Any]:
        """Call the model. Returns the declared outputs."""
        if not len(prepared.lengths):
            return outputs.empty(self._types)
        return self._head.of(self._model.run(prepared, self._head.width, lambda raw, _: self._head.scores(raw.logits)))


class Entailment(OfTexts):
    """A model of natural language inference, as a `Predictor` of zero-shot classification."""

    def __init__(self, job: Job, folder: ModelFolder, template: str) -> None:
        """template: the sentence that is asked about, with {} where the label goes."""
        options = job.model.options
        self._types = job.model.output_types()
        self._labels = list(options["labels"])
        self._several = options.get("multi_label", False) or len(self._labels) == 1
        self._made = LabelOutputs(job, self._labels)
        self._asked = [template.replace("{}", label) for label in self._labels]
        self._model = TextModel(job, folder, "AutoModelForSequenceClassification", cut="only_first")
        config = self._model.config
        self._width = int(config.num_labels)
        self._follows = _place(config, folder)
        # As the pipeline of transformers decides it.
        self._contradicts = self._width - 1 if self._follows == 0 else 0
        self.device = self._model.device

    def prepare(self, batch: Any) -> Tokens:
        """Tokenise each text with the sentence of each label, all of a text's one after the other."""
        (texts,) = text_columns(batch, "zero-shot")
        pairs = [(text, asked) for text in texts for asked in self._asked]
        return self._model.tokenise([text for text, _ in pairs], [asked for _, asked in pairs])

    def predict(self, prepared: Tokens) -> dict[str, Any]:
        """Call the model. Returns the declared outputs."""
        if not len(prepared.lengths):
            return outputs.empty(self._types)
        logits = self._model.run(prepared, self._width, lambda raw, _: raw.logits)
        logits = logits.reshape(-1, len(self._labels), self._width)
        if self._several:
            scores = logits[:, :, [self._contradicts, self._follows]].softmax(-1)[:, :, 1]
        else:
            scores = logits[:, :, self._follows].softmax(-1)
        return self._made.of(scores.numpy())


def _place(config: Any, folder: ModelFolder) -> int:
    """Which of the model's numbers says that a sentence follows."""
    for place in range(config.num_labels):
        if str(config.id2label[place]).lower().startswith("entail"):
            return place
    raise JobError(
        f"model.path: {folder.named} has no label 'entailment' but {', '.join(map(str, config.id2label.values()))}; "
        "zero-shot needs a model of natural language inference"
    )


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
