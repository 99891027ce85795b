"""The example of photos: real photos and a real model, from the registry to what is published."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from lazily import lazily, skip_without
from nightjar.inference.engine import LOCAL
from nightjar.inference.run.request import fixed, make_request
from support import ROOT, read_published, run_steps

skip_without("PIL", reason="pip install 'nightjar-batch[images]'")

torch = lazily("torch")

pytestmark = pytest.mark.long  # it fetches 30 MB

EXAMPLE = ROOT / "examples" / "photos"


def test_photos_are_scored_as_by_the_model_itself_and_a_file_that_is_none_costs_its_row(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, EXAMPLE / "prepare.py"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(done.stderr.strip())
    for name in ("job.yaml", "prep.py", "show.py"):
        shutil.copy(EXAMPLE / name, tmp_path)
    shutil.copytree(EXAMPLE / "data", tmp_path / "data")
    (tmp_path / "models").symlink_to(EXAMPLE / "models")
    (tmp_path / "data" / "broken.png").write_bytes((EXAMPLE / "data" / "chelsea.png").read_bytes()[:1000])
    job = (tmp_path / "job.yaml").read_text()
    (tmp_path / "job.yaml").write_text(job + "\nretry: {max_quarantined: 0.2}\n")
    request = fixed(make_request(tmp_path / "job.yaml", date="2026-11-19", engine=LOCAL))
    run_steps(request)
    published = read_published(request)
    assert [Path(path).name for path in published["path"]] == sorted(each.name for each in (EXAMPLE / "data").iterdir())
    model = torch.export.load(EXAMPLE / "models" / "efficientnet-lite0.pt2").module()
    for path, logits in zip(published["path"], published["logits"], strict=True):
        middle = ImageOps.fit(Image.open(path).convert("RGB"), (224, 224), Image.Resampling.BICUBIC)
        pixels = torch.tensor((np.asarray(middle, "f4") - 127) / 128).permute(2, 0, 1)[None]
        with torch.no_grad():
            np.testing.assert_allclose(logits, model(pixels)[0], atol=1e-3)
    said = subprocess.run([sys.executable, tmp_path / "show.py"], capture_output=True, text=True, check=True).stdout
    assert "chelsea.png                38% Egyptian cat\n" in said
    assert "coffee.png                 94% espresso\n" in said
