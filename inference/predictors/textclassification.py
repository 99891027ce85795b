"""`uses: text-classification`: the label of each text, or of each pair of texts, and its score."""

from __future__ import annotations

from nightjar.inference.job.model import Job
from nightjar.inference.job.options import Option, choice
from nightjar.inference.predictors.adapter import Adapter, Predictor
from nightjar.inference.predictors.folderadapter import OF_TEXTS, TextAdapter
from nightjar.inference.predictors.modelfolder import ModelFolder

FUNCTION = choice(
    "function",
    ("softmax", "sigmoid", "none"),
    "what makes scores of the model's numbers",
    "as the library's pipeline decides it",
)


class TextClassification(TextAdapter):
    """The `Adapter` of models that classify texts."""

    options: tuple[Option, ...] | None = (*OF_TEXTS, FUNCTION)
    columns = 2

    def check_values(self, job: Job) -> None:
        """Any fit together; only the model knows its labels."""

    def loaded(self, job: Job, folder: ModelFolder) -> Predictor:
        from nightjar.inference.predictors.classifier import Classifier

        return Classifier(job, folder)


ADAPTER: Adapter = TextClassification()
