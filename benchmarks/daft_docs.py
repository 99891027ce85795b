"""Peer e: batch inference as Daft's documentation writes it: a class with a batch method over a DataFrame.

read_parquet → a `@daft.cls` that loads the model once per instance → write_parquet, on Daft's native runner. Prints one
JSON line. Daft is in the environment of the peers (`peers.txt`).
"""

from __future__ import annotations

import time

import daft
import numpy as np
import peer
import torch


def score(job: peer.Asked) -> None:
    """The documentation's pipeline."""

    @daft.cls(cpus=1, max_concurrency=job.actors, use_process=True)
    class Model:
        def __init__(self, path: str) -> None:
            torch.set_num_threads(1)
            self.model = torch.export.load(path).module()
            peer.is_ready(job.ready)

        @daft.method.batch(  # type: ignore[untyped-decorator]
            return_dtype=daft.DataType.float32(), batch_size=job.batch_size
        )
        def predict(self, *columns: daft.Series) -> np.ndarray:
            features = np.stack([column.to_arrow().to_numpy(zero_copy_only=False) for column in columns], axis=1)
            with torch.inference_mode():
                found: np.ndarray = self.model(torch.from_numpy(features)).numpy()
                return found

    model = Model(job.model)
    rows = daft.read_parquet(str(job.data / "rows"))
    scored = rows.with_column("score", model.predict(*(daft.col(name) for name in job.spec["features"])))
    scored.select(*job.spec["carry"], "score").write_parquet(str(job.out), compression="zstd")


def main() -> None:
    """Score the data and print the one line."""
    job, _ = peer.asked(__doc__)
    daft.set_runner_native()
    executed_at = time.time()
    score(job)
    ended_at, ready_at = time.time(), peer.ready_times(job.ready)
    peer.tell("daft_docs", job, ready_at[0], ended_at, engine_s=ready_at[0] - executed_at)


if __name__ == "__main__":
    main()
