"""The CPU time of a worker with and without `profile: all`, on the same rows, in turn.

    python benchmarks/profile_cpu.py --data benchmarks/results/work/data-4000000-16

One process works as an actor does, on the benchmark's job. Other programs on the machine disturb CPU times less than
the speeds that `profile_cost.py` compares.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import peer
import torch
from nightjar_job import write_job

from nightjar.inference import predictors
from nightjar.inference.job.modeljob import model_jobs
from nightjar.inference.records import Receipt
from nightjar.inference.run import resume
from nightjar.inference.run import scoring as run
from nightjar.inference.run.request import RunRequest, make_request, worker_spec
from nightjar.inference.scoring import memory
from nightjar.inference.scoring.assignment import Assignment
from nightjar.inference.scoring.worker import ShardWorker

SETTLED = "NIGHTJAR_PROFILE_SETTLED"


def request_of(asked: peer.Asked, folder: Path, share: float) -> RunRequest:
    """A run of the benchmark's job. folder: of the job. share: of the rows that is described."""
    job = folder / "job.yaml"
    write_job(job, asked, **({"profile": {"columns": "all", "share": share}} if share else {}))
    return make_request(job)


def measure(request: RunRequest, shards: int) -> float:
    """Score this number of shards. Returns the nanoseconds of CPU of a row, without loading the model."""
    found = run.discover(request)
    plan = resume.plan(request, found).plan
    spec = worker_spec(request, found.schema, revision=f"{request.run_uri}/r1", rows=found.rows)
    worker = ShardWorker(spec, predictors.load_scorer(model_jobs(request.job)[0], str(request.job.models[0].path)))
    work = [Assignment(shard) for _, shard in zip(range(shards), plan.shards(), strict=False)]
    began = time.process_time()
    ended = [event for event in worker.process(work) if isinstance(event, Receipt)]
    if len(ended) != len(work):
        raise SystemExit(f"{len(ended)} of {len(work)} shards were scored")
    return 1e9 * (time.process_time() - began) / sum(each.rows_in for each in ended)


def settle(request: RunRequest) -> None:
    """Start this program again with an actor's memory settings, which a process reads only when it starts."""
    if SETTLED not in os.environ:
        settings = {
            **memory.environment(request.job),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            SETTLED: "1",
        }
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **settings})


def main() -> None:
    """Measure a few times, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="made by data.py")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--share", type=float, default=1, help="of the rows that is described")
    given = parser.parse_args()
    data = given.data.absolute()
    with tempfile.TemporaryDirectory() as folder:
        spec = json.loads((data / "data.json").read_text())
        requests = {}
        for profile in (False, True):
            place = Path(folder, str(profile))
            requests[profile] = request_of(
                peer.Asked(data, place / "out", 2, 16384, spec), place, given.share if profile else 0
            )
        settle(requests[False])
        torch.set_num_threads(1)
        memory.use_system()
        runs = {profile: list[float]() for profile in requests}
        for repeat in range(given.repeat + 1):
            for profile in ((False, True), (True, False))[repeat % 2]:
                runs[profile].append(measure(requests[profile], given.shards))
    without, with_ = (each[1:] for each in (runs[False], runs[True]))  # the first ones warm up
    ratios = sorted(one / other for one, other in zip(without, with_, strict=True))
    print(
        f"a worker's CPU time, ns a row: {median(without):.0f} without a profile, {median(with_):.0f} with one; "
        f"speed on a busy core {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    )


if __name__ == "__main__":
    main()
