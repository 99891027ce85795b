"""`uses: embed`: one vector for each text, by a Hugging Face or sentence-transformers model in a folder."""

from __future__ import annotations

from nightjar.inference.arrow_types import is_list
from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.job.options import Option, choice, flag, text
from nightjar.inference.predictors.adapter import Adapter, Predictor, needed
from nightjar.inference.predictors.folderadapter import OF_TEXTS, TextAdapter
from nightjar.inference.predictors.recipe import POOLINGS, recipe_of

_SAY = "what sentence-transformers' files say, else"
_OPTIONS = (
    choice("pooling", POOLINGS, "how the vectors of a text's tokens become one", f"{_SAY} `mean`"),
    flag("normalize", "vectors of length 1", f"{_SAY} `false`"),
    text("prompt", "stands before each text", "the folder's default prompt, mostly none"),
)


class Embed(TextAdapter):
    """The `Adapter` of text embeddings."""

    options: tuple[Option, ...] | None = (*OF_TEXTS, *_OPTIONS)

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
        from nightjar.inference.predictors.embedder import Embedder

        return Embedder(job, recipe_of(job, needed(job, path)))


ADAPTER: Adapter = Embed()
