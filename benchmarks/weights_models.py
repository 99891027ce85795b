"""Models of a given size with random weights, one of each kind of file, and the job section that scores each.

Each is made in a process of its own: `python benchmarks/weights_models.py KIND FOLDER BYTES`.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

FEATURES = [f"f{place:02}" for place in range(20)]
ROWS = 2_000
TEXT = "text"
LAYERS = 5
"""Square layers of the nets; each has a fifth of the weights."""

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width: int, layers: int):
        super().__init__()
        steps = [nn.Linear(20, width)]
        for _ in range(layers):
            steps += [nn.ReLU(), nn.Linear(width, width)]
        self.steps = nn.Sequential(*steps, nn.Linear(width, 1))

    def forward(self, x):
        return self.steps(x)
"""

Section = dict[str, Any]
Make = Callable[[Path, int], Section]


def width_of(size: int, item: int = 4) -> int:
    """The width of square layers that together have so many bytes."""
    return round(math.sqrt(size / LAYERS / item))


# ---- torch ---------------------------------------------------------------------------------------------------


def net(folder: Path, size: int) -> Any:
    """A net, whose class is also written beside the job."""
    import torch

    (folder / "net.py").write_text(NET)
    sys.path.insert(0, str(folder))
    from net import Net  # type: ignore[import-not-found]  # it was just written

    torch.manual_seed(1)
    return Net(width_of(size), LAYERS).eval()


def exported(folder: Path, size: int) -> Section:
    import torch

    program = torch.export.export(net(folder, size), (torch.ones(4, 20),), dynamic_shapes=({0: torch.export.Dim("n")},))
    torch.export.save(program, folder / "model.pt2")
    return {"uses": "torch", "path": "model.pt2", "trusted": True}


def scripted(folder: Path, size: int) -> Section:
    import torch

    warnings.simplefilter("ignore", DeprecationWarning)
    torch.jit.save(torch.jit.script(net(folder, size)), folder / "model.pt")
    return {"uses": "torch", "path": "model.pt", "trusted": True}


def factory(size: int, **options: Any) -> Section:
    return {"model": "net:Net", "args": {"width": width_of(size), "layers": LAYERS}, **options}


def state(folder: Path, size: int) -> Section:
    import torch

    torch.save(net(folder, size).state_dict(), folder / "model.pth")
    return {"uses": "torch", "path": "model.pth", "options": factory(size)}


def safetensors(folder: Path, size: int) -> Section:
    from safetensors.torch import save_model

    save_model(net(folder, size), str(folder / "model.safetensors"))
    return {"uses": "torch", "path": "model.safetensors", "options": factory(size)}


def converted(folder: Path, size: int) -> Section:
    return {**safetensors(folder, size), "options": factory(size, dtype="bfloat16")}


# ---- transformers ---------------------------------------------------------------------------------------------


def texts(folder: Path, size: int, kind: str = "float32") -> Section:
    """A model of BERT's layers; most of its weights are in them."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    special, words = ["[PAD]", "[UNK]"], [f"w{place}" for place in range(1000)]
    core = Tokenizer(models.WordLevel({word: place for place, word in enumerate([*special, *words])}, "[UNK]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]")
    layer = 12 * 768 * 768 * getattr(torch, kind).itemsize
    config = transformers.BertConfig(vocab_size=len(special) + len(words), num_hidden_layers=max(1, size // layer))
    with torch.device("cpu"):
        model = transformers.BertModel(config).to(getattr(torch, kind))
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return {"uses": "embed", "path": "model", "features": [TEXT], "outputs": {"vector": "float32[768]"}}


def texts_bfloat16(folder: Path, size: int) -> Section:
    return texts(folder, size, "bfloat16")


# ---- ONNX -----------------------------------------------------------------------------------------------------


def onnx_one(folder: Path, size: int, beside: bool = False) -> Section:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    chance, width = np.random.default_rng(1), width_of(size)
    widths = [20, *[width] * (LAYERS + 1), 1]
    nodes, weights, last = [], [], "x"
    for place, (rows, columns) in enumerate(pairwise(widths)):
        values = chance.standard_normal((columns, rows), np.float32) / rows**0.5
        weights.append(numpy_helper.from_array(values, f"w{place}"))
        name = "score" if place == len(widths) - 2 else f"h{place}"
        nodes.append(helper.make_node("Gemm", [last, f"w{place}"], [name], transB=1))
        if name != "score":
            nodes.append(helper.make_node("Relu", [name], [f"r{place}"]))
        last = f"r{place}"
    takes = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 20])
    gives = helper.make_tensor_value_info("score", TensorProto.FLOAT, ["n", 1])
    graph = helper.make_graph(nodes, "net", [takes], [gives], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    (folder / "model").mkdir()
    aside: dict[str, Any] = {"save_as_external_data": True, "location": "model.onnx.data"} if beside else {}
    onnx.save(model, folder / "model" / "model.onnx", **aside)
    return {"uses": "onnx", "path": "model"}


def onnx_beside(folder: Path, size: int) -> Section:
    return onnx_one(folder, size, beside=True)


def onnx_shared(folder: Path, size: int) -> Section:
    return {**onnx_beside(folder, size), "options": {"shared": True}}


# ---- scikit-learn, Keras, trees -------------------------------------------------------------------------------


def table(rows: int) -> tuple[Any, Any]:
    """Features, and labels that only a large model can learn."""
    chance = np.random.default_rng(1)
    return chance.random((rows, len(FEATURES)), np.float32), chance.random(rows, np.float32)


def estimator(size: int) -> Any:
    from sklearn.neural_network import MLPRegressor

    warnings.simplefilter("ignore")  # one round is not enough to learn anything
    model = MLPRegressor(hidden_layer_sizes=(width_of(size),) * (LAYERS + 1), max_iter=1, solver="sgd")
    model.fit(*table(32))
    # Copies of the weights that only training needs. skops does not trust the optimizer's class.
    for name in ("_optimizer", "_best_coefs", "_best_intercepts"):
        vars(model).pop(name, None)
    return model


def skops(folder: Path, size: int) -> Section:
    import skops.io

    skops.io.dump(estimator(size), folder / "model.skops")
    return {"uses": "sklearn", "path": "model.skops"}


def joblib(folder: Path, size: int) -> Section:
    from joblib import dump

    dump(estimator(size), folder / "model.joblib")
    return {"uses": "sklearn", "path": "model.joblib", "trusted": True}


def keras_file(folder: Path, size: int, suffix: str = ".keras") -> Section:
    from nightjar.inference.predictors.tabular.keras import keras_on_torch

    keras = keras_on_torch()
    layers = [keras.layers.Dense(width_of(size), activation="relu") for _ in range(LAYERS + 1)]
    model = keras.Sequential([keras.Input((20,)), *layers, keras.layers.Dense(1)])
    model.save(folder / f"model{suffix}")
    return {"uses": "keras", "path": f"model{suffix}"}


def keras_hdf5(folder: Path, size: int) -> Section:
    return keras_file(folder, size, ".h5")


TREES_SHARE = 5
"""LightGBM and XGBoost would train trees of the whole size for a quarter of an hour, so theirs are a fifth of it."""

LEAVES = 1 << 16


def lightgbm(folder: Path, size: int) -> Section:
    import lightgbm

    leaves, leaf_bytes = 1 << 12, 100
    settings = {"num_leaves": leaves, "min_data_in_leaf": 1, "max_bin": 15, "num_threads": 1, "verbosity": -1}
    rounds = max(1, size // TREES_SHARE // leaves // leaf_bytes)
    lightgbm.train(settings, lightgbm.Dataset(*table(50_000)), rounds).save_model(folder / "model.txt")
    return {"uses": "lightgbm", "path": "model.txt"}


def xgboost(folder: Path, size: int) -> Section:
    import xgboost

    settings = {"grow_policy": "lossguide", "max_leaves": LEAVES, "max_depth": 0, "min_child_weight": 0}
    settings |= {"max_bin": 16, "nthread": 1}  # threads wait for each other more than they grow such trees
    features, labels = table(200_000)
    rounds = max(1, size // TREES_SHARE // LEAVES // 68)
    xgboost.train(settings, xgboost.DMatrix(features, labels), rounds).save_model(folder / "model.ubj")
    return {"uses": "xgboost", "path": "model.ubj"}


def catboost(folder: Path, size: int) -> Section:
    from catboost import CatBoostRegressor

    rounds = max(1, size // LEAVES // 16)
    model = CatBoostRegressor(depth=16, iterations=rounds, verbose=False, allow_writing_files=False, train_dir=None)
    model.fit(*table(5_000))
    model.save_model(str(folder / "model.cbm"))
    return {"uses": "catboost", "path": "model.cbm"}


KINDS: dict[str, tuple[str, Make]] = {
    "pt2": ("torch: exported program", exported),
    "pt": ("torch: TorchScript", scripted),
    "pth": ("torch: state dict", state),
    "safetensors": ("torch: safetensors", safetensors),
    "dtype": ("torch: safetensors, with `dtype: bfloat16`", converted),
    "embed": ("embed and other models in folders: safetensors", texts),
    "embed-bf16": ("the same, saved as bfloat16, computed as float32", texts_bfloat16),
    "onnx": ("onnx: one file", onnx_one),
    "onnx-data": ("onnx: weights in a file beside it", onnx_beside),
    "onnx-shared": ("the same, with `shared: true`", onnx_shared),
    "joblib": ("sklearn: joblib", joblib),
    "skops": ("sklearn: skops", skops),
    "keras": ("keras: .keras", keras_file),
    "h5": ("keras: .h5", keras_hdf5),
    "lightgbm": ("lightgbm", lightgbm),
    "xgboost": ("xgboost", xgboost),
    "catboost": ("catboost", catboost),
}
"""Name → what is made, for people, and what makes it."""


def main(kind: str, folder: Path, size: int) -> None:
    """Make a model, the rows and the job."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import yaml

    folder.mkdir(parents=True)
    chance = np.random.default_rng(2)
    section = {"features": FEATURES, "outputs": {"score": "float32"}, "batch_size": 100, **KINDS[kind][1](folder, size)}
    columns: dict[str, Any] = {name: chance.random(ROWS, np.float32) for name in FEATURES}
    columns[TEXT] = [" ".join(f"w{word}" for word in chance.integers(0, 1000, 8)) for _ in range(ROWS)]
    (folder / "rows").mkdir()
    pq.write_table(pa.table(columns), folder / "rows" / "rows.parquet", row_group_size=ROWS // 8)
    job = {
        "name": "weights",
        "input": {"uri": "rows/", "shard_rows": ROWS // 8},
        "model": section,
        "output": {"uri": "out/"},
        "resources": {"actors": 4, "cpus": 0.5},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job, sort_keys=False))
    files = [*folder.glob("model.*"), *(each for each in (folder / "model").rglob("*") if each.is_file())]
    print(json.dumps(sum(path.stat().st_size for path in files)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
