"""`uses: xgboost`: a Booster in XGBoost's JSON or UBJSON file."""

from __future__ import annotations

import json
from contextlib import nullcontext
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.job.options import Option, flag
from nightjar.inference.predictors import outputs
from nightjar.inference.predictors.adapter import Adapter, Predictor
from nightjar.inference.predictors.arrays import Array
from nightjar.inference.predictors.batches import BATCH_FORMAT
from nightjar.inference.predictors.installed import missing
from nightjar.inference.predictors.tabular import features
from nightjar.inference.predictors.tabular.boosters import BoosterAdapter

_BUILDS: tuple[str, ...] = ("xgboost-cpu", "xgboost")
"""The distributions that bring the module."""

_ROUNDS = Option(
    "iteration_range",
    {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2, "uniqueItems": True},
    "all rounds",
    "only these rounds of the training: the first one, and the one after the last, as `[0, 50]`",
    "the first round and the one after the last, as [0, 50]",
)

_ENDS = 100
"""Bytes at either end of a file in which its first and last key lie: `learner` and `version`."""


class XGBoost(BoosterAdapter):
    """The `Adapter` of XGBoost. Models run on the CPU."""

    name = "XGBoost"
    libraries = _BUILDS
    extra = "xgboost"
    options: tuple[Option, ...] | None = (
        flag("output_margin", "scores before they are transformed"),
        _ROUNDS,
        BATCH_FORMAT,
    )
    how = "write one with booster.save_model('model.ubj'), or of an XGBClassifier with model.save_model"

    def check_values(self, job: Job) -> None:
        _arguments(job)

    def check_content(self, content: bytes) -> None:
        _check_ends(content[:_ENDS], content[-_ENDS:])

    def warm(self) -> None:
        import xgboost  # noqa: F401 (the import itself is the purpose)

    def loaded(self, job: Job, content: bytes) -> Predictor:
        return _Booster(job, content)


def _check_ends(begin: bytes, end: bytes) -> None:
    """Check both ends, because XGBoost ends the process at an empty file."""
    if begin.startswith((b"binf", b"bs64")):
        raise ValueError("it has the binary format that XGBoost 3 reads no more")
    if not begin.lstrip().startswith(b"{") or b"learner" not in begin:
        raise ValueError("it does not begin as one")
    if not end.rstrip().endswith(b"}") or b"version" not in end:
        raise ValueError("its end is missing")


def _load(job: Job, content: bytes) -> Any:
    try:
        import xgboost
    except ImportError as error:
        raise missing("xgboost", _BUILDS[:1]) from error
    if not hasattr(xgboost.Booster, "get_categories"):
        raise JobError(f"model.uses: the xgboost adapter needs XGBoost 3.1 or newer, not {xgboost.__version__}")
    booster = xgboost.Booster(params={"nthread": job.resources.cores})
    try:
        booster.load_model(bytearray(content))
        booster.num_features()  # raises if nothing was learnt
    except Exception as error:
        said = f"{type(error).__name__}: {_first(error)}"
        raise JobError(f"model.path: XGBoost cannot load {job.model.path}: {said}; {XGBoost.how}") from error
    return booster


def _first(error: Exception) -> str:
    """What an error of XGBoost says, without the addresses of the C++ stack."""
    return str(error).partition("\nStack trace")[0].strip()


def _arguments(job: Job) -> dict[str, Any]:
    """The options, as arguments of `Booster.predict`.

    Raises:
        JobError: One has a value that makes no sense.
    """
    given = {name: value for name, value in job.model.options.items() if name != "batch_format"}
    rounds = given.get("iteration_range", [0, 1])
    if not rounds[0] < rounds[1]:
        raise JobError(f"model.options.iteration_range: write {_ROUNDS.write}, not {rounds!r}")
    return given | ({"iteration_range": tuple(rounds)} if "iteration_range" in given else {})


class _Booster:
    """A trained model as a `Predictor`.

    A model that was trained with names gets the columns of these names; any other gets the features in their order.
    """

    device = "cpu"

    def __init__(self, job: Job, content: bytes) -> None:
        self._outputs = job.model.output_types()
        self._booster = _load(job, content)
        self._arguments = _arguments(job)
        self._threads = job.resources.cores
        self._width: int = self._booster.num_features()
        self._names: list[str] = self._booster.feature_names or []
        trees = json.loads(self._booster.save_config())["learner"]["gradient_booster"]["name"] in {"gbtree", "dart"}
        self._categories = self._stored() if trees else []
        # XGBoost promises that two threads may predict at once only for its trees.
        self._turns = nullcontext() if trees else Lock()
        rounds = self._booster.num_boosted_rounds()
        if self._arguments.get("iteration_range", (0, 1))[1] > max(rounds, 1):
            raise JobError(f"model.options.iteration_range: the model has {rounds} rounds")

    def prepare(self, batch: Any) -> Array:
        """Make the model's input: numbers, and the codes of categories, in the model's order."""
        held = features.named(batch, "xgboost")
        if self._names:
            held = features.in_order(held, self._names)
        # Without a category for each column there are lists in a column, and no names: then there are no categories.
        categories = self._categories if len(self._categories) == len(held) else [None] * len(held)
        values = {
            name: features.numbers(name, column)
            if known is None
            # XGBoost would score a value that it has never seen like the first category.
            else features.codes(name, column, known, refuse_others=True)
            for (name, column), known in zip(held.items(), categories, strict=True)
        }
        return features.matrix(values, self._width, np.float32)

    def predict(self, prepared: Array) -> dict[str, Any]:
        """Call the model. Returns the declared outputs."""
        import xgboost

        if not len(prepared):
            return outputs.empty(self._outputs)
        named = {"feature_names": self._booster.feature_names, "feature_types": self._booster.feature_types}
        try:
            rows = xgboost.DMatrix(prepared, nthread=self._threads, enable_categorical=True, **named)
            with self._turns:
                raw = self._booster.predict(rows, **self._arguments)
        except xgboost.core.XGBoostError as error:
            raise type(error)(_first(error)) from None
        return outputs.by_column(np.asarray(raw), self._outputs, "the model")

    def _stored(self) -> list[pa.Array | None]:
        """The categories of each feature, in the model's order; None for a feature without."""
        stored = self._booster.get_categories(export_to_arrow=True).to_arrow()
        return [categories for _, categories in stored]


ADAPTER: Adapter = XGBoost()
