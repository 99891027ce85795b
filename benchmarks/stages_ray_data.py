"""Two stages as Ray Data's documentation writes them: read → map_batches(prepare) → map_batches(Model) → write_parquet.

The preparing stage has as many workers, of as many CPUs, as the one of Nightjar. There are two logical CPUs more than
both stages take, because reading and writing need some. What was read is in blocks of one batch. With Ray's default one
task reads all of these small files into one block; then one worker prepares everything, and the model begins when the
preprocess has ended. Every other setting is Ray's default. Prints one JSON line.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))

import ray
import stages_case
import stages_steps

READING_AND_WRITING = 2


def score(job: stages_case.Asked) -> None:
    """The documentation's pipeline."""
    case, notes = job.case, {"notes": str(job.notes)}
    dataset: Any = (
        ray.data.read_parquet(str(job.data)).repartition(target_num_rows_per_block=case.batch)
        if case.source == "parquet"
        else ray.data.read_binary_files(str(job.data), include_paths=True, override_num_blocks=case.rows // case.batch)
    )
    dataset.map_batches(
        getattr(stages_steps, case.prepare),
        fn_kwargs={**notes, **case.prepare_options},
        batch_size=case.batch,
        num_cpus=case.cpus,
        compute=ray.data.TaskPoolStrategy(size=case.workers),
    ).map_batches(
        getattr(stages_steps, case.model),
        fn_constructor_kwargs={**notes, **case.model_options},
        batch_size=case.batch,
        num_cpus=1,
        num_gpus=case.gpus,
        compute=ray.data.ActorPoolStrategy(size=1),
    ).write_parquet(str(job.out))


def main() -> None:
    """Score the input and print the one line."""
    job = stages_case.asked(__doc__)
    ray.init(
        address="local",
        num_cpus=round(1 + job.case.cpus * job.case.workers) + READING_AND_WRITING,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    since = time.time()
    score(job)
    ended_at = time.time()
    ray.shutdown()
    stages_case.tell(job, since, ended_at, job.out)


if __name__ == "__main__":
    main()
