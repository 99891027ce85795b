"""`uses: token-classification`: the names, places … that a model finds in each text, with their labels and spans."""

from __future__ import annotations

import pyarrow as pa

from nightjar.inference.arrow_types import is_list, is_number, is_text
from nightjar.inference.job.model import Job
from nightjar.inference.job.options import Option, choice
from nightjar.inference.predictors.adapter import Adapter, Predictor
from nightjar.inference.predictors.folderadapter import OF_TEXTS, TextAdapter, check_made
from nightjar.inference.predictors.modelfolder import ModelFolder

MADE = {
    "entities": "list<string>",
    "labels": "list<string>",
    "scores": "list<float32>",
    "starts": "list<int32>",
    "ends": "list<int32>",
}
"""The outputs, each a list with an item for each entity of the text."""


_AGGREGATION = choice(
    "aggregation", ("simple", "none"), "`simple` joins neighbours of one label; `none` gives an entity for each token"
)


class TokenClassification(TextAdapter):
    """The `Adapter` of models that label the tokens of a text."""

    options: tuple[Option, ...] | None = (*OF_TEXTS, _AGGREGATION)

    def check_values(self, job: Job) -> None:
        check_made(job, MADE, _fits)

    def loaded(self, job: Job, folder: ModelFolder) -> Predictor:
        from nightjar.inference.predictors.tagger import Tagger

        return Tagger(job, folder)


def _fits(name: str, kind: pa.DataType) -> bool:
    """Whether it is a list of texts, or of numbers, of any length."""
    if not is_list(kind) or pa.types.is_fixed_size_list(kind):
        return False
    return is_text(kind.value_type) if MADE[name] == "list<string>" else is_number(kind.value_type)


ADAPTER: Adapter = TokenClassification()
