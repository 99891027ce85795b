"""The names that a job may use, and their modules. A new implementation is one line here and one module there."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework."""

    module: str
    """The module whose `ADAPTER` is a `predictors.adapter.Adapter`; "module:NAME" where a module has several."""

    model: str = "a model's folder"
    """What `model.path` names, for messages; '' if there is no model to name, and for `OWN`."""

    packs: bool = False
    """Whether its predictors sort and pack the rows of a micro-batch themselves, so that `batch_size: auto` is
    thousands of rows."""

    code: tuple[str, ...] = ()
    """The options that name the user's objects, as "module:name", which its adapter checks."""

    rows: tuple[int, int] | None = None
    """The rows of `batch_size: auto`, on the CPU and on a GPU, where all rows weigh the same; else None."""

    streams: bool = False
    """Whether the model is asked row by row, so that several shards are scored at once."""

    own_keys: bool = False
    """Whether its options are keys of `model`, and not of `model.options`."""

    documents: tuple[str, ...] = ()
    """The options that may name a JSON or YAML file."""

    aside: tuple[str, ...] = ()
    """The options that change no output."""

    inexact: bool = False
    """Whether a row's neighbours change its rounding, by padding, packing or dynamic quantisation."""

    def adapter(self) -> Any:
        """Import the module. Returns its `predictors.adapter.Adapter`, which this room does not know."""
        module, _, name = self.module.partition(":")
        return getattr(import_module(module), name or "ADAPTER")


ASKED_ROWS = (64, 512)
"""Of a micro-batch of prompts, on the CPU and on a GPU: a large model with long answers has them in `retry.stall_s`."""

_TABULAR = "nightjar.inference.predictors.tabular"
_TRANSFORMERS = "nightjar.inference.predictors.transformers"
_LANGUAGE = "nightjar.inference.predictors.language"

FRAMEWORKS = {
    "torch": Framework(
        f"{_TABULAR}.torch",
        "an exported program (.pt2), TorchScript (.pt) or weights (.pt, .pth, .safetensors)",
        code=("model",),
    ),
    "sklearn": Framework(f"{_TABULAR}.sklearn", "a skops file (.skops), or a pickle or joblib file"),
    "onnx": Framework(f"{_TABULAR}.onnx", "an ONNX model (.onnx, or its folder)", inexact=True),
    "lightgbm": Framework(f"{_TABULAR}.boosters:LIGHTGBM", "a Booster's text file (.txt)"),
    "xgboost": Framework(f"{_TABULAR}.boosters:XGBOOST", "a Booster's file (.json or .ubj)"),
    "catboost": Framework(f"{_TABULAR}.boosters:CATBOOST", "a model's binary file (.cbm)"),
    "keras": Framework(f"{_TABULAR}.keras", "a model that Keras saved (.keras or .h5)"),
    "embed": Framework(f"{_TRANSFORMERS}.tasks:EMBED", packs=True, inexact=True),
    "text-classification": Framework(f"{_TRANSFORMERS}.tasks:TEXT_CLASSIFICATION", packs=True, inexact=True),
    "token-classification": Framework(f"{_TRANSFORMERS}.tasks:TOKEN_CLASSIFICATION", packs=True, inexact=True),
    "zero-shot": Framework(f"{_TRANSFORMERS}.tasks:ZERO_SHOT", packs=True, inexact=True),
    "image-classification": Framework(f"{_TRANSFORMERS}.tasks:IMAGE_CLASSIFICATION", rows=(32, 128)),
    "object-detection": Framework(f"{_TRANSFORMERS}.tasks:OBJECT_DETECTION", rows=(4, 16), inexact=True),
    "speech-recognition": Framework(f"{_TRANSFORMERS}.tasks:SPEECH_RECOGNITION", rows=(4, 16), inexact=True),
    "vllm": Framework(
        f"{_LANGUAGE}.vllm",
        rows=ASKED_ROWS,
        streams=True,
        own_keys=True,
        documents=("json_schema",),
        aside=("requests_in_flight",),
    ),
    "ray.data.llm": Framework(
        f"{_LANGUAGE}.raydatallm",
        code=("config", "preprocess", "postprocess"),
        rows=ASKED_ROWS,
        streams=True,
        own_keys=True,
        aside=("requests_in_flight",),
    ),
    "openai": Framework(
        f"{_LANGUAGE}.openai",
        "",
        rows=(128, 128),
        streams=True,
        own_keys=True,
        documents=("json_schema",),
        aside=("requests_in_flight", "timeout_s", "key_env", "cost"),
    ),
}
"""`model.uses` → the framework; anything else is "module:Name" of the user's own."""

OWN = Framework("nightjar.inference.predictors.user", "")
"""What a class or function of the user's own has in place of a framework. Its `model.path` may be anything."""

SOURCES = {
    "parquet": "nightjar.inference.input.sources.parquet",
    "jsonl": "nightjar.inference.input.sources.jsonlines",
    "csv": "nightjar.inference.input.sources.csv",
    "arrow": "nightjar.inference.input.sources.arrow",
    "text": "nightjar.inference.input.sources.text",
    "image": "nightjar.inference.input.sources.image",
    "audio": "nightjar.inference.input.sources.audio",
    "binary": "nightjar.inference.input.sources.binary",
    "tar": "nightjar.inference.input.sources.tar",
    "delta": "nightjar.inference.input.sources.delta",
    "iceberg": "nightjar.inference.input.sources.iceberg",
    "lance": "nightjar.inference.input.sources.lance",
    "sql": "nightjar.inference.input.sources.sql",
}
"""`input.format` → the module whose `SOURCE` is an `input.sources.protocol.Source`. The first one reads a file that the
job names by its path, and whose name tells no format."""

UNCOUNTED_SOURCES = frozenset({"parquet", "delta", "iceberg", "lance", "sql"})
"""Those of them that are no part of a result's identity where a job names them. A file that can be read as Parquet can
be read as nothing else, and of a table the files that it lists count. The others may read one file in several ways."""

TARGETS = {
    "delta": "nightjar.inference.output.targets.delta",
}
"""The kind of a table in `output.tables` → the module that has `open_target`, as `output.targets` describes it."""
