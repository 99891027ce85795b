"""`uses: catboost`: a model in CatBoost's own binary file (.cbm).

The file has the trees, but not the code that walks them. So the version of CatBoost is part of a result's identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.arrow_types import is_text
from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.messages import nearest
from nightjar.inference.predictors import features, outputs
from nightjar.inference.predictors.adapter import (
    Adapter,
    Predictor,
    check_cpu,
    check_no_pickles,
    check_options,
    needed,
)
from nightjar.inference.predictors.arrays import Array, to_array
from nightjar.inference.predictors.installed import missing, versions

_NEEDS = ("catboost",)
_HOW = "write one with model.save_model('model.cbm')"
_KINDS = ("RawFormulaVal", "Probability", "LogProbability", "Class", "Exponent")
_HEAD = 8
"""Bytes before the trees: `CBM1`, and how many bytes they take."""


class CatBoost:
    """The `Adapter` of CatBoost. Models run on the CPU."""

    libraries: tuple[str, ...] = _NEEDS
    reads_arrow = True
    scratch: tuple[str, ...] = ()

    def check_keys(self, job: Job) -> None:
        check_options(job, ("prediction_type", "ntree_end"))
        if (kind := job.model.options.get("prediction_type", _KINDS[0])) not in _KINDS:
            raise JobError(
                f"model.options.prediction_type: {kind!r} is not one of {', '.join(_KINDS)}"
                + nearest(str(kind), _KINDS)
            )
        trees = job.model.options.get("ntree_end", 1)
        if type(trees) is not int or trees < 1:
            raise JobError(f"model.options.ntree_end: write a number of trees from 1 on, not {trees!r}")
        check_no_pickles(job)
        check_cpu(job)

    def fingerprint(self, job: Job) -> Mapping[str, str]:
        return versions("catboost", _NEEDS)

    def check_columns(self, job: Job, schema: pa.Schema) -> None:
        features.check_numbers_and_categories(job, schema)

    def inspect(self, job: Job, path: str) -> None:
        _read(job, path)

    def warm(self) -> None:
        import catboost  # noqa: F401 (the import itself is the purpose)

    def load(self, job: Job, path: str | None) -> Predictor:
        return _Model(job, _read(job, needed(job, path)))

    def memory_errors(self) -> tuple[type[BaseException], ...]:
        """None: CatBoost raises one type, CatBoostError, for whatever it meets; numpy raises a plain MemoryError."""
        return ()

    def device_errors(self) -> tuple[type[BaseException], ...]:
        return ()

    def devices(self) -> str:
        return ""


def _read(job: Job, path: str) -> bytes:
    """The content of the model's file.

    Raises:
        JobError: It is no model of CatBoost, or its trees are not all there.
    """
    try:
        content = Path(path).read_bytes()
        if not content.startswith(b"CBM1"):
            raise ValueError("it does not begin as one")
        # CatBoost itself reads beyond the end of a file that is cut.
        if len(content) < _HEAD + int.from_bytes(content[4:_HEAD], "little"):
            raise ValueError("its end is missing")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise JobError(f"model.path: {job.model.path} is not a readable CatBoost model: {reason}; {_HOW}") from error
    return content


def _load(job: Job, content: bytes) -> Any:
    try:
        import catboost
    except ImportError as error:
        raise missing("catboost", _NEEDS) from error
    model = catboost.CatBoost()
    try:
        model.load_model(blob=content)
    except catboost.CatBoostError as error:
        raise JobError(f"model.path: CatBoost cannot load {job.model.path}: {type(error).__name__}: {error}") from error
    if model.get_text_feature_indices() or model.get_embedding_feature_indices():
        raise JobError(
            f"model.path: {job.model.path} has features of text or embeddings, which the adapter cannot fill"
        )
    return model


class _Model:
    """A trained model as a `Predictor`.

    A model that was trained with names gets the columns of these names; any other gets the features in their order.
    """

    device = "cpu"

    def __init__(self, job: Job, content: bytes) -> None:
        self._outputs = job.model.output_types()
        self._model = _load(job, content)
        kind: str | None = job.model.options.get("prediction_type")
        classes = list(self._model.classes_)
        if kind is None and classes:
            raise JobError(
                "model.options.prediction_type: the model is a classifier; say whether Probability, Class, or one of "
                f"{', '.join(each for each in _KINDS if each not in {'Probability', 'Class'})} is meant"
            )
        if not classes and kind in {"Probability", "LogProbability", "Class"}:
            raise JobError(f"model.options.prediction_type: the model is no classifier and has no {kind}")
        self._positive = kind in {"Probability", "LogProbability"} and outputs.is_positive(classes, self._outputs)
        self._arguments = {"prediction_type": kind or _KINDS[0], "thread_count": job.resources.cores}
        self._arguments["ntree_end"] = job.model.options.get("ntree_end", 0)
        self._all: list[str] = list(self._model.feature_names_)
        # These are the names that CatBoost gives where the data has none.
        self._names = [] if self._all == [str(place) for place in range(len(self._all))] else self._all
        self._categorical = {self._all[place] for place in self._model.get_cat_feature_indices()}

    def prepare(self, batch: Any) -> Any:
        """Make the model's input: an array of numbers, or a DataFrame of numbers and categories."""
        held = features.named(batch, "catboost")
        if self._names:
            held = features.in_order(held, self._names)
        if not self._categorical:
            values = {name: features.numbers(name, column) for name, column in held.items()}
            return features.matrix(values, len(self._all), np.float32)
        if len(held) != len(self._all):
            raise JobError(
                f"model.features: {', '.join(held)} make {len(held)} columns, and the model was fitted with "
                f"{len(self._all)}"
            )
        import pandas as pd

        return pd.DataFrame(
            {
                known: _category(name, column) if known in self._categorical else features.numbers(name, column)
                for known, (name, column) in zip(self._all, held.items(), strict=True)
            }
        )

    def predict(self, prepared: Any) -> dict[str, Any]:
        """Call the model. Returns the declared outputs."""
        if not len(prepared):
            return outputs.empty(self._outputs)
        raw = np.asarray(self._model.predict(prepared, **self._arguments))
        if self._positive:
            raw = raw[:, 1]
        return outputs.by_column(raw, self._outputs, "the model")


def _category(name: str, column: Any) -> Array:
    """A column of texts or whole numbers, which CatBoost hashes.

    Raises:
        JobError: It has other numbers, which have no one spelling.
        ValueError: It has a null.
    """
    if isinstance(column, pa.Array | pa.ChunkedArray):
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if not (is_text(kind) or pa.types.is_integer(kind)):
            raise JobError(f"model.features: {name!r} is {kind}, and the model takes texts or whole numbers there")
        if column.null_count:
            raise ValueError(f"feature {name!r} has a null, and CatBoost has none among categories; give it a text")
    return to_array(column)


ADAPTER: Adapter = CatBoost()
