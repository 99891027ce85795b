"""The example of flights as a Delta table: its commits, the snapshot that is scored and said, and how to choose one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from lazily import skip_without
from nightjar.inference.engine import LOCAL
from nightjar.inference.run.request import fixed, make_request
from support import FLIGHTS, read_published, run_steps

pytestmark = pytest.mark.system

skip_without("deltalake", reason="pip install 'nightjar-batch[delta]'")

ROWS = 500
"""Of each month."""


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """A copy of the example's folder, with some of the flights."""
    for name in ("prepare.py", "table.py", "delta.yaml"):
        shutil.copy(FLIGHTS / name, tmp_path)
    (tmp_path / "models").symlink_to(FLIGHTS / "models")
    (tmp_path / "data").mkdir()
    for path in (FLIGHTS / "data").glob("*.parquet"):
        pq.write_table(pq.read_table(path).slice(0, ROWS), tmp_path / "data" / path.name)
    return tmp_path


def test_the_newest_snapshot_is_scored_or_the_one_that_the_job_names(example: Path) -> None:
    flights = pd.concat(map(pd.read_parquet, sorted((example / "data").iterdir())))
    arrived = flights.dropna(subset=["late"])
    assert 0 < len(arrived) < len(flights) == 12 * ROWS
    for _ in range(2):  # the second time all is committed
        said = subprocess.run([sys.executable, example / "table.py"], capture_output=True, text=True, check=True).stdout
        counts = [int(line.split(":")[1].split()[0].replace(",", "")) for line in said.splitlines()]
        assert counts == [6 * ROWS, 12 * ROWS, len(arrived)]
    newest = fixed(make_request(example / "delta.yaml", date="2026-11-19", engine=LOCAL))
    assert "the input is snapshot 2 of its table" in run_steps(newest).scored.warnings
    published = read_published(newest)
    assert sorted(published["flight_id"]) == sorted(arrived["flight_id"])
    assert published["score"].between(0, 1).all()
    job = (example / "delta.yaml").read_text()
    assert "  # options: {version: 1}\n" in job
    (example / "delta.yaml").write_text(job.replace("# options: {version: 1}", "options: {version: 1}"))
    chosen = fixed(make_request(example / "delta.yaml", date="2026-11-20", engine=LOCAL))
    assert "the input is snapshot 1 of its table" in run_steps(chosen).scored.warnings
    assert sorted(read_published(chosen)["flight_id"]) == sorted(flights["flight_id"])
