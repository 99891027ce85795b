"""Whole runs on a real Ray cluster publish what the local engine does; each engine continues what the other began."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar.inference.engine import LOCAL, RAY
from nightjar.inference.errors import ShardsFailed
from support import Lake

pytestmark = pytest.mark.usefixtures("ray_local")


def test_every_row_is_published_once_and_by_both_engines_alike(lake: Lake) -> None:
    """Promise 1: each row of each file once, carried columns untouched; byte for byte in rows, parts and metrics.

    Reading and writing are done in the actors themselves: the pool may take every CPU there is, and starves nobody.
    """
    lake.ready(checks=[{"column": "score", "min": 0}], resources={"actors": 2})
    ran = lake.run(run_id="there")
    assert (ran.publication.number, ran.scored.progress.counts.rows_out) == (1, 8000)
    rows = lake.published("there")
    assert rows["id"].tolist() == list(range(8000))
    assert rows["name"].tolist() == [f"row {i}" for i in range(8000)]
    np.testing.assert_array_equal(rows["score"], np.arange(8000, dtype=np.float32) * 2)
    assert not (lake.revision(run_id="there") / "logs").exists(), "nothing was printed"

    here = lake.run(run_id="here", engine=LOCAL)
    assert here.verdict.metrics == ran.verdict.metrics
    pd.testing.assert_frame_equal(lake.published("here"), rows)
    assert _parts(lake, "here") == _parts(lake, "there")


def test_a_large_shard_is_begun_before_smaller_ones(lake: Lake) -> None:
    """Else one worker would score it alone at the end, while the others have nothing left to do."""
    lake.write_model()
    rows = [1030, 1100, 3000, 1040, 2500]
    for place, count in enumerate(rows):
        lake.write_file(f"{place}.parquet", sum(rows[:place]), count, row_group=count)
    lake.write_job(input__shard_rows=None, resources={"actors": 1})
    lake.run()
    begun = sorted((each for each in lake.records() if each["t"] == "receipt"), key=lambda each: each["started_at"])
    order = [each["rows_in"] for each in begun]
    assert (sorted(order[:2]), sorted(order[2:])) == ([2500, 3000], [1030, 1040, 1100])


HOLDS = """
import os
import time
from pathlib import Path

import ray

class Model:
    def __init__(self):
        self.held = Path(__LIVE__) / "held"
        self.held.mkdir(exist_ok=True)
        gpus = "+".join(str(int(each)) for each in ray.get_gpu_ids())
        (self.held / f"{gpus} {os.environ['CUDA_VISIBLE_DEVICES']} {os.getpid()}").touch()

    def __call__(self, batch):
        # The first actor waits for the second, which would have nothing left to score otherwise; preflight is alone.
        until = time.monotonic() + 60
        while len(list(self.held.iterdir())) == 2 and time.monotonic() < until:
            time.sleep(0.05)
        return {"score": batch["x"] * 2}
"""


def test_each_actor_of_a_node_has_a_gpu_of_its_own(lake: Lake) -> None:
    """`resources.gpus: 1` gives it one that no other has, and shows it that one only."""
    lake.write_model(HOLDS)
    lake.ready(model__uses="model:Model", resources={"actors": 2, "cpus": 1, "gpus": 1}).run()
    held = [path.name.split() for path in (lake.folder / "held").iterdir()]
    assert len(held) == 3, "preflight's process, and two actors"
    assert {gpus for gpus, _, _ in held} == {"0", "1"}
    assert all(gpus == visible for gpus, visible, _ in held)


REFUSES = """
import os

os.environ.get("NJ_THRESHOLD")

def score(batch):
    if 5300 in batch["x"]:
        open(os.path.join({outside!r}, "rare.json")).read()
        raise ValueError("this row cannot be scored")
    return {{"score": batch["x"] * 2}}
"""


def test_a_lake_of_odd_files_is_published_by_both_engines_alike(
    lake: Lake, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """JSON lines, packed and not, with nulls and without rows, a row that cannot be scored, a file that cannot be read.

    Both engines commit what can be read and fail over the rest in the same words. When that file is gone each publishes
    what the other has scored, byte for byte the same parts; the same rows are in quarantine for the same reason, and
    the metrics are equal. What identity does not cover is said alike: what is met at load, and what a worker meets
    later.
    """
    outside = tmp_path_factory.mktemp("outside")
    (outside / "rare.json").write_text("{}")
    lake.write_model(REFUSES.format(outside=str(outside)))
    lake.ready(resources={"actors": 2}, model__batch_size=100)
    lake.to_json_lines(part_01="gzip", part_03="zstd")
    data = lake.folder / "data"
    nulls = [{"id": 8000 + i, "x": None if i % 5 == 2 else 8000 + i, "name": None} for i in range(1500)]
    (data / "part-04.jsonl").write_text("".join(json.dumps(row) + "\n" for row in nulls))
    (data / "part-05.jsonl.gz").write_bytes(pa.compress(b"\n\n", "gzip", asbytes=True))
    broken = data / "part-06.jsonl"
    broken.write_text('{"id": 9500, "x": 9500, "name": "row 9500"}\n{"id": 9501, "x"')
    told = []
    for run_id, engine in (("there", RAY), ("here", LOCAL)):
        with pytest.raises(ShardsFailed, match=r"^1 of 6 shards has no result; the first is part-06\.jsonl") as failed:
            lake.run(run_id=run_id, engine=engine)
        told.append(str(failed.value))
    assert told[0] == told[1]
    noticed = [[r for r in lake.records(run_id=run_id) if r["t"] == "seen"] for run_id in ("there", "here")]
    assert [[r["kind"] for r in of if r["name"] == f"{outside}/rare.json"] for of in noticed] == [["named", "file"]] * 2
    assert _parts(lake, "here") == _parts(lake, "there")

    broken.unlink()
    # Each goes on from the other's ledger.
    there, here = lake.run(run_id="there", engine=LOCAL), lake.run(run_id="here", engine=RAY)
    assert (there.publication.number, there.scored.progress.counts.rows_out) == (1, 9499)
    assert here.verdict.metrics == there.verdict.metrics
    said = [[text for text in ran.scored.warnings if text.startswith("model.py ")] for ran in (there, here)]
    assert [text.split()[2] for text in said[0] if " reads " in text] == ["NJ_THRESHOLD", f"{outside}/rare.json,"]
    assert said[0] == said[1]
    rows = lake.published("there")
    assert rows["id"].tolist() == [i for i in range(9500) if i != 5300]
    assert rows["name"].isna().tolist() == [i >= 8000 for i in rows["id"]]
    assert rows["score"].isna().sum() == 300
    pd.testing.assert_frame_equal(lake.published("here"), rows)
    assert _parts(lake, "here") == _parts(lake, "there")
    lost = lake.quarantined(run_id="there")
    assert lost["_row"].tolist() == [1300]
    # These two name the run and where its code lay.
    names = ["replay", "traceback"]
    pd.testing.assert_frame_equal(lake.quarantined(run_id="here").drop(columns=names), lost.drop(columns=names))


def _parts(lake: Lake, run_id: str) -> list[bytes]:
    """The parts' bytes, by the first row they hold; a file without rows comes first."""
    parts = (lake.revision(run_id=run_id) / "data").glob("*.parquet")
    first = {min(pq.read_table(part)["id"].to_pylist(), default=-1): part.read_bytes() for part in parts}
    return [first[key] for key in sorted(first)]
