"""The example of a Keras model: its real photos and its real model, from the registries to what is published."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lazily import lazily, skip_without
from nightjar.inference.engine import LOCAL
from nightjar.inference.run.request import fixed, make_request
from support import ROOT, read_published, run_steps

skip_without("h5py", reason="pip install 'nightjar-batch[keras]'")
skip_without("PIL", reason="pip install 'nightjar-batch[images]'")

keras = lazily("kerasnets", "keras")

pytestmark = pytest.mark.long  # it fetches 140 MB

EXAMPLE = ROOT / "examples" / "cifar10"


def test_80_85_percent_of_the_photos_are_what_the_model_says_as_with_keras_itself(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, EXAMPLE / "prepare.py"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(done.stderr.strip())
    for name in ("job.yaml", "evaluate.py", "prepare.py"):
        shutil.copy(EXAMPLE / name, tmp_path)
    for name in ("data", "models"):
        (tmp_path / name).symlink_to(EXAMPLE / name)
    request = fixed(make_request(tmp_path / "job.yaml", date="2026-11-19", engine=LOCAL))
    run_steps(request)
    published = read_published(request)
    assert len(published) == 2000
    images = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in published["path"]])
    model = keras.saving.load_model(EXAMPLE / "models/cnn.h5", compile=False)
    wanted = model.predict(images, verbose=0, batch_size=250)
    np.testing.assert_allclose(np.stack(published["scores"].tolist()), wanted, atol=1e-5)
    assert published["label"].tolist() == [Path(path).parent.name for path in published["path"]]
    said = subprocess.run([sys.executable, tmp_path / "evaluate.py"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("80.85% of 2,000 photos\n")
