"""The predictor of each task of texts. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch

from nightjar.inference.errors import JobError
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.predictors.arrays import Array
from nightjar.inference.predictors.tabular import features
from nightjar.inference.predictors.transformers.labels import LabelHead, LabelOutputs
from nightjar.inference.predictors.transformers.modelfolder import ModelFolder, Recipe
from nightjar.inference.predictors.transformers.tasks import TEMPLATE
from nightjar.inference.predictors.transformers.textmodel import TextModel, Tokens


class Embedder(TextModel):
    """A model whose tokens are pooled."""

    def __init__(self, job: ModelJob, recipe: Recipe) -> None:
        super().__init__(job, recipe.folder, "AutoModel", max_length=recipe.max_length, plain=recipe.plain)
        self._outputs = job.model.output_types()
        self._pool = _POOLS[recipe.pooling]
        self._normalize = recipe.normalize
        self._width = int(self.config.hidden_size)

    def predict(self, prepared: Tokens) -> dict[str, Any]:
        vectors = self.run(prepared, self._width, self._vectors).numpy()
        return features.by_column(vectors, self._outputs, "the model")

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


Pool = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From vectors (rows, longest, width) and the attention mask (rows, longest) to vectors (rows, width)."""

_POOLS: dict[str, Pool] = {"mean": _mean, "cls": _cls, "max": _max, "last": _last}


class Classifier(TextModel):
    """A model with one number for each of its labels."""

    most = 2

    def __init__(self, job: ModelJob, folder: ModelFolder) -> None:
        super().__init__(job, folder, "AutoModelForSequenceClassification")
        self._head = LabelHead(job, self.config)

    def predict(self, prepared: Tokens) -> dict[str, Any]:
        scores = self.run(prepared, self._head.width, lambda raw, _: self._head.scores(raw.logits))
        return self._head.of(scores.numpy())


class Entailment(TextModel):
    """A model of natural language inference, for zero-shot classification."""

    def __init__(self, job: ModelJob, folder: ModelFolder) -> None:
        super().__init__(job, folder, "AutoModelForSequenceClassification", cut="only_first")
        options, config = job.model.options, self.config
        labels = options["labels"]
        self._several = options.get("multi_label", False) or len(labels) == 1
        self._made = LabelOutputs(job, labels)
        self._sentences = [options.get("template", TEMPLATE).replace("{}", label) for label in labels]
        self._width = int(config.num_labels)
        self._follows = _place(config, folder)
        # As the pipeline of transformers decides it.
        self._contradicts = self._width - 1 if self._follows == 0 else 0

    def prepare(self, batch: Any) -> Tokens:
        """Tokenise each text with the sentence of each label, all pairs of a text one after the other."""
        (texts,) = self.columns(batch)
        pairs = [(text, sentence) for text in texts for sentence in self._sentences]
        return self.tokenise([text for text, _ in pairs], [sentence for _, sentence in pairs])

    def predict(self, prepared: Tokens) -> dict[str, Any]:
        logits = self.run(prepared, self._width, lambda raw, _: raw.logits)
        logits = logits.reshape(len(logits) // len(self._sentences), len(self._sentences), self._width)
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


_MADE = {
    "entities": pa.list_(pa.string()),
    "labels": pa.list_(pa.string()),
    "scores": pa.list_(pa.float32()),
    "starts": pa.list_(pa.int32()),
    "ends": pa.list_(pa.int32()),
}
_OUTSIDE = "O"
"""The label of tokens that belong to nothing."""


@dataclass(slots=True)
class _Entity:
    """Neighbouring tokens of one label."""

    label: str
    score: float
    """The sum over its tokens."""
    tokens: int
    start: int
    end: int


class Tagger(TextModel):
    """A model with one number for each token and label."""

    def __init__(self, job: ModelJob, folder: ModelFolder) -> None:
        super().__init__(job, folder, "AutoModelForTokenClassification", spans=True)
        self._labels = [str(self.config.id2label[place]) for place in range(self.config.num_labels)]
        self._joins = job.model.options.get("aggregation", "simple") == "simple"

    def prepare(self, batch: Any) -> Any:
        (texts,) = self.columns(batch)
        return texts, self.tokenise(texts)

    def predict(self, prepared: Any) -> dict[str, Any]:
        texts, tokens = prepared
        found: list[list[tuple[int, float]]] = [[] for _ in texts]

        def keep(rows: Array, raw: Any, mask: torch.Tensor) -> None:
            chances, labels = (each.cpu().numpy() for each in raw.logits.float().softmax(-1).max(-1))
            for place, row in enumerate(rows):
                found[row] = list(zip(labels[place].tolist(), chances[place].tolist(), strict=True))

        self.each(tokens, keep)
        made: dict[str, list[list[Any]]] = {name: [] for name in _MADE}
        for row, text in enumerate(texts):
            entities = list(self._entities(tokens.spans[row].tolist(), found[row]))
            made["entities"].append([text[each.start : each.end] for each in entities])
            made["labels"].append([each.label for each in entities])
            made["scores"].append([each.score / each.tokens for each in entities])
            made["starts"].append([each.start for each in entities])
            made["ends"].append([each.end for each in entities])
        return {name: pa.array(made[name], kind) for name, kind in _MADE.items()}

    def _entities(self, spans: list[list[int]], found: list[tuple[int, float]]) -> Iterator[_Entity]:
        """The entities of a text. Neighbours of one label are one entity, unless the later one begins anew ("B-").

        found: the likeliest label of each token and its probability; behind the text's end those of padding.
        """
        now: _Entity | None = None
        for (start, end), (place, score) in zip(spans, found, strict=False):
            if start < 0:
                continue
            label = self._labels[place]
            begins, name = (label[0], label[2:]) if label[:2] in {"B-", "I-"} else ("", label)
            if now is not None and self._joins and now.label == name and begins != "B":
                now.score, now.tokens, now.end = now.score + score, now.tokens + 1, end
                continue
            if now is not None and now.label != _OUTSIDE:
                yield now
            now = _Entity(name if self._joins else label, score, 1, start, end)
        if now is not None and now.label != _OUTSIDE:
            yield now
