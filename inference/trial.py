"""What preflight does in a worker: load the model once and score a few rows.

Apart from the engine, so that the process that tries needs nothing of Ray Data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nightjar.inference.assignment import WorkerSpec, load
from nightjar.inference.errors import JobError, ProcessSpoilt, ShardError, StorageError
from nightjar.inference.scoring import BatchSize, score_table
from nightjar.inference.shards import clip
from nightjar.inference.sources import parquet
from nightjar.inference.worker import ShardWorker

SAMPLE_ROWS = 32


@dataclass(frozen=True, slots=True)
class Loaded:
    """What preflight learnt: the device the model is on, and why the sample could not be scored, if so."""

    device: str
    sample_error: str = ""


def try_model(spec: WorkerSpec, sample: str | None) -> Iterator[Loaded | str]:
    """Runs in a worker. Yields `Loaded` once the model is there and again once it scored, or what is wrong."""
    try:
        worker = ShardWorker(spec, load(spec))
    except JobError as error:
        yield clip(str(error).removeprefix("model.uses: ").removeprefix("model.path: "))
        return
    except Exception as error:  # noqa: BLE001 (the user's constructor may raise anything)
        yield clip(f"loading {spec.job.model.uses} failed with {type(error).__name__}: {error}")
        return
    device = worker.scorer.device
    yield Loaded(device)
    if sample is None:
        return
    try:
        table = parquet.read_head(spec.storage, sample, worker.features(), SAMPLE_ROWS)
    except (ShardError, StorageError) as error:
        # A file that cannot be read is the passes' business: it costs its own shards.
        yield Loaded(device, clip(str(error)))
        return
    steps = score_table(table, worker.scorer, BatchSize(SAMPLE_ROWS), spec.job.model.output_types())
    try:
        while True:
            next(steps)
    except StopIteration as stop:
        failures = stop.value.failures
    except ProcessSpoilt as spoilt:
        # As with a row that kills its process: the passes find it.
        yield Loaded(device, str(spoilt))
        return
    if failures and len(failures) == table.num_rows:
        first = failures[0]
        yield f"none of the first {table.num_rows} rows of {sample} can be scored: {first.error}: {first.message}"
    else:
        yield Loaded(device)
