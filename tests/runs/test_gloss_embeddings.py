"""The example of embeddings: its job, its real model, and what is near in what it published."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("tokenizers", reason="pip install 'nightjar-batch[transformers]'")

from nightjar.inference.engine import LOCAL
from nightjar.inference.run.request import make_request
from support import read_published, run_steps
from textmodels import direct

pytestmark = pytest.mark.long  # it fetches 85 MB

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "embeddings"
ASKED = "a large wild animal"
ROWS = 400


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example's folder, with some of the glosses."""
    done = subprocess.run([sys.executable, EXAMPLE / "prepare.py"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(done.stderr.strip())
    folder = tmp_path_factory.mktemp("example")
    for name in ("job.yaml", "nearest.py"):
        shutil.copy(EXAMPLE / name, folder)
    (folder / "models").symlink_to(EXAMPLE / "models")
    (folder / "data").mkdir()
    every = pq.read_table(EXAMPLE / "data/glosses.parquet")
    chosen = [*range(0, every.num_rows, every.num_rows // ROWS)][: ROWS - 1]
    lions = [place for place, words in enumerate(every["words"].to_pylist()) if words.startswith("lion, ")]
    pq.write_table(every.take(pa.array([*chosen, lions[0]])), folder / "data/glosses.parquet")
    return folder


def test_every_gloss_is_there(example: Path) -> None:
    """117,659 of them, each with its own id, words and a text."""
    every = pq.read_table(EXAMPLE / "data/glosses.parquet")
    assert every.num_rows == 117_659
    assert len(set(every["id"].to_pylist())) == 117_659
    assert all(every["gloss"].to_pylist())
    assert all(every["words"].to_pylist())


def test_the_published_vectors_are_those_of_the_recipe_and_the_nearest_are_found(example: Path) -> None:
    """Each as transformers computes it of its gloss alone, with the pooling that sentence-transformers describes."""
    request = make_request(example / "job.yaml", date="2026-11-19", engine=LOCAL)
    run_steps(request)
    published = read_published(request)
    assert len(published) == ROWS
    found = np.stack(published["embedding"].tolist())
    wanted = direct(EXAMPLE / "models/minilm", published["gloss"].tolist(), max_length=256)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert ((found * wanted).sum(1) > 0.99999).all()
    done = subprocess.run([sys.executable, example / "nearest.py", ASKED], capture_output=True, text=True, check=True)
    near = done.stdout.splitlines()
    assert len(near) == 5
    assert any("lion, " in line for line in near)
