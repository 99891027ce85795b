"""`uses: catboost`: a model in CatBoost's own binary file (.cbm)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.arrow_types import is_text
from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.job.options import Option, choice, whole
from nightjar.inference.predictors import outputs
from nightjar.inference.predictors.adapter import Adapter, Predictor
from nightjar.inference.predictors.arrays import Array, to_array
from nightjar.inference.predictors.batches import BATCH_FORMAT
from nightjar.inference.predictors.installed import missing
from nightjar.inference.predictors.tabular import features
from nightjar.inference.predictors.tabular.boosters import BoosterAdapter

_NEEDS: tuple[str, ...] = ("catboost",)
_KINDS = ("RawFormulaVal", "Probability", "LogProbability", "Class", "Exponent")
_HEAD = 8
"""Bytes before the trees: `CBM1`, and how many bytes they take."""


class CatBoost(BoosterAdapter):
    """The `Adapter` of CatBoost. Models run on the CPU."""

    name = "CatBoost"
    libraries = _NEEDS
    extra = "catboost"
    options: tuple[Option, ...] | None = (
        choice("prediction_type", _KINDS, "what is computed; a classifier must be told", "`RawFormulaVal`"),
        whole("ntree_end", "only the first trees", "all", "a number of trees"),
        BATCH_FORMAT,
    )
    how = "write one with model.save_model('model.cbm')"

    def check_values(self, job: Job) -> None:
        """Any two fit together."""

    def check_content(self, content: bytes) -> None:
        if not content.startswith(b"CBM1"):
            raise ValueError("it does not begin as one")
        # CatBoost itself reads beyond the end of a file that is cut.
        if len(content) < _HEAD + int.from_bytes(content[4:_HEAD], "little"):
            raise ValueError("its end is missing")

    def warm(self) -> None:
        import catboost  # noqa: F401 (the import itself is the purpose)

    def loaded(self, job: Job, content: bytes) -> Predictor:
        return _Model(job, content)


def _load(job: Job, content: bytes) -> Any:
    try:
        import catboost
    except ImportError as error:
        raise missing("catboost", _NEEDS) from error
    model = catboost.CatBoost()
    try:
        model.load_model(blob=content)
    except catboost.CatBoostError as error:
        said = f"{type(error).__name__}: {error}"
        raise JobError(f"model.path: CatBoost cannot load {job.model.path}: {said}; {CatBoost.how}") from error
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
        self._columns = (
            outputs.of_classes(classes, self._outputs) if kind in {"Probability", "LogProbability"} else None
        )
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
            raise JobError(f"{features.made_of(held, len(held))}, and the model was fitted with {len(self._all)}")
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
        raw = raw if self._columns is None else raw[:, self._columns]
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
