"""What every predictor adapter promises, tried on each: the frameworks' and the one of the user's own code.

A new framework has one entry in `FLAVOURS`: how its file of the same linear model is written.
"""

from __future__ import annotations

import json
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
import yaml

from modeljobs import model_job
from nightjar.inference.errors import JobError, OutputInvalid
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.job.seams import FRAMEWORKS
from nightjar.inference.predictors import check_keys, load_scorer
from nightjar.inference.predictors.adapter import adapter_of
from nightjar.inference.predictors.batches import to_batch
from nightjar.inference.scoring.assignment import BatchSize
from nightjar.inference.scoring.microbatches import drained
from predicting import dependence, loaded_by_looking, score_table

F32 = pa.float32()
WEIGHTS, BIAS = np.array([1.0, 2.0]), 0.5

OWN = """
import json
import numpy as np

def net():
    import torch
    return torch.nn.Linear(2, 1)

class Linear:
    def __init__(self, path):
        held = json.load(open(path))
        self.weights, self.bias = np.array(held["weights"]), held["bias"]

    def __call__(self, batch):
        return {"score": np.column_stack(list(batch.values())) @ self.weights + self.bias}
"""


def linear() -> Any:
    import torch

    model = torch.nn.Linear(2, 1)
    model.load_state_dict({"weight": torch.tensor(WEIGHTS[None], dtype=torch.float32), "bias": torch.tensor([BIAS])})
    return model


def write_torch(path: Path) -> None:
    import torch

    model = linear()
    dynamic = ({0: torch.export.Dim("n")},)
    torch.export.save(torch.export.export(model, (torch.ones(4, 2),), dynamic_shapes=dynamic), path)


def write_torchscript(path: Path) -> None:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(linear()), path)


def write_state_dict(path: Path) -> None:
    import torch

    torch.save(linear().state_dict(), path)


def write_sklearn(path: Path) -> None:
    import skops.io
    from sklearn.linear_model import LinearRegression

    features = np.random.default_rng(0).random((50, 2))
    skops.io.dump(LinearRegression().fit(features, features @ WEIGHTS + BIAS), path)


def write_onnx(path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(WEIGHTS[:, None].astype("f4"), "w")
    bias = numpy_helper.from_array(np.array([BIAS], "f4"), "b")
    takes = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])
    gives = helper.make_tensor_value_info("score", TensorProto.FLOAT, ["n", 1])
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["score"])], "linear", [takes], [gives], [weights, bias]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


def write_lightgbm(path: Path) -> None:
    import lightgbm

    features = np.random.default_rng(0).random((400, 2))
    linear = {"linear_tree": True, "linear_lambda": 0.0, "learning_rate": 1.0, "num_leaves": 2, "max_bin": 3}
    data = lightgbm.Dataset(features, features @ WEIGHTS + BIAS)
    lightgbm.train({**linear, "num_threads": 1, "verbosity": -1}, data, 12).save_model(path)


def write_xgboost(path: Path) -> None:
    import xgboost

    features = np.random.default_rng(0).random((400, 2))
    linear = {"booster": "gblinear", "updater": "coord_descent", "eta": 1, "lambda": 0, "nthread": 1}
    xgboost.train(linear, xgboost.DMatrix(features, features @ WEIGHTS + BIAS), 200).save_model(path)


def write_catboost(path: Path) -> None:
    import catboost

    features = np.random.default_rng(0).integers(0, 8, (600, 2)) / 8
    exact = {"iterations": 200, "learning_rate": 0.5, "l2_leaf_reg": 0, "random_strength": 0, "bootstrap_type": "No"}
    model = catboost.CatBoost({**exact, "score_function": "L2", "thread_count": 1, "allow_writing_files": False})
    model.fit(features, features @ WEIGHTS + BIAS, verbose=False).save_model(str(path))


def write_keras(path: Path) -> None:
    from nightjar.inference.predictors.tabular.keras import keras_on_torch

    keras = keras_on_torch()
    with keras.device("cpu"):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.set_weights([WEIGHTS[:, None], np.array([BIAS])])
        model.save(path)


def write_own(path: Path) -> None:
    path.write_text(json.dumps({"weights": list(WEIGHTS), "bias": BIAS}))


@dataclass(frozen=True)
class Flavour:
    """How one framework has the linear model.

    null: what a null, which reaches it as NaN, gives: NaN; a number, where the framework takes it as missing; or its
    row fails. imports: the module that the adapter imports. checksums: whether a changed byte in the file is found.
    any_width: the file does not say how many columns the model takes, so only a call tells.
    """

    uses: str
    file: str
    write: Callable[[Path], None]
    null: Literal["nan", "number", "fails"]
    imports: str = ""
    checksums: bool = False
    any_width: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def installed(self) -> bool:
        return not self.imports or find_spec(self.imports) is not None


FLAVOURS = {
    "torch": Flavour("torch", "model.pt2", write_torch, "nan", "torch", checksums=True),
    "sklearn": Flavour("sklearn", "model.skops", write_sklearn, "fails", "sklearn", checksums=True),
    "onnx": Flavour("onnx", "model.onnx", write_onnx, "nan", "onnxruntime"),
    "lightgbm": Flavour("lightgbm", "model.txt", write_lightgbm, "number", "lightgbm"),
    "xgboost": Flavour("xgboost", "model.ubj", write_xgboost, "number", "xgboost"),
    "catboost": Flavour("catboost", "model.cbm", write_catboost, "number", "catboost"),
    "torchscript": Flavour("torch", "script.pt", write_torchscript, "nan", "torch", any_width=True),
    "state dict": Flavour(
        "torch", "state.pt", write_state_dict, "nan", "torch", any_width=True, options={"model": "mine:net"}
    ),
    "keras": Flavour("keras", "model.keras", write_keras, "nan", "keras", checksums=True),
    "keras h5": Flavour("keras", "model.h5", write_keras, "nan", "keras"),
    "own": Flavour("mine:Linear", "model.json", write_own, "nan"),
}
FRAMEWORK = {name: each for name, each in FLAVOURS.items() if each.uses in FRAMEWORKS}
OF_FOLDERS = {name for name, framework in FRAMEWORKS.items() if framework.packs or framework.rows}
"""Models of texts, images and sounds, which `test_model_folders.py`, `test_images_labels.py` … try."""


def test_every_framework_is_tried_here() -> None:
    assert {each.uses for each in FLAVOURS.values()} == {*FRAMEWORKS, "mine:Linear"} - OF_FOLDERS


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model's file of each flavour, and the user's own code."""
    folder = tmp_path_factory.mktemp("models")
    for flavour in FLAVOURS.values():
        if flavour.installed:
            flavour.write(folder / flavour.file)
    (folder / "mine.py").write_text(OWN)
    return folder


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path
    sys.modules.pop("mine", None)


def make_job(files: Path, flavour: Flavour, **model: Any) -> Job:
    section = {"uses": flavour.uses, "path": flavour.file, "outputs": {"score": "float64"}, "options": flavour.options}
    section["trusted"] = flavour.file in ("model.pt2", "script.pt")
    section.update(model)
    content = {"name": "t", "input": {"uri": "in/"}, "model": section, "output": {"uri": "out"}}
    return parse_job(content, files / "job.yaml")


def make_table(rows: int, seed: int = 1) -> pa.Table:
    """Numbers of a grid, on which trees equal the linear model, too."""
    values = (np.random.default_rng(seed).integers(0, 8, (rows, 2)) / 8).astype("f4")
    return pa.table({"a": values[:, 0], "b": values[:, 1]})


def expected(table: pa.Table) -> np.ndarray:
    values = np.column_stack([column.to_numpy() for column in table.columns])
    return np.asarray(values @ WEIGHTS + BIAS)


def scores(job: Job, table: pa.Table) -> np.ndarray:
    return np.array(load_scorer(model_job(job), job.models[0].path)(table)["score"].to_pylist())


def parametrized(flavours: dict[str, Flavour]) -> pytest.MarkDecorator:
    """Frameworks that are no part of `dev` are tried where they are installed."""

    def needs(name: str, flavour: Flavour) -> pytest.MarkDecorator:
        return pytest.mark.skipif(not flavour.installed, reason=f"pip install 'nightjar-batch[{flavour.uses}]'")

    return pytest.mark.parametrize(
        "flavour", [pytest.param(each, id=name, marks=needs(name, each)) for name, each in flavours.items()]
    )


each_flavour, each_framework = parametrized(FLAVOURS), parametrized(FRAMEWORK)


@each_flavour
@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_the_same_model_gives_the_same_scores_for_any_number_of_rows(files: Path, flavour: Flavour, rows: int) -> None:
    table = make_table(rows)
    np.testing.assert_allclose(scores(make_job(files, flavour), table), expected(table), rtol=1e-5)


@each_flavour
def test_features_reach_the_model_in_the_order_of_the_job(files: Path, flavour: Flavour) -> None:
    table = make_table(5)
    turned = scores(make_job(files, flavour, features=["b", "a"]), table)
    np.testing.assert_allclose(turned, expected(table.select(["b", "a"])), rtol=1e-5)


@each_flavour
def test_to_prepare_and_then_to_predict_is_the_whole(files: Path, flavour: Flavour) -> None:
    """All batches may be prepared before the first is predicted: none of them lies in another's memory."""
    job = make_job(files, flavour)
    adapter = adapter_of(model_job(job))
    predictor = adapter.load(model_job(job), job.models[0].path)
    assert predictor.device == "cpu"
    tables = [make_table(10, seed) for seed in range(3)]
    prepared = [predictor.prepare(table if adapter.reads_arrow else to_batch(table, "numpy")) for table in tables]
    whole = load_scorer(model_job(job), job.models[0].path)
    for table, each in zip(tables, prepared, strict=True):
        raw = np.asarray(predictor.predict(each)["score"]).reshape(-1)
        np.testing.assert_array_equal(raw, whole(table)["score"].to_numpy())


@each_framework
def test_to_prepare_raises_of_rows_what_is_theirs_and_of_the_job_what_is_not(files: Path, flavour: Flavour) -> None:
    """Rows of the wrong length fail alone; columns that never fit are the job's fault."""
    job = make_job(files, flavour)
    adapter = adapter_of(model_job(job))
    predictor = adapter.load(model_job(job), job.models[0].path)

    def prepare(columns: dict[str, Any]) -> Any:
        table = pa.table(columns)
        prepared = predictor.prepare(table if adapter.reads_arrow else to_batch(table, "numpy"))
        return predictor.predict(prepared) if flavour.any_width else prepared

    prepare({"v": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(F32))})
    for rows in ([[1.0, 2.0], [3.0]], [[1.0, 2.0, 3.0]]):
        with pytest.raises((ValueError, RuntimeError), match=r"length|takes|fitted|shapes cannot be multiplied"):
            prepare({"v": pa.array(rows, pa.list_(F32))})
    if flavour.any_width:  # only the framework knows the width, and says so itself
        with pytest.raises((JobError, RuntimeError), match=r"none such|shapes cannot be multiplied"):
            prepare({name: pa.array([1.0], F32) for name in "abc"})
    else:
        with pytest.raises(JobError, match=r"^model\.features: a, b, c make 3 columns, and .* 2$"):
            prepare({name: pa.array([1.0], F32) for name in "abc"})


@each_flavour
def test_two_threads_may_prepare_and_predict_at_once(files: Path, flavour: Flavour) -> None:
    job = make_job(files, flavour)
    scorer = load_scorer(model_job(job), job.models[0].path)
    tables = [make_table(500, seed) for seed in range(40)]
    with ThreadPoolExecutor(2) as threads:
        for table, found in zip(tables, threads.map(scorer, tables), strict=True):
            np.testing.assert_allclose(found["score"].to_numpy(), expected(table), rtol=1e-5)


@each_flavour
@pytest.mark.parametrize("rows", [1, 2, 4, 31, 256])
def test_a_rows_score_does_not_depend_on_its_neighbours(files: Path, flavour: Flavour, rows: int) -> None:
    assert dependence(make_job(files, flavour), make_table(rows)) == ""


@each_flavour
def test_a_null_reaches_the_model_as_nan_and_costs_its_row_at_most(files: Path, flavour: Flavour) -> None:
    table = make_table(8).set_column(0, "a", pa.array([1.0, None, *range(6)], F32))
    job = make_job(files, flavour)
    steps = score_table(
        table, load_scorer(model_job(job), job.models[0].path), BatchSize(8), job.models[0].output_types()
    )
    scored = drained(steps)
    if flavour.null != "fails":
        assert not scored.failures
        nan = [flavour.null == "nan" and row == 1 for row in range(8)]
        assert np.isnan(scored.outputs["score"].to_numpy()).tolist() == nan
    else:
        assert [(failure.row, failure.error) for failure in scored.failures] == [(1, "ValueError")]
        assert "NaN" in scored.failures[0].message
        assert scored.outputs.num_rows == 7


@each_flavour
def test_another_number_of_outputs_than_declared_is_said(files: Path, flavour: Flavour) -> None:
    job = make_job(files, flavour, outputs={"score": "float64", "other": "float64"})
    with pytest.raises(OutputInvalid, match=r"other|declares 2"):
        load_scorer(model_job(job), job.models[0].path)(make_table(3))


def damaged(path: Path, folder: Path, other: Path, checksums: bool) -> Iterator[Path]:
    """The file cut, empty, with a byte changed, of another framework, another kind of file, a folder, none at all."""
    whole = path.read_bytes()
    contents = {
        "empty": b"",
        "cut": whole[: len(whole) // 2],
        "end": whole[:-2],
        "other": other.read_bytes(),
        "text": b"PAR1 no model at all",
    }
    if checksums:
        with zipfile.ZipFile(path) as archive:
            at = max(archive.infolist(), key=lambda each: each.file_size).header_offset + 100
        contents["changed"] = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
    for name, content in contents.items():
        (folder / name).mkdir()
        (folder / name / path.name).write_bytes(content)
        yield folder / name / path.name
    (folder / "folder" / path.name).mkdir(parents=True)
    yield folder / "folder" / path.name
    yield folder / "gone" / path.name


@each_framework
def test_a_file_that_is_not_the_models_is_refused_by_its_key(files: Path, flavour: Flavour, tmp_path: Path) -> None:
    other = next(each for each in FRAMEWORK.values() if each is not flavour)
    for wrong in damaged(files / flavour.file, tmp_path, files / other.file, flavour.checksums):
        job = make_job(tmp_path, flavour, path=str(wrong))
        with pytest.raises(JobError, match=rf"^model\.path: .*{flavour.file}"):
            adapter_of(model_job(job)).load(model_job(job), str(wrong))
        # Only who reads it whole finds a change, and of an ONNX or Keras file all faults.
        if wrong.parent.name != "changed" and flavour.uses not in {"onnx", "keras"}:
            with pytest.raises(JobError, match=rf"^model\.path: .*{flavour.file}"):
                adapter_of(model_job(job)).inspect(model_job(job), str(wrong))


@each_framework
def test_an_unknown_option_is_refused_by_its_name(files: Path, flavour: Flavour) -> None:
    job = make_job(files, flavour, options={"batch_formt": "numpy"})
    with pytest.raises(JobError, match=rf"^model\.options\.batch_formt: the {flavour.uses} .*you mean 'batch_format'"):
        check_keys(job)


def test_looking_at_job_and_file_imports_no_framework(files: Path) -> None:
    """Commands that only look must not wait for it; no error of it exists before that."""
    tried = [each for each in FLAVOURS.values() if each.installed]
    paths = []
    for flavour in tried:
        parts = {"name", "input", "output", "only"}
        job = make_job(files, flavour).model_dump(mode="json", by_alias=True, include=parts)
        job["input"].pop("wait")
        paths.append(files / f"{flavour.file}.yaml")
        paths[-1].write_text(yaml.safe_dump(job))
    looked, warmed = loaded_by_looking(*paths)
    assert not {*(each.imports for each in FLAVOURS.values()), "skops", "pandas", "scipy", "mine"} & looked
    # To warm imports a framework, and what Arrow needs, and of the user's code nothing.
    for flavour, loaded in zip(tried, warmed, strict=True):
        assert {flavour.imports, "pandas"} - {""} <= loaded
    assert "mine" not in warmed[-1]


@each_flavour
def test_what_is_raised_for_devices_are_exceptions(files: Path, flavour: Flavour) -> None:
    job = make_job(files, flavour)
    adapter = adapter_of(model_job(job))
    adapter.load(model_job(job), job.models[0].path)
    for kind in adapter.device_errors():
        assert issubclass(kind, Exception)


@each_flavour
def test_what_counts_beyond_job_and_file_is_the_same_each_time(files: Path, flavour: Flavour) -> None:
    """By name, as versions that are installed here."""
    job = make_job(files, flavour)
    found = adapter_of(model_job(job)).fingerprint(model_job(job))
    assert found == adapter_of(model_job(job)).fingerprint(model_job(job))
    assert all(isinstance(text, str) and text for pair in found.items() for text in pair)
