"""Peer c: Nightjar, run from the command line as a user runs it: a job file and `nightjar run JOB --json`.

Its time includes work that its peers do not do: the label's metrics, lineage columns, a check on
the score, the ledger, an audit of the files written, the publication, and Prefect's record of the run.
Prints one JSON line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import peer
import yaml

CHECKS: list[dict[str, Any]] = [{"column": "score", "min": 0, "max": 1, "nulls": 0, "finite": True}]
"""Those of every benchmark."""


def write_job(path: Path, asked: peer.Asked, **more: Any) -> None:
    """The job file over the data's columns. more: keys beside those that every benchmark has."""
    spec = asked.spec
    job = {
        "name": "benchmark",
        "input": {"uri": f"{asked.data / 'rows'}/"},
        "model": {
            "uses": "torch",
            "path": asked.model,
            "trusted": True,
            "features": spec["features"],
            "outputs": {"score": "float32"},
            "batch_size": asked.batch_size,
        },
        "carry": spec["carry"],
        "label": spec["label"],
        "output": {"uri": f"{asked.out}/"},
        "resources": {"actors": asked.actors, "cpus": 1},
        "checks": CHECKS,
        **more,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(job, sort_keys=False))


def nightjar(job: Path, home: Path, *options: str) -> dict[str, Any]:
    """Run the job; returns the closing object of `--json`. options: further ones of `nightjar run`."""
    command = [str(Path(sys.executable).with_name("nightjar")), "run", str(job), "--json", *options]
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


def tell(job: peer.Asked, result: dict[str, Any]) -> None:
    """Print the peers' common line, made from Nightjar's result; only this function knows the result's keys."""
    engine, parts = result["engine"], result["account"]["parts"]
    revision = str(result["revision"]).removeprefix("r")
    written = job.out / "runs" / str(result["run_id"]) / f"r{revision}" / "data"
    peer.tell(
        "nightjar_job",
        job,
        engine["first_start"],
        engine["first_start"] + engine["steady_s"],
        engine_s=engine["startup_s"],
        steady_audit_s=engine["steady_s"] + sum(parts.get(each, 0.0) for each in ("audit", "gates", "manifest")),
        rows=result["rows_out"],
        parts=len(list(written.glob("*.parquet"))),
        data=str(written),
        details=result,
    )


def main() -> None:
    """Score the data and print the one line."""
    asked, given = peer.asked(__doc__, home=True)
    job = asked.out.with_name(asked.out.name + ".job") / "job.yaml"
    write_job(job, asked)
    home: Path = (given.home or asked.out.parent.parent / "prefect").absolute()
    home.mkdir(parents=True, exist_ok=True)
    tell(asked, nightjar(job, home))


if __name__ == "__main__":
    main()
