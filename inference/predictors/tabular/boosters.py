"""The adapters of boosted trees: LightGBM, XGBoost and CatBoost.

A model is one file in the format of its library, and computes on the CPU.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.arrow_types import is_text
from nightjar.inference.errors import JobError
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.job.options import Option, choice, flag, texts, whole
from nightjar.inference.messages import counted, nearest
from nightjar.inference.predictors.adapter import Adapter, Predictor, unloadable
from nightjar.inference.predictors.arrays import Array, is_empty, to_array
from nightjar.inference.predictors.batches import BATCH_FORMAT
from nightjar.inference.predictors.tabular import features

_CATEGORIES = texts(
    "categories",
    "the features that had pandas' type category in training",
    "the columns of text",
    "a list of features",
    least=1,
)
_ROUNDS = Option(
    "iteration_range",
    {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2, "uniqueItems": True},
    "all rounds",
    "only these rounds of the training: the first one, and the one after the last, as `[0, 50]`",
    "the first round and the one after the last, as [0, 50]",
)
_PREDICTIONS = ("RawFormulaVal", "Probability", "LogProbability", "Class", "Exponent")


class Booster:
    """A loaded model as a `Predictor`. Each library has a subclass, which also describes the library's files.

    A model that was trained with names gets the columns of these names; any other gets the features in their order.
    """

    name: str
    """The library's name, for messages."""
    libraries: tuple[str, ...]
    """The distributions that bring the library. One is enough; messages name the first."""
    options: tuple[Option, ...]
    saving: str
    """How to write a model's file, for messages."""
    refuses_others = False
    """Whether a value that is none of its feature's categories is an error; else it is missing."""
    device = "cpu"

    model: Any
    """The library's own model."""
    names: list[str]
    """The names of the model's features; empty for a model that was trained without names."""
    width: int
    """The number of the model's features."""

    def __init__(self, job: ModelJob, library: Any, content: bytes) -> None:
        """Load the content of a file. Raises `JobError`, or errors of the library."""
        self.outputs = job.model.output_types()
        options = job.model.options.items()
        # The other options are arguments of the library's `predict`.
        self.arguments = {name: value for name, value in options if name not in {"batch_format", "categories"}}

    @staticmethod
    def check_content(content: bytes) -> None:
        """Check that a file is a whole model, as far as the library itself would crash."""
        raise NotImplementedError

    def renamed(self, held: Mapping[str, Any]) -> Mapping[str, Any]:
        """The columns by the names that the library writes into its files."""
        return held

    def categories(self, held: Mapping[str, Any]) -> features.Categories:
        """The categories of each column that has some. held: the columns in the model's order."""
        return {}

    def call(self, prepared: Any) -> Any:
        """Returns an array of shape (n,) or (n, k)."""
        return self.model.predict(prepared, **self.arguments)

    def prepare(self, batch: Any) -> Any:
        """Make the model's input: numbers, and the codes of categories, in the model's order."""
        held = features.named(batch)
        return self.encoded(features.in_order(self.renamed(held), self.names) if self.names else held)

    def encoded(self, held: Mapping[str, Any]) -> Any:
        """The model's input. held: the columns in the model's order."""
        categories = self.categories(held)
        values = {
            name: features.codes(name, column, categories[name], self.refuses_others)
            if name in categories
            else features.numbers(name, column)
            for name, column in held.items()
        }
        return features.matrix(values, self.width, np.float32)

    def predict(self, prepared: Any) -> dict[str, Any]:
        return features.by_column(np.asarray(self.call(prepared)), self.outputs, "the model")


class BoosterAdapter(Adapter):
    """The `Adapter` of one library."""

    cpu_only = True

    def __init__(self, extra: str, booster: type[Booster], import_library: Callable[[], Any]) -> None:
        self.extra = extra
        self._import_library = import_library
        self.libraries = booster.libraries
        self.counted = (booster.libraries,)
        self.options = (*booster.options, BATCH_FORMAT)
        self.__doc__ = booster.__doc__
        self._booster = booster

    def check_columns(self, job: ModelJob, schema: pa.Schema) -> None:
        features.check_types(job, schema, features.is_number_or_text, "numbers and categories only")

    def inspect(self, job: ModelJob, path: str) -> None:
        self._content(job, path)

    def warm(self) -> None:
        try:
            self._import_library()
        except OSError as error:  # LightGBM brings no OpenMP of its own
            raise JobError(
                f"model.uses: {self.extra} cannot be loaded: {error}; install the OpenMP library of the system (on "
                "Debian and Ubuntu: apt-get install libgomp1)"
            ) from error

    def load(self, job: ModelJob, path: str) -> Predictor:
        content = self._content(job, path)
        try:
            return self._booster(job, self._import_library(), content)
        except JobError:
            raise
        except Exception as error:
            raise self._unloadable(job, path, f"{type(error).__name__}: {_without_stack(error)}") from error

    def _content(self, job: ModelJob, path: str) -> bytes:
        try:
            content = Path(path).read_bytes()
            self._booster.check_content(content)
        except (OSError, ValueError) as error:
            raise self._unloadable(job, path, getattr(error, "strerror", None) or str(error)) from error
        return content

    def _unloadable(self, job: ModelJob, path: str, why: str) -> JobError:
        return unloadable(self._booster.name, job.model.path, path, why, self._booster.saving)


class LightGBM(Booster):
    """`uses: lightgbm`: a Booster in LightGBM's own text file."""

    name, libraries = "LightGBM", ("lightgbm",)
    options = (
        flag("raw_score", "scores before they are transformed"),
        flag("pred_leaf", "the leaf of each tree, as `int32[100]` for 100 trees"),
        whole("num_iteration", "only the first trees", "the best round of the training, else all", "a number of trees"),
        _CATEGORIES,
    )
    saving = "write one with booster.save_model('model.txt'), of an LGBMClassifier with model.booster_.save_model"

    @staticmethod
    def check_content(content: bytes) -> None:
        """Check that the trees end where the file says: of one that is cut LightGBM takes those that are whole."""
        if not content.startswith(b"tree\n"):
            raise ValueError("it does not begin as one")
        sizes = re.search(rb"^tree_sizes=([\d ]*)\n\n", content, re.MULTILINE)
        if not sizes:
            raise ValueError("it does not say how long its trees are")
        rest = content[sizes.end() + sum(map(int, sizes[1].split())) :]
        if not rest.startswith(b"end of trees\n") or (b"\nparameters:" in rest and b"\nend of parameters" not in rest):
            raise ValueError("its end is missing")
        if b"\npandas_categorical:" in rest and not rest.endswith(b"\n"):
            raise ValueError("its end is missing")

    def __init__(self, job: ModelJob, library: Any, content: bytes) -> None:
        super().__init__(job, library, content)
        if self.arguments.get("raw_score") and self.arguments.get("pred_leaf"):
            raise JobError("model.options.pred_leaf: leaves have no raw score; remove raw_score or pred_leaf")
        text = content.decode()
        # With the sizes LightGBM reads the trees in parallel, and a fault in one of them ends the process; without them
        # it reads them one after the other, and raises.
        one_by_one = re.sub(r"^tree_sizes=.*\n", "", text, count=1, flags=re.MULTILINE)
        self.model = library.Booster(model_str=one_by_one)
        self.arguments["num_threads"] = job.resources.cores
        names = self.model.feature_name()
        self.width, self.names = len(names), _given(names, "Column_{}")
        try:
            self._lists = [pa.array(each) for each in self.model.pandas_categorical or ()]
        except pa.ArrowException as error:
            raise JobError(f"model.path: {job.model.path} has categories of several types: {error}") from error
        self._named: list[str] = job.model.options.get("categories", [])
        infos = re.search(r"^feature_infos=(.*)$", text, re.MULTILINE)
        self._seen = infos[1].split() if infos else []
        self._categories: features.Categories | None = None if self._lists else {}

    def renamed(self, held: Mapping[str, Any]) -> Mapping[str, Any]:
        """LightGBM writes a space as `_`. A column that has this name already stays the only one with it."""
        written = {name: name.replace(" ", "_") for name in held}
        return {name if name in self.names or written[name] in held else written[name]: held[name] for name in held}

    def categories(self, held: Mapping[str, Any]) -> features.Categories:
        if self._categories is None:
            self._categories = self._categories_of(held)
        return self._categories

    def _categories_of(self, held: Mapping[str, Any]) -> features.Categories:
        """LightGBM writes the lists of categories in the order of the columns, but not of which columns they are: they
        are of the columns of text, or of those that the job names.
        """
        key = "model.options.categories"
        named = {name if name in held else name.replace(" ", "_") for name in self._named}
        for name in named - set(held):
            raise JobError(f"{key}: {name!r} is no column of the model{nearest(name, held)}")
        seen = dict(zip(held, self._seen, strict=True)) if len(held) == len(self._seen) else {}
        found = [name for name, column in held.items() if (name in named if named else features.is_category(column))]
        # Objects without a value may be text: then it is told by the codes that the file has in place of ranges.
        coded = [name for name, values in seen.items() if not values.startswith(("[", "none"))]
        fits = len(coded) == len(self._lists) and set(found) <= set(coded) and not named
        if fits and all(name in found or is_empty(held[name]) for name in coded):
            found = coded
        if len(found) != len(self._lists):
            which = f"{key} names {len(found)}" if named else f"model.features: {len(found)} of the columns hold text"
            raise JobError(
                f"{which}{': ' if found else ''}{', '.join(found)}; the model was trained with "
                f"{counted(len(self._lists), 'column')} of categories. Name the columns that had pandas' type category "
                f"in {key}"
            )
        for name, categories in zip(found, self._lists, strict=True):
            values = re.findall(r"[^\[\]:]+", seen.get(name, "none"))
            highest = max((float(each) for each in values if each != "none"), default=-1)
            if highest >= len(categories):
                raise JobError(
                    f"{key}: {name!r} had codes up to {highest:g} in training, and its list in the model's file has "
                    f"only the codes up to {len(categories) - 1}"
                )
        return dict(zip(found, self._lists, strict=True))


class XGBoost(Booster):
    """`uses: xgboost`: a Booster in XGBoost's JSON or UBJSON file."""

    name, libraries = "XGBoost", ("xgboost-cpu", "xgboost")
    options = (flag("output_margin", "scores before they are transformed"), _ROUNDS)
    saving = "write one with booster.save_model('model.ubj'), or of an XGBClassifier with model.save_model"
    refuses_others = True  # XGBoost would score a value that it has never seen like the first category

    @staticmethod
    def check_content(content: bytes) -> None:
        """Check both ends, where the first key is `learner` and the last one `version`, because XGBoost ends the
        process at an empty file.
        """
        begin, end = content[:100].lstrip(), content[-100:].rstrip()
        if begin.startswith((b"binf", b"bs64")):
            raise ValueError("it has the binary format that XGBoost 3 reads no more")
        if not begin.startswith(b"{") or b"learner" not in begin:
            raise ValueError("it does not begin as one")
        if not end.endswith(b"}") or b"version" not in end:
            raise ValueError("its end is missing")

    def __init__(self, job: ModelJob, library: Any, content: bytes) -> None:
        super().__init__(job, library, content)
        if not hasattr(library.Booster, "get_categories"):
            raise JobError(f"model.uses: the xgboost adapter needs XGBoost 3.1 or newer, not {library.__version__}")
        threads = job.resources.cores
        self.model = model = library.Booster(params={"nthread": threads})
        model.load_model(bytearray(content))
        self.width, self.names = model.num_features(), model.feature_names or []  # raises if nothing was learnt
        named = {"feature_names": model.feature_names, "feature_types": model.feature_types}
        self._rows = partial(library.DMatrix, nthread=threads, enable_categorical=True, **named)
        self._error = library.core.XGBoostError
        trees = json.loads(model.save_config())["learner"]["gradient_booster"]["name"] in {"gbtree", "dart"}
        # The categories of each feature, in the model's order; None for a feature without.
        self._lists = [each for _, each in model.get_categories(export_to_arrow=True).to_arrow()] if trees else []
        # XGBoost promises that two threads may predict at once only for its trees.
        self._turns = nullcontext() if trees else Lock()
        rounds = model.num_boosted_rounds()
        first, end = asked = self.arguments.get(_ROUNDS.name, (0, 1))
        if not first < end <= max(rounds, 1):
            raise JobError(
                f"model.options.{_ROUNDS.name}: {list(asked)}, and the model has {rounds} rounds; write {_ROUNDS.write}"
            )

    def categories(self, held: Mapping[str, Any]) -> features.Categories:
        # With another number of columns there are lists of numbers among them, and no names: then none are categories.
        if len(self._lists) != len(held):
            return {}
        return {name: known for name, known in zip(held, self._lists, strict=True) if known is not None}

    def call(self, prepared: Array) -> Any:
        try:
            rows = self._rows(prepared)
            with self._turns:
                return super().call(rows)
        except self._error as error:
            raise type(error)(_without_stack(error)) from None


class CatBoost(Booster):
    """`uses: catboost`: a model in CatBoost's own binary file (.cbm)."""

    name, libraries = "CatBoost", ("catboost",)
    options = (
        choice("prediction_type", _PREDICTIONS, "what is computed; a classifier must be told", "`RawFormulaVal`"),
        whole("ntree_end", "only the first trees", "all", "a number of trees"),
    )
    saving = "write one with model.save_model('model.cbm')"

    @staticmethod
    def check_content(content: bytes) -> None:
        """Check the length, which follows `CBM1`, because CatBoost reads beyond the end of a file that is cut."""
        if not content.startswith(b"CBM1"):
            raise ValueError("it does not begin as one")
        if len(content) < 8 + int.from_bytes(content[4:8], "little"):
            raise ValueError("its end is missing")

    def __init__(self, job: ModelJob, library: Any, content: bytes) -> None:
        super().__init__(job, library, content)
        self.model = model = library.CatBoost()
        model.load_model(blob=content)
        if model.get_text_feature_indices() or model.get_embedding_feature_indices():
            raise JobError(
                f"model.path: {job.model.path} has features of text or embeddings, which the adapter cannot fill"
            )
        kind = self.arguments.setdefault("prediction_type", None)
        classes = list(model.classes_)
        if kind is None and classes:
            known = ", ".join(_PREDICTIONS)
            raise JobError(f"model.options.prediction_type: the model is a classifier; say which of {known} is meant")
        of_classes = kind in {"Probability", "LogProbability"}
        if not classes and (of_classes or kind == "Class"):
            raise JobError(f"model.options.prediction_type: the model is no classifier and has no {kind}")
        self._classes = None if kind == "Class" else classes
        if of_classes:
            features.of_classes(classes, self.outputs)
        self.arguments |= {"prediction_type": kind or _PREDICTIONS[0], "thread_count": job.resources.cores}
        self._features = list(model.feature_names_)
        self.width, self.names = len(self._features), _given(self._features, "{}")
        self._categorical = {self._features[index] for index in model.get_cat_feature_indices()}

    def encoded(self, held: Mapping[str, Any]) -> Any:
        """Categories are columns of a DataFrame, as they are: CatBoost hashes them."""
        if not self._categorical:
            return super().encoded(held)
        if len(held) != self.width:
            raise JobError(f"{features.made_of(held, len(held))}, and the model was fitted with {self.width}")
        import pandas as pd

        return pd.DataFrame(
            {
                feature: _category(name, column) if feature in self._categorical else features.numbers(name, column)
                for feature, (name, column) in zip(self._features, held.items(), strict=True)
            }
        )

    def call(self, prepared: Any) -> Any:
        return features.ordered(np.asarray(super().call(prepared)), self._classes, self.outputs)


def _category(name: str, column: Any) -> Array:
    """A column of texts or whole numbers, as CatBoost takes categories.

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


def _given(names: list[str], made_up: str) -> list[str]:
    """The names of the features; none if the library made them up because the data had none."""
    return [] if names == [made_up.format(index) for index in range(len(names))] else names


def _without_stack(error: Exception) -> str:
    """What an error says, without the addresses of XGBoost's C++ stack."""
    return str(error).partition("\nStack trace")[0].strip()


LIGHTGBM = BoosterAdapter("lightgbm", LightGBM, lambda: importlib.import_module("lightgbm"))
XGBOOST = BoosterAdapter("xgboost", XGBoost, lambda: importlib.import_module("xgboost"))
CATBOOST = BoosterAdapter("catboost", CatBoost, lambda: importlib.import_module("catboost"))
