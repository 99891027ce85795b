"""Where a torch model computes: the job's device, and its threads; and what is copied there. Imports torch."""

from __future__ import annotations

import numpy as np
import torch

from nightjar.inference.job.model import Job
from nightjar.inference.predictors.arrays import NUMERIC, Array


def device_of_job(job: Job) -> torch.device:
    """The device for the job's model. Sets torch's number of threads for the process."""
    torch.set_num_threads(job.resources.cores)
    # Ray may be told of GPUs that do not exist, as in tests; the predictor's `device` then says the truth.
    on_gpu = job.resources.gpus > 0 and torch.cuda.is_available()
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def to_tensor(values: Array) -> torch.Tensor | Array:
    """Copy numbers into a tensor, because torch has no read-only tensor; return anything else unchanged."""
    return torch.from_numpy(np.array(values)) if values.dtype.kind in NUMERIC else values


def describe_devices() -> str:
    """The GPUs that torch can use in this process, in words."""
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU here: models run on the CPU"
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"torch {torch.__version__} sees {len(names)}: {', '.join(names)}"
