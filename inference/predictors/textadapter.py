"""What the adapters of texts share: a transformers model in a folder, with its tokenizer.

The folder has the weights, but not the code that computes with them, nor the one that reads its tokenizer. So the
versions of transformers and tokenizers are part of a result's identity. Code in the folder is never run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.messages import nearest
from nightjar.inference.predictors import features
from nightjar.inference.predictors.adapter import Predictor, check_options, needed
from nightjar.inference.predictors.installed import versions
from nightjar.inference.predictors.modelfolder import look
from nightjar.inference.predictors.torch import OnTorch

EXTRA = "transformers"
_DTYPES = ("float32", "float16", "bfloat16")


class TextAdapter(OnTorch):
    """Base of these adapters. See `adapter.Adapter`.

    options: what `model.options` may name besides what all of them know. columns: the most columns of text they take.
    """

    libraries: tuple[str, ...] = ("transformers", "tokenizers")
    reads_arrow = True
    options: tuple[str, ...] = ()
    columns = 1

    def check_values(self, job: Job) -> None:
        """Check the adapter's own options, and the declared outputs.

        Raises:
            JobError: One makes no sense.
        """
        raise NotImplementedError

    def loaded(self, job: Job, path: str) -> Predictor:
        """The predictor of the model in a folder.

        Raises:
            JobError: The model cannot be loaded, or does not make the outputs.
        """
        raise NotImplementedError

    def check_keys(self, job: Job) -> None:
        """As `Adapter.check_keys`."""
        check_options(job, ("batch_tokens", "max_length", "dtype", *self.options))
        for name in ("batch_tokens", "max_length"):
            value = job.model.options.get(name, 1)
            if type(value) is not int or value < 1:
                raise JobError(f"model.options.{name}: write a number of tokens from 1 on, not {value!r}")
        check_choice(job, "dtype", _DTYPES)
        listed = job.model.features
        if listed is not None and job.preprocess is None and len(listed) > self.columns:
            raise JobError(f"model.features: {len(listed)}, and the {job.model.uses} adapter takes {self._takes()}")
        self.check_values(job)

    def fingerprint(self, job: Job) -> Mapping[str, str]:
        """As `Adapter.fingerprint`."""
        uses = job.model.uses
        return versions(uses, ("transformers",), EXTRA) | versions(uses, ("tokenizers",), EXTRA)

    def check_columns(self, job: Job, schema: pa.Schema) -> None:
        """As `Adapter.check_columns`."""
        names = job.model.features or schema.names
        if len(names) > self.columns:
            raise JobError(
                f"model.features: the {job.model.uses} adapter takes {self._takes()}; say which of {', '.join(names)}"
            )
        for name in names:
            if not features.is_text_or_categories(kind := schema.field(name).type):
                raise JobError(f"model.features: {name!r} is {kind}, and the {job.model.uses} adapter takes text only")

    def inspect(self, job: Job, path: str) -> None:
        """As `Adapter.inspect`."""
        look(job, Path(path), str(job.model.path))

    def devices(self) -> str:
        """None but those of torch, which its own adapter names."""
        return ""

    def warm(self) -> None:
        """As `Adapter.warm`."""
        from importlib import import_module

        import_module("transformers")
        import_module("nightjar.inference.predictors.textmodel")

    def load(self, job: Job, path: str | None) -> Predictor:
        """As `Adapter.load`."""
        path = needed(job, path)
        self.inspect(job, path)
        return self.loaded(job, path)

    def _takes(self) -> str:
        return "one column of text" if self.columns == 1 else f"{self.columns} columns of text at most"


def check_choice(job: Job, option: str, known: tuple[str, ...]) -> None:
    """Check an option whose values have names.

    Raises:
        JobError: Its value is none of them.
    """
    value: Any = job.model.options.get(option, known[0])
    if value not in known:
        raise JobError(
            f"model.options.{option}: {value!r} is not one of {', '.join(known)}" + nearest(str(value), known)
        )


def check_flag(job: Job, option: str) -> None:
    """Check an option that is true or false.

    Raises:
        JobError: It is neither.
    """
    if not isinstance(value := job.model.options.get(option, False), bool):
        raise JobError(f"model.options.{option}: write true or false, not {value!r}")


def check_text(job: Job, option: str) -> None:
    """Check an option that is a text.

    Raises:
        JobError: It is none.
    """
    if not isinstance(value := job.model.options.get(option, ""), str):
        raise JobError(f"model.options.{option}: write a text, not {value!r}")
