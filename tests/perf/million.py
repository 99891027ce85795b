"""A million shards through everything the driver keeps: plan, ledger, outcomes, tables. Run by `test_million.py`.

Prints one JSON object: how much memory each stage left behind, in MB, and the sizes of what people and Prefect see.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import psutil
import pyarrow as pa

from nightjar.inference.history.run_tables import RunReport
from nightjar.inference.input.plan import FILES, Discovery, Plan, make_plan
from nightjar.inference.job.file import parse_job
from nightjar.inference.ledger import lines
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.ledger.ledger import Ledger, replay
from nightjar.inference.output.outcomes import outcomes, to_parquet
from nightjar.inference.records import Failed, Part, Receipt, encode
from nightjar.inference.run.request import RunRequest
from nightjar.inference.storage.lake import LakeStorage

BATCH = 2000
FAILED_EVERY = 1000


def main(folder: str, count: int) -> None:
    """Simulate a run of `count` shards, one file each, in `folder`."""
    mb: dict[str, float] = {}
    process = psutil.Process()
    base = process.memory_info().rss

    def note(stage: str) -> None:
        mb[stage] = round((process.memory_info().rss - base) / 1e6, 1)

    job = parse_job(
        {
            "name": "million",
            "input": {"uri": "data/", "shard_rows": 10},
            "model": {"uses": "model:score", "outputs": {"score": "float32"}},
            "output": {"uri": "out/"},
        },
        Path(folder) / "job.yaml",
    )
    storage = LakeStorage()
    request = RunRequest(
        job=job,
        job_path=f"{folder}/job.yaml",
        run_id="night",
        date="2026-11-19",
        storage=storage,
        flow_run="test",
    )
    uri = f"{request.run_uri}/r1"
    plan = make_plan(_lake(folder, count), job, "fingerprint")
    note("plan")
    writer = open_epoch(storage, uri, this_holder("score"))
    storage.create(f"{uri}/plan-000001.parquet", plan.to_bytes())
    planned = lines.Planned(
        file="plan-000001.parquet", fingerprint="fingerprint", date="2026-11-19", shards=len(plan), rows=plan.rows
    )
    writer.append([planned])
    largest = _commit(writer.append, plan, writer.epoch)
    note("committed")
    writer.stop(release=True)
    ledger = Ledger(storage, uri)
    state = replay(ledger)
    note("replayed")
    table = outcomes(plan, ledger, state)
    note("outcomes")
    shards = to_parquet(table, state)
    del table, state
    report = RunReport(request, 1)
    tables = [json.dumps([asdict(line) for line in found]) for found in (report.shards(300), report.incidents(300))]
    note("report")
    print(
        json.dumps(
            {
                "shards": len(plan),
                "committed": len(report.state.committed),
                "mb": mb,
                "peak_mb": round((_peak() - base) / 1e6, 1),
                "largest_receipt": largest,
                "shards_parquet": len(shards),
                "tables": [len(table) for table in tables],
            }
        )
    )


def _peak() -> int:
    """The most memory this process ever held, in bytes.

    Not `ru_maxrss`: that survives exec, and would tell what the process that started this one held.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def _lake(folder: str, count: int) -> Discovery:
    """`count` files of ten rows, as discovery would report them."""

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, count, 65536):
            numbers = range(start, min(start + 65536, count))
            yield pa.record_batch(
                {
                    "uri": [f"{folder}/data/part-{n:07d}.parquet" for n in numbers],
                    "size": pa.array(list(numbers), pa.int64()),
                    "version": [str(1763500000000000000 + n) for n in numbers],
                    "rows": pa.array([[10]] * len(numbers), pa.list_(pa.int64())),
                    "sizes": pa.array([[1000]] * len(numbers), pa.list_(pa.int64())),
                    "error": pa.array([None] * len(numbers), pa.string()),
                },
                schema=FILES,
            )

    return Discovery(pa.Table.from_batches(list(batches()), schema=FILES), pa.schema([("x", pa.float32())]))


def _commit(append: object, plan: Plan, epoch: int) -> int:
    """A receipt for every shard, some after a failure; returns the largest receipt's bytes."""
    assert callable(append)
    records, largest = [], 0
    for index, shard in enumerate(plan.shards()):
        part = Part(f"data/{shard.id}-{epoch:06d}-0123abcd.parquet", 10, 2345, "0123456789abcdef" * 2)
        if index % FAILED_EVERY == 0:
            records.append(Failed(shard.id, 1, "Transient", "the storage did not answer " * 20))
        receipt = Receipt(
            shard.id, 1, epoch, f"host-{index % 64}:{os.getpid()}", part, None, 0.5, 1.7e9, rows_in=10, rows_out=10
        )
        records.append(receipt)
        largest = max(largest, len(json.dumps(encode(receipt))))
        if len(records) >= BATCH:
            append(records)
            records = []
    append(records)
    return largest


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
