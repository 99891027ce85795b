"""Scores labels by whether a sentence with the label follows from a text. Imports torch."""

from __future__ import annotations

from typing import Any

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import outputs
from nightjar.inference.predictors.labels import LabelOutputs
from nightjar.inference.predictors.modelfolder import ModelFolder
from nightjar.inference.predictors.textmodel import OfTexts, TextModel
from nightjar.inference.predictors.tokens import Tokens, text_columns


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
