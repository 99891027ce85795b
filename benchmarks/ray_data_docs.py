"""Peer b: offline batch inference as Ray Data's documentation writes it.

read_parquet → map_batches(a predictor class, numpy batches, a fixed actor pool) → write_parquet, every
other setting Ray's own. Prints one JSON line. Its memory is measured from outside (`run.py`): its many
processes share the object store, so their own peaks cannot be added up.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
import torch


class TorchPredictor:
    """Loads the program once per actor; adds a score to each batch of numpy columns."""

    def __init__(self, model: str, features: list[str], carry: list[str], ready: str) -> None:
        self.model = torch.export.load(model).module()
        self.features, self.carry = features, carry
        # The driver cannot see when an actor is ready; a file says it.
        Path(ready, uuid.uuid4().hex).write_text(repr(time.time()))

    def __call__(self, batch: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        features = torch.from_numpy(np.stack([batch[name] for name in self.features], axis=1))
        with torch.inference_mode():
            score = self.model(features).numpy()
        return {**{name: batch[name] for name in self.carry}, "score": score}


def score(spec: dict[str, Any], data: Path, out: Path, ready: Path, actors: int, batch_size: int) -> None:
    """The documentation's pipeline."""
    dataset = ray.data.read_parquet(str(data / "rows"))
    dataset = dataset.select_columns([*spec["carry"], *spec["features"]])
    predictions = dataset.map_batches(
        TorchPredictor,
        fn_constructor_args=(str(data / spec["model"]), spec["features"], spec["carry"], str(ready)),
        batch_size=batch_size,
        compute=ray.data.ActorPoolStrategy(size=actors),
    )
    # Its default is snappy; the peers all write zstd.
    predictions.write_parquet(str(out), compression="zstd")


def main() -> None:
    """Score the data and print the one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16384)
    parser.add_argument("--cpus", type=int, help="logical CPUs for Ray; default: cores, or one more than actors")
    arguments = parser.parse_args()
    data, out = arguments.data.absolute(), arguments.out.absolute()
    spec: dict[str, Any] = json.loads((data / "data.json").read_text())
    ready = out.with_name(out.name + ".ready")
    ready.mkdir(parents=True)
    called_at = time.time()
    # As many actors as CPUs leave none to read with, and Ray Data waits for ever without a word.
    cpus = arguments.cpus or max(os.cpu_count() or 1, arguments.actors + 1)
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
    score(spec, data, out, ready, arguments.actors, arguments.batch_size)
    ended_at = time.time()
    ready_at = sorted(float(file.read_text()) for file in ready.iterdir())
    ray.shutdown()
    began = psutil.Process().create_time()
    line = {
        "peer": "ray_data_docs",
        "total_s": time.time() - began,
        "startup_s": ready_at[0] - began,
        "steady_s": ended_at - ready_at[0],
        "engine_s": ready_at[0] - executed_at,
        "rows": spec["parameters"]["rows"],
        "peak_rss_mb": None,
        "parts": len(list(out.glob("*.parquet"))),
        "data": str(out),
        "details": {
            "actors": arguments.actors,
            "actors_started": len(ready_at),
            "logical_cpus": cpus,
            "ray_s": executed_at - called_at,
            "execute_s": ended_at - executed_at,
        },
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
