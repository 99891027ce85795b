"""Measure what the copies for the user's code cost, as a share of all CPU time of a worker.

One process works as an actor does, with a predictor of the user's own: the benchmark's 3-layer MLP, in numpy. (An
exported program, as in the benchmark itself, gets no copy, because none of the user's code runs.) Only the copies
are timed. They pay back some of their time, because the predictor then finds its batch in the processor's caches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from nightjar.inference import predictors
from nightjar.inference.job.modeljob import model_jobs
from nightjar.inference.predictors import scorer
from nightjar.inference.predictors.batches import own_table
from nightjar.inference.records import Receipt
from nightjar.inference.run.request import RunRequest, make_request, worker_spec
from nightjar.inference.run.resume import plan
from nightjar.inference.run.scoring import discover
from nightjar.inference.scoring import memory
from nightjar.inference.scoring.assignment import Assignment
from nightjar.inference.scoring.worker import ShardWorker

MLP = '''
import numpy as np


class Mlp:
    """20 → 64 → 64 → 1, a sigmoid at the end."""

    def __init__(self):
        rng = np.random.default_rng(7)
        self.layers = [rng.standard_normal(shape, dtype=np.float32) / 8 for shape in ((20, 64), (64, 64), (64, 1))]

    def __call__(self, batch):
        x = np.stack(list(batch.values()), axis=1)
        for weights in self.layers[:-1]:
            x = np.maximum(x @ weights, 0)
        return {"score": 1 / (1 + np.exp(-(x @ self.layers[-1])[:, 0]))}
'''
SETTLED = "NIGHTJAR_COPIES_SETTLED"


def write_job(folder: Path, data: Path, batch_size: int) -> Path:
    """Write a job folder with the model in it, whose input is the benchmark's data."""
    spec: dict[str, Any] = json.loads((data / "data.json").read_text())
    job = {
        "name": "copies",
        "input": {"uri": f"{data / 'rows'}/"},
        "model": {
            "uses": "mlp:Mlp",
            "features": spec["features"],
            "outputs": {"score": "float32"},
            "batch_size": batch_size,
        },
        "carry": spec["carry"],
        "label": spec["label"],
        "output": {"uri": f"{folder / 'out'}/"},
        "resources": {"actors": 1, "cpus": 1},
    }
    (folder / "mlp.py").write_text(MLP)
    (folder / "job.yaml").write_text(yaml.safe_dump(job, sort_keys=False))
    return folder / "job.yaml"


class Timed:
    """Sums the time of the copies."""

    seconds = 0.0
    calls = 0


def timed(table: pa.Table) -> pa.Table:
    """Copy a table, and count the time."""
    began = time.thread_time()
    copy = own_table(table)
    Timed.seconds += time.thread_time() - began
    Timed.calls += 1
    return copy


@dataclass(frozen=True, slots=True)
class Measured:
    """CPU seconds for a few shards without loading the model, CPU seconds of the copies, and the number of copies."""

    seconds: float
    copying: float
    copies: int


def measure(request: RunRequest, shards: int) -> Measured:
    """Score this number of shards."""
    found = discover(request)
    planned = plan(request, found).plan
    spec = worker_spec(request, found.schema, revision=f"{request.run_uri}/r1", rows=found.rows)
    worker = ShardWorker(spec, predictors.load_scorer(model_jobs(request.job)[0], None))
    work = [Assignment(shard) for _, shard in zip(range(shards), planned.shards(), strict=False)]
    Timed.seconds, Timed.calls = 0.0, 0
    began = time.process_time()
    ended = [event for event in worker.process(work) if isinstance(event, Receipt)]
    if len(ended) != len(work):
        raise SystemExit(f"{len(ended)} of {len(work)} shards were scored")
    return Measured(time.process_time() - began, Timed.seconds, Timed.calls)


def settle(request: RunRequest) -> None:
    """Start this program again with an actor's memory settings, which a process reads only when it starts."""
    if SETTLED not in os.environ:
        settings = {**memory.environment(request.job), "OPENBLAS_NUM_THREADS": "1", SETTLED: "1"}
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **settings})


def main() -> None:
    """Measure a few times, and print the median share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="made by data.py")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--batch-size", type=int, default=16384)
    given = parser.parse_args()
    scorer.own_table = timed  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        request = make_request(write_job(Path(folder), given.data.absolute(), given.batch_size))
        settle(request)
        measure(request, given.shards)
        runs = [measure(request, given.shards) for _ in range(given.repeat)]
    shares = sorted(each.copying / each.seconds for each in runs)
    copy_us = statistics.median(1e6 * each.copying / each.copies for each in runs)
    print(
        f"copies for the user's code: {statistics.median(shares):.1%} of the CPU time ({shares[0]:.1%} to "
        f"{shares[-1]:.1%}), {copy_us:.0f} µs for each micro-batch of {given.batch_size:,} rows"
    )


if __name__ == "__main__":
    main()
