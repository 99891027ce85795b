"""Nightjar with a preprocess of the user's: `nightjar run JOB --json`, with `preprocess.placement` as asked.

`staged` has one actor of one CPU beside the workers. `fused` has one actor of both CPUs, which prepares the next batch
in a thread. Prints one JSON line.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import stages_case
import yaml
from nightjar_job import nightjar

STEPS = "stages_steps"


def write_job(job: stages_case.Asked) -> Path:
    """The job file, beside the user's module."""
    folder = job.out.with_name(job.out.name + ".job")
    folder.mkdir()
    shutil.copy(Path(__file__).with_name(f"{STEPS}.py"), folder)
    case, notes = job.case, {"notes": str(job.notes)}
    staged = job.placement == "staged"
    content: dict[str, Any] = {
        "name": "stages",
        "input": {"uri": f"{job.data}/", "format": case.source},
        "preprocess": {
            "uses": f"{STEPS}:{case.prepare}",
            "options": {**notes, **case.prepare_options},
            "placement": job.placement,
            **({"cpus": case.cpus, "workers": case.workers} if staged else {}),
        },
        "model": {
            "uses": f"{STEPS}:{case.model}",
            "options": {**notes, **case.model_options},
            "outputs": {"score": "float32"},
            "batch_size": case.batch,
        },
        "carry": [case.carry],
        "output": {"uri": f"{job.out}/"},
        "resources": {"actors": 1, "cpus": 1 if staged else 2, "gpus": case.gpus},
    }
    if case.per_file == case.batch:
        # A file of Parquet is a batch and a block of Ray Data's, so that it is a shard here.
        content["input"]["shard_rows"] = case.batch
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def main() -> None:
    """Score the input and print the one line."""
    job = stages_case.asked(__doc__)
    home = job.out.parent.parent / "prefect"
    home.mkdir(exist_ok=True)
    result = nightjar(write_job(job), home)
    engine = result["engine"]
    written = job.out / "runs" / str(result["run_id"]) / f"r{str(result['revision']).removeprefix('r')}" / "data"
    stages_case.tell(job, engine["first_start"], engine["first_start"] + engine["steady_s"], written)


if __name__ == "__main__":
    main()
