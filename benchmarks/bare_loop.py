"""Peer a: a loop written by hand, with pyarrow and torch in a few processes and nothing else.  It has no ledger, no
retries and no checks, and is the lower bound for the time. Each process takes the next file, reads it row group by row
group, predicts in micro-batches and writes one file of carried columns and score. Prints one JSON line.
"""

from __future__ import annotations

import multiprocessing as mp
import resource
import time
from dataclasses import asdict, dataclass
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import peer


@dataclass(frozen=True, slots=True)
class Work:
    """What every process needs to know."""

    data: Path
    out: Path
    files: list[str]
    features: list[str]
    carry: list[str]
    batch_size: int


@dataclass(frozen=True, slots=True)
class Done:
    """What one process did; times are seconds since the epoch."""

    ready_at: float
    ended_at: float
    rows: int
    parts: int
    peak_rss_mb: float


def worker(work: Work, queue: SimpleQueue[int | None], done: SimpleQueue[Done]) -> None:
    """Score files until the queue says None."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch

    torch.set_num_threads(1)
    model = torch.export.load(work.data / "model.pt2").module()
    # Stored column by column, as Arrow stores it; the transposed view costs the model nothing.
    batch = np.empty((len(work.features), work.batch_size), dtype=np.float32)

    def predict(table: pa.Table) -> pa.Array:
        columns = [table.column(name).to_numpy() for name in work.features]
        scores = np.empty(table.num_rows, dtype=np.float32)
        for start in range(0, table.num_rows, work.batch_size):
            rows = min(work.batch_size, table.num_rows - start)
            for index, column in enumerate(columns):
                batch[index, :rows] = column[start : start + rows]
            scores[start : start + rows] = model(torch.from_numpy(batch[:, :rows]).T).numpy()
        return pa.array(scores)

    def score(source: Path, target: Path) -> int:
        with pq.ParquetFile(source) as reader:
            fields = [reader.schema_arrow.field(name) for name in work.carry]
            schema = pa.schema([*fields, ("score", pa.float32())])
            with pq.ParquetWriter(target, schema, compression="zstd", use_dictionary=False) as writer:
                for group in range(reader.num_row_groups):
                    table = reader.read_row_group(group, columns=[*work.carry, *work.features], use_threads=False)
                    output = table.select(work.carry).append_column("score", predict(table))
                    writer.write_table(output, row_group_size=output.num_rows)
            rows: int = reader.metadata.num_rows
        return rows

    ready_at = time.time()
    rows = parts = 0
    with torch.inference_mode():
        while (index := queue.get()) is not None:
            rows += score(work.data / work.files[index], work.out / f"{index:05}.parquet")
            parts += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    done.put(Done(ready_at, time.time(), rows, parts, peak))


def run(work: Work, processes: int) -> list[Done]:
    """Start the processes, hand out the files, wait for all."""
    context = mp.get_context("spawn")
    queue: SimpleQueue[int | None] = context.SimpleQueue()
    done: SimpleQueue[Done] = context.SimpleQueue()
    workers = [context.Process(target=worker, args=(work, queue, done)) for _ in range(processes)]
    for process in workers:
        process.start()
    for item in [*range(len(work.files)), *[None] * processes]:
        queue.put(item)
    for process in workers:
        process.join()
    if any(process.exitcode for process in workers):
        raise SystemExit(f"a worker failed: exit codes {[process.exitcode for process in workers]}")
    return [done.get() for _ in workers]


def main() -> None:
    """Score the data and print the one line."""
    job, _ = peer.asked(__doc__)
    job.out.mkdir(parents=True)
    spec = job.spec
    work = Work(job.data, job.out, spec["files"], spec["features"], spec["carry"], job.batch_size)
    done = run(work, job.actors)
    peer.tell(
        "bare_loop",
        job,
        min(each.ready_at for each in done),
        max(each.ended_at for each in done),
        rows=sum(each.rows for each in done),
        details={"processes": [asdict(each) for each in done]},
    )


if __name__ == "__main__":
    main()
