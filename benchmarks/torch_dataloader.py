"""Peer d: PyTorch's own way to read a data set in several processes: an IterableDataset behind a DataLoader.

The documentation's scheme for sharding by `get_worker_info`: each loader process reads every n-th file and yields
whole batches (`batch_size=None`); the main process runs the model and writes. Prints one JSON line.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import numpy as np
import peer
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

Batch = tuple[pa.RecordBatch, torch.Tensor]
"""Carried columns, and features of shape [rows, features], float32."""


class Rows(IterableDataset[Batch]):
    """Batches of the files that this loader process reads."""

    def __init__(self, job: peer.Asked) -> None:
        self.job = job

    def __iter__(self) -> Iterator[Batch]:
        job, info = self.job, get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for name in job.spec["files"][first::step]:
            with pq.ParquetFile(job.data / name) as reader:
                for batch in reader.iter_batches(job.batch_size, columns=job.columns):
                    features = np.stack([batch[name].to_numpy() for name in job.spec["features"]], axis=1)
                    yield batch.select(job.spec["carry"]), torch.from_numpy(features)


def score(job: peer.Asked, model: torch.nn.Module) -> None:
    """One model in this process, fed by `job.actors` loader processes."""
    job.out.mkdir(parents=True)
    loader = DataLoader(Rows(job), batch_size=None, num_workers=job.actors, multiprocessing_context="spawn")
    writer = None
    with torch.inference_mode():
        for carried, features in loader:
            output = carried.append_column("score", pa.array(model(features).numpy()))
            writer = writer or pq.ParquetWriter(
                job.out / "scores.parquet", output.schema, compression="zstd", use_dictionary=False
            )
            writer.write_batch(output, row_group_size=output.num_rows)
    if writer:
        writer.close()


def main() -> None:
    """Score the data and print the one line."""
    job, _ = peer.asked(__doc__)
    # The loader's processes read while this process computes, with as many threads as other peers have actors.
    torch.set_num_threads(job.actors)
    model = torch.export.load(job.model).module()
    ready_at = time.time()
    score(job, model)
    peer.tell("torch_dataloader", job, ready_at, time.time(), details={"cores": os.cpu_count()})


if __name__ == "__main__":
    main()
