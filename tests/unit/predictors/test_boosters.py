"""LightGBM's and XGBoost's models: the same numbers as the libraries themselves give, from the columns of a lake."""

from __future__ import annotations

import json
import pickle
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lazily import lazily
from modeljobs import model_job
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import JobError, OutputInvalid
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.job.model_sections import Preprocess
from nightjar.inference.predictors import check_keys, load_scorer
from nightjar.inference.predictors.adapter import adapter_of
from nightjar.inference.predictors.tabular.features import numbers
from nightjar.inference.scoring.assignment import BatchSize
from nightjar.inference.scoring.microbatches import drained
from predicting import score_table
from support import Lake

lightgbm = lazily("lightgbm")
xgboost = lazily("xgboost")

ROWS = 600
RANDOM = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "a": RANDOM.random(ROWS, dtype=np.float32),
        "n": RANDOM.integers(0, 1 << 40, ROWS),
        "flag": RANDOM.random(ROWS) > 0.5,
        "country": RANDOM.choice(["de", "fr", "no"], ROWS),
        "hour": RANDOM.choice([5, 8, 21], ROWS),
    }
)
TARGET = FRAME["a"] + FRAME["flag"] + (FRAME["country"] == "fr") * 2 + (FRAME["hour"] == 8) * 3
CLASSES = (TARGET * 3 / (TARGET.max() + 1)).astype(int)
NUMBERS = ["a", "n", "flag"]


def categorised(frame: pd.DataFrame) -> pd.DataFrame:
    """As both libraries want to be given categories: all of them known to each batch."""
    kinds = {"country": ["de", "fr", "no"], "hour": [5, 8, 21]}
    return frame.assign(**{name: pd.Categorical(frame[name], kinds[name]) for name in kinds if name in frame})


NAMED = {"categories": ["country", "hour"]}
"""The option by which LightGBM's adapter knows these columns."""


def with_nulls(table: pa.Table) -> pa.Table:
    """A third of the values of each column are null."""
    gone = pa.array([row % 3 == 1 for row in range(table.num_rows)])
    columns = [pa.compute.if_else(gone, pa.scalar(None, column.type), column) for column in table.columns]
    return pa.table(columns, table.column_names)


TABLE = pa.Table.from_pandas(FRAME, preserve_index=False)


@dataclass(frozen=True)
class Library:
    """One of the two. train: a model of this objective. direct: its own answer for a DataFrame."""

    uses: str
    file: str
    train: Callable[..., Any]
    direct: Callable[..., Any]
    raw: str
    first: dict[str, Any]
    """Its options for a score that is not transformed, and for the first three rounds."""


def train_lightgbm(frame: Any, target: Any, objective: str = "regression", **extra: Any) -> lightgbm.Booster:
    parameters = {"objective": objective, "num_threads": 1, "verbosity": -1, "min_data_per_group": 5, "cat_smooth": 1.0}
    return lightgbm.train(parameters | extra, lightgbm.Dataset(frame, target), 8)


def ask_lightgbm(model: lightgbm.Booster, frame: Any, **extra: Any) -> Any:
    return model.predict(frame, **extra)


def train_xgboost(frame: Any, target: Any, objective: str = "regression", **extra: Any) -> xgboost.Booster:
    names = {"regression": "reg:squarederror", "binary": "binary:logistic", "multiclass": "multi:softprob"}
    data = xgboost.DMatrix(frame, target, enable_categorical=True)
    return xgboost.train({"objective": names[objective], "nthread": 1, **extra}, data, 8)


def ask_xgboost(model: xgboost.Booster, frame: Any, **extra: Any) -> Any:
    return model.predict(xgboost.DMatrix(frame, enable_categorical=True), **extra)


LIGHTGBM = Library("lightgbm", "model.txt", train_lightgbm, ask_lightgbm, "raw_score", {"num_iteration": 3})
XGBOOST = Library("xgboost", "model.ubj", train_xgboost, ask_xgboost, "output_margin", {"iteration_range": [0, 3]})
each = pytest.mark.parametrize("library", [LIGHTGBM, XGBOOST], ids=lambda library: library.uses)


def saved(folder: Path, library: Library, model: Any, **section: Any) -> Job:
    """A job with this model."""
    model.save_model(folder / library.file)
    return job_of(folder, library, **section)


def job_of(folder: Path, library: Library, **section: Any) -> Job:
    content = {
        "name": "t",
        "input": {"uri": "in/"},
        "model": {"uses": library.uses, "path": library.file, "outputs": {"score": "float64"}, **section},
        "output": {"uri": "out"},
    }
    return parse_job(content, folder / "job.yaml")


def scored(job: Job, table: pa.Table = TABLE) -> dict[str, list[Any]]:
    return {name: values.to_pylist() for name, values in load_scorer(model_job(job), job.models[0].path)(table).items()}


# ---- values ---------------------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("objective", ["regression", "binary"])
def test_scores_equal_the_librarys_own_nulls_included(tmp_path: Path, library: Library, objective: str) -> None:
    model = library.train(FRAME[NUMBERS], TARGET > 2 if objective == "binary" else TARGET, objective)
    job = saved(tmp_path, library, model)
    table = TABLE.select(NUMBERS)
    assert scored(job, table)["score"] == library.direct(model, FRAME[NUMBERS]).tolist()
    holes = with_nulls(table)
    frame = pd.DataFrame({name: holes[name].cast(pa.float64()).to_numpy() for name in NUMBERS})
    assert np.isnan(frame.to_numpy()).any()
    assert scored(job, holes)["score"] == library.direct(model, frame).tolist()


@each
def test_classes_are_an_output_each_or_one_list(tmp_path: Path, library: Library) -> None:
    model = library.train(FRAME[NUMBERS], CLASSES, "multiclass", num_class=3)
    table, own = TABLE.select(NUMBERS), library.direct(model, FRAME[NUMBERS])
    named = scored(saved(tmp_path, library, model, outputs=dict.fromkeys(["x", "y", "z"], "float64")), table)
    assert list(named) == ["x", "y", "z"]
    np.testing.assert_array_equal(np.array(list(named.values())).T, own)
    assert scored(saved(tmp_path, library, model, outputs={"all": "float64[3]"}), table)["all"] == own.tolist()
    message = r"^the model returned an array of shape \(600, 3\) for 600 rows, and model\.outputs declares 2: x, y$"
    with pytest.raises(OutputInvalid, match=message):
        scored(saved(tmp_path, library, model, outputs={"x": "float64", "y": "float64"}), table)


@each
def test_scores_can_be_raw_and_of_the_first_rounds(tmp_path: Path, library: Library) -> None:
    model = library.train(FRAME[NUMBERS], TARGET > 2, "binary")
    options = {library.raw: True, **library.first}
    own = library.direct(model, FRAME[NUMBERS], **{name: tuple(v) if v == [0, 3] else v for name, v in options.items()})
    assert own.min() < 0, "no probability"
    found = scored(saved(tmp_path, library, model, options=options), TABLE.select(NUMBERS))["score"]
    assert found == own.tolist()
    assert found != scored(job_of(tmp_path, library, options={library.raw: True}), TABLE.select(NUMBERS))["score"]


def test_leaves_are_outputs_too(tmp_path: Path) -> None:
    model = train_lightgbm(FRAME[NUMBERS], TARGET)
    job = saved(tmp_path, LIGHTGBM, model, outputs={"leaves": "int32[8]"}, options={"pred_leaf": True})
    assert scored(job, TABLE.select(NUMBERS))["leaves"] == model.predict(FRAME[NUMBERS], pred_leaf=True).tolist()


@pytest.mark.parametrize("file", ["model.json", "model.ubj", "model.of.ours"])
def test_either_format_of_xgboost_is_known_by_its_content(tmp_path: Path, file: str) -> None:
    model = train_xgboost(FRAME[NUMBERS], TARGET)
    model.save_model(tmp_path / ("model.ubj" if file == "model.of.ours" else file))
    if file == "model.of.ours":
        (tmp_path / "model.ubj").rename(tmp_path / file)
    job = job_of(tmp_path, XGBOOST, path=file)
    assert scored(job, TABLE.select(NUMBERS))["score"] == ask_xgboost(model, FRAME[NUMBERS]).tolist()


@each
def test_it_computes_on_the_cores_of_the_job(tmp_path: Path, library: Library) -> None:
    job = saved(tmp_path, library, library.train(FRAME[NUMBERS], TARGET))
    job = job.model_copy(update={"resources": job.resources.model_copy(update={"cpus": 2})})
    predictor: Any = adapter_of(model_job(job)).load(model_job(job), job.models[0].path)
    if library is LIGHTGBM:
        assert predictor.arguments["num_threads"] == 2
    else:
        assert json.loads(predictor.model.save_config())["learner"]["generic_param"]["nthread"] == "2"
        assert predictor._rows.keywords["nthread"] == 2


# ---- columns --------------------------------------------------------------------------------------------------


@each
def test_columns_reach_the_model_by_its_names(tmp_path: Path, library: Library) -> None:
    """Whatever order the job has; names that do not agree are said."""
    model = library.train(FRAME[NUMBERS], TARGET)
    job = saved(tmp_path, library, model, features=["flag", "a", "n"])
    assert scored(job)["score"] == library.direct(model, FRAME[NUMBERS]).tolist()
    with pytest.raises(JobError, match=r"^model\.features: .* fitted with 'flag', .* it gets; did you mean 'flags'\?$"):
        scored(job_of(tmp_path, library), TABLE.select(NUMBERS).rename_columns(["a", "n", "flags"]))
    with pytest.raises(JobError, match=r"^model\.features: 'hour' is unknown to the model, .* with a, n, flag$"):
        scored(job_of(tmp_path, library), TABLE.select([*NUMBERS, "hour"]))


@each
def test_a_model_without_names_gets_the_columns_in_order(tmp_path: Path, library: Library) -> None:
    """A column of lists takes as many places as it is long."""
    values = FRAME[NUMBERS].to_numpy(np.float64)
    job = saved(tmp_path, library, library.train(values, TARGET))
    plain = scored(job, TABLE.select(NUMBERS))["score"]
    assert plain == library.direct(library.train(values, TARGET), values).tolist()
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values[:, 1:].reshape(-1)), 2)
    assert scored(job, pa.table({"a": TABLE["a"], "rest": lists}))["score"] == plain


def test_lightgbm_writes_spaces_in_names_as_underscores(tmp_path: Path) -> None:
    named = {"a": "dep hour", "n": "n", "flag": "is_late"}
    model = train_lightgbm(FRAME[NUMBERS].rename(columns=named), TARGET)
    assert model.feature_name() == ["dep_hour", "n", "is_late"]
    job = saved(tmp_path, LIGHTGBM, model)
    table = TABLE.select(NUMBERS).rename_columns(named)
    assert scored(job, table)["score"] == model.predict(FRAME[NUMBERS].rename(columns=named)).tolist()
    with pytest.raises(JobError, match=r"^model\.features: 'dep hour' is unknown to the model"):
        scored(job, table.append_column("dep_hour", table["n"]))
    with pytest.raises(JobError, match=r"^model\.features: 'dep hour' is unknown to the model"):
        scored(job, table.add_column(0, "dep_hour", table["n"]))


@each
@pytest.mark.parametrize("form", ["text", "dictionary", "numpy", "pandas"])
def test_categories_are_those_of_the_model(tmp_path: Path, library: Library, form: str) -> None:
    """Of text and of numbers; a batch need not hold all of them. Nulls are missing, as the library takes them."""
    model = library.train(categorised(FRAME), TARGET)
    holes = with_nulls(TABLE).slice(0, 40)
    frame = pd.DataFrame({name: holes[name].cast(pa.float64()).to_numpy() for name in NUMBERS})
    frame = categorised(frame.assign(country=holes["country"].to_pylist(), hour=holes["hour"].to_pylist()))
    options = NAMED if library is LIGHTGBM else {}
    table = holes
    if form == "dictionary":
        table = holes.set_column(3, "country", holes["country"].combine_chunks().dictionary_encode())
    job = saved(tmp_path, library, model, options=options)
    if form in {"numpy", "pandas"}:
        (tmp_path / "prep.py").write_text("def same(batch):\n    return batch\n")
        job = job.model_copy(update={"preprocess": Preprocess(uses="prep:same")})
        job = job.model_copy(
            update={"models": (job.models[0].model_copy(update={"options": options | {"batch_format": form}}),)}
        )
    assert scored(job, table)["score"] == library.direct(model, frame).tolist()
    sys.modules.pop("prep", None)


def failures(job: Job, table: pa.Table) -> list[tuple[int, str, str]]:
    steps = score_table(
        table, load_scorer(model_job(job), job.models[0].path), BatchSize(8), job.models[0].output_types()
    )
    done = drained(steps)
    return [(failure.row, failure.error, failure.message) for failure in done.failures]


def test_a_row_for_which_a_preprocess_returns_text_costs_itself(tmp_path: Path) -> None:
    """One text in an array of objects makes all of it text, but says nothing of the job."""
    job = saved(tmp_path, LIGHTGBM, train_lightgbm(FRAME[NUMBERS], TARGET))
    (tmp_path / "odd.py").write_text(
        "import numpy as np\n"
        "def odd(batch):\n"
        f"    column = batch[{NUMBERS[0]!r}]\n"
        f"    return {{**batch, {NUMBERS[0]!r}: np.where(column == 777, 'n/a', column.astype(object))}}\n"
    )
    job = job.model_copy(update={"preprocess": Preprocess(uses="odd:odd")})
    frame = FRAME[NUMBERS].head(20).copy()
    frame.loc[11, NUMBERS[0]] = 777
    ((row, _, said),) = failures(job, pa.Table.from_pandas(frame, preserve_index=False))
    assert row == 11
    assert said.startswith(f"the model cannot take what preprocess returned: model.features: {NUMBERS[0]!r} holds text")
    sys.modules.pop("odd", None)


def test_to_lightgbm_a_category_that_it_has_not_seen_is_missing(tmp_path: Path) -> None:
    model = train_lightgbm(categorised(FRAME), TARGET)
    job = saved(tmp_path, LIGHTGBM, model, options=NAMED)
    strange = FRAME.assign(country="se")
    found = scored(job, pa.Table.from_pandas(strange, preserve_index=False))["score"]
    assert (
        found
        == model.predict(
            strange.assign(country=pd.Categorical(strange["country"]), hour=categorised(FRAME)["hour"])
        ).tolist()
    )


def test_to_xgboost_a_category_that_it_has_not_seen_costs_its_row(tmp_path: Path) -> None:
    """The library itself scores it like its first category."""
    job = saved(tmp_path, XGBOOST, train_xgboost(categorised(FRAME), TARGET))
    countries = ["de", "se", "no", None]
    table = TABLE.slice(0, 4).set_column(3, "country", pa.array(countries))
    message = "feature 'country' holds 'se', which is none of the model's categories: 'de', 'fr', 'no'"
    assert failures(job, table) == [(1, "ValueError", message)]


@each
def test_text_that_is_no_category_of_the_model_is_said(tmp_path: Path, library: Library) -> None:
    job = saved(tmp_path, library, library.train(FRAME[NUMBERS], TARGET))
    table = TABLE.select(NUMBERS).set_column(0, "a", TABLE["country"])
    with pytest.raises(
        JobError, match=r"^model\.features: 'a' holds text or categories, and the model has none for it"
    ):
        scored(job, table)
    job = saved(tmp_path, library, library.train(categorised(FRAME)[["hour", "a"]], TARGET))
    message = r"^model\.features: 'hour' is large_string, and the model's categories of it are int64: 5, 8, 21$"
    with pytest.raises(JobError, match=message):
        scored(job, pa.table({"hour": TABLE["country"].cast(pa.large_string()), "a": TABLE["a"]}))


def test_lightgbm_has_ordered_categories_like_numbers(tmp_path: Path) -> None:
    """Its file does not say of which features its categories are: of those of text."""
    frame = FRAME[["a", "country"]].assign(country=pd.Categorical(FRAME["country"], ["no", "de", "fr"], ordered=True))
    model = train_lightgbm(frame, TARGET)
    job = saved(tmp_path, LIGHTGBM, model)
    assert scored(job, TABLE.select(["a", "country"]))["score"] == model.predict(frame).tolist()
    sentence = r"^model\.features: 2 of the columns hold text: a, country; the model was trained with 1 column of cat"
    with pytest.raises(JobError, match=sentence):
        scored(job, pa.table({"a": TABLE["country"], "country": TABLE["country"]}))


WHOLE = FRAME.assign(
    size=RANDOM.integers(1, 4, ROWS), shop=RANDOM.integers(0, 5, ROWS), few=RANDOM.integers(0, 3, ROWS), year=7
)
ORDERED = pd.Categorical(WHOLE["size"], ordered=True)


@pytest.mark.parametrize(
    ("frame", "categorical", "named"),
    [
        # Raw whole numbers that are no codes of the only list, and a column of categories that is a range.
        (WHOLE[["a", "shop"]].assign(size=ORDERED), ["shop"], ["size"]),
        # A constant column of categories: of text, of numbers.
        (WHOLE[["a", "shop"]].assign(k=pd.Categorical(["q"] * ROWS)), ["shop"], []),
        (
            categorised(WHOLE[["a", "shop", "country"]]).assign(year=pd.Categorical(WHOLE["year"])),
            "auto",
            ["year", "country"],
        ),
        # Numbers beside categories of numbers: two values are not the three of the list.
        (categorised(WHOLE[["flag", "shop", "hour", "n"]]), "auto", ["hour"]),
    ],
)
def test_lightgbms_lists_of_categories_are_of_the_columns_of_text_or_of_those_that_the_job_names(
    tmp_path: Path, frame: pd.DataFrame, categorical: Any, named: list[str]
) -> None:
    """In the order of the model's columns, whatever order the job names them in."""
    target = TARGET + (WHOLE["size"] == 2) + (WHOLE["shop"] == 3) * 2
    data = lightgbm.Dataset(frame, target, categorical_feature=categorical)
    model = lightgbm.train({"num_threads": 1, "verbosity": -1, "min_data_per_group": 5}, data, 8)
    plain = pa.table({name: np.asarray(frame[name]) for name in frame})
    job = saved(tmp_path, LIGHTGBM, model, options={"categories": named} if named else {})
    assert scored(job, plain)["score"] == model.predict(frame).tolist()


def test_lightgbms_lists_without_columns_of_text_are_refused_until_the_job_names_their_columns(tmp_path: Path) -> None:
    frame = WHOLE[["a", "few"]].assign(size=ORDERED)
    data = lightgbm.Dataset(frame, WHOLE["few"] * 2 + WHOLE["size"], categorical_feature=["few"])
    model = lightgbm.train({"num_threads": 1, "verbosity": -1}, data, 8)
    table = pa.table({name: np.asarray(WHOLE[name]) for name in frame})
    sentence = (
        r"^model\.features: 0 of the columns hold text; .* 1 column of categories\. Name .*model\.options\.categories$"
    )
    with pytest.raises(JobError, match=sentence):
        scored(saved(tmp_path, LIGHTGBM, model), table)
    job = saved(tmp_path, LIGHTGBM, model, options={"categories": ["size"]})
    assert scored(job, table)["score"] == model.predict(frame).tolist()
    for names, wrong in [
        (["sizes"], "did you mean 'size'"),
        (["few", "size"], "names 2: few, size; .* 1 column of cat"),
    ]:
        with pytest.raises(JobError, match=rf"^model\.options\.categories.*{wrong}"):
            scored(saved(tmp_path, LIGHTGBM, model, options={"categories": names}), table)
    wide = lightgbm.Dataset(WHOLE[["shop"]].assign(size=ORDERED), TARGET, categorical_feature=["shop"])
    model = lightgbm.train({"num_threads": 1, "verbosity": -1}, wide, 2)
    with pytest.raises(JobError, match=r"'shop' had codes up to 4 in training, .* only the codes up to 2$"):
        scored(
            saved(tmp_path, LIGHTGBM, model, options={"categories": ["shop"]}),
            table.append_column("shop", table["few"]).select(["shop", "size"]),
        )


PLACES = pd.DataFrame({"city": RANDOM.choice(["a", "b", "c"], ROWS), "state": RANDOM.choice(["u", "v"], ROWS)})


@pytest.mark.parametrize("kind", ["object", "str", "string", "string[pyarrow]", "category"])
@pytest.mark.parametrize("empty", [["state"], ["city"], ["city", "state"]], ids=lambda names: "+".join(names))
def test_the_first_batch_may_lack_all_values_of_a_category(tmp_path: Path, empty: list[str], kind: str) -> None:
    """Beside a bool without a value, which is an object in a batch, too."""
    frame = FRAME[["flag"]].join(PLACES)
    texts = ["city", "state"]
    target = TARGET + (frame["city"] == "b") * 2 + (frame["state"] == "v")
    model = train_lightgbm(frame.astype(dict.fromkeys(texts, "category")), target)
    (tmp_path / "framing.py").write_text(
        "import pandas as pd\n"
        f"def framed(batch):\n    return pd.DataFrame(batch).astype(dict.fromkeys({texts}, {kind!r}))\n"
    )
    job = saved(tmp_path, LIGHTGBM, model).model_copy(update={"preprocess": Preprocess(uses="framing:framed")})
    table = pa.Table.from_pandas(frame.head(8), preserve_index=False)
    for name in (*empty, "flag"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, pa.nulls(len(table), table.schema.field(name).type))
    scorer = load_scorer(model_job(job), job.models[0].path)
    first = scorer(table)["score"]
    scorer(pa.Table.from_pandas(frame, preserve_index=False))
    assert scorer(table)["score"].equals(first)
    known = {"city": ["a", "b", "c"], "state": ["u", "v"]}
    asked = {name: pd.Categorical(table[name].to_pylist(), known[name]) for name in known}
    assert first.to_pylist() == model.predict(pd.DataFrame({"flag": np.full(8, np.nan), **asked})).tolist()
    sys.modules.pop("framing", None)


@each
def test_columns_of_other_types_are_refused_by_name(tmp_path: Path, library: Library) -> None:
    job = job_of(tmp_path, library)
    for kind in (pa.timestamp("us"), pa.list_(pa.string()), pa.decimal128(9), pa.binary()):
        with pytest.raises(JobError, match=rf"^model\.features: 'when' is .*, and the {library.uses} adapter takes"):
            adapter_of(model_job(job)).check_columns(model_job(job), pa.schema({"a": pa.float32(), "when": kind}))
    kinds = {
        "a": pa.float16(),
        "b": pa.bool_(),
        "c": pa.dictionary(pa.int8(), pa.string()),
        "d": pa.list_(pa.int8(), 3),
    }
    adapter_of(model_job(job)).check_columns(model_job(job), pa.schema(kinds))


def test_xgboost_refuses_an_infinite_number_and_says_so_in_one_line(tmp_path: Path) -> None:
    job = saved(tmp_path, XGBOOST, train_xgboost(FRAME[NUMBERS], TARGET))
    table = TABLE.select(NUMBERS).slice(0, 4).set_column(0, "a", pa.array([0.5, float("inf"), 0.1, 0.2], pa.float32()))
    ((row, error, message),) = failures(job, table)
    assert (row, error) == (1, "XGBoostError")
    assert "contains `inf`" in message
    assert "Stack trace" not in message
    assert "\n" not in message


# ---- what is refused ------------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"gpus": 1}, r"resources\.gpus: the \w+ adapter computes on the CPU; write gpus: 0"),
        ({"options": {"raw": 1}}, r"model\.options\.raw: the \w+ adapter knows only the options .*batch_format"),
    ],
)
def test_keys_that_mean_nothing_to_them_are_refused(
    tmp_path: Path, library: Library, section: dict[str, Any], sentence: str
) -> None:
    gpus = section.get("gpus", 0)
    job = job_of(tmp_path, library, **{key: value for key, value in section.items() if key != "gpus"})
    job = job.model_copy(update={"resources": job.resources.model_copy(update={"gpus": gpus})})
    with pytest.raises(JobError, match=rf"^{sentence}"):
        check_keys(job)


@pytest.mark.parametrize(
    ("library", "options", "sentence"),
    [
        (LIGHTGBM, {"raw_score": "yes"}, r"raw_score: write true or false, not 'yes'"),
        (LIGHTGBM, {"num_iteration": 0}, r"num_iteration: write a number of trees from 1 on, not 0"),
        (LIGHTGBM, {"num_iteration": True}, r"num_iteration: write a number of trees from 1 on, not True"),
        (XGBOOST, {"output_margin": 1}, r"output_margin: write true or false, not 1"),
        (XGBOOST, {"iteration_range": 50}, r"iteration_range: write the first round .*, as \[0, 50\], not 50"),
        (XGBOOST, {"iteration_range": [5, 5]}, r"iteration_range: write the first round .* not \[5, 5\]"),
        (XGBOOST, {"iteration_range": [0, "9"]}, r"iteration_range: write the first round .* not \[0, '9'\]"),
    ],
)
def test_values_of_options_that_make_no_sense_are_refused(
    tmp_path: Path, library: Library, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(JobError, match=rf"^model\.options\.{sentence}"):
        check_keys(job_of(tmp_path, library, options=options))


def test_more_rounds_than_the_model_has_are_refused_when_it_is_loaded(tmp_path: Path) -> None:
    model = train_xgboost(FRAME[NUMBERS], TARGET)
    for rounds in ([0, 9], [6, 5]):
        job = saved(tmp_path, XGBOOST, model, options={"iteration_range": rounds})
        with pytest.raises(JobError, match=r"^model\.options\.iteration_range: .*, and the model has 8 rounds; write"):
            load_scorer(model_job(job), job.models[0].path)


def test_leaves_have_no_raw_score(tmp_path: Path) -> None:
    job = saved(
        tmp_path, LIGHTGBM, train_lightgbm(FRAME[NUMBERS], TARGET), options={"pred_leaf": True, "raw_score": True}
    )
    with pytest.raises(JobError, match=r"^model\.options\.pred_leaf: leaves have no raw score"):
        load_scorer(model_job(job), job.models[0].path)


@each
def test_a_missing_extra_says_which_to_install(
    tmp_path: Path, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = saved(tmp_path, library, library.train(FRAME[NUMBERS], TARGET))
    monkeypatch.setitem(sys.modules, library.uses, None)  # as Python has it of a module that is not there
    with pytest.raises(
        JobError, match=rf"needs {library.uses}.*; install it: pip install 'nightjar-batch\[{library.uses}\]'$"
    ):
        load_scorer(model_job(job), job.models[0].path)


def test_a_missing_openmp_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = saved(tmp_path, LIGHTGBM, train_lightgbm(FRAME[NUMBERS], TARGET))
    (tmp_path / "lightgbm.py").write_text("raise OSError('libgomp.so.1: cannot open shared object file')\n")
    monkeypatch.delitem(sys.modules, "lightgbm")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        JobError, match=r"^model\.uses: lightgbm cannot be loaded: libgomp\.so\.1: .* install libgomp1\)$"
    ):
        load_scorer(model_job(job), job.models[0].path)


@each
def test_the_version_that_scores_counts(tmp_path: Path, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(tmp_path, library)
    name = {"lightgbm": "lightgbm", "xgboost": "xgboost-cpu"}[library.uses]
    assert adapter_of(model_job(job)).fingerprint(model_job(job)) == {name: version(name)}


@each
def test_a_model_that_was_pickled_is_refused_with_what_to_write(tmp_path: Path, library: Library) -> None:
    job = job_of(tmp_path, library)
    (tmp_path / library.file).write_bytes(pickle.dumps(library.train(FRAME[NUMBERS], TARGET)))
    with pytest.raises(
        JobError, match=rf"^model\.path: \w+ cannot load .*{library.file}: it does not begin as one; write"
    ):
        adapter_of(model_job(job)).inspect(model_job(job), str(job.models[0].path))


def test_the_old_binary_format_of_xgboost_is_named(tmp_path: Path) -> None:
    job = job_of(tmp_path, XGBOOST)
    (tmp_path / "model.ubj").write_bytes(b"binf" + bytes(200))
    with pytest.raises(
        JobError, match=r"binary format that XGBoost 3 reads no more; write one with booster\.save_model"
    ):
        adapter_of(model_job(job)).inspect(model_job(job), str(job.models[0].path))


@pytest.mark.parametrize("fault", ["a leaf too few", "a tree too short"])
def test_a_fault_in_a_tree_is_an_error_and_not_the_end_of_the_process(tmp_path: Path, fault: str) -> None:
    """LightGBM itself ends the process at both."""
    job = saved(tmp_path, LIGHTGBM, train_lightgbm(FRAME[NUMBERS], TARGET))
    path = tmp_path / "model.txt"
    text = path.read_text()
    leaf = re.search(r"^leaf_value=\S+ ", text, re.MULTILINE)
    assert leaf
    if fault == "a leaf too few":
        changed = text.replace(leaf[0], "leaf_value=" + " " * (len(leaf[0]) - len("leaf_value=")), 1)
        sentence = r"^model\.path: LightGBM cannot load .*model\.txt: LightGBMError: "
    else:
        changed = text.replace(leaf[0], "leaf_value=", 1)
        sentence = r"^model\.path: .* its end is missing; write one with"
    path.write_text(changed)
    with pytest.raises(JobError, match=sentence):
        adapter_of(model_job(job)).load(model_job(job), str(path))


def test_a_model_of_lightgbms_own_command_is_read(tmp_path: Path) -> None:
    """It has no line of pandas' categories."""
    model = train_lightgbm(FRAME[NUMBERS].to_numpy(np.float64), TARGET)
    job = saved(tmp_path, LIGHTGBM, model)
    path = tmp_path / "model.txt"
    path.write_text(path.read_text().partition("\npandas_categorical")[0])
    assert scored(job, TABLE.select(NUMBERS))["score"] == model.predict(FRAME[NUMBERS].to_numpy(np.float64)).tolist()


# ---- a night --------------------------------------------------------------------------------------------------


@each
def test_a_night_is_published(lake: Lake, library: Library) -> None:
    """On the local engine, from the file to what readers see, with the version in its manifest."""
    lake.write_files(files=2)
    ids = pd.DataFrame({"x": np.arange(4000.0)})
    model = library.train(ids, ids["x"] * 2)
    model.save_model(lake.folder / library.file)
    lake.write_job(model__uses=library.uses, model__path=library.file)
    ran = lake.run(engine=LOCAL)
    published = lake.published()
    own = library.direct(model, ids.loc[published["id"].to_numpy()]).astype("f4")
    assert published["score"].to_numpy("f4").tolist() == own.tolist()
    manifest = json.loads((lake.out / ran.verdict.published.manifest).read_bytes())
    name = "lightgbm" if library is LIGHTGBM else "xgboost-cpu"
    assert manifest["packages"] == {name: version(name)}
    assert manifest["libraries"][name] == version(name)


@pytest.mark.parametrize(
    "values",
    [
        np.array(["2024-01-01", "NaT"], "M8[us]"),
        np.array([1, 2], "m8[h]"),
        np.array([1j, 2]),
        pd.Series(pd.to_datetime(["2024-01-01", None])),
    ],
    ids=["dates", "durations", "complex", "series"],
)
def test_what_is_no_number_is_not_taken_for_one(values: Any) -> None:
    """numpy would take the ticks of a duration for it: another number for each unit, and for a missing one, too."""
    with pytest.raises(ValueError, match=r"feature 'x' holds .*; make it a number of known units in the preprocess"):
        numbers("x", values)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (pd.Series([True, None, False], dtype="boolean"), [1.0, np.nan, 0.0]),
        (pd.Series([True, None, False], dtype="bool[pyarrow]"), [1.0, np.nan, 0.0]),
        (pd.Series([1, None, 3], dtype="Int64"), [1.0, np.nan, 3.0]),
        (pd.Series([1, None, 3], dtype="Int64").array, [1.0, np.nan, 3.0]),
        (np.ma.masked_array([1, 2, 3], [False, True, False]), [1.0, np.nan, 3.0]),
    ],
    ids=["booleans", "arrow-booleans", "integers", "array", "masked"],
)
def test_a_missing_number_is_nan_in_every_kind_of_column(given: Any, expected: list[float]) -> None:
    np.testing.assert_array_equal(numbers("x", given).astype(float), expected)
