"""Each adapter that can use a GPU computes there what it computes on the CPU, but for the last digits."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

pytest.importorskip("tokenizers", reason="pip install 'nightjar-batch[transformers]'")
pytest.importorskip("PIL", reason="pip install 'nightjar-batch[images]'")

from torchnets import NET

from mediamodels import encoded, photos, recordings, save_classifier, save_detector, save_listener, save_whisper
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import Scorer, check_keys, load_scorer
from nightjar.inference.predictors.adapter import adapter_of
from textmodels import WIDTH, save_model, save_recipe, sentences

CLOSE = 2e-3
"""The largest difference: convolutions and products are computed in TF32, or in half precision by another order."""

TEXTS = pa.table({"text": [*sentences(200), ""]})
PHOTOS = pa.table({"image": [encoded(each) for each in photos(20)]})
SOUNDS = pa.table({"sound": pa.array([each.tolist() for each in recordings(5)], pa.list_(pa.float32()))})
LABELS = {0: "O", 1: "B-PER", 2: "I-PER"}


def numbers(rows: int = 500) -> pa.Table:
    values = np.random.default_rng(1).random((rows, 2), np.float32)
    return pa.table({"a": values[:, 0], "b": values[:, 1]})


def pictures(rows: int = 20) -> pa.Table:
    """Arrays of three channels."""
    values = np.random.default_rng(1).random((rows, 3, 16, 16), np.float32)
    kind = pa.fixed_shape_tensor(pa.float32(), (3, 16, 16))
    storage = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 3 * 16 * 16)
    return pa.table({"image": pa.ExtensionArray.from_storage(kind, storage)})


def net(name: str, folder: Path) -> torch.nn.Module:
    """One of the modules that `net.py` in this folder has."""
    (folder / "net.py").write_text(NET)
    sys.path.insert(0, str(folder))
    import net  # type: ignore[import-not-found]  # a test wrote it

    torch.manual_seed(3)
    made: torch.nn.Module = getattr(net, name)()
    return made.eval()


def program(folder: Path) -> None:
    shapes = {"x": {0: torch.export.Dim("n")}}
    torch.export.save(
        torch.export.export(net("Net", folder), (torch.ones(4, 2),), dynamic_shapes=shapes), folder / "m.pt2"
    )


def script(folder: Path) -> None:
    torch.jit.save(torch.jit.script(net("Net", folder)), folder / "m.pt")


def weights(name: str = "Net") -> Callable[[Path], None]:
    return lambda folder: torch.save(net(name, folder).state_dict(), folder / "m.pth")


def safetensors(folder: Path) -> None:
    from safetensors.torch import save_model as save

    save(net("Net", folder), str(folder / "m.safetensors"))


def keras(folder: Path) -> None:
    if find_spec("keras") is None:
        pytest.skip("pip install 'nightjar-batch[keras]'")
    from nightjar.inference.predictors.kerasmodel import keras_on_torch

    made = keras_on_torch()
    with made.device("cpu"):
        model = made.Sequential([made.Input((2,)), made.layers.Dense(8, "relu"), made.layers.Dense(1)])
        model.save(folder / "m.keras")


@dataclass(frozen=True)
class Case:
    """A model's file or folder, how it is written, and what it scores."""

    uses: str
    path: str
    write: Callable[[Path], object]
    table: pa.Table
    outputs: dict[str, str]
    options: dict[str, Any] = field(default_factory=dict)


SCORE = {"score": "float32"}
OWN = {"model": "net:Net"}
LABEL = {"label": "string", "score": "float32"}
CASES = {
    "exported program": Case("torch", "m.pt2", program, numbers(), SCORE),
    "TorchScript": Case("torch", "m.pt", script, numbers(), SCORE),
    "state dict": Case("torch", "m.pth", weights(), numbers(), SCORE, OWN),
    "safetensors": Case("torch", "m.safetensors", safetensors, numbers(), SCORE, OWN),
    "half precision": Case("torch", "m.pth", weights(), numbers(), SCORE, {**OWN, "dtype": "float16"}),
    "autocast": Case("torch", "m.pth", weights(), numbers(), SCORE, {**OWN, "autocast": "float16"}),
    "channels last": Case(
        "torch",
        "m.pth",
        weights("Picture"),
        pictures(),
        {"score": "float32[2]"},
        {"model": "net:Picture", "channels_last": True},
    ),
    "compiled": Case("torch", "m.pth", weights(), numbers(), SCORE, {**OWN, "compile": True}),
    "keras": Case("keras", "m.keras", keras, numbers(), SCORE),
    "embed": Case("embed", "m", lambda at: save_recipe(at / "m"), TEXTS, {"vector": f"float32[{WIDTH}]"}),
    "embed, half precision": Case(
        "embed", "m", lambda at: save_recipe(at / "m"), TEXTS, {"vector": f"float32[{WIDTH}]"}, {"dtype": "float16"}
    ),
    "text-classification": Case(
        "text-classification", "m", lambda at: save_model(at / "m", "BertForSequenceClassification"), TEXTS, LABEL
    ),
    "token-classification": Case(
        "token-classification",
        "m",
        lambda at: save_model(at / "m", "BertForTokenClassification", id2label=LABELS),
        TEXTS,
        {"labels": "list<string>", "scores": "list<float32>"},
    ),
    "image-classification": Case("image-classification", "m", lambda at: save_classifier(at / "m"), PHOTOS, LABEL),
    "object-detection": Case(
        "object-detection",
        "m",
        lambda at: save_detector(at / "m"),
        PHOTOS,
        {"labels": "list<string>", "scores": "list<float32>", "boxes": "list<float32[4]>"},
        {"threshold": 0.2},
    ),
    "speech, letters": Case("speech-recognition", "m", lambda at: save_listener(at / "m"), SOUNDS, {"text": "string"}),
    "speech, Whisper": Case("speech-recognition", "m", lambda at: save_whisper(at / "m"), SOUNDS, {"text": "string"}),
}


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    sys.modules.pop("net", None)


def job_of(case: Case, folder: Path, gpus: float) -> Job:
    section = {"uses": case.uses, "path": case.path, "outputs": case.outputs, "options": case.options}
    content = {"name": "t", "input": {"uri": "in/"}, "model": section, "output": {"uri": "out"}}
    return parse_job({**content, "resources": {"gpus": gpus}}, folder / "job.yaml")


def held() -> int:
    """Bytes that torch holds on the GPU in this process, without what is only not collected yet."""
    gc.collect()
    return torch.cuda.memory_allocated()


@pytest.mark.parametrize("name", CASES)
def test_a_gpu_gives_what_the_cpu_gives(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    case.write(tmp_path)
    table, before = case.table, held()
    on_cpu, on_gpu = (job_of(case, tmp_path, gpus) for gpus in (0, 1))
    check_keys(on_gpu)
    wanted = load_scorer(on_cpu, on_cpu.model.path)(table)
    assert held() == before
    scorer: Scorer = load_scorer(on_gpu, on_gpu.model.path)
    assert (scorer.device, held() > before) == ("cuda:0", True)
    found = scorer(table)
    for output in case.outputs:
        alike(found[output].to_pylist(), wanted[output].to_pylist())
    if case.uses == "torch":
        assert torch.cuda.get_device_name(0) in adapter_of(on_gpu).devices()


def alike(found: Any, wanted: Any) -> None:
    """Texts are equal, numbers are close."""
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        if isinstance(theirs, list):
            alike(ours, theirs)
        elif isinstance(theirs, float):
            assert abs(ours - theirs) <= CLOSE * max(1, abs(theirs)), (ours, theirs)
        else:
            assert ours == theirs
