"""The thread that calls the model does not wait long for the others of its process."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from nightjar.inference.engine import LOCAL
from nightjar.inference.scoring.worker import SWITCH_S
from support import Lake

TELLS = """
import sys

def score(batch):
    return {"score": batch["x"] * 0 + sys.getswitchinterval()}
"""


def test_a_worker_gives_python_back_sooner_than_by_default(tmp_path: Path) -> None:
    """Its process is its own; in this one, which only drives the run, nothing is changed."""
    before = sys.getswitchinterval()
    lake = Lake(tmp_path, LOCAL)
    lake.write_model(TELLS)
    lake.ready().run()
    np.testing.assert_allclose(lake.published()["score"], SWITCH_S, rtol=1e-3)
    assert sys.getswitchinterval() == before
