"""`uses: zero-shot`: which of the job's own labels fits a text, by a model that knows what follows from a text.

A model of natural language inference is asked for each text and label whether "This example is LABEL." follows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.predictors.adapter import Adapter, Predictor
from nightjar.inference.predictors.modelfolder import look
from nightjar.inference.predictors.textadapter import TextAdapter, check_flag, check_text

TEMPLATE = "This example is {}."


class ZeroShot(TextAdapter):
    """The `Adapter` of zero-shot classification."""

    options = ("labels", "template", "multi_label")

    def check_values(self, job: Job) -> None:
        labels: Any = job.model.options.get("labels")
        named = isinstance(labels, list | tuple) and labels and all(isinstance(each, str) and each for each in labels)
        if not named or len(set(labels)) != len(labels):
            raise JobError("model.options.labels: write a list of labels, as [politics, sports], each once")
        check_text(job, "template")
        if job.model.options.get("template", TEMPLATE).count("{}") != 1:
            raise JobError("model.options.template: write a sentence with one {}, where the label goes")
        check_flag(job, "multi_label")

    def loaded(self, job: Job, path: str) -> Predictor:
        from nightjar.inference.predictors.entailment import Entailment

        template = job.model.options.get("template", TEMPLATE)
        return Entailment(job, look(job, Path(path), str(job.model.path)), template)


ADAPTER: Adapter = ZeroShot()
