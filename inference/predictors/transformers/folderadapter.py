"""What the adapters of transformers models share: a model in a folder, with what reads its rows.

The folder has the weights, but not the code that computes with them, nor the one that reads texts, images or sounds for
it. So the versions of those libraries are part of a result's identity. Code in the folder is never run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.job.options import Option, choice, whole
from nightjar.inference.messages import nearest
from nightjar.inference.predictors.adapter import Predictor, needed
from nightjar.inference.predictors.batches import BATCH_FORMAT
from nightjar.inference.predictors.installed import versions
from nightjar.inference.predictors.tabular import features
from nightjar.inference.predictors.tabular.torch import OnTorch
from nightjar.inference.predictors.transformers.modelfolder import PROCESSOR, TOKENISER, ModelFolder, look
from nightjar.inference.tensors import is_tensor_type

FUNCTION = choice(
    "function",
    ("softmax", "sigmoid", "none"),
    "what makes scores of the model's numbers",
    "as the library's pipeline decides it",
)
DTYPE = choice("dtype", ("float32", "float16", "bfloat16"), "the type of weights and computation")
_TOKENS = "a number of tokens"
OF_TEXTS = (
    whole(
        "batch_tokens", "the most tokens of a call of the model, padding included", "2,048, on a GPU 65,536", _TOKENS
    ),
    whole(
        "max_length",
        "longer texts are cut after so many tokens",
        "what sentence-transformers' files say, else what model and tokenizer take",
        _TOKENS,
    ),
    DTYPE,
    BATCH_FORMAT,
)
"""The options of every adapter of texts."""

OF_IMAGES = (DTYPE, BATCH_FORMAT)
"""The options of every adapter of images."""


class FolderAdapter(OnTorch):
    """Base of these adapters. See `adapter.Adapter`.

    counted: the distributions whose versions are the fingerprint. takes: what a column holds, as "text". columns: the
    most columns that it takes. readers: what the folder has beside the model, as in `look`. computes: the module that
    runs the model.
    """

    libraries: tuple[str, ...] = ("transformers", "tokenizers")
    counted: tuple[str, ...] = ("transformers", "tokenizers")
    extra = "transformers"
    options: tuple[Option, ...] | None = ()
    reads_arrow = True
    takes = ""
    columns = 1
    readers: tuple[str, ...] = ()
    computes = ""

    def check_values(self, job: Job) -> None:
        """Check that the options fit together, and the declared outputs.

        Raises:
            JobError: One makes no sense.
        """
        raise NotImplementedError

    def check_column(self, name: str, kind: pa.DataType, uses: str) -> None:
        """Check the type of a column that the model gets. uses: the adapter, for messages.

        Raises:
            JobError: It is not what the adapter takes.
        """
        raise NotImplementedError

    def loaded(self, job: Job, folder: ModelFolder) -> Predictor:
        """The predictor of the model in a folder.

        Raises:
            JobError: The model cannot be loaded, or does not make the outputs.
        """
        raise NotImplementedError

    def check_keys(self, job: Job) -> None:
        """As `Adapter.check_keys`."""
        listed = job.model.features
        if listed is not None and job.preprocess is None and len(listed) > self.columns:
            raise JobError(f"model.features: {len(listed)}, and the {job.model.uses} adapter takes {self._takes()}")
        self.check_values(job)

    def fingerprint(self, job: Job) -> Mapping[str, str]:
        """As `Adapter.fingerprint`."""
        found: dict[str, str] = {}
        for library in self.counted:
            found |= versions(job.model.uses, (library,))
        return found

    def check_columns(self, job: Job, schema: pa.Schema) -> None:
        """As `Adapter.check_columns`."""
        names = job.model.features or schema.names
        if len(names) > self.columns:
            raise JobError(
                f"model.features: the {job.model.uses} adapter takes {self._takes()}; say which of {', '.join(names)}"
            )
        for name in names:
            self.check_column(name, schema.field(name).type, job.model.uses)

    def inspect(self, job: Job, path: str) -> None:
        """As `Adapter.inspect`."""
        look(job, Path(path), str(job.model.path), *self.readers)

    def devices(self) -> str:
        """None but those of torch, which its own adapter names."""
        return ""

    def warm(self) -> None:
        """As `Adapter.warm`."""
        import_module("transformers")
        import_module(f"nightjar.inference.predictors.transformers.{self.computes}")

    def load(self, job: Job, path: str | None) -> Predictor:
        """As `Adapter.load`."""
        return self.loaded(job, look(job, Path(needed(job, path)), str(job.model.path), *self.readers))

    def _takes(self) -> str:
        return f"one column of {self.takes}" if self.columns == 1 else f"{self.columns} columns of {self.takes} at most"


class TextAdapter(FolderAdapter):
    """Base of the adapters of texts. options: `OF_TEXTS`, and the adapter's own."""

    options: tuple[Option, ...] | None = OF_TEXTS
    takes = "text"
    readers = (TOKENISER,)
    computes = "textmodel"

    def check_column(self, name: str, kind: pa.DataType, uses: str) -> None:
        """As `FolderAdapter.check_column`."""
        if not features.is_text_or_categories(kind):
            raise JobError(f"model.features: {name!r} is {kind}, and the {uses} adapter takes text only")


class ImageAdapter(FolderAdapter):
    """Base of the adapters of images, which Pillow scales. options: `OF_IMAGES`, and the adapter's own."""

    libraries: tuple[str, ...] = ("transformers",)
    counted = ("transformers", "pillow")
    extra = "transformers,images"
    options: tuple[Option, ...] | None = OF_IMAGES
    takes = "images"
    readers = (PROCESSOR,)
    computes = "imagemodel"

    def check_column(self, name: str, kind: pa.DataType, uses: str) -> None:
        """As `FolderAdapter.check_column`."""
        if not (is_tensor_type(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            raise JobError(
                f"model.features: {name!r} is {kind}, and the {uses} adapter takes images: arrays height × width × "
                "channels, as input.format: image gives them, or the bytes of JPEG, PNG or WebP files"
            )


def check_made(job: Job, made: Mapping[str, str], fits: Callable[[str, pa.DataType], bool]) -> None:
    """Check the declared outputs of an adapter that makes lists. made: their types, by their names.

    Raises:
        JobError: One is not made, or is of another type.
    """
    for name, kind in job.model.output_types().items():
        if name not in made:
            raise JobError(
                f"model.outputs: the {job.model.uses} adapter does not make {name!r}; it makes {', '.join(made)}, "
                "each a list" + nearest(name, made)
            )
        if not fits(name, kind):
            raise JobError(f"model.outputs.{name}: it is {made[name]}, and not {kind}")
