"""Tensors that Ray Data wrote, read where Ray's own types are registered and where they are not."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from nightjar.inference.engine import LOCAL, RAY
from support import Lake

pytestmark = pytest.mark.usefixtures("ray_local")

SAYS_SHAPES = """
def score(batch):
    return {"score": [f"{rgb.dtype} {rgb.shape} {size.shape}" for rgb, size in zip(batch["rgb"], batch["sizes"])]}
"""


def test_tensors_that_ray_wrote_keep_their_shapes_on_both_engines(lake: Lake) -> None:
    """The parts are the same, byte for byte, and Ray reads what was carried as tensors again."""
    import ray

    rows = [{"id": n, "rgb": np.full((4, 2, 3), n, np.uint8), "sizes": np.ones((n + 1, 5))} for n in range(6)]
    ray.data.from_items(rows, override_num_blocks=1).write_parquet(str(lake.folder / "data"))
    lake.write_model(SAYS_SHAPES)
    lake.write_job(model__features=["rgb", "sizes"], model__outputs={"score": "string"}, carry=["id", "rgb"])
    parts = []
    for engine in (RAY, LOCAL):
        lake.run(run_id=engine, engine=engine)
        (part,) = (lake.revision(run_id=engine) / "data").glob("*.parquet")
        parts.append(part)
    assert parts[0].read_bytes() == parts[1].read_bytes()
    assert pq.read_table(parts[0])["score"].to_pylist() == [f"uint8 (4, 2, 3) ({n + 1}, 5)" for n in range(6)]
    read = ray.data.read_parquet(str(parts[0])).select_columns(["rgb"]).take_all()
    assert [row["rgb"].shape for row in read] == [(4, 2, 3)] * 6
    assert [int(row["rgb"][0, 0, 0]) for row in read] == list(range(6))
