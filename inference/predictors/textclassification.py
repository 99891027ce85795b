"""`uses: text-classification`: the label of each text, or of each pair of texts, and its score."""

from __future__ import annotations

from pathlib import Path

from nightjar.inference.job.model import Job
from nightjar.inference.predictors.adapter import Adapter, Predictor
from nightjar.inference.predictors.modelfolder import look
from nightjar.inference.predictors.textadapter import TextAdapter, check_choice


class TextClassification(TextAdapter):
    """The `Adapter` of models that classify texts. function: what makes scores of the model's numbers."""

    options = ("function",)
    columns = 2

    def check_values(self, job: Job) -> None:
        check_choice(job, "function", ("softmax", "sigmoid", "none"))

    def loaded(self, job: Job, path: str) -> Predictor:
        from nightjar.inference.predictors.classifier import Classifier

        return Classifier(job, look(job, Path(path), str(job.model.path)))


ADAPTER: Adapter = TextClassification()
