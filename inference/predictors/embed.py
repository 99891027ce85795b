"""`uses: embed`: one vector for each text, by a Hugging Face or sentence-transformers model in a folder."""

from __future__ import annotations

from nightjar.inference.arrow_types import is_list
from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.predictors.adapter import Adapter, Predictor
from nightjar.inference.predictors.recipe import POOLINGS, recipe_of
from nightjar.inference.predictors.textadapter import TextAdapter, check_choice, check_flag, check_text


class Embed(TextAdapter):
    """The `Adapter` of text embeddings."""

    options = ("pooling", "normalize", "prompt")

    def check_values(self, job: Job) -> None:
        check_choice(job, "pooling", POOLINGS)
        check_flag(job, "normalize")
        check_text(job, "prompt")
        (name, kind), *others = job.model.output_types().items()
        if others or not is_list(kind):
            raise JobError(
                f"model.outputs: the embed adapter makes one output, a vector; write {{{name}: float32[384]}} with the "
                "model's own number"
            )

    def inspect(self, job: Job, path: str) -> None:
        recipe_of(job, path)

    def loaded(self, job: Job, path: str) -> Predictor:
        from nightjar.inference.predictors.embedder import Embedder

        return Embedder(job, recipe_of(job, path))


ADAPTER: Adapter = Embed()
