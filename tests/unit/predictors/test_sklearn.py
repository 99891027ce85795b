"""scikit-learn models in skops files: what is trusted, which method is called, and what becomes of its answer."""

from __future__ import annotations

import datetime as dt
import pickle
import shutil
import sys
import zipfile
from collections.abc import Iterator
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forks import forks_have
from lazily import lazily
from modeljobs import model_job
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import JobError
from nightjar.inference.history.replay import replay_row
from nightjar.inference.identity.differences import differences
from nightjar.inference.identity.identity import fix, identify
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import check_keys, load_scorer
from nightjar.inference.predictors.adapter import adapter_of
from nightjar.inference.storage.lake import LakeStorage
from support import Lake

skops = lazily("skops")
LGBMClassifier = lazily("lightgbm", "LGBMClassifier")
make_column_transformer = lazily("sklearn.compose", "make_column_transformer")
RandomForestClassifier = lazily("sklearn.ensemble", "RandomForestClassifier")
LinearRegression = lazily("sklearn.linear_model", "LinearRegression")
LogisticRegression = lazily("sklearn.linear_model", "LogisticRegression")
RidgeClassifier = lazily("sklearn.linear_model", "RidgeClassifier")
make_pipeline = lazily("sklearn.pipeline", "make_pipeline")
OneHotEncoder = lazily("sklearn.preprocessing", "OneHotEncoder")
StandardScaler = lazily("sklearn.preprocessing", "StandardScaler")


@pytest.fixture(scope="module", autouse=True)
def _forks_have_sklearn() -> Iterator[None]:
    with forks_have("sklearn.linear_model", "skops.io"):
        yield


NUMBERS = np.random.default_rng(0).random((60, 2))
TABLE = pa.table({"a": NUMBERS[:, 0], "b": NUMBERS[:, 1]})
TWO = NUMBERS[:, 0] > 0.5
THREE = np.array(["high", "low", "mid"])[(NUMBERS[:, 0] * 3).astype(int)]


def saved(folder: Path, model: Any, preprocess: str | None = None, **section: Any) -> Job:
    """A job with this model."""
    skops.io.dump(model, folder / "model.skops")
    content = {
        "name": "t",
        "input": {"uri": "in/"},
        "model": {"uses": "sklearn", "path": "model.skops", "outputs": {"score": "float64"}, **section},
        "output": {"uri": "out"},
        **({"preprocess": preprocess} if preprocess else {}),
    }
    return parse_job(content, folder / "job.yaml")


def scored(job: Job, table: pa.Table = TABLE) -> dict[str, list[Any]]:
    return {name: values.to_pylist() for name, values in load_scorer(model_job(job), job.models[0].path)(table).items()}


def options(**options: Any) -> dict[str, Any]:
    return {"options": options}


def test_a_classifier_must_be_told_what_is_meant(tmp_path: Path) -> None:
    """Its classes as numbers, or their probability: a guess would be published for a night."""
    job = saved(tmp_path, LogisticRegression().fit(NUMBERS, TWO))
    with pytest.raises(
        JobError,
        match=r"^model\.options\.method: .* classifier \(LogisticRegression\); say whether predict .* or predict_proba "
        "or decision_function is meant$",
    ):
        load_scorer(model_job(job), job.models[0].path)


def test_of_two_classes_one_output_is_the_probability_of_the_second(tmp_path: Path) -> None:
    model = LogisticRegression().fit(NUMBERS, TWO)
    job = saved(tmp_path, model, **options(method="predict_proba"))
    assert scored(job)["score"] == model.predict_proba(NUMBERS)[:, 1].tolist()


def test_several_outputs_are_the_classes_in_their_order(tmp_path: Path) -> None:
    model = LogisticRegression().fit(NUMBERS, THREE)
    named = dict.fromkeys(["high", "low", "mid"], "float64")
    found = scored(saved(tmp_path, model, outputs=named, **options(method="predict_proba")))
    np.testing.assert_array_equal(np.array(list(found.values())).T, model.predict_proba(NUMBERS))
    listed = scored(saved(tmp_path, model, outputs={"all": "float64[3]"}, **options(method="predict_proba")))
    assert listed["all"] == model.predict_proba(NUMBERS).tolist()


def test_outputs_with_the_names_of_classes_are_these_in_any_order(tmp_path: Path) -> None:
    """By position each would be published under the name of another class."""
    model = LogisticRegression().fit(NUMBERS, THREE)
    proba = dict(zip(["high", "low", "mid"], model.predict_proba(NUMBERS).T.tolist(), strict=True))
    decided = dict(zip(["high", "low", "mid"], model.decision_function(NUMBERS).T.tolist(), strict=True))
    for names in (["mid", "high", "low"], ["low", "high"], ["high"]):
        for method, expected in (("predict_proba", proba), ("decision_function", decided)):
            job = saved(tmp_path, model, outputs=dict.fromkeys(names, "float64"), **options(method=method))
            assert scored(job) == {name: expected[name] for name in names}
    job = saved(tmp_path, model, outputs=dict.fromkeys(["a", "b", "low"], "float64"), **options(method="predict_proba"))
    with pytest.raises(JobError, match=r"^model\.outputs: 'low' is a class of the model, and 'a' is none; name each"):
        load_scorer(model_job(job), job.models[0].path)


def test_outputs_that_do_not_fit_the_classes_are_refused_when_it_is_loaded(tmp_path: Path) -> None:
    model = LogisticRegression().fit(NUMBERS, THREE)
    job = saved(tmp_path, model, **options(method="predict_proba"))
    with pytest.raises(JobError, match=r"^model\.outputs: 1 for 3 classes \(high, low, mid\); declare one for each"):
        load_scorer(model_job(job), job.models[0].path)


def test_classes_and_decisions_are_outputs_too(tmp_path: Path) -> None:
    model = LogisticRegression().fit(NUMBERS, THREE)
    words = saved(tmp_path, model, outputs={"class": "string"}, **options(method="predict"))
    assert scored(words)["class"] == model.predict(NUMBERS).tolist()
    named = dict.fromkeys(["high", "low", "mid"], "float64")
    found = scored(saved(tmp_path, model, outputs=named, **options(method="decision_function")))
    np.testing.assert_array_equal(np.array(list(found.values())).T, model.decision_function(NUMBERS))


def test_a_regressor_of_several_targets_has_an_output_for_each(tmp_path: Path) -> None:
    model = LinearRegression().fit(NUMBERS, NUMBERS * 2)
    found = scored(saved(tmp_path, model, outputs={"x": "float64", "y": "float64"}))
    np.testing.assert_allclose(np.array([found["x"], found["y"]]).T, NUMBERS * 2)


def test_a_method_that_the_model_has_not_is_said_with_those_it_has(tmp_path: Path) -> None:
    job = saved(tmp_path, RidgeClassifier().fit(NUMBERS, TWO), **options(method="predict_proba"))
    with pytest.raises(JobError, match=r"RidgeClassifier has no predict_proba; it has predict, decision_function$"):
        load_scorer(model_job(job), job.models[0].path)


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        (
            options(method="predict_probe"),
            r"options\.method: 'predict_probe' is not one of .*you mean 'predict_proba'",
        ),
        (
            options(metod="predict"),
            r"options\.metod: the sklearn adapter knows only the options .*did you mean 'method'",
        ),
        (options(trusted="sklearn.tree._tree.Tree"), r"options\.trusted: write a list"),
    ],
)
def test_keys_that_mean_nothing_to_it_are_refused(tmp_path: Path, section: dict[str, Any], sentence: str) -> None:
    with pytest.raises(JobError, match=rf"^model\.{sentence}"):
        check_keys(saved(tmp_path, LinearRegression(), **section))


# ---- features -----------------------------------------------------------------------------------------------


def test_a_model_that_was_fitted_with_names_gets_its_columns_by_name(tmp_path: Path) -> None:
    """Whatever order they have: as a DataFrame, text included."""
    frame = pd.DataFrame({"a": NUMBERS[:, 0], "kind": THREE})
    encode = make_column_transformer((OneHotEncoder(), ["kind"]), remainder="passthrough")
    model = make_pipeline(encode, LinearRegression()).fit(frame, NUMBERS[:, 1])
    table = pa.table({"kind": THREE, "a": NUMBERS[:, 0]})
    assert scored(saved(tmp_path, model), table)["score"] == model.predict(frame).tolist()


@pytest.mark.parametrize("form", ["numpy", "pandas", "pyarrow"])
def test_the_order_is_the_models_in_any_batch_format(tmp_path: Path, form: str) -> None:
    frame = TABLE.to_pandas()
    model = LinearRegression().fit(frame, frame["a"] - frame["b"])
    job = saved(tmp_path, model, features=["b", "a"], **options(batch_format=form))
    np.testing.assert_allclose(scored(job)["score"], frame["a"] - frame["b"])


@pytest.mark.parametrize("form", ["", "numpy", "pandas", "pyarrow"])
def test_a_row_without_a_text_is_scored_alone_as_among_others(tmp_path: Path, form: str) -> None:
    """A null is a category of its own here. Where no row of a batch had a text, it was an unknown one."""
    frame = pd.DataFrame({"c": ["a", "b", None, "a"], "x": [1.0, 2.0, 3.0, 4.0]})
    encoded = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["c"]), ("passthrough", ["x"]))
    model = make_pipeline(encoded, LinearRegression()).fit(frame, [1, 2, 30, 1])
    if form:
        (tmp_path / "same.py").write_text("def prep(batch):\n    return batch\n")
    own = ("same:prep", options(batch_format=form)) if form else (None, {})
    job = saved(tmp_path, model, own[0], features=["c", "x"], **own[1])
    table = pa.table({"c": ["b", None, None, "a"], "x": [1.0, 3.0, 3.0, 4.0]})
    together = scored(job, table)["score"]
    np.testing.assert_allclose(together, model.predict(table.to_pandas()))
    assert together[1] == pytest.approx(30)
    alone = [scored(job, table.slice(row, 1))["score"][0] for row in range(4)]
    np.testing.assert_allclose(alone, together)


FLAGS = [True, False, None, True]


@pytest.mark.parametrize("form", ["", "numpy", "pandas", "pyarrow"])
@pytest.mark.parametrize("learnt", ["None", "NaN"])
@pytest.mark.parametrize("nested", [False, True], ids=["encoder", "nested"])
def test_a_row_without_a_bool_is_scored_alone_as_among_others(
    tmp_path: Path, form: str, learnt: str, nested: bool
) -> None:
    """A null is a category of its own here: None, as pandas reads bools from Arrow. Where no row of a batch had a bool,
    it was NaN, as of a text, which is another category. A model that has learnt NaN gets that from a preprocess's
    arrays, from which nobody can tell a bool from a text.
    """
    flags = pd.Series([np.nan if flag is None and learnt == "NaN" else flag for flag in FLAGS], dtype=object)
    frame = pd.DataFrame({"b": flags, "x": [1.0, 2.0, 3.0, 4.0]})
    encoder = OneHotEncoder(handle_unknown="ignore")
    encoded = make_column_transformer((make_pipeline(encoder) if nested else encoder, ["b"]), remainder="passthrough")
    model = make_pipeline(encoded, LinearRegression()).fit(frame, [1, 2, 30, 1])
    (tmp_path / "same.py").write_text("def prep(batch):\n    return batch\n")
    own = ("same:prep", options(batch_format=form)) if form else (None, {})
    job = saved(tmp_path, model, own[0], features=["b", "x"], **own[1])
    table = pa.table({"b": [False, None, None, True], "x": [1.0, 3.0, 3.0, 4.0]})
    together = scored(job, table)["score"]
    alone = [scored(job, table.slice(row, 1))["score"][0] for row in range(4)]
    np.testing.assert_allclose(alone, together)
    if learnt == "None" or form == "numpy":
        assert together[1:3] == pytest.approx([30, 30])


@pytest.mark.parametrize("form", ["", "numpy", "pyarrow"])
def test_a_missing_text_is_none_to_a_model_that_has_learnt_none(tmp_path: Path, form: str) -> None:
    """As one that was fitted with an earlier pandas, which has None where a text is missing."""
    frame = pd.DataFrame({"c": pd.Series(["a", "b", None, "a"], dtype=object), "x": [1.0, 2.0, 3.0, 4.0]})
    encoded = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["c"]), ("passthrough", ["x"]))
    model = make_pipeline(encoded, LinearRegression()).fit(frame, [1, 2, 30, 1])
    (tmp_path / "same.py").write_text("def prep(batch):\n    return batch\n")
    own = ("same:prep", options(batch_format=form)) if form else (None, {})
    job = saved(tmp_path, model, own[0], features=["c", "x"], **own[1])
    table = pa.table({"c": ["b", None, "a"], "x": [1.0, 3.0, 4.0]})
    together = scored(job, table)["score"]
    assert together[1] == pytest.approx(30)
    assert [scored(job, table.slice(row, 1))["score"][0] for row in range(3)] == pytest.approx(together)


@pytest.mark.parametrize(
    "values",
    [[True, None], [2**63, None], [Decimal("1.5"), np.nan], ["a", 3, pd.NA], [dt.date(2026, 1, 1), pd.NaT]],
    ids=["bools", "large integers", "decimals", "mixed", "dates"],
)
def test_objects_that_are_missing_have_one_form_whatever_is_beside_them(tmp_path: Path, values: list[Any]) -> None:
    """Of a model that does not say what it has learnt: the form that pandas gives to a missing text."""
    job = saved(tmp_path, LinearRegression().fit(pd.DataFrame({"v": [0.0, 1.0]}), [0, 1]))
    predictor = adapter_of(model_job(job)).load(model_job(job), job.models[0].path)
    column = np.array(values, dtype=object)
    *_, together = predictor.prepare({"v": column})["v"]
    (alone,) = predictor.prepare({"v": column[-1:]})["v"]
    assert repr(together) == repr(alone) == repr(pa.nulls(1, pa.string()).to_pandas()[0])
    assert column[-1] is values[-1]


def test_names_that_do_not_agree_are_said(tmp_path: Path) -> None:
    job = saved(tmp_path, LinearRegression().fit(pd.DataFrame({"a": NUMBERS[:, 0], "b": TWO}), TWO))
    with pytest.raises(JobError, match=r"^model\.features: the model was fitted with 'b', .* gets: a, c$"):
        scored(job, TABLE.rename_columns(["a", "c"]))
    with pytest.raises(JobError, match=r"^model\.features: 'c' is unknown to the model, .* fitted with a, b$"):
        scored(job, TABLE.append_column("c", TABLE["a"]))


def test_the_model_may_write_over_what_it_is_given(tmp_path: Path) -> None:
    """That is never what is carried."""
    model = make_pipeline(StandardScaler(copy=False), LinearRegression()).fit(NUMBERS.copy(), TWO)
    before = TABLE.to_pydict()
    first = scored(saved(tmp_path, model))
    assert TABLE.to_pydict() == before
    assert scored(saved(tmp_path, model)) == first


# ---- trust, and what counts ---------------------------------------------------------------------------------

TREE = "sklearn.tree._tree.Tree"


def test_a_type_that_skops_does_not_trust_is_refused_by_name_until_the_job_names_it(tmp_path: Path) -> None:
    forest = RandomForestClassifier(3, random_state=0).fit(NUMBERS, TWO)
    job = saved(tmp_path, forest, **options(method="predict_proba"))
    copy = shutil.copy(str(job.models[0].path), tmp_path / "copy.skops")  # as each process that scores has one
    with pytest.raises(JobError) as caught:
        load_scorer(model_job(job), copy)
    said = str(caught.value)
    assert said.startswith(f"model.path: {job.models[0].path} holds {TREE}, which skops does not trust")
    assert said.endswith(f"write model.options.trusted: [{TREE}]")
    assert "\n" not in said
    job = saved(tmp_path, forest, **options(method="predict_proba", trusted=[TREE]))
    assert scored(job)["score"] == forest.predict_proba(NUMBERS)[:, 1].tolist()


def test_an_archive_that_is_not_by_skops_is_refused(tmp_path: Path) -> None:
    job = saved(tmp_path, LinearRegression())
    with zipfile.ZipFile(tmp_path / "model.skops", "w") as archive:
        archive.writestr("schema.json", '{"fields": []}')
    with pytest.raises(JobError, match=r"^model\.path: skops cannot load .*; write a skops file: skops\.io\.dump"):
        load_scorer(model_job(job), job.models[0].path)


class Summing:
    """No class of scikit-learn's."""

    def predict(self, x: np.ndarray) -> np.ndarray:
        return x.sum(axis=1)


def test_a_trusted_object_needs_no_more_than_the_method_that_is_called(tmp_path: Path) -> None:
    job = saved(tmp_path, LinearRegression(), path="model.bin", trusted=True)
    joblib.dump(Summing(), tmp_path / "model.bin")
    assert scored(job)["score"] == NUMBERS.sum(axis=1).tolist()


@pytest.mark.parametrize("how", ["pickle", "joblib", "compressed"])
def test_a_pickle_is_loaded_only_if_the_job_trusts_it(tmp_path: Path, how: str) -> None:
    """Whatever object it holds that has one of the methods: here a model of LightGBM's."""
    model = LGBMClassifier(n_estimators=3, verbose=-1).fit(NUMBERS, TWO)
    path = tmp_path / "model.bin"
    if how == "pickle":
        path.write_bytes(pickle.dumps(model))
    else:
        joblib.dump(model, path, compress=3 if how == "compressed" else 0)
    section = {"path": "model.bin", **options(method="predict_proba")}
    with pytest.raises(
        JobError, match=r"^model\.path: .*model\.bin is a pickle or joblib file, .*model\.trusted: true"
    ):
        scored(saved(tmp_path, LinearRegression(), **section))
    job = saved(tmp_path, LinearRegression(), trusted=True, **section)
    adapter_of(model_job(job)).inspect(model_job(job), str(path))
    np.testing.assert_array_equal(scored(job)["score"], np.asarray(model.predict_proba(NUMBERS))[:, 1])


def test_a_skops_file_stays_one_where_pickles_are_trusted(tmp_path: Path) -> None:
    forest = RandomForestClassifier(3, random_state=0).fit(NUMBERS, TWO)
    job = saved(tmp_path, forest, trusted=True, **options(method="predict_proba"))
    with pytest.raises(JobError, match=rf"holds {TREE}, which skops does not trust"):
        scored(job)


def test_a_pickle_that_cannot_be_loaded_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(pickle.dumps(NUMBERS)[:-100])
    job = saved(tmp_path, LinearRegression(), path="model.bin", trusted=True)
    with pytest.raises(JobError, match=r"^model\.path: joblib cannot load .*model\.bin: \w+: [^\n]+$"):
        scored(job)


def test_a_model_that_cannot_be_loaded_is_named_as_the_job_names_it(tmp_path: Path) -> None:
    """And not by the local copy, which nobody knows."""
    job = saved(tmp_path, LinearRegression(), path="model.bin", trusted=True)
    with pytest.raises(
        JobError, match=r"joblib cannot load .*model\.bin: FileNotFoundError: .*model\.bin'$"
    ) as refused:
        adapter_of(model_job(job)).load(model_job(job), str(tmp_path / "copies" / "1"))
    assert "copies" not in str(refused.value)


def test_a_type_of_no_installed_package_is_refused(tmp_path: Path) -> None:
    """Its code would be no part of what the results are kept under."""
    job = saved(tmp_path, LinearRegression(), **options(trusted=["mine.Scaler"]))
    with pytest.raises(JobError, match=r"^model\.options\.trusted: there is no installed package 'mine'"):
        adapter_of(model_job(job)).fingerprint(model_job(job))


def test_the_version_that_scores_counts_and_is_named_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file holds what was learnt, not the code that computes with it."""
    job, storage = saved(tmp_path, LinearRegression().fit(NUMBERS, TWO), **options(trusted=["pandas.X"])), LakeStorage()
    before = identify(job, fix(storage, job), TABLE.schema)
    assert before.packages == {"pandas": pd.__version__, "scikit-learn": _version("scikit-learn")}
    monkeypatch.setattr("importlib.metadata.version", lambda name: "9.9" if name == "scikit-learn" else _version(name))
    now = identify(job, fix(storage, job), TABLE.schema)
    assert now.fingerprint != before.fingerprint
    assert differences(before, now) == ["package scikit-learn changed"]


def test_a_missing_extra_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = saved(tmp_path, LinearRegression().fit(NUMBERS, TWO))
    monkeypatch.setitem(sys.modules, "skops", None)  # as Python has it of a module that is not there
    with pytest.raises(JobError, match=r"needs skops; install it: pip install 'nightjar-batch\[sklearn\]'$"):
        load_scorer(model_job(job), job.models[0].path)


def _version(name: str) -> str:
    from importlib.metadata import distribution

    return distribution(name).version


# ---- a night ------------------------------------------------------------------------------------------------


def test_a_night_is_published_a_row_that_raises_is_put_aside_and_replayed(lake: Lake) -> None:
    """On the local engine, from the file to what readers see."""
    lake.write_files(files=2)
    path = lake.folder / "data" / "part-01.parquet"
    table = pq.read_table(path)
    values = table["x"].to_pylist()
    values[7] = float("nan")  # which a linear model refuses
    pq.write_table(table.set_column(1, "x", pa.array(values, pa.float32())), path, row_group_size=1000)
    ids = pd.DataFrame({"x": np.arange(10.0)})
    skops.io.dump(LinearRegression().fit(ids, ids["x"] * 2), lake.folder / "model.skops")
    lake.write_job(model__uses="sklearn", model__path="model.skops")
    ran = lake.run(engine=LOCAL)
    assert ran.publication.number == 1
    published = lake.published()
    assert len(published) == 3999
    np.testing.assert_allclose(published["score"], published["id"] * 2, rtol=1e-5, atol=1e-3)
    lost = lake.quarantined()
    assert lost["_row"].tolist() == [7]
    assert lost["error"].tolist() == ["ValueError"]
    shard = next(each for each in lake.planned().shards() if each.pieces[0].uri.endswith("part-01.parquet"))
    replayed = replay_row(lake.request(), shard.id, 8, None, pdb=True)  # in this process
    assert replayed.scored
    assert float(dict(replayed.outputs)["score"]) == pytest.approx(4016)


def test_a_run_that_is_refused_when_the_model_is_loaded_names_one_key(lake: Lake) -> None:
    """That at fault, and not the one that names the model."""
    lake.write_files(files=1)
    skops.io.dump(LogisticRegression().fit(NUMBERS[:, :1], TWO), lake.folder / "model.skops")
    lake.write_job(model__uses="sklearn", model__path="model.skops")
    with pytest.raises(JobError, match=r"^model\.options\.method: the model is a classifier"):
        lake.run(engine=LOCAL)


OWN = """
from sklearn.base import BaseEstimator, TransformerMixin

class Twice(TransformerMixin, BaseEstimator):
    def fit(self, x, y=None):
        return self
    def transform(self, x):
        return x * 2
"""


def test_a_class_of_the_users_in_a_pickle_is_code_that_the_job_names(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the key the error says so."""
    lake.write_files(files=1)
    (lake.folder / "own_twice.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(lake.folder))
    pipeline = lazily("sklearn.pipeline", "make_pipeline")
    steps = pipeline(import_module("own_twice").Twice(), LinearRegression())
    model = steps.fit(np.arange(4.0).reshape(-1, 1), np.arange(4.0))
    joblib.dump(model, lake.folder / "m.joblib")
    monkeypatch.undo()
    monkeypatch.delitem(sys.modules, "own_twice")
    keys: dict[str, Any] = {"model__uses": "sklearn", "model__path": "m.joblib", "model__trusted": True}
    lake.write_job(**keys, model__outputs={"score": "float64"}, model__code=[])
    with pytest.raises(JobError, match=r"No module named 'own_twice'.* own_twice\.py lies beside the job"):
        lake.run(engine=LOCAL)
    lake.write_job(**keys, model__outputs={"score": "float64"}, model__code=["own_twice.py"])
    lake.run(engine=LOCAL)
    assert np.allclose(lake.published()["score"], lake.published()["id"])
