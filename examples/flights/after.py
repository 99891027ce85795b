"""A flow that runs after a published night, started by the event `nightjar.run.published`.

It reads the exact files of the night that was published, so it never reads half a night.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds
from prefect import flow
from prefect.artifacts import create_table_artifact


@flow(name="late-by-carrier")
def late_by_carrier(job: str, run_id: str) -> dict[str, int]:
    """Count the flights predicted late, by carrier, and show them as a table.

    Args:
        job: Path of the job file.
        run_id: The published run.
    """
    nightjar = Path(sys.executable).with_name("nightjar")
    listed = subprocess.run([str(nightjar), "files", job, run_id], check=True, capture_output=True, text=True)
    scored = ds.dataset(listed.stdout.splitlines())
    table = scored.to_table(columns=["carrier"], filter=pc.field("score") > 0.5)
    counts = table.group_by("carrier").aggregate([("carrier", "count")]).to_pylist()
    found = {line["carrier"]: int(line["carrier_count"]) for line in counts}
    create_table_artifact(
        [{"carrier": carrier, "late": late} for carrier, late in sorted(found.items())],
        key="late-by-carrier",
        description=f"Flights predicted late, of {run_id}",
    )
    return found
