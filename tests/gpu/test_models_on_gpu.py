"""Each adapter that can use a GPU computes there what it computes on the CPU, but for the last digits."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lazily import lazily, skip_without
from mediamodels import encoded, photos, recordings, save_classifier, save_detector, save_listener, save_whisper
from modeljobs import model_job
from nightjar.inference.predictors import Scorer, check_keys, load_scorer
from nightjar.inference.predictors.adapter import adapter_of
from textmodels import WIDTH, save_model, save_recipe, sentences
from torchnets import MakeJob, make_job, module_of, numbers, table_of, write

skip_without("tokenizers", reason="pip install 'nightjar-batch[transformers]'")
skip_without("PIL", reason="pip install 'nightjar-batch[images]'")

torch = lazily("torch")

__all__ = ["make_job"]  # a fixture

pytestmark = pytest.mark.skipif("not torch.cuda.is_available()", reason="torch sees no GPU here")

CLOSE = 2e-3
"""The largest difference: convolutions and products are computed in TF32, or in half precision by another order."""

TEXTS = pa.table({"text": [*sentences(200), ""]})
PHOTOS = pa.table({"image": [encoded(each) for each in photos(20)]})
SOUNDS = pa.table({"sound": pa.array([each.tolist() for each in recordings(5)], pa.list_(pa.float32()))})
LABELS = {0: "O", 1: "B-PER", 2: "I-PER"}


NUMBERS = table_of(numbers(500, 2))
PICTURES = pa.table({"image": pa.FixedShapeTensorArray.from_numpy_ndarray(numbers(20, 3, 16, 16))})


def program(folder: Path) -> None:
    shapes = {"x": {0: torch.export.Dim("n")}}
    torch.export.save(
        torch.export.export(module_of("Net"), (torch.ones(4, 2),), dynamic_shapes=shapes), folder / "m.pt2"
    )


def module(file: str, name: str = "Net") -> Callable[[Path], None]:
    """What writes one of the modules of `torchnets` into a file."""
    return lambda folder: write(folder, file, module_of(name))


def keras(folder: Path) -> None:
    if find_spec("keras") is None:
        pytest.skip("pip install 'nightjar-batch[keras]'")
    from nightjar.inference.predictors.tabular.keras import keras_on_torch

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
    "exported program": Case("torch", "m.pt2", program, NUMBERS, SCORE),
    "TorchScript": Case("torch", "script.pt", module("script.pt"), NUMBERS, SCORE),
    "state dict": Case("torch", "m.pth", module("m.pth"), NUMBERS, SCORE, OWN),
    "safetensors": Case("torch", "m.safetensors", module("m.safetensors"), NUMBERS, SCORE, OWN),
    "half precision": Case("torch", "m.pth", module("m.pth"), NUMBERS, SCORE, {**OWN, "dtype": "float16"}),
    "autocast": Case("torch", "m.pth", module("m.pth"), NUMBERS, SCORE, {**OWN, "autocast": "float16"}),
    "pictures": Case(
        "torch", "m.pth", module("m.pth", "Picture"), PICTURES, {"score": "float32[2]"}, {"model": "net:Picture"}
    ),
    "keras": Case("keras", "m.keras", keras, NUMBERS, SCORE),
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


def held() -> int:
    """Bytes that torch holds on the GPU in this process, without what is only not collected yet."""
    gc.collect()
    return torch.cuda.memory_allocated()


@pytest.mark.parametrize("name", CASES)
def test_a_gpu_gives_what_the_cpu_gives(make_job: MakeJob, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    case.write(tmp_path)
    table, before = case.table, held()
    model = {"uses": case.uses, "path": case.path, "outputs": case.outputs, "options": case.options, "trusted": True}
    on_cpu, on_gpu = (make_job(job={"resources": {"gpus": gpus}}, **model) for gpus in (0, 1))
    check_keys(on_gpu)
    wanted = load_scorer(model_job(on_cpu), on_cpu.models[0].path)(table)
    assert held() == before
    scorer: Scorer = load_scorer(model_job(on_gpu), on_gpu.models[0].path)
    assert (scorer.device, held() > before) == ("cuda:0", True)
    found = scorer(table)
    for output in case.outputs:
        alike(found[output].to_pylist(), wanted[output].to_pylist())
    if case.uses == "torch":
        assert torch.cuda.get_device_name(0) in adapter_of(model_job(on_gpu)).devices()


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
