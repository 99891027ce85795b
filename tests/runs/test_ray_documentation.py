"""The Hugging Face predictor of Ray's documentation, as it stands there, scores a night.

It asks the Hub for `gpt2`. Here the Hub's cache has a small model with random weights under that name, and nothing is
fetched.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazily import lazily, skip_without
from support import HELPERS, Lake
from textmodels import SPECIAL, WORDS, save_tokenizer, transformers

skip_without("tokenizers", reason="pip install 'nightjar-batch[transformers]'")

torch = lazily("torch")

pytestmark = pytest.mark.long  # transformers is imported in a process of its own

# From "End-to-end: Offline Batch Inference" in the documentation of Ray Data 2.x (Apache-2.0), unchanged.
PREDICTOR = """
from typing import Dict
import numpy as np

class HuggingFacePredictor:
    def __init__(self):
        from transformers import pipeline
        # Initialize a pre-trained GPT2 Huggingface pipeline.
        self.model = pipeline("text-generation", model="gpt2")

    # Logic for inference on 1 batch of data.
    def __call__(self, batch: Dict[str, np.ndarray]) -> Dict[str, list]:
        # Get the predictions from the input batch.
        predictions = self.model(
            list(batch["data"]), max_length=20, num_return_sequences=1)
        # `predictions` is a list of length-one lists. For example:
        # [[{'generated_text': 'output_1'}], ..., [{'generated_text': 'output_2'}]]
        # Modify the output to get it into the following format instead:
        # ['output_1', 'output_2']
        batch["output"] = [sequences[0]["generated_text"] for sequences in predictions]
        return batch
"""

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SCORES = """
import sys
sys.path.insert(0, sys.argv[1])
from nightjar.inference.engine import LOCAL
from nightjar.inference.run.request import fixed, make_request
from support import run_steps
run_steps(fixed(make_request(sys.argv[2], date="2026-11-19", engine=LOCAL)))
"""
DIRECT = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from model import HuggingFacePredictor
print(*HuggingFacePredictor()({"data": np.array(sys.argv[2:], object)})["output"], sep="\\n")
"""
TEXTS = ["the cat sleeps", "an old bird sings near the river", "a dog runs"]


def test_the_hugging_face_predictor_of_the_documentation_scores_a_night(lake: Lake) -> None:
    """What is published is what the class returns by itself."""
    cached = lake.folder / "hub" / "models--gpt2"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text(COMMIT)
    torch.manual_seed(4)
    config = transformers.GPT2Config(
        vocab_size=len(SPECIAL) + len(WORDS), n_positions=64, n_embd=16, n_layer=1, n_head=2, eos_token_id=3
    )
    model = transformers.GPT2LMHeadModel(config)
    model.generation_config.do_sample = False
    model.save_pretrained(cached / "snapshots" / COMMIT)
    save_tokenizer(cached / "snapshots" / COMMIT, model_input_names=["input_ids", "attention_mask"])
    (lake.folder / "data").mkdir()
    pq.write_table(pa.table({"data": TEXTS}), lake.folder / "data" / "a.parquet")
    lake.write_model(PREDICTOR)
    section = {"uses": "model:HuggingFacePredictor", "outputs": {"output": "string"}}
    lake.write_job(model=section, carry=None)
    env = {**os.environ, "HF_HUB_CACHE": str(lake.folder / "hub"), "HF_HUB_OFFLINE": "1"}
    tests = HELPERS
    for code, *words in ((SCORES, tests, lake.job_path), (DIRECT, lake.folder, *TEXTS)):
        command = [sys.executable, "-c", code, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        assert not done.returncode, done.stderr
    wanted = done.stdout.splitlines()
    assert lake.published()["output"].tolist() == wanted
    assert len(wanted) == len(set(wanted)) == len(TEXTS)
