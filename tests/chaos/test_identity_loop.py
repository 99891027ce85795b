"""Promise 4, at random: wherever a run is killed, readers see what the manifest says scored it."""

from __future__ import annotations

import hashlib
import json
import os
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from nightjar.inference.output import publications as publish
from nightjar.inference.output.nights import published_run
from nightjar.inference.validation.manifest import read_manifest
from support import Lake
from victim import killed_at_random

ROUNDS = 200
FILES = 4
MODEL = """
import json
from pathlib import Path

FACTOR = {factor}


class Predictor:
    def __init__(self, path):
        self.weight = float(Path(path).read_text())
        self.more = json.loads(Path(__file__).with_name("vocab.json").read_text())["more"]

    def __call__(self, batch):
        return {{"score": batch["x"] * FACTOR * self.weight + self.more}}
"""
STEPS = """
import sys
import ray
from support import run_steps
from nightjar.inference.run.request import fixed, make_request
ray.init(address=sys.argv[2], log_to_driver=False, logging_level="CRITICAL")
run_steps(fixed(make_request(sys.argv[1], date="2026-11-19")))
"""


class Changing:
    """A lake in which one thing after another is changed, and what each content stands for."""

    def __init__(self, lake: Lake, seed: int) -> None:
        self.lake, self.random = lake, random.Random(seed)
        self.meant: dict[str, float] = {}
        self.ids: dict[str, set[int]] = {}
        self.number = 0
        lake.write_job(
            model={
                "uses": "model:Predictor",
                "path": "weights/w.txt",
                "features": ["x"],
                "outputs": {"score": "float64"},
            },
            carry=["id", "x"],
            input__shard_rows=500,
        )
        lake.write_model(MODEL.format(factor=1))
        for change in (self.code, self.model, self.vocabulary, *[self.input] * FILES):
            change()

    def change(self) -> str:
        """Change one thing, or nothing."""
        chosen = self.random.choice([self.code, self.model, self.vocabulary, self.input, self.nothing])
        chosen()
        return chosen.__name__

    def code(self) -> None:
        self._write("model.py", MODEL.format(factor=self._next()), self.number)

    def model(self) -> None:
        self._write("weights/w.txt", str(self._next()), self.number)

    def vocabulary(self) -> None:
        self._write("vocab.json", json.dumps({"more": self._next()}), self.number)

    def input(self) -> None:
        index = self.random.randrange(FILES) if len(self.ids) == FILES else len(self.ids)
        ids = np.arange(1000) + 1000 * self._next()
        name = f"part-{index}.parquet"
        (self.lake.folder / "data").mkdir(exist_ok=True)
        table = pa.table({"id": ids, "x": ids.astype(np.float64)})
        pq.write_table(table, self.lake.folder / "data" / name, row_group_size=500)
        self.ids[name] = set(ids.tolist())

    def nothing(self) -> None:
        pass

    def _next(self) -> int:
        self.number += 1
        return self.number

    def _write(self, name: str, text: str, means: float) -> None:
        path = self.lake.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        self.meant[hashlib.sha256(text.encode()).hexdigest()] = means

    def run(self, address: str) -> bool:
        """Run the night in a process of its own, which is killed at random; whether it came to its end."""
        words = self.lake.job_path, address
        code, said = killed_at_random(STEPS, *words, random=self.random, chance=0.5, within_s=(1, 8))
        assert code in (0, -9), said[-3000:]
        return code == 0

    def check(self, ended: bool) -> None:
        """Every published row equals one that the identity in its manifest computes anew."""
        request = self.lake.request(scores=False)
        if not publish.newest(request.storage, request.output).runs:
            return
        _, entry = published_run(publish.newest(request.storage, request.output), request.output, None)
        manifest = read_manifest(request.storage, request.output, entry)
        assert manifest.code is not None
        assert manifest.model is not None
        code, model = manifest.code.files, manifest.model.files
        factor, weight, more = (self.meant[each] for each in (code["model.py"], model[""], code["vocab.json"]))
        rows = self.lake.published()
        np.testing.assert_array_equal(rows["x"], rows["id"].astype(np.float64))
        np.testing.assert_allclose(rows["score"], rows["x"] * factor * weight + more)
        if ended:
            now = [self._now(name) for name in ("model.py", "weights/w.txt", "vocab.json")]
            assert [factor, weight, more] == now, "what a run that ended has published is what lies there"
            assert set(rows["id"]) == set().union(*self.ids.values())

    def _now(self, name: str) -> float:
        return self.meant[hashlib.sha256((self.lake.folder / name).read_bytes()).hexdigest()]


@pytest.mark.long
@pytest.mark.usefixtures("ray_local")
def test_readers_see_what_the_manifest_says_scored_it(lake: Lake) -> None:
    seed = int(os.environ.get("NIGHTJAR_SEED", random.randrange(1 << 32)))
    rounds = int(os.environ.get("NIGHTJAR_ROUNDS", ROUNDS))
    print(f"NIGHTJAR_SEED={seed}")
    changing = Changing(lake, seed)
    address = ray.get_runtime_context().gcs_address
    ends = 0
    for _ in range(rounds):
        changing.change()
        ended = changing.run(address)
        ends += ended
        changing.check(ended)
    assert ends, "some run came to its end"
