"""A job with two models, of which each may have rows that it cannot score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from support import Lake

MODULE = """
def double(batch):
    bad = set(DOUBLE) & set(batch["x"].tolist())
    if bad:
        raise ValueError(f"no double of {min(bad):g}")
    return {"score": batch["x"] * 2}

class Named:
    def __init__(self, path=None):
        self.word = open(path).read() if path else "row"

    def __call__(self, batch):
        bad = set(NAMED) & set(batch["id"].tolist())
        if bad:
            raise KeyError(min(bad))
        return {
            "word": [f"{self.word} {each}" for each in batch["id"]],
            "pair": [[each, -each] for each in batch["id"]],
        }
"""

DOUBLE: dict[str, Any] = {
    "name": "double",
    "uses": "model:double",
    "features": ["x"],
    "outputs": {"score": "float32"},
    "batch_size": 256,
}
NAMED: dict[str, Any] = {
    "name": "named",
    "uses": "model:Named",
    "features": ["id"],
    "outputs": {"word": "string", "pair": "float32[2]"},
    "batch_size": 100,
}


def severals(lake: Lake, double: Sequence[int] = (), named: Sequence[int] = (), **changes: Any) -> Lake:
    """A lake whose job has two models; the rows that each of them cannot score."""
    lake.engine = "local"
    lake.write_model(MODULE.replace("set(DOUBLE)", f"set({list(double)})").replace("set(NAMED)", f"set({list(named)})"))
    return lake.ready(**{"model": None, "models": [DOUBLE, NAMED], "retry__max_quarantined": 0.01, **changes})
