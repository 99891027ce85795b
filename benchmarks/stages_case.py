"""The cases of `stages.py`: their input, their steps, and the command line that its peers share."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

WAITS, IMAGES, RESNET = "waits", "images", "resnet"
PHOTO = (500, 375)
QUALITY = 90


@dataclass(frozen=True, slots=True)
class Case:
    """files: of the input. per_file: rows of each. batch: rows of a batch. source: the input's format. carry: the
    column that is not for the steps. prepare, model: names in `stages_steps`, each with options besides its notes.
    workers, cpus: of the stage that prepares, which has as many workers in every program that has such a stage.
    gpus: of the model's actor. close: how far apart the scores of two programs may be, absolute and relative.
    """

    files: int
    per_file: int
    batch: int
    source: str
    carry: str
    prepare: str
    model: str
    workers: int
    cpus: float
    gpus: int = 0
    close: tuple[float, float] = (1e-5, 1e-4)
    prepare_options: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return self.files * self.per_file


CASES = {
    WAITS: Case(
        *(100, 20, 20, "parquet", "id", "wait", "Waiting", 5, 0.2),
        prepare_options={"seconds": 0.4},
        model_options={"seconds": 0.1},
    ),
    IMAGES: Case(1600, 1, 32, "binary", "path", "decode", "ConvNet", 2, 0.5),
    # A GPU computes convolutions in TF32, with three digits, and sums them in another order for another batch.
    RESNET: Case(9600, 1, 64, "binary", "path", "decode", "ResNet", 12, 1, gpus=1, close=(2e-2, 2e-2)),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line of a peer. data: the input's folder. out: does not exist yet. notes: an empty folder."""

    case: Case
    data: Path
    out: Path
    notes: Path
    placement: str


def asked(about: str | None) -> Asked:
    """Parse the command line of a peer."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--placement", default="staged", help="Nightjar's preprocess.placement")
    given = parser.parse_args()
    out: Path = given.out.absolute()
    notes = out.with_name(out.name + ".notes")
    notes.mkdir(parents=True)
    return Asked(CASES[given.case], given.data.absolute(), out, notes, given.placement)


def tell(job: Asked, since: float, ended_at: float, written: Path) -> None:
    """Print the line of results. since: calls before this moment were trials. ended_at: when the last file was written;
    both in seconds since the epoch. written: the folder of the files.
    """
    print(json.dumps({"since": since, "ended_at": ended_at, "data": str(written), "told_at": time.time()}))


def make(name: str, folder: Path) -> Path:
    """The input of a case; made unless it is there."""
    case, marker = CASES[name], folder / "complete"
    if marker.exists() and marker.read_text() == repr(case):
        return folder / "rows"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "rows").mkdir(parents=True)
    write = _numbers if case.source == "parquet" else _crop
    with multiprocessing.get_context("spawn").Pool() as pool:
        pool.map(partial(write, folder / "rows", case), range(case.files))
    marker.write_text(repr(case))
    return folder / "rows"


def _numbers(folder: Path, case: Case, file: int) -> None:
    ids = np.arange(file * case.per_file, (file + 1) * case.per_file)
    pq.write_table(pa.table({"id": ids, "x": ids * 3}), folder / f"{file:05}.parquet")


@cache
def _photos() -> list[Image.Image]:
    """Real photographs, which scikit-learn brings along."""
    from sklearn.datasets import load_sample_images

    return [Image.fromarray(photo) for photo in load_sample_images().images]


def _crop(folder: Path, _: Case, file: int) -> None:
    """A JPEG of some part of some photograph, so that no two files are alike."""
    photos, rng = _photos(), np.random.default_rng([7, file])
    photo = photos[rng.integers(len(photos))]
    left, top = (int(rng.integers(most - least + 1)) for most, least in zip(photo.size, PHOTO, strict=True))
    photo.crop((left, top, left + PHOTO[0], top + PHOTO[1])).save(folder / f"{file:05}.jpg", quality=QUALITY)
