"""The user's two steps, the same for every program of `stages.py`: a preprocess and a model, each of two kinds.

Each call notes when it began and ended, because no peer tells how long a step waited between two calls.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

Batch = dict[str, Any]
PREPARE, MODEL = "prepare", "model"
SIDE = 224


@contextmanager
def noted(notes: str, step: str, rows: int) -> Iterator[None]:
    """Append a line to this process's notes: the rows of a call, and its times in seconds since the epoch."""
    began = time.time()
    yield
    with Path(notes, f"{step}-{os.getpid()}").open("a") as file:
        file.write(json.dumps([rows, began, time.time()]) + "\n")


def wait(batch: Batch, notes: str, seconds: float) -> Batch:
    """A preprocess that does nothing but wait."""
    with noted(notes, PREPARE, len(batch["x"])):
        time.sleep(seconds)
        return {**batch, "x": batch["x"] + 1}


class Waiting:
    """A model that does nothing but wait."""

    def __init__(self, notes: str, seconds: float) -> None:
        self.notes, self.seconds = notes, seconds

    def __call__(self, batch: Batch) -> Batch:
        with noted(self.notes, MODEL, len(batch["x"])):
            time.sleep(self.seconds)
            return {**batch, "score": (batch["x"] * 2).astype(np.float32)}


def decode(batch: Batch, notes: str) -> Batch:
    """JPEGs to pixels, (rows, 224, 224, 3) of uint8."""
    with noted(notes, PREPARE, len(batch["bytes"])):
        others = {name: column for name, column in batch.items() if name != "bytes"}
        return {**others, "pixels": np.stack([_pixels(content) for content in batch["bytes"]])}


def _pixels(content: bytes) -> Any:
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))


class Network:
    """Scores pixels. model: gives numbers for each image, of which the first one is the score. place: where it is."""

    def __init__(self, notes: str, model: torch.nn.Module, place: str = "cpu") -> None:
        self.notes, self.model, self.place = notes, model.eval().to(place), place

    def __call__(self, batch: Batch) -> Batch:
        with noted(self.notes, MODEL, len(batch["pixels"])), torch.inference_mode():
            pixels = torch.from_numpy(batch["pixels"]).to(self.place).permute(0, 3, 1, 2)
            score = self.model(pixels.float().sub_(127).div_(128))[:, 0].cpu().numpy()
        return {**{name: column for name, column in batch.items() if name != "pixels"}, "score": score}


class ConvNet(Network):
    """A small convolutional net in torch, on one thread, with weights from a seed."""

    def __init__(self, notes: str) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(7)
        layers: list[torch.nn.Module] = []
        for channels, into in ((3, 16), (16, 32), (32, 64), (64, 128)):
            layers += [torch.nn.Conv2d(channels, into, 3, stride=2, padding=1), torch.nn.ReLU()]
        layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(128, 1)]
        super().__init__(notes, torch.nn.Sequential(*layers))


class ResNet(Network):
    """ResNet-50 of torchvision, with weights from a seed, on the GPU if there is one."""

    def __init__(self, notes: str) -> None:
        import torchvision

        torch.manual_seed(7)
        place = "cuda" if torch.cuda.is_available() else "cpu"
        super().__init__(notes, torchvision.models.resnet50(weights=None), place)
