"""The tasks of Hugging Face models in a folder: texts, images and sound. Each task is one `TaskAdapter`. Code in the
folder is never run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa

from nightjar.inference.arrow_types import is_list
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.job.options import Option, choice, flag, number, text, texts, whole
from nightjar.inference.predictors.adapter import Predictor
from nightjar.inference.predictors.batches import BATCH_FORMAT
from nightjar.inference.predictors.tabular import features
from nightjar.inference.predictors.tabular.features import is_text_or_categories
from nightjar.inference.predictors.tabular.ontorch import OnTorch
from nightjar.inference.predictors.transformers.modelfolder import POOLINGS, look, recipe_of
from nightjar.inference.tensors import is_tensor_type


@dataclass(frozen=True, slots=True)
class Rows:
    """The content of the column that a model reads, and the module that computes with it."""

    takes: str
    """What a row holds, for messages."""
    fits: Callable[[pa.DataType], bool]
    """Whether a column of this type holds it."""
    only: str
    """What the adapter takes, as the end of the message about another column."""
    reads: Mapping[str, bool]
    """What the folder has beside the model: keywords of `look`."""
    counted: tuple[str, ...]
    """The distributions that are `counted`: what computes with the weights, and what reads rows for the model."""
    computes: str
    """The module of the predictors."""
    options: tuple[Option, ...]
    """Those of every task."""


_DTYPE = choice("dtype", ("float32", "float16", "bfloat16"), "the type of weights and computation")
_TOKENS = "a number of tokens"

TEXT = Rows(
    takes="text",
    fits=is_text_or_categories,
    only="text only",
    reads={},
    counted=("transformers", "tokenizers"),
    computes="textpredictors",
    options=(
        whole(
            "batch_tokens",
            "the most tokens of a call of the model, padding included",
            "2,048, on a GPU 65,536",
            _TOKENS,
        ),
        whole(
            "max_length",
            "longer texts are cut after so many tokens",
            "what sentence-transformers' files say, else what model and tokenizer take",
            _TOKENS,
        ),
        _DTYPE,
        BATCH_FORMAT,
    ),
)
IMAGE = Rows(
    takes="images",
    fits=lambda kind: is_tensor_type(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind),
    only="images: arrays height × width × channels, as input.format: image gives them, or the bytes of JPEG, PNG or "
    "WebP files",
    reads={"tokenizer": False, "processor": True},
    counted=("transformers", "pillow"),  # Pillow scales the images
    computes="mediapredictors",
    options=(_DTYPE, BATCH_FORMAT),
)
SOUND = Rows(
    takes="sound",
    fits=lambda kind: is_list(kind) and pa.types.is_floating(kind.value_type),
    only="lists of samples, floats from -1 to 1",
    reads={"processor": True},
    counted=("transformers", "tokenizers"),
    computes="mediapredictors",
    options=(
        _DTYPE,
        whole(
            "sampling_rate", "samples a second of the recordings; the model's own is needed", "the model's", "a number"
        ),
        text("language", "the language that is spoken (Whisper)", "the model finds it"),
        choice("task", ("transcribe", "translate"), "or `translate` into English (Whisper)"),
        BATCH_FORMAT,
    ),
)


class TaskAdapter(OnTorch):
    """The `Adapter` of one task."""

    def __init__(
        self,
        about: str,
        rows: Rows,
        predictor: str,
        options: tuple[Option, ...] = (),
        *,
        columns: int = 1,
        inspect: Callable[..., Any] = look,
    ) -> None:
        """about: for the list of adapters in the docs. predictor: the class in the module of `rows`, constructed with
        the job and what `inspect` returns of the model's folder. columns: the most that the model reads.
        """
        self.__doc__ = about
        self.libraries = tuple(name for name in rows.counted if name != "pillow")
        self.counted = tuple((name,) for name in rows.counted)
        self.extra = "transformers,images" if rows is IMAGE else "transformers"
        self.options = (*rows.options, *options)
        self._rows, self._predictor, self._columns, self._inspect = rows, predictor, columns, inspect

    def check_columns(self, job: ModelJob, schema: pa.Schema) -> None:
        names = job.model.features or schema.names
        features.check_few(names, job.model.uses, self._rows.takes, self._columns)
        features.check_types(job, schema, self._rows.fits, self._rows.only)

    def inspect(self, job: ModelJob, path: str) -> None:
        self._look(job, path)

    def warm(self) -> None:
        import_module("transformers")
        self._module()

    def load(self, job: ModelJob, path: str) -> Predictor:
        folder = self._look(job, path)
        predictor: Predictor = getattr(self._module(), self._predictor)(job, folder)
        return predictor

    def _look(self, job: ModelJob, path: str) -> Any:
        return self._inspect(job, Path(path), str(job.model.path), **self._rows.reads)

    def _module(self) -> Any:
        return import_module(f"nightjar.inference.predictors.transformers.{self._rows.computes}")


FUNCTION = choice(
    "function",
    ("softmax", "sigmoid", "none"),
    "what makes scores of the model's numbers",
    "as the library's pipeline decides it",
)
TEMPLATE = "This example is {}."
THRESHOLD = 0.5
_SAY = "what sentence-transformers' files say, else"

EMBED = TaskAdapter(
    "`uses: embed`: one vector for each text, by a Hugging Face or sentence-transformers model in a folder.",
    TEXT,
    "Embedder",
    (
        choice("pooling", POOLINGS, "how the vectors of a text's tokens become one", f"{_SAY} `mean`"),
        flag("normalize", "vectors of length 1", f"{_SAY} `false`"),
        text("prompt", "stands before each text", "the folder's default prompt, mostly none"),
    ),
    inspect=recipe_of,
)
TEXT_CLASSIFICATION = TaskAdapter(
    "`uses: text-classification`: the label of each text, or of each pair of texts, and its score.",
    TEXT,
    "Classifier",
    (FUNCTION,),
    columns=2,
)
TOKEN_CLASSIFICATION = TaskAdapter(
    "`uses: token-classification`: the names, places … that a model finds in each text, with their labels and spans.",
    TEXT,
    "Tagger",
    (
        choice(
            "aggregation",
            ("simple", "none"),
            "`simple` joins neighbours of one label; `none` gives an entity for each token",
        ),
    ),
)
# A model of natural language inference says for each text and label whether "This example is LABEL." follows.
ZERO_SHOT = TaskAdapter(
    "`uses: zero-shot`: which of the job's own labels fits a text, by a model that knows what follows from a text.",
    TEXT,
    "Entailment",
    (
        texts(
            "labels",
            "the labels to choose from",
            "required",
            "a list of labels, as [politics, sports], each once",
            least=1,
            required=True,
        ),
        text(
            "template",
            "the sentence of which the model says whether it follows",
            f"`{TEMPLATE}`",
            r"((?!\{\})[\s\S])*\{\}((?!\{\})[\s\S])*",
            "a sentence with one {}, where the label goes",
        ),
        flag("multi_label", "each label has a score of its own; else the scores of a text are 1 together"),
    ),
)
IMAGE_CLASSIFICATION = TaskAdapter(
    "`uses: image-classification`: the label of each image, and its score, by a Hugging Face model in a folder.",
    IMAGE,
    "ImageClassifier",
    (FUNCTION,),
)
OBJECT_DETECTION = TaskAdapter(
    "`uses: object-detection`: what a Hugging Face model in a folder finds in each image, with scores and boxes.",
    IMAGE,
    "Detector",
    (number("threshold", "objects with a lower score are left out", f"`{THRESHOLD}`", 0, 1),),
)
SPEECH_RECOGNITION = TaskAdapter(
    "`uses: speech-recognition`: what is said in each recording, by a Hugging Face model in a folder.",
    SOUND,
    "Transcriber",
)
