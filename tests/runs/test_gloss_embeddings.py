"""The example of embeddings: its jobs, its real model, what is near in what it published, and ONNX beside torch."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazily import lazily, skip_without
from nightjar.inference.engine import LOCAL
from nightjar.inference.run.request import fixed, make_request
from support import ROOT, read_published, run_steps
from textmodels import direct

skip_without("tokenizers", reason="pip install 'nightjar-batch[transformers]'")

Tokenizer = lazily("tokenizers", "Tokenizer")
models = lazily("tokenizers", "models")
pre_tokenizers = lazily("tokenizers", "pre_tokenizers")

fetching = pytest.mark.long  # it fetches 85 MB

EXAMPLE = ROOT / "examples" / "embeddings"
ASKED = "a large wild animal"
ROWS = 400


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example's folder, with some of the glosses."""
    done = subprocess.run([sys.executable, EXAMPLE / "prepare.py"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(done.stderr.strip())
    folder = tmp_path_factory.mktemp("example")
    for name in ("job.yaml", "nearest.py", "onnx.yaml", "prep.py", "compare.py"):
        shutil.copy(EXAMPLE / name, folder)
    (folder / "models").symlink_to(EXAMPLE / "models")
    (folder / "data").mkdir()
    every = pq.read_table(EXAMPLE / "data/glosses.parquet")
    chosen = [*range(0, every.num_rows, every.num_rows // ROWS)][: ROWS - 1]
    lions = [place for place, words in enumerate(every["words"].to_pylist()) if words.startswith("lion, ")]
    pq.write_table(every.take(pa.array([*chosen, lions[0]])), folder / "data/glosses.parquet")
    return folder


@fetching
def test_every_gloss_is_there(example: Path) -> None:
    """117,659 of them, each with its own id, words and a text."""
    every = pq.read_table(EXAMPLE / "data/glosses.parquet")
    assert every.num_rows == 117_659
    assert len(set(every["id"].to_pylist())) == 117_659
    assert all(every["gloss"].to_pylist())
    assert all(every["words"].to_pylist())


@fetching
def test_the_published_vectors_are_those_of_the_recipe_and_the_nearest_are_found(example: Path) -> None:
    """Each as transformers computes it of its gloss alone, with the pooling that sentence-transformers describes."""
    request = fixed(make_request(example / "job.yaml", date="2026-11-19", engine=LOCAL))
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


@fetching
def test_the_onnx_model_gives_the_vectors_of_torch(example: Path) -> None:
    """Those of the recipe, for each gloss that `input.where` chooses; and the example's own comparison says so."""
    pytest.importorskip("onnxscript", reason="pip install onnxscript")
    done = subprocess.run([sys.executable, EXAMPLE / "export.py"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    request = fixed(make_request(example / "onnx.yaml", date="2026-11-19", engine=LOCAL))
    ran = run_steps(request)
    assert not [warning for warning in ran.scored.warnings if "part of this run's identity" in warning]
    published = read_published(request)
    every = pq.read_table(example / "data/glosses.parquet").to_pandas()
    adverbs = every[every["id"].str.startswith("r")]
    assert len(adverbs) > 5
    assert published[["id", "words", "gloss"]].to_numpy().tolist() == adverbs.to_numpy().tolist()
    found = np.stack(published["sentence_embedding"].tolist())
    wanted = direct(EXAMPLE / "models/minilm", published["gloss"].tolist(), max_length=256)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    said = subprocess.run([sys.executable, example / "compare.py"], capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"{len(adverbs)} glosses by onnxruntime and by torch: cosine ")
    assert all(float(cosine) > 0.99999 for cosine in re.findall(r"\b[01]\.\d{7}\b", said))


def test_a_batch_is_padded_to_its_own_longest_text_and_cut_where_the_job_says(tmp_path: Path) -> None:
    """Whatever padding and truncation the tokenizer's file has."""
    place = tmp_path / "models" / "minilm" / "tokenizer.json"
    place.parent.mkdir(parents=True)
    core = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2, "cat": 3}, "[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.enable_truncation(1)
    core.enable_padding(length=9)
    core.save(str(place))
    spec = importlib.util.spec_from_file_location("prep_of_embeddings", shutil.copy(EXAMPLE / "prep.py", tmp_path))
    assert spec is not None
    assert spec.loader is not None
    prep = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(prep)
    made = prep.Tokenize(max_length=3)({"gloss": np.array(["a cat", "cat", "a a a a a"], object)})
    assert made["input_ids"].tolist() == [[2, 3, 0], [3, 0, 0], [2, 2, 2]]
    assert made["attention_mask"].tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1]]
    assert made["input_ids"].dtype == np.int64
    alone = prep.Tokenize(max_length=3)({"gloss": np.array(["cat"], object)})
    assert alone["input_ids"].tolist() == [[3]]
