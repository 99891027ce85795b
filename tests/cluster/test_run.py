"""A whole run on a real Ray cluster: it publishes what the local engine does, and survives what that does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from nightjar.inference.engine import LOCAL
from support import Lake

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_local")]


def test_every_row_is_published_once_and_by_both_engines_alike(lake: Lake) -> None:
    """Promise 1: each row of each file once, carried columns untouched; byte for byte in rows, parts and metrics.

    Reading and writing are done in the actors themselves: the pool may take every CPU there is, and starves nobody.
    """
    lake.ready(checks=[{"column": "score", "min": 0}], resources={"actors": 2})
    ran = lake.run(run_id="there")
    assert (ran.publication.number, ran.scored.progress.rows_out) == (1, 8000)
    rows = lake.published("there")
    assert rows["id"].tolist() == list(range(8000))
    assert rows["name"].tolist() == [f"row {i}" for i in range(8000)]
    np.testing.assert_array_equal(rows["score"], np.arange(8000, dtype=np.float32) * 2)
    assert not (lake.revision(run_id="there") / "logs").exists(), "nothing was printed"

    here = lake.run(run_id="here", engine=LOCAL)
    assert here.verdict.metrics == ran.verdict.metrics
    pd.testing.assert_frame_equal(lake.published("here"), rows)
    assert _parts(lake, "here") == _parts(lake, "there")


def _parts(lake: Lake, run_id: str) -> list[bytes]:
    """The parts' bytes, by the first row they hold."""
    parts = (lake.revision(run_id=run_id) / "data").glob("*.parquet")
    first = {pq.read_table(part)["id"][0].as_py(): part.read_bytes() for part in parts}
    return [first[key] for key in sorted(first)]


KILLED = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from nightjar.inference.run import journal
from support import Lake
journal.FLUSH_S = 0.0
Lake(Path({folder!r})).run(engine="local")
"""


def test_a_row_that_kills_the_process_costs_the_command_and_ray_finds_it(lake: Lake) -> None:
    lake.write_model(
        "import os, signal\n\n\ndef score(batch):\n    if 5000 in batch['x']:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n    return {'score': batch['x'] * 2}\n"
    )
    lake.ready(retry__max_quarantined=0.001)
    code = KILLED.format(tests=str(Path(__file__).parent.parent), folder=str(lake.folder))
    ended = subprocess.run([sys.executable, "-c", code], env={**os.environ}, check=False)
    assert ended.returncode == -signal.SIGKILL
    ran = lake.run()
    assert ran.scored.progress.reused_shards >= 4
    assert lake.quarantined()["_row"].tolist() == [1000]
    assert len(lake.published()) == 7999
