"""Peer b: offline batch inference as Ray Data's documentation writes it.

read_parquet → map_batches(a predictor class, numpy batches, a fixed actor pool) → write_parquet, with Ray's defaults
for every other setting. Prints one JSON line. `run.py` measures its memory from outside: its processes share the object
store, so their peaks cannot be added.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import peer
import ray
import torch


class TorchPredictor:
    """Loads the program once per actor; adds a score to each batch of numpy columns."""

    def __init__(self, model: str, features: list[str], carry: list[str], ready: str) -> None:
        self.model = torch.export.load(model).module()
        self.features, self.carry = features, carry
        peer.is_ready(Path(ready))

    def __call__(self, batch: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        features = torch.from_numpy(np.stack([batch[name] for name in self.features], axis=1))
        with torch.inference_mode():
            score = self.model(features).numpy()
        return {**{name: batch[name] for name in self.carry}, "score": score}


def score(job: peer.Asked) -> None:
    """The documentation's pipeline."""
    dataset = ray.data.read_parquet(str(job.data / "rows")).select_columns(job.columns)
    predictions = dataset.map_batches(
        TorchPredictor,
        fn_constructor_args=(job.model, job.spec["features"], job.spec["carry"], str(job.ready)),
        batch_size=job.batch_size,
        compute=ray.data.ActorPoolStrategy(size=job.actors),
    )
    # Ray's default is snappy, but all peers write zstd.
    predictions.write_parquet(str(job.out), compression="zstd")


def main() -> None:
    """Score the data and print the one line."""
    job, _ = peer.asked(__doc__)
    called_at = time.time()
    # If there are as many actors as CPUs, no CPU is left for reading, and Ray Data waits for ever without a message.
    cpus = max(os.cpu_count() or 1, job.actors + 1)
    ray.init(
        address="local",
        num_cpus=cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    executed_at = time.time()
    score(job)
    ended_at, ready_at = time.time(), peer.ready_times(job.ready)
    ray.shutdown()
    peer.tell(
        "ray_data_docs",
        job,
        ready_at[0],
        ended_at,
        engine_s=ready_at[0] - executed_at,
        details={"actors_started": len(ready_at), "logical_cpus": cpus, "ray_s": executed_at - called_at},
    )


if __name__ == "__main__":
    main()
