"""`uses: zero-shot`: which of the job's own labels fits a text, by a model that knows what follows from a text.

A model of natural language inference is asked for each text and label whether "This example is LABEL." follows.
"""

from __future__ import annotations

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.job.options import Option, flag, text, texts
from nightjar.inference.predictors.adapter import Adapter, Predictor
from nightjar.inference.predictors.folderadapter import OF_TEXTS, TextAdapter
from nightjar.inference.predictors.modelfolder import ModelFolder

TEMPLATE = "This example is {}."
_OPTIONS = (
    texts(
        "labels",
        "the labels to choose from",
        "required",
        "a list of labels, as [politics, sports], each once",
        least=1,
        required=True,
    ),
    text("template", "the sentence of which the model says whether it follows", f"`{TEMPLATE}`"),
    flag("multi_label", "each label has a score of its own; else the scores of a text are 1 together"),
)


class ZeroShot(TextAdapter):
    """The `Adapter` of zero-shot classification."""

    options: tuple[Option, ...] | None = (*OF_TEXTS, *_OPTIONS)

    def check_values(self, job: Job) -> None:
        if job.model.options.get("template", TEMPLATE).count("{}") != 1:
            raise JobError("model.options.template: write a sentence with one {}, where the label goes")

    def loaded(self, job: Job, folder: ModelFolder) -> Predictor:
        from nightjar.inference.predictors.entailment import Entailment

        return Entailment(job, folder, job.model.options.get("template", TEMPLATE))


ADAPTER: Adapter = ZeroShot()
