"""`uses: token-classification`: the names, places … that a model finds in each text, with their labels and spans."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from nightjar.inference.arrow_types import is_list, is_number, is_text
from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.messages import nearest
from nightjar.inference.predictors.adapter import Adapter, Predictor
from nightjar.inference.predictors.modelfolder import look
from nightjar.inference.predictors.textadapter import TextAdapter, check_choice

MADE = {
    "entities": "list<string>",
    "labels": "list<string>",
    "scores": "list<float32>",
    "starts": "list<int32>",
    "ends": "list<int32>",
}
"""The outputs, each a list with an item for each entity of the text."""


class TokenClassification(TextAdapter):
    """The `Adapter` of models that label the tokens of a text."""

    options = ("aggregation",)

    def check_values(self, job: Job) -> None:
        check_choice(job, "aggregation", ("simple", "none"))
        for name, kind in job.model.output_types().items():
            if name not in MADE:
                raise JobError(
                    f"model.outputs: the token-classification adapter does not make {name!r}; it makes "
                    f"{', '.join(MADE)}, each a list" + nearest(name, MADE)
                )
            if not _fits(kind, text=MADE[name] == "list<string>"):
                raise JobError(f"model.outputs.{name}: it is {MADE[name]}, and not {kind}")

    def loaded(self, job: Job, path: str) -> Predictor:
        from nightjar.inference.predictors.tagger import Tagger

        return Tagger(job, look(job, Path(path), str(job.model.path)))


def _fits(kind: pa.DataType, text: bool) -> bool:
    """Whether it is a list of texts, or of numbers, of any length."""
    if not is_list(kind) or pa.types.is_fixed_size_list(kind):
        return False
    return is_text(kind.value_type) if text else is_number(kind.value_type)


ADAPTER: Adapter = TokenClassification()
