"""Peer c: Nightjar, from the command line as a user runs it: a job file, `nightjar run JOB --json`.

It does more than its peers, and that is in its time: the label's metrics, lineage columns, a check on
the score, the ledger, an audit of the files written, the publication, and Prefect's record of the run.
Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import yaml


def write_job(path: Path, data: Path, out: Path, actors: int, batch_size: int) -> None:
    """The job file over the data's columns."""
    spec: dict[str, Any] = json.loads((data / "data.json").read_text())
    job = {
        "name": "benchmark",
        "input": {"uri": f"{data / 'rows'}/"},
        "model": {
            "uses": "torch",
            "path": str(data / spec["model"]),
            "features": spec["features"],
            "outputs": {"score": "float32"},
            "batch_size": batch_size,
        },
        "carry": spec["carry"],
        "label": spec["label"],
        "output": {"uri": f"{out}/", "lineage": True},
        "resources": {"actors": actors, "cpus": 1},
        "checks": [{"column": "score", "min": 0, "max": 1, "nulls": 0, "finite": True}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(job, sort_keys=False))


def nightjar(job: Path, home: Path) -> dict[str, Any]:
    """Run the job; returns the closing object of `--json`."""
    command = [str(Path(sys.executable).with_name("nightjar")), "run", str(job), "--json"]
    environment = {
        **os.environ,
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    printed = job.with_name("stdout.txt")
    # A file, not a pipe: a pipe stays open as long as any descendant holds it.
    with printed.open("w") as stdout:
        done = subprocess.run(command, env=environment, stdout=stdout)
    text = printed.read_text()
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{text[-4000:]}")
    return closing(text)


def closing(stdout: str) -> dict[str, Any]:
    """The last JSON object printed, on one line or over several."""
    lines = stdout.strip().splitlines()
    for start in range(len(lines) - 1, -1, -1):
        if lines[start].startswith("{"):
            found: dict[str, Any] = json.loads("\n".join(lines[start:]))
            return found
    raise SystemExit(f"nightjar printed no JSON object:\n{stdout[-4000:]}")


def report(result: dict[str, Any], out: Path) -> dict[str, Any]:
    """The peers' common line from Nightjar's own: the one place that knows its keys."""
    engine = result["engine"]
    began = psutil.Process().create_time()
    revision = str(result["revision"]).removeprefix("r")
    written = out / "runs" / str(result["run_id"]) / f"r{revision}" / "data"
    return {
        "peer": "nightjar_job",
        "total_s": time.time() - began,
        "startup_s": engine["first_start"] - began,
        "steady_s": engine["steady_s"],
        "engine_s": engine["startup_s"],
        "steady_audit_s": engine["steady_s"] + result["seconds"]["validate"],
        "rows": result["rows_out"],
        "peak_rss_mb": None,
        "parts": len(list(written.glob("*.parquet"))),
        "data": str(written),
        "details": result,
    }


def main() -> None:
    """Score the data and print the one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16384)
    parser.add_argument("--home", type=Path, help="PREFECT_HOME, kept; default: prefect, two above OUT")
    arguments = parser.parse_args()
    data, out = arguments.data.absolute(), arguments.out.absolute()
    job = out.with_name(out.name + ".job") / "job.yaml"
    write_job(job, data, out, arguments.actors, arguments.batch_size)
    home: Path = (arguments.home or out.parent.parent / "prefect").absolute()
    home.mkdir(parents=True, exist_ok=True)
    print(json.dumps(report(nightjar(job, home), out)))


if __name__ == "__main__":
    main()
