"""The adapters of Hugging Face models of texts, one for each task."""

from __future__ import annotations

import pyarrow as pa

from nightjar.inference.arrow_types import is_list, is_number, is_text
from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.job.options import Option, choice, flag, text, texts
from nightjar.inference.predictors.adapter import Adapter, Predictor, needed
from nightjar.inference.predictors.transformers.folderadapter import FUNCTION, OF_TEXTS, TextAdapter, check_made
from nightjar.inference.predictors.transformers.modelfolder import ModelFolder
from nightjar.inference.predictors.transformers.recipe import POOLINGS, recipe_of

_SAY = "what sentence-transformers' files say, else"
_EMBEDDING = (
    choice("pooling", POOLINGS, "how the vectors of a text's tokens become one", f"{_SAY} `mean`"),
    flag("normalize", "vectors of length 1", f"{_SAY} `false`"),
    text("prompt", "stands before each text", "the folder's default prompt, mostly none"),
)


class Embed(TextAdapter):
    """`uses: embed`: one vector for each text, by a Hugging Face or sentence-transformers model in a folder."""

    options: tuple[Option, ...] | None = (*OF_TEXTS, *_EMBEDDING)

    def check_values(self, job: Job) -> None:
        (name, kind), *others = job.model.output_types().items()
        if others or not is_list(kind):
            raise JobError(
                f"model.outputs: the embed adapter makes one output, a vector; write {{{name}: float32[384]}} with the "
                "model's own number"
            )

    def inspect(self, job: Job, path: str) -> None:
        recipe_of(job, path)

    def load(self, job: Job, path: str | None) -> Predictor:
        from nightjar.inference.predictors.transformers.textmodel import Embedder

        return Embedder(job, recipe_of(job, needed(job, path)))


class TextClassification(TextAdapter):
    """`uses: text-classification`: the label of each text, or of each pair of texts, and its score."""

    options: tuple[Option, ...] | None = (*OF_TEXTS, FUNCTION)
    columns = 2

    def check_values(self, job: Job) -> None:
        """Any fit together; only the model knows its labels."""

    def loaded(self, job: Job, folder: ModelFolder) -> Predictor:
        from nightjar.inference.predictors.transformers.textmodel import Classifier

        return Classifier(job, folder)


ENTITIES = {
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
    """`uses: token-classification`: the names, places … that a model finds in each text, with their labels and
    spans.
    """

    options: tuple[Option, ...] | None = (*OF_TEXTS, _AGGREGATION)

    def check_values(self, job: Job) -> None:
        check_made(job, ENTITIES, _is_variable_list)

    def loaded(self, job: Job, folder: ModelFolder) -> Predictor:
        from nightjar.inference.predictors.transformers.textmodel import Tagger

        return Tagger(job, folder)


def _is_variable_list(name: str, kind: pa.DataType) -> bool:
    """Whether it is a list of texts, or of numbers, of any length."""
    if not is_list(kind) or pa.types.is_fixed_size_list(kind):
        return False
    return is_text(kind.value_type) if ENTITIES[name] == "list<string>" else is_number(kind.value_type)


TEMPLATE = "This example is {}."
_LABELS = (
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
    """`uses: zero-shot`: which of the job's own labels fits a text, by a model that knows what follows from a text.

    A model of natural language inference is asked for each text and label whether "This example is LABEL." follows."""

    options: tuple[Option, ...] | None = (*OF_TEXTS, *_LABELS)

    def check_values(self, job: Job) -> None:
        if job.model.options.get("template", TEMPLATE).count("{}") != 1:
            raise JobError("model.options.template: write a sentence with one {}, where the label goes")

    def loaded(self, job: Job, folder: ModelFolder) -> Predictor:
        from nightjar.inference.predictors.transformers.textmodel import Entailment

        return Entailment(job, folder, job.model.options.get("template", TEMPLATE))


EMBED: Adapter = Embed()
TEXT_CLASSIFICATION: Adapter = TextClassification()
TOKEN_CLASSIFICATION: Adapter = TokenClassification()
ZERO_SHOT: Adapter = ZeroShot()
