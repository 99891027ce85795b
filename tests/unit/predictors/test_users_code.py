"""The user's own classes and functions, unchanged: how they are found, called, and given their columns."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from modeljobs import model_job
from nightjar.inference.errors import JobError, OutputInvalid
from nightjar.inference.job.finding import find
from nightjar.inference.predictors import input_columns, load_scorer
from predicting import F32, TABLE, MakeJob, jobs_in, scored

RAY_DOCS = """
import numpy as np

class Predictor:
    def __init__(self, factor=2):
        self.model = lambda x: x * factor

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        batch["score"] = self.model(batch["a"])
        return batch
"""


@pytest.fixture
def make_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeJob]:
    with jobs_in(tmp_path, monkeypatch) as make:
        yield make


def test_a_ray_data_class_works_unchanged_and_its_other_columns_are_dropped(make_job: MakeJob) -> None:
    job = make_job(RAY_DOCS, options={"factor": 3})
    assert scored(job, TABLE) == {"score": [3.0, 6.0, 9.0]}


def test_a_class_is_built_once_for_all_batches(make_job: MakeJob, tmp_path: Path) -> None:
    note = f"__import__('pathlib').Path({str(tmp_path)!r}, 'built-' + str(id(self))).touch(); self.model ="
    code = RAY_DOCS.replace("self.model =", note)
    scorer = load_scorer(model_job(make_job(code)), None)
    scorer(TABLE)
    scorer(TABLE)
    assert len(list(tmp_path.glob("built-*"))) == 1


def test_a_plain_function_gets_its_options_as_keywords(make_job: MakeJob) -> None:
    job = make_job(
        "def f(batch, factor):\n return {'score': batch['a'] * factor}", uses="mine:f", options={"factor": 5}
    )
    assert scored(job, TABLE) == {"score": [5.0, 10.0, 15.0]}


@pytest.mark.parametrize(
    ("form", "body"),
    [
        (
            "numpy",
            "assert isinstance(batch, dict) and isinstance(batch['a'], np.ndarray); return {'score': batch['a']}",
        ),
        ("pandas", "assert isinstance(batch, pd.DataFrame); batch['score'] = batch['a']; return batch"),
        ("pyarrow", "assert isinstance(batch, pa.Table); return pa.table({'score': batch['a']})"),
        ("torch", "assert isinstance(batch['a'], torch.Tensor); batch['a'] += 0; return {'score': batch['a']}"),
    ],
)
def test_batch_format_decides_what_the_code_sees_and_is_not_an_option_of_it(
    make_job: MakeJob, form: str, body: str
) -> None:
    code = f"import numpy as np, pandas as pd, pyarrow as pa, torch\ndef f(batch):\n {body}"
    assert scored(make_job(code, uses="mine:f", options={"batch_format": form}), TABLE) == {"score": [1.0, 2.0, 3.0]}


def test_an_unknown_batch_format_names_the_key_and_the_nearest(make_job: MakeJob) -> None:
    job = make_job(RAY_DOCS, options={"batch_format": "numpi"})
    with pytest.raises(JobError, match=r"model\.options\.batch_format: 'numpi'.*did you mean 'numpy'"):
        load_scorer(model_job(job), None)


def test_a_generators_yields_are_joined_in_order(make_job: MakeJob) -> None:
    code = "def f(batch):\n for x in batch['a']:\n  yield {'score': [x]}"
    assert scored(make_job(code, uses="mine:f"), TABLE) == {"score": [1.0, 2.0, 3.0]}


def test_a_generator_may_fill_the_same_memory_for_each_piece(make_job: MakeJob) -> None:
    """As runtimes do that bind their outputs once: what was yielded is kept as it was."""
    code = (
        "import numpy as np\nheld = np.zeros(1)\ndef f(batch):\n for i in range(len(batch['a'])):\n"
        "  np.multiply(batch['a'][i : i + 1], 2, out=held)\n  yield {'score': held}"
    )
    assert scored(make_job(code, uses="mine:f", outputs={"score": "float64"}), TABLE) == {"score": [2.0, 4.0, 6.0]}


def test_a_generator_that_yields_too_little_is_an_invalid_output(make_job: MakeJob) -> None:
    with pytest.raises(OutputInvalid, match="'score' has 1 value for a batch of 3 rows"):
        scored(make_job("def f(batch):\n yield {'score': [1.0]}", uses="mine:f"), TABLE)
    with pytest.raises(OutputInvalid, match="'score' is missing: the predictor yielded nothing"):
        scored(make_job("def g(batch):\n return\n yield", uses="mine:g"), TABLE)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("Predictor = 3", "mine:Predictor is a int, not a class or function"),
        ("class Predictor: pass", r"class mine:Predictor has no __call__\(batch\)"),
    ],
)
def test_what_cannot_be_called_with_a_batch_is_refused(make_job: MakeJob, code: str, message: str) -> None:
    with pytest.raises(JobError, match=rf"model\.uses: {message}"):
        load_scorer(model_job(make_job(code)), None)


def test_what_the_users_code_raises_passes_through_unchanged(make_job: MakeJob) -> None:
    code = "class Odd(Exception): pass\ndef f(batch):\n raise Odd('row 7')"
    scorer = load_scorer(model_job(make_job(code, uses="mine:f")), None)
    with pytest.raises(Exception, match="row 7") as caught:
        scorer(TABLE)
    assert type(caught.value).__name__ == "Odd"
    with pytest.raises(ZeroDivisionError):
        load_scorer(
            model_job(make_job("class C:\n def __init__(self):\n  1/0\n def __call__(self, b): pass", uses="mine:C")),
            None,
        )


def test_the_model_path_goes_to_a_constructor_that_takes_it(make_job: MakeJob) -> None:
    code = "class {0}:\n def __init__(self, {1}): self.p = {2}\n def __call__(self, b): return [self.p == '/m'] * 3"
    for name, parameters, value in [("A", "path", "path"), ("B", "**options", "options['path']")]:
        job = make_job(code.format(name, parameters, value), uses=f"mine:{name}", outputs={"score": "bool"}, path="m")
        assert scored(job, TABLE, "/m") == {"score": [True] * 3}


def test_a_constructor_without_path_makes_model_path_an_error(make_job: MakeJob) -> None:
    with pytest.raises(
        JobError, match=r"model\.options, with model\.path as `path`: mine:Predictor cannot .* argument 'path'"
    ):
        load_scorer(model_job(make_job(RAY_DOCS, path="m")), "/m")


def test_an_unknown_option_is_named_before_anything_is_called(make_job: MakeJob) -> None:
    with pytest.raises(JobError, match=r"model\.options: mine:Predictor .*'fcator'.*it takes \(factor=2\)"):
        load_scorer(model_job(make_job(RAY_DOCS, options={"fcator": 3})), None)


def test_a_missing_module_names_key_module_and_folder(make_job: MakeJob, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=rf"model\.uses: there is no module 'nothere' in {tmp_path}"):
        load_scorer(model_job(make_job(uses="nothere:P")), None)
    with pytest.raises(JobError, match=r"preprocess: there is no module 'gone'"):
        load_scorer(model_job(make_job(RAY_DOCS, job={"preprocess": "gone:f"})), None)


def test_a_missing_name_names_the_file_and_the_nearest(make_job: MakeJob) -> None:
    with pytest.raises(
        JobError, match=r"model\.uses: module 'mine' \(.*mine\.py\) has no 'Pridictor'; did you mean 'Pred"
    ):
        load_scorer(model_job(make_job(RAY_DOCS, uses="mine:Pridictor")), None)


@pytest.mark.parametrize(("code", "cause"), [("1/0", ZeroDivisionError), ("import nothere_at_all", ImportError)])
def test_a_module_that_raises_while_imported_keeps_its_traceback(
    make_job: MakeJob, code: str, cause: type[Exception]
) -> None:
    with pytest.raises(JobError, match=r"model\.uses: importing module 'mine'") as caught:
        load_scorer(model_job(make_job(code)), None)
    assert isinstance(caught.value.__cause__, cause)
    assert caught.value.__cause__.__traceback__ is not None


def test_another_jobs_modules_of_the_same_name_never_stand_in(make_job: MakeJob, tmp_path: Path) -> None:
    for folder, value in (("one", 1), ("two", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "samename.py").write_text("import samehelper\ndef f(b): return [samehelper.V] * 3")
        (tmp_path / folder / "samehelper.py").write_text(f"V = {value}")
    for folder, value in (("one", 1), ("two", 2), ("one", 1)):
        job = make_job(uses="samename:f").model_copy(update={"folder": str(tmp_path / folder)})
        assert scored(job, TABLE) == {"score": [value] * 3}


def test_nor_do_those_of_a_package_without_init(make_job: MakeJob, tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "other"]
    for factor, folder in enumerate(folders, 2):
        (folder / "lib").mkdir(parents=True)
        (folder / "lib/factors.py").write_text(f"FACTOR = {factor}\n")
        (folder / "scoring.py").write_text("from lib import factors\n")
    found = [find("model.uses", "scoring:factors", folder).FACTOR for folder in (*folders, folders[0])]
    assert found == [2, 3, 2]


def test_device_tells_where_the_users_model_says_it_is(make_job: MakeJob) -> None:
    code = "import torch\nclass Predictor:\n def __init__(self): self.{0}\n def __call__(self, b): return b"
    assert load_scorer(model_job(make_job(code.format("m = torch.nn.Linear(1, 1)"))), None).device == "cpu"
    job = make_job(code.replace("Predictor", "Other").format("device = torch.device('cuda:3')"), uses="mine:Other")
    assert load_scorer(model_job(job), None).device == "cuda:3"


SCHEMA = pa.schema([("id", pa.string()), ("a", F32), ("b", pa.int64()), ("late", pa.bool_())])


def test_the_model_sees_all_columns_but_carried_ones_and_the_label(make_job: MakeJob) -> None:
    assert input_columns(make_job(job={"carry": ["id"], "label": "late"}), SCHEMA) == ("a", "b")


def test_features_are_the_columns_in_their_own_order(make_job: MakeJob) -> None:
    assert input_columns(make_job(features=["b", "id"], job={"carry": ["id"]}), SCHEMA) == ("b", "id")


def test_preprocess_gets_everything_but_carried_ones_and_the_carried_ones_that_are_features(
    make_job: MakeJob,
) -> None:
    aside = {"carry": ["id", "b"], "label": "late", "preprocess": "mine:p"}
    assert input_columns(make_job(job=aside), SCHEMA) == ("a",)
    assert input_columns(make_job(job=aside, features=["made_later", "b"]), SCHEMA) == ("a", "b")


def test_a_feature_that_is_not_a_column_names_the_nearest(make_job: MakeJob) -> None:
    with pytest.raises(JobError, match=r"model\.features: 'lat' is not a column of the input; did you mean 'late'"):
        input_columns(make_job(features=["lat"]), SCHEMA)


def test_a_job_that_leaves_the_model_no_column_is_an_error(make_job: MakeJob) -> None:
    with pytest.raises(JobError, match=r"model\.features"):
        input_columns(make_job(job={"carry": ["a"], "label": "b"}), pa.schema([("a", F32), ("b", F32)]))


def test_features_are_selected_and_ordered_after_preprocess(make_job: MakeJob) -> None:
    code = (
        "def p(batch):\n return {**batch, 'c': batch['a'] + batch['b']}\n"
        "def f(batch):\n assert list(batch) == ['c', 'a']; return batch['c']"
    )
    assert scored(make_job(code, uses="mine:f", features=["c", "a"], job={"preprocess": "mine:p"}), TABLE) == {
        "score": [11.0, 22.0, 33.0]
    }


def test_a_feature_that_preprocess_does_not_return_is_named(make_job: MakeJob) -> None:
    job = make_job(
        "def p(b): return b\ndef f(b): return b", uses="mine:f", features=["x"], job={"preprocess": "mine:p"}
    )
    with pytest.raises(
        OutputInvalid, match=r"model\.features: 'x' is not a column that preprocess returned; it returned a, b"
    ):
        scored(job, TABLE)


def test_a_preprocess_class_is_built_once_and_must_keep_the_rows(make_job: MakeJob) -> None:
    code = "class P:\n def __call__(self, b): return {'a': b['a'][:2]}\ndef f(b): return b['a']"
    with pytest.raises(OutputInvalid, match="'a', which preprocess returned, has 2 values for a batch of 3 rows"):
        scored(make_job(code, uses="mine:f", job={"preprocess": "mine:P"}), TABLE)


@pytest.mark.parametrize(
    ("value", "kind"), [("0.5", "float"), ("None", "NoneType"), ("b['a'].sum()", "float32"), ("np.array(1)", "ndarray")]
)
def test_a_preprocess_that_returns_one_value_for_all_rows_is_told_so(make_job: MakeJob, value: str, kind: str) -> None:
    code = f"import numpy as np\ndef p(b): return {{'a': b['a'], 'most': {value}}}\ndef f(b): return b['a']"
    said = f"'most', which preprocess returned, is a {kind} and no column: return a value a row"
    with pytest.raises(OutputInvalid, match=said):
        scored(make_job(code, uses="mine:f", job={"preprocess": "mine:p"}), TABLE)


def test_a_module_of_a_nested_folder_is_none_of_the_outer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    outer, inner = tmp_path, tmp_path / "sub"
    inner.mkdir()
    (outer / "nested_prep.py").write_text("PLACE = 'outer'")
    (inner / "nested_prep.py").write_text("PLACE = 'inner'")
    found = [find("input.format", "nested_prep:PLACE", folder) for folder in (inner, outer, inner)]
    assert found == ["inner", "outer", "inner"]
    kept = sys.modules["nested_prep"]
    find("input.format", "nested_prep:PLACE", inner)
    assert sys.modules["nested_prep"] is kept, "the folder's own module stays"
    del sys.modules["nested_prep"]
