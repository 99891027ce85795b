"""A row's output belongs to its row: rounding is not taken for dependence, and dependence is found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lazily import lazily, skip_without
from mediamodels import RATE, photos, recordings, save_classifier, save_detector, save_listener
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.job.seams import FRAMEWORKS
from nightjar.inference.tensors import VariableShapedTensor
from predicting import dependence
from textmodels import WIDTH, save_model, save_recipe, sentences, text_job

skip_without("tokenizers", reason="pip install 'nightjar-batch[transformers]'")

torch = lazily("torch")
onnx = lazily("onnx")

DTYPES = ["float32", "float16", "bfloat16"]
LABELS = {0: "bad", 1: "so so", 2: "good"}
CLASSES = {"label": "string", "score": "float32", "scores": "float32[3]"}
FOLDERS: dict[str, dict[str, Any]] = {
    "embed": {"path": "embed", "outputs": {"vector": f"float32[{WIDTH}]"}},
    "text-classification": {"path": "classifier", "outputs": CLASSES},
    "zero-shot": {
        "path": "nli",
        "outputs": {"label": "string", "scores": "float32[2]"},
        "options": {"labels": ["cat", "dog"]},
    },
    "token-classification": {"path": "tagger", "outputs": {"labels": "list<string>", "scores": "list<float32>"}},
    "image-classification": {"path": "images", "outputs": CLASSES},
    "object-detection": {
        "path": "detector",
        "outputs": {"labels": "list<string>", "scores": "list<float32>", "boxes": "list<float32[4]>"},
        "options": {"threshold": 0.2},
    },
    "speech-recognition": {"path": "sounds", "outputs": {"text": "string"}, "options": {"sampling_rate": RATE}},
}

NETS = """
import torch

class Ties(torch.nn.Module):
    '''Scores, and the label of the greatest of 50 that lie close together.'''

    def __init__(self, width=256):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU(),
            torch.nn.Linear(width, 50),
        )

    def forward(self, x):
        scores = self.layers(x)
        return {"label": scores.argmax(1), "top": scores.topk(5, 1).indices, "scores": scores}

class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x):
        self.norm.train()
        return {"score": self.norm(x)[:, 0]}

def z(batch):
    x = batch["a"]
    return {"score": (x - x.mean()) / (x.std() + 1e-9)}

def nan_z(batch):
    import numpy as np
    x = batch["a"]
    with np.errstate(invalid="ignore"):
        return {"score": (x - np.nanmean(x)) / np.nanstd(x)}

def rank(batch):
    return {"score": batch["a"].argsort().argsort()}

def share(batch):
    return {"score": batch["a"] / len(batch["a"])}

def position(batch):
    import numpy as np
    return {"score": batch["a"] + np.arange(len(batch["a"]))}

def codes(batch):
    import pandas as pd
    return {"score": pd.Series(batch["a"]).astype("category").cat.codes.to_numpy()}

def ordered(frame):
    return {"score": frame.sort_values("a")["a"].to_numpy()}

def dice(batch):
    import numpy as np
    return {"score": np.random.random(len(batch["a"]))}

class Running:
    def __init__(self):
        self.total = self.rows = 0

    def __call__(self, batch):
        self.total, self.rows = self.total + batch["a"].sum(), self.rows + len(batch["a"])
        return {"score": batch["a"] - self.total / self.rows}

def scaled(batch):
    return {**batch, "a": (batch["a"] - batch["a"].mean()) / batch["a"].std()}

def plain(batch):
    return {"score": batch["a"] * 2}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    save_recipe(made / "embed")
    save_model(made / "classifier", "BertForSequenceClassification", id2label=LABELS)
    inference = {0: "contradiction", 1: "neutral", 2: "entailment"}
    save_model(
        made / "nli",
        "BertForSequenceClassification",
        id2label=inference,
        label2id={label: place for place, label in inference.items()},
    )
    save_model(made / "tagger", "BertForTokenClassification", id2label={0: "O", 1: "B-PER", 2: "I-PER"})
    save_classifier(made / "images")
    save_detector(made / "detector")
    save_listener(made / "sounds")
    (made / "nets.py").write_text(NETS)
    return made


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path
    sys.modules.pop("nets", None)


def numbers(rows: int, seed: int = 0) -> pa.Table:
    values = np.random.default_rng(seed).normal(5, 2, (rows, 8)).astype("f4")
    return pa.table({name: values[:, index] for index, name in enumerate("abcdefgh")})


def own(folder: Path, uses: str, job: dict[str, Any] | None = None, **section: Any) -> Job:
    named = uses if uses in FRAMEWORKS else f"nets:{uses}"
    model = {"uses": named, "features": ["a"], "outputs": {"score": "float64"}, **section}
    content = {"name": "t", "input": {"uri": "in/"}, "model": model, "output": {"uri": "out"}, **(job or {})}
    return parse_job(content, folder / "job.yaml")


def given(uses: str, rows: int) -> pa.Table:
    """Texts, images or sounds of several lengths."""
    if uses == "speech-recognition":
        return pa.table({"sound": pa.array(recordings(rows), pa.list_(pa.float32()))})
    if uses in ("image-classification", "object-detection"):
        kind = VariableShapedTensor(pa.uint8())
        images = [{"data": each.reshape(-1), "shape": list(each.shape)} for each in photos(rows)]
        return pa.table({"image": pa.ExtensionArray.from_storage(kind, pa.array(images, kind.storage_type))})
    return pa.table({"text": pa.array(sentences(rows), pa.string())})


def test_every_model_in_a_folder_is_tried_here() -> None:
    """Those of one file are tried in `test_adapters.py`; language models are asked row by row."""
    assert set(FOLDERS) == {name for name, each in FRAMEWORKS.items() if (each.packs or each.rows) and not each.streams}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("uses", FOLDERS)
def test_padding_and_packing_are_no_dependence(folder: Path, uses: str, dtype: str) -> None:
    section = FOLDERS[uses]
    job = text_job(folder, **{**section, "uses": uses, "options": {**section.get("options", {}), "dtype": dtype}})
    for rows in (1, 2, 7, 32):
        assert dependence(job, given(uses, rows)) == ""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 17, 32, 255, 256])
def test_rounding_and_ties_are_no_dependence(folder: Path, dtype: str, rows: int) -> None:
    """Labels and lists of the greatest scores, of numbers that lie close together."""
    sys.path.insert(0, str(folder))
    import nets  # type: ignore[import-not-found]  # the fixture wrote it

    torch.manual_seed(3)
    torch.save(nets.Ties().state_dict(), folder / "ties.pt")
    outputs = {"label": "int64", "top": "list<int64>", "scores": "float32[50]"}
    options = {"model": "nets:Ties", "dtype": dtype}
    job = own(folder, "torch", path="ties.pt", outputs=outputs, features=list("abcdefgh"), options=options)
    assert dependence(job, numbers(rows)) == ""


def write_onnx(path: Path, nodes: list[Any], weights: dict[str, Any], width: int) -> None:
    from onnx import TensorProto, helper, numpy_helper

    takes = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])
    gives = helper.make_tensor_value_info("score", TensorProto.FLOAT, ["n", 3])
    held = [numpy_helper.from_array(each, name) for name, each in weights.items()]
    graph = helper.make_graph(nodes, "g", [takes], [gives], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.parametrize("rows", [2, 4, 32, 256])
def test_steps_of_dynamic_quantisation_are_no_dependence(folder: Path, rows: int) -> None:
    """They follow the greatest value of the batch, so that each row is rounded otherwise beside other rows."""
    from onnx import helper

    weights = {
        "w": np.random.default_rng(1).integers(-127, 127, (8, 3), dtype=np.int8),
        "s": np.array(0.01, "f4"),
    }
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]),
        helper.make_node("MatMulInteger", ["q", "w", "qz"], ["m"]),
        helper.make_node("Cast", ["m"], ["f"], to=1),
        helper.make_node("Mul", ["qs", "s"], ["both"]),
        helper.make_node("Mul", ["f", "both"], ["score"]),
    ]
    write_onnx(folder / "int8.onnx", nodes, weights, 8)
    job = own(folder, "onnx", path="int8.onnx", outputs={"score": "float32[3]"}, features=list("abcdefgh"))
    assert dependence(job, numbers(rows)) == ""


@pytest.mark.parametrize("rows", [2, 4, 32])
def test_a_z_score_in_a_graph_is_found(folder: Path, rows: int) -> None:
    from onnx import helper

    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["x", "mean"], ["score"]),
    ]
    write_onnx(folder / "z.onnx", nodes, {}, 3)
    job = own(folder, "onnx", path="z.onnx", outputs={"score": "float32[3]"}, features=list("abc"))
    assert "depends on the rows" in dependence(job, numbers(rows))


def test_a_batchnorm_in_training_mode_is_found(folder: Path) -> None:
    sys.path.insert(0, str(folder))
    import nets

    torch.save(nets.Normed().state_dict(), folder / "normed.pt")
    options = {"model": "nets:Normed"}
    job = own(folder, "torch", path="normed.pt", features=list("abcdefgh"), options=options)
    assert "depends on the rows" in dependence(job, numbers(32))


@pytest.mark.parametrize("rows", [2, 4, 32])
@pytest.mark.parametrize("uses", ["z", "nan_z", "rank", "share", "position", "codes"])
def test_an_output_that_depends_on_the_batch_is_found(folder: Path, uses: str, rows: int) -> None:
    """It names the row and both values."""
    assert "depends on the rows that are scored with it: row " in dependence(own(folder, uses), numbers(rows))


def test_a_z_score_of_a_constant_column_beside_others_and_of_nulls_is_found(folder: Path) -> None:
    column = pa.array([None, *range(31)], pa.float32())
    assert "depends on the rows" in dependence(own(folder, "nan_z"), pa.table({"a": column}))
    halves = pa.array([1.0] * 16 + [2.0] * 16, pa.float32())
    assert "depends on the rows" in dependence(own(folder, "z"), pa.table({"a": halves}))


def test_values_that_belong_to_other_rows_are_found(folder: Path) -> None:
    job = own(folder, "ordered", options={"batch_format": "pandas"})
    assert "depends on the rows" in dependence(job, numbers(32))


def test_a_preprocess_that_depends_on_its_batch_is_found(folder: Path) -> None:
    job = own(folder, "plain", {"preprocess": "nets:scaled"})
    assert "depends on the rows" in dependence(job, numbers(32))
    assert dependence(own(folder, "plain"), numbers(32)) == ""


@pytest.mark.parametrize("uses", ["dice", "Running"])
def test_a_model_that_is_not_the_same_twice_is_told_apart(folder: Path, uses: str) -> None:
    found = dependence(own(folder, uses), numbers(32))
    assert "when the same rows are scored again" in found
    assert "draws random numbers, or keeps something of earlier batches" in found
