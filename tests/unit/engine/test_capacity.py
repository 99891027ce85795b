"""How many processes fit is counted in the parts in which Ray counts resources."""

from __future__ import annotations

from typing import Any

import pytest

from nightjar.inference.engine.ray import capacity
from nightjar.inference.engine.ray.capacity import Demand, stage_workers
from support import Lake


@pytest.mark.parametrize(
    ("held", "each", "fit"), [(0.3, 0.1, 3), (0.6, 0.2, 3), (33, 1.1, 30), (1, 0.3, 3), (0.9999, 1, 0), (64, 1, 64)]
)
def test_what_fits_exactly_fits(lake: Lake, held: float, each: float, fit: int) -> None:
    lake.write_model()
    lake.write_job(resources__cpus=each)
    need = lake.request(scores=False).job.resources
    node: dict[str, Any] = {"Resources": {"CPU": held}, "Labels": {}}
    assert Demand(need).fitting(node) == fit


@pytest.mark.parametrize(
    ("cpus", "actors", "actor", "worker", "free"),
    [(2, 2, 0.9, 0.2, 1), (1, 1, 0.9, 0.1, 1), (3, 2, 1.3, 0.4, 1), (2, 1, 1.8, 0.3, 0), (1, 2, 0.9, 0.1, 0)],
)
def test_workers_of_the_stage_fit_beside_the_actors(
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    cpus: float,
    actors: int,
    actor: float,
    worker: float,
    free: int,
) -> None:
    """In floats 2 - 2 * 0.9 is less than 0.2."""
    monkeypatch.setattr(capacity, "total", {"CPU": float(cpus)}.__getitem__)
    (lake.folder / "prep.py").write_text("def same(batch):\n    return batch\n")
    lake.write_model()
    stage = {"uses": "prep:same", "cpus": worker, "workers": 1, "placement": "staged"}
    lake.write_job(preprocess=stage, resources={"actors": actors, "cpus": actor})
    assert stage_workers(lake.request(scores=False).job) == free
