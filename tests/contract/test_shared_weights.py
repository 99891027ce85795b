"""Large weights stay in their file, mapped into memory, so that all processes of a node share them; no output changes.

A smaller file is copied for each process, and there is nothing to share.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import yaml

from lazily import lazily
from nightjar.inference.identity import snapshots
from nightjar.inference.predictors.adapter import SHARED_BYTES
from torchnets import has_safetensors, write

torch = lazily("torch")
LinearRegression = lazily("sklearn.linear_model", "LinearRegression")

WIDTH, OUTPUTS = 4096, 4352
WEIGHTS = WIDTH * OUTPUTS * 4
NET = f"""
from torch import nn

def build():
    return nn.Linear({WIDTH}, {OUTPUTS})

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear({WIDTH}, {WIDTH}), nn.Linear({WIDTH}, {WIDTH})
        self.other.weight = self.one.weight

    def forward(self, x):
        return self.other(self.one(x))
"""

LOADS = """
import json, re, sys, warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from nightjar.inference.job.file import load_job
from nightjar.inference.job.modeljob import model_jobs
from nightjar.inference.predictors import load_scorer
from nightjar.inference.scoring.memory import release

warnings.simplefilter("ignore", DeprecationWarning)
rows = np.random.default_rng(0).random((3, 4096), np.float32)
tables = {
    "v": pa.table({"v": pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])}),
    "text": pa.table({"text": ["cat dog", "bird"]}),
}

def packed(path, given):
    import onnxruntime

    session = onnxruntime.InferenceSession(f"{path}/model.onnx", providers=["CPUExecutionProvider"])
    return session.run(None, {"x": given})[0]

direct = {
    # The columns of a program's input lie one after the other.
    ".pt2": lambda path: torch.export.load(path).module()(torch.from_numpy(rows.T.copy()).T).detach().numpy(),
    ".pt": lambda path: torch.jit.load(path)(torch.from_numpy(rows)).detach().numpy(),
    ".onnx": lambda path: packed(path, rows),
    ".joblib": lambda path: __import__("joblib").load(path).predict(rows.astype("f4")),
}

def own():
    release()
    found = re.search(r"^Anonymous: +(\\d+) kB$", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) << 10

def scored(job):
    (only,) = model_jobs(job)
    scorer = load_scorer(only, only.model.path)
    return scorer, scorer(tables[job.models[0].features[0]])

for path in sys.argv[1:]:
    job = load_job(path)
    scored(job)  # so that everything is imported
    before = own()
    scorer, outputs = scored(job)
    taken = own() - before
    if expected := direct.get(Path(job.models[0].path).suffix):
        found = np.array(outputs["y"].to_pylist())
        np.testing.assert_allclose(found, expected(job.models[0].path), rtol=0, atol=1e-5 if "onnx" in path else 0)
    print(json.dumps([Path(path).parent.name, taken]))
"""


def save_program(path: Path) -> None:
    dynamic = ({0: torch.export.Dim("n")},)
    module = torch.nn.Linear(WIDTH, OUTPUTS)
    torch.export.save(torch.export.export(module, (torch.ones(4, WIDTH),), dynamic_shapes=dynamic), path)


def save_estimator(path: Path) -> None:
    """A linear model whose coefficients were not learnt."""
    model = LinearRegression()
    model.coef_ = np.random.default_rng(1).random((OUTPUTS, WIDTH), np.float32)
    model.intercept_ = np.zeros(OUTPUTS, "f4")
    model.n_features_in_ = WIDTH
    joblib.dump(model, path)


def save_onnx(folder: Path) -> None:
    """A product of matrices, its weights in a file beside it."""
    onnx = pytest.importorskip("onnx", reason="pip install 'nightjar-batch[dev]'")
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(np.random.default_rng(1).random((OUTPUTS, WIDTH), np.float32) / WIDTH, "w")
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
        for name, size in (("x", WIDTH), ("y", OUTPUTS))
    ]
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)], "g", ends[:1], ends[1:], [weights]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    folder.mkdir()
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="model.onnx.data")


def save_texts(folder: Path) -> None:
    pytest.importorskip("tokenizers", reason="pip install 'nightjar-batch[transformers]'")
    import transformers

    from textmodels import save_tokenizer

    config = transformers.BertConfig(
        vocab_size=36_000, hidden_size=512, num_hidden_layers=1, num_attention_heads=2, intermediate_size=512
    )
    transformers.BertModel(config).save_pretrained(folder)
    save_tokenizer(folder)


def job_in(folder: Path, name: str, file: str, **section: Any) -> Path:
    """A job in a folder of its own, with the path of its model's file."""
    (folder / name).mkdir()
    (folder / name / "net.py").write_text(NET)
    model = {"path": file, "features": ["v"], "outputs": {"y": f"float32[{OUTPUTS}]"}, **section}
    job = {"name": "t", "input": {"uri": "in"}, "model": model, "output": {"uri": "out"}}
    (folder / name / "job.yaml").write_text(yaml.safe_dump(job))
    return folder / name / "job.yaml"


def taken(folder: Path, *jobs: Path) -> dict[str, float]:
    """By job the memory of its own that a process takes to load and score, as a share of the weights."""
    words = [sys.executable, "-c", LOADS, *map(str, jobs)]
    environ = {**os.environ, "PYTHONPATH": str(jobs[0].parent)}
    done = subprocess.run(words, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: size / WEIGHTS for name, size in map(json.loads, done.stdout.splitlines())}


def test_the_smallest_shared_file_is_the_smallest_that_is_not_copied() -> None:
    assert SHARED_BYTES == snapshots.COPIED_BYTES < WEIGHTS


@pytest.mark.system
@has_safetensors
def test_weights_that_are_used_as_they_lie_in_the_file_are_no_memory_of_the_process(tmp_path: Path) -> None:
    """Of each kind of file. What is computed is the same, to the bit. Another type makes a copy of each one's own."""
    own = {"uses": "torch", "options": {"model": "net:build"}}
    program = job_in(tmp_path, "program", "model.pt2", uses="torch", trusted=True)
    save_program(program.with_name("model.pt2"))
    jobs = [program]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        jobs.append(job_in(tmp_path, "script", "script.pt", uses="torch", trusted=True))
        write(jobs[-1].parent, "script.pt", torch.nn.Linear(WIDTH, OUTPUTS))
    for file in ("state.pth", "state.safetensors"):
        jobs.append(job_in(tmp_path, file, file, **own))
        write(jobs[-1].parent, file, torch.nn.Linear(WIDTH, OUTPUTS))
    converted = {"uses": "torch", "options": {"model": "net:build", "dtype": "bfloat16"}}
    jobs.append(job_in(tmp_path, "converted", str(jobs[-1].with_name("state.safetensors")), **converted))
    tied = {"uses": "torch", "options": {"model": "net:Tied"}, "outputs": {"y": f"float32[{WIDTH}]"}}
    jobs.append(job_in(tmp_path, "tied", "state.safetensors", **tied))
    names: dict[str, Any] = {}
    exec(NET, names)
    write(jobs[-1].parent, "state.safetensors", names["Tied"]())
    pickled = {"uses": "sklearn", "trusted": True}
    jobs.append(job_in(tmp_path, "joblib", "model.joblib", **pickled))
    save_estimator(jobs[-1].with_name("model.joblib"))
    for shared in (True, False):
        jobs.append(job_in(tmp_path, f"onnx-{shared}", "model.onnx", uses="onnx", options={"shared": shared}))
        save_onnx(jobs[-1].with_name("model.onnx"))
    texts = {"uses": "embed", "features": ["text"], "outputs": {"y": "float32[512]"}}
    jobs.append(job_in(tmp_path, "texts", "model", **texts))
    save_texts(jobs[-1].with_name("model"))
    found = taken(tmp_path, *jobs)
    shared = {name for name, share in found.items() if share < 0.3}
    torchs = {"program", "script", "state.pth", "state.safetensors", "tied"}
    assert shared == torchs | {"joblib", "onnx-True", "texts"}, found
