"""`uses: lightgbm`: a Booster in LightGBM's own text file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.job.options import Option, flag, texts, whole
from nightjar.inference.messages import counted, nearest
from nightjar.inference.predictors import outputs
from nightjar.inference.predictors.adapter import Adapter, Predictor
from nightjar.inference.predictors.arrays import Array
from nightjar.inference.predictors.batches import BATCH_FORMAT
from nightjar.inference.predictors.installed import missing
from nightjar.inference.predictors.tabular import features
from nightjar.inference.predictors.tabular.boosters import BoosterAdapter

_NEEDS: tuple[str, ...] = ("lightgbm",)
_CATEGORIES = "model.options.categories"


class LightGBM(BoosterAdapter):
    """The `Adapter` of LightGBM. Models run on the CPU."""

    name = "LightGBM"
    libraries = _NEEDS
    extra = "lightgbm"
    options: tuple[Option, ...] | None = (
        flag("raw_score", "scores before they are transformed"),
        flag("pred_leaf", "the leaf of each tree, as `int32[100]` for 100 trees"),
        whole("num_iteration", "only the first trees", "the best round of the training, else all", "a number of trees"),
        texts(
            "categories",
            "the features that had pandas' type category in training",
            "the columns of text",
            "a list of features",
            least=1,
        ),
        BATCH_FORMAT,
    )
    how = "write one with booster.save_model('model.txt'), of an LGBMClassifier with model.booster_.save_model"

    def check_values(self, job: Job) -> None:
        _arguments(job)

    def check_content(self, content: bytes) -> None:
        if not content.startswith(b"tree\n"):
            raise ValueError("it does not begin as one")
        _check_whole(content.decode())

    def warm(self) -> None:
        import lightgbm  # noqa: F401 (the import itself is the purpose)

    def loaded(self, job: Job, content: bytes) -> Predictor:
        return _Booster(job, content.decode())


def _check_whole(text: str) -> None:
    """Check that every tree begins where the file says, because LightGBM ends the process at a tree that is cut."""
    sizes = re.search(r"^tree_sizes=([\d ]*)\n\n", text, re.MULTILINE)
    if not sizes:
        raise ValueError("it does not say how long its trees are")
    trees = text[sizes.end() :].encode()
    place = 0
    for number, size in enumerate(sizes[1].split()):
        if not trees.startswith(b"Tree=%d\n" % number, place):
            raise ValueError(f"tree {number} is not where it should be")
        place += int(size)
    rest = trees[place:].decode()
    if not rest.startswith("end of trees\n") or ("\nparameters:" in rest and "\nend of parameters" not in rest):
        raise ValueError("its end is missing")
    if (last := rest.rstrip().rpartition("\n")[2]).startswith("pandas_categorical:"):
        try:
            json.loads(last.partition(":")[2])
        except ValueError:
            raise ValueError("its end is missing") from None


def _load(job: Job, text: str) -> Any:
    try:
        import lightgbm
    except ImportError as error:
        raise missing("lightgbm", _NEEDS) from error
    except OSError as error:  # LightGBM brings no OpenMP of its own
        raise JobError(
            f"model.uses: lightgbm cannot be loaded: {error}; install the OpenMP library of the system (on Debian and "
            "Ubuntu: apt-get install libgomp1)"
        ) from error
    # With the sizes LightGBM reads the trees in parallel, and a fault in one of them ends the process; without them it
    # reads them one after the other, and raises.
    one_by_one = re.sub(r"^tree_sizes=.*\n", "", text, count=1, flags=re.MULTILINE)
    try:
        return lightgbm.Booster(model_str=one_by_one)
    except (lightgbm.basic.LightGBMError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"
        raise JobError(f"model.path: LightGBM cannot load {job.model.path}: {said}; {LightGBM.how}") from error


def _arguments(job: Job) -> dict[str, Any]:
    """The options, as arguments of `Booster.predict`.

    Raises:
        JobError: One has a value that makes no sense.
    """
    given = {name: value for name, value in job.model.options.items() if name not in {"batch_format", "categories"}}
    if given.get("raw_score") and given.get("pred_leaf"):
        raise JobError("model.options.pred_leaf: leaves have no raw score; remove raw_score or pred_leaf")
    return given


class _Booster:
    """A trained model as a `Predictor`.

    A model that was trained with names gets the columns of these names; any other gets the features in their order.
    """

    device = "cpu"

    def __init__(self, job: Job, text: str) -> None:
        self._outputs = job.model.output_types()
        self._booster = _load(job, text)
        self._arguments = _arguments(job) | {"num_threads": job.resources.cores}
        names = self._booster.feature_name()
        self._width = len(names)
        # These are the names that LightGBM gives where the data has none.
        self._names = [] if names == [f"Column_{place}" for place in range(len(names))] else names
        self._lists = [_as_arrow(job, each) for each in self._booster.pandas_categorical or ()]
        self._named: list[str] = job.model.options.get("categories", [])
        self._seen = _values_seen(text)
        self._categories: features.Categories | None = None if self._lists else {}

    def prepare(self, batch: Any) -> Array:
        """Make the model's input: numbers, and the codes of categories, in the model's order."""
        held = features.named(batch, "lightgbm")
        if self._names:
            held = features.in_order(_renamed(held, self._names), self._names)
        if self._categories is None:
            self._categories = self._categories_of(held)
        categories = self._categories
        values = {
            name: features.codes(name, column, categories[name], refuse_others=False)
            if name in categories
            else features.numbers(name, column)
            for name, column in held.items()
        }
        return features.matrix(values, self._width, np.float32)

    def _categories_of(self, held: Mapping[str, Any]) -> features.Categories:
        """The categories of each column that has some. held: the columns in the model's order.

        LightGBM writes the lists of categories in the order of the columns, but not of which columns they are: they are
        of the columns of text, or of those that the job names.

        Raises:
            JobError: There are more or fewer of these columns than lists, or a column had other values in training.
        """
        named = {name if name in held else name.replace(" ", "_") for name in self._named}
        for name in named - set(held):
            raise JobError(f"{_CATEGORIES}: {name!r} is no column of the model{nearest(name, held)}")
        found = [name for name, column in held.items() if (name in named if named else features.is_category(column))]
        if len(found) != len(self._lists):
            which = f"{_CATEGORIES} names {len(found)}" if named else f"{len(found)} of the columns hold text"
            raise JobError(
                f"{'' if named else 'model.features: '}{which}{': ' if found else ''}{', '.join(found)}; the model was "
                f"trained with {counted(len(self._lists), 'column')} of categories. Name the columns that had pandas' "
                f"type category in {_CATEGORIES}"
            )
        seen = dict(zip(held, self._seen, strict=True)) if len(held) == len(self._seen) else {}
        for name, categories in zip(found, self._lists, strict=True):
            if name in seen and _highest(seen[name]) >= len(categories):
                raise JobError(
                    f"{_CATEGORIES}: {name!r} had codes up to {_highest(seen[name]):g} in training, and its list in "
                    f"the model's file has only the codes up to {len(categories) - 1}"
                )
        return dict(zip(found, self._lists, strict=True))

    def predict(self, prepared: Array) -> dict[str, Any]:
        """Call the model. Returns the declared outputs."""
        if not len(prepared):
            return outputs.empty(self._outputs)
        raw = self._booster.predict(prepared, **self._arguments)
        return outputs.by_column(np.asarray(raw), self._outputs, "the model")


def _as_arrow(job: Job, categories: list[Any]) -> pa.Array:
    try:
        return pa.array(categories)
    except pa.ArrowException as error:
        raise JobError(f"model.path: {job.model.path} has categories of several types: {error}") from error


def _values_seen(text: str) -> list[str]:
    """Each feature's values in training, as the file has them: `0:2:1`, a range `[0:2]`, or `none`."""
    found = re.search(r"^feature_infos=(.*)$", text, re.MULTILINE)
    return found[1].split() if found else []


def _highest(seen: str) -> float:
    """The highest value that was seen of a feature; -1 if none is known."""
    return max((float(each) for each in re.findall(r"[^\[\]:]+", seen) if each != "none"), default=-1)


def _renamed(held: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """The columns under the names that LightGBM gave them: it writes a space as `_`."""
    return {name if name in names else name.replace(" ", "_"): column for name, column in held.items()}


ADAPTER: Adapter = LightGBM()
