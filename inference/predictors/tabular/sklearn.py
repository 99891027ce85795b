"""`uses: sklearn`: a scikit-learn model in a skops file, which names its types and holds no pickle; or, if the job
trusts it, in a pickle or joblib file.

Types that skops does not trust by default are loaded only if `model.options.trusted` names them. Their packages are
`counted`, too.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.job.options import choice, texts
from nightjar.inference.predictors.adapter import SHARED_BYTES, Adapter, Predictor, check_trusted, missing, unloadable
from nightjar.inference.predictors.arrays import Array, is_frame, is_missing, to_array
from nightjar.inference.predictors.batches import BATCH_FORMAT, framed
from nightjar.inference.predictors.tabular import features

_METHODS = ("predict", "predict_proba", "decision_function")
_TRUSTED = "a list of types with their modules, as [sklearn.tree._tree.Tree]"
_HOW = "write a skops file: skops.io.dump(model, 'model.skops')"


class Sklearn(Adapter):
    """The `Adapter` of scikit-learn. Models run on the CPU. Only a model knows which types of columns it takes."""

    libraries = ("scikit-learn", "skops")
    counted = (libraries[:1],)
    extra = "sklearn"
    cpu_only = True
    options = (
        choice("method", _METHODS, "what is called; a classifier must be told", "`predict`, except for a classifier"),
        texts("trusted", "types that skops may load besides those that it trusts", "none", _TRUSTED),
        BATCH_FORMAT,
    )

    def fingerprint(self, job: ModelJob) -> Mapping[str, str]:
        tops = {name.partition(".")[0] for name in _trusted(job)} - {"sklearn"}
        owners = _owners() if tops else {}
        for top in sorted(tops):
            if top not in owners:
                raise JobError(
                    f"model.options.trusted: there is no installed package {top!r}; install the package that has this "
                    'type, or score with code of your own (`uses: "module:Name"`)'
                )
        of_types = {owners[top][0]: metadata.version(owners[top][0]) for top in sorted(tops)}
        return {**super().fingerprint(job), **of_types}

    def inspect(self, job: ModelJob, path: str) -> None:
        """Check that the file is one of skops, or trusted. `load` checks its types: to import skops takes seconds."""
        if not zipfile.is_zipfile(path):
            check_trusted(job, "a pickle or joblib file", _HOW)
            return
        with zipfile.ZipFile(path) as archive:
            if "schema.json" not in archive.namelist():
                raise JobError(f"model.path: {job.model.path} is not a skops file; {_HOW}")

    def warm(self) -> None:
        with suppress(ImportError):  # a trusted pickle does without it
            import skops.io  # noqa: F401 (the import itself is the purpose)

    def load(self, job: ModelJob, path: str) -> Predictor:
        self.inspect(job, path)
        return _Estimator(job, _load(job, path) if zipfile.is_zipfile(path) else _unpickled(job, path))


@lru_cache(1)
def _owners() -> Mapping[str, list[str]]:
    """The distributions of each importable package. It is slow: it reads the records of everything installed."""
    return metadata.packages_distributions()


def _trusted(job: ModelJob) -> list[str]:
    return list(job.model.options.get("trusted", ()))


def _load(job: ModelJob, path: str) -> Any:
    """Load a model if every type in its file is trusted. path: the local copy; messages name the job's path."""
    try:
        from skops import io
    except ModuleNotFoundError as error:
        raise missing(job.model.uses, "skops") from error

    named, trusted = job.model.path, _trusted(job)
    try:
        unknown = sorted(set(io.get_untrusted_types(file=path)) - set(trusted))
        if not unknown:
            return io.load(path, trusted=trusted)
    except Exception as error:
        raise unloadable("skops", named, path, error, _HOW) from error
    raise JobError(
        f"model.path: {named} holds {', '.join(unknown)}, which skops does not trust: with it a crafted file could run "
        "code or crash the process; if you trust whoever made the file, write "
        f"model.options.trusted: [{', '.join([*trusted, *unknown])}]"
    )


def _unpickled(job: ModelJob, path: str) -> Any:
    """Load a pickle, with or without joblib. The arrays of a large file stay in it, so that all processes of a node
    share them: a write to one changes a copy of the page, and never the file.

    Raises:
        JobError: It cannot be loaded.
    """
    import joblib

    try:
        if Path(path).stat().st_size >= SHARED_BYTES:
            with suppress(UserWarning), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "mmap_mode .* compressed")  # such arrays are read
                warnings.filterwarnings("error", "The memmapped array")  # of a joblib too old to align them
                return joblib.load(path, mmap_mode="c")
        return joblib.load(path)
    except Exception as error:
        raise unloadable("joblib", job.model.path, path, error) from error


class _Estimator:
    """A fitted model as a `Predictor`.

    A model that was fitted with named columns gets a DataFrame with these columns. Any other model gets an array of
    shape (n, F) with the features in their order.
    """

    device = "cpu"

    def __init__(self, job: ModelJob, model: Any) -> None:
        self._outputs = job.model.output_types()
        self._method = _method(job, model)
        self._call = getattr(model, self._method)
        self._names = [str(name) for name in getattr(model, "feature_names_in_", ())]
        self._none = _learnt_none(model)
        self._width: int | None = getattr(model, "n_features_in_", None)
        classes = getattr(model, "classes_", None)
        if self._method == "predict_proba" and isinstance(classes, list):
            raise JobError(
                "model.options.method: each target of the model has classes of its own; write method: predict"
            )
        self._classes = None if self._method == "predict" else classes
        if self._method == "predict_proba":
            features.of_classes(classes, self._outputs)  # outputs that do not fit are refused before a batch is scored

    def prepare(self, batch: Any) -> Any:
        held = features.named(batch)
        if self._names:
            return self._framed(batch, held)
        return features.matrix({name: to_array(column) for name, column in held.items()}, self._width)

    def _framed(self, batch: Any, held: Mapping[str, Any]) -> Any:
        """The features as a DataFrame that shares no memory with the batch, because the model may write into it."""
        import pandas as pd

        ordered = features.in_order(held, self._names)
        if is_frame(batch):
            return batch[self._names]
        if isinstance(batch, pa.Table):
            frame = framed(batch.select(self._names)).copy()
            none = {name: _filled(frame[name].to_numpy(), None) for name in self._names if name in self._none}
            return frame.assign(**none)
        arrays = {name: to_array(column) for name, column in ordered.items()}
        return pd.DataFrame(
            {name: _filled(each, None) if name in self._none else _column(each) for name, each in arrays.items()}
        )

    def predict(self, prepared: Any) -> dict[str, Any]:
        raw = features.ordered(np.asarray(self._call(prepared)), self._classes, self._outputs)
        return features.by_column(raw, self._outputs, self._method)


def _learnt_none(model: Any) -> frozenset[str]:
    """The columns of which an encoder in the model has learnt None as a category, by their names.

    Encoders do not take NaN for None. Which of them a null was in the frame that the model was fitted with depends on
    the version of pandas and on how the frame was read.
    """
    named = zip(getattr(model, "feature_names_in_", ()), getattr(model, "categories_", ()), strict=False)
    own = {str(name) for name, categories in named if any(each is None for each in categories)}
    return frozenset(own.union(*map(_learnt_none, _parts(model))))


def _parts(model: Any) -> Iterator[Any]:
    """The fitted estimators of which a pipeline, a column transformer, an ensemble or a search is made."""
    for name in ("steps", "transformers_", "transformer_list", "estimators_"):
        held = getattr(model, name, ())
        if isinstance(held, list):
            yield from (each[1] if isinstance(each, tuple) else each for each in held)
    if (best := getattr(model, "best_estimator_", None)) is not None:
        yield best


def _column(values: Array) -> Any:
    """A preprocess's array as a column of a DataFrame. Its missing values have the form that pandas gives to those of
    text, None or NaN, whatever else the column holds: where all rows of a batch miss theirs, nothing in the array tells
    a text from a bool, and the model would score these rows otherwise than beside others.
    """
    if values.dtype != object or values.ndim != 1:
        return values
    if all(isinstance(value, str) or is_missing(value) for value in values):
        return pa.array(values, pa.string(), from_pandas=True).to_pandas()
    return _filled(values, pa.nulls(1, pa.string()).to_pandas()[0])


def _filled(values: Array, missing: float | None) -> Any:
    """A copy of the values as a column of a DataFrame, with this in place of each that is missing."""
    import pandas as pd

    gone = np.fromiter(map(is_missing, values), bool, len(values))
    filled = values.astype(object if gone.any() else values.dtype)
    filled[gone] = missing
    return pd.Series(filled, dtype=filled.dtype)  # else it would be inferred as text, whose missing values are NaN


def _method(job: ModelJob, model: Any) -> str:
    from sklearn.base import is_classifier

    kind = type(model).__name__
    asked: str | None = job.model.options.get("method")
    has = [name for name in _METHODS if hasattr(model, name)]
    with suppress(AttributeError):  # an object of another library, with no more than the methods
        if asked is None and "predict" in has and is_classifier(model):
            raise JobError(
                f"model.options.method: the model is a classifier ({kind}); say whether predict (its classes) or "
                f"{' or '.join(has[1:]) or 'nothing else'} is meant"
            )
    method = asked or "predict"
    if method not in has:
        raise JobError(f"model.options.method: {kind} has no {method}; it has {', '.join(has) or 'none that scores'}")
    return method


ADAPTER = Sklearn()
