"""CatBoost's models: the same numbers as the library itself gives. It is no part of `dev`, because it is large."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from modeljobs import model_job
from nightjar.inference.errors import JobError
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import check_keys, load_scorer
from nightjar.inference.predictors.adapter import adapter_of
from nightjar.inference.scoring.assignment import BatchSize
from predicting import score_table

catboost = pytest.importorskip("catboost", reason="pip install 'nightjar-batch[catboost]'")

RANDOM = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "a": RANDOM.random(300, dtype=np.float32),
        "country": RANDOM.choice(["de", "fr", "no"], 300),
        "hour": RANDOM.choice([5, 8, 21], 300),
    }
)
TARGET = FRAME["a"] + (FRAME["country"] == "fr") * 2 + (FRAME["hour"] == 8) * 3
CLASSES = np.array(["high", "low", "mid"])[(FRAME["a"] * 3).astype(int)]
TABLE = pa.Table.from_pandas(FRAME, preserve_index=False)
NUMBERS = ["a", "hour"]


def train(frame: Any, target: Any, kind: Any = catboost.CatBoostRegressor, **extra: Any) -> Any:
    model = kind(iterations=8, thread_count=1, allow_writing_files=False)
    return model.fit(frame, target, verbose=False, **extra)


def saved(folder: Path, model: Any, **section: Any) -> Job:
    """A job with this model."""
    model.save_model(str(folder / "model.cbm"))
    content = {
        "name": "t",
        "input": {"uri": "in/"},
        "model": {"uses": "catboost", "path": "model.cbm", "outputs": {"score": "float64"}, **section},
        "output": {"uri": "out"},
    }
    return parse_job(content, folder / "job.yaml")


def scored(job: Job, table: pa.Table = TABLE) -> dict[str, list[Any]]:
    return {name: values.to_pylist() for name, values in load_scorer(model_job(job), job.models[0].path)(table).items()}


def test_scores_of_numbers_equal_the_librarys_own_nulls_included(tmp_path: Path) -> None:
    frame = FRAME[NUMBERS].astype(float)
    frame.loc[::3, "a"] = np.nan
    model = train(frame, TARGET)
    job = saved(tmp_path, model, features=["hour", "a"])
    gone = pa.array(frame["a"], from_pandas=True)
    assert gone.null_count == 100
    table = pa.table({"a": gone, "hour": TABLE["hour"]})
    assert scored(job, table)["score"] == model.predict(frame).tolist()
    few = saved(tmp_path, model, features=["hour", "a"], options={"ntree_end": 3})
    assert scored(few, table)["score"] == model.predict(frame, ntree_end=3).tolist()


@pytest.mark.parametrize("form", ["text", "dictionary"])
def test_scores_of_categories_equal_the_librarys_own(tmp_path: Path, form: str) -> None:
    """Of text and of whole numbers, also such that it has never seen."""
    model = train(FRAME, TARGET, cat_features=["country", "hour"])
    job = saved(tmp_path, model)
    frame = FRAME.assign(country=FRAME["country"].replace("no", "se"))
    table = pa.Table.from_pandas(frame, preserve_index=False)
    if form == "dictionary":
        table = table.set_column(1, "country", table["country"].combine_chunks().dictionary_encode())
    assert scored(job, table)["score"] == model.predict(frame).tolist()
    unnamed = train(FRAME.to_numpy(object), TARGET, cat_features=[1, 2])
    assert scored(saved(tmp_path, unnamed), table)["score"] == unnamed.predict(frame.to_numpy(object)).tolist()


def test_a_category_that_is_null_costs_its_row_and_a_fraction_is_refused(tmp_path: Path) -> None:
    job = saved(tmp_path, train(FRAME, TARGET, cat_features=["country", "hour"]))
    table = TABLE.slice(0, 4).set_column(1, "country", pa.array(["de", None, "no", "fr"]))
    steps = score_table(
        table, load_scorer(model_job(job), job.models[0].path), BatchSize(8), job.models[0].output_types()
    )
    try:
        while True:
            next(steps)
    except StopIteration as stop:
        failed = [(each.row, each.error) for each in stop.value.failures]
    assert failed == [(1, "ValueError")]
    with pytest.raises(JobError, match=r"^model\.features: 'hour' is double, and the model takes texts or whole"):
        scored(job, TABLE.set_column(2, "hour", TABLE["hour"].cast(pa.float64())))
    with pytest.raises(
        JobError, match=r"^model\.features: 'a' holds text or categories, and the model has none for it"
    ):
        scored(job, TABLE.set_column(0, "a", TABLE["country"]))


def test_a_classifier_must_be_told_what_is_meant(tmp_path: Path) -> None:
    model = train(FRAME[NUMBERS], CLASSES, catboost.CatBoostClassifier)
    table = TABLE.select(NUMBERS)
    with pytest.raises(JobError, match=r"^model\.options\.prediction_type: the model is a classifier; say which of"):
        scored(saved(tmp_path, model), table)
    named = dict.fromkeys(["high", "low", "mid"], "float64")
    found = scored(saved(tmp_path, model, outputs=named, options={"prediction_type": "Probability"}), table)
    np.testing.assert_array_equal(np.array(list(found.values())).T, model.predict_proba(FRAME[NUMBERS]))
    mixed = saved(
        tmp_path,
        model,
        outputs=dict.fromkeys(["mid", "high", "low"], "float64"),
        options={"prediction_type": "Probability"},
    )
    assert scored(mixed, table) == {name: found[name] for name in ["mid", "high", "low"]}
    words = saved(tmp_path, model, outputs={"class": "string"}, options={"prediction_type": "Class"})
    assert scored(words, table)["class"] == model.predict(FRAME[NUMBERS]).reshape(-1).tolist()
    with pytest.raises(JobError, match=r"^model\.outputs: 1 for 3 classes \(high, low, mid\); declare one for each"):
        scored(saved(tmp_path, model, options={"prediction_type": "Probability"}), table)
    regressor = train(FRAME[NUMBERS], TARGET)
    with pytest.raises(JobError, match=r"^model\.options\.prediction_type: the model is no classifier and has no C"):
        scored(saved(tmp_path, regressor, options={"prediction_type": "Class"}), table)


def test_of_two_classes_one_output_is_the_probability_of_the_second(tmp_path: Path) -> None:
    model = train(FRAME[NUMBERS], FRAME["a"] > 0.5, catboost.CatBoostClassifier)
    job = saved(tmp_path, model, options={"prediction_type": "Probability"})
    assert scored(job, TABLE.select(NUMBERS))["score"] == model.predict_proba(FRAME[NUMBERS])[:, 1].tolist()


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"options": {"prediction_type": "Probabilty"}}, r"options\.prediction_type: .* did you mean 'Probability'\?$"),
        ({"options": {"ntree_end": 0}}, r"options\.ntree_end: write a number of trees from 1 on, not 0$"),
    ],
)
def test_keys_that_mean_nothing_to_it_are_refused(tmp_path: Path, section: dict[str, Any], sentence: str) -> None:
    with pytest.raises(JobError, match=rf"^model\.{sentence}"):
        check_keys(saved(tmp_path, train(FRAME[NUMBERS], TARGET), **section))


def test_features_of_text_are_refused_when_it_is_loaded(tmp_path: Path) -> None:
    frame = FRAME[["a"]].assign(words=["a few words"] * 150 + ["other words"] * 150)
    model = train(frame, FRAME["a"] > 0.5, catboost.CatBoostClassifier, text_features=["words"])
    job = saved(tmp_path, model, options={"prediction_type": "Probability"})
    with pytest.raises(JobError, match=r"^model\.path: .* has features of text or embeddings, which the adapter"):
        adapter_of(model_job(job)).load(model_job(job), job.models[0].path)


def test_a_missing_extra_says_which_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = saved(tmp_path, train(FRAME[NUMBERS], TARGET))
    assert adapter_of(model_job(job)).fingerprint(model_job(job)) == {"catboost": version("catboost")}
    monkeypatch.setitem(sys.modules, "catboost", None)  # as Python has it of a module that is not there
    with pytest.raises(JobError, match=r"needs catboost; install it: pip install 'nightjar-batch\[catboost\]'$"):
        load_scorer(model_job(job), job.models[0].path)
