"""`uses: torch`: an exported program, TorchScript, or weights for a module that the user's own code makes."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.job.options import choice, keywords, text
from nightjar.inference.job.sections import SPEC
from nightjar.inference.predictors.adapter import Predictor
from nightjar.inference.predictors.batches import BATCH_FORMAT
from nightjar.inference.predictors.tabular import features
from nightjar.inference.predictors.tabular.ontorch import EXPORTED, STATE, OnTorch, inspect_file, kind_of
from nightjar.inference.predictors.user import factory_keywords

_DTYPES = ("float32", "float16", "bfloat16")


class Torch(OnTorch):
    """The `Adapter` of torch. Its predictors are in `modules`."""

    libraries = ("torch",)
    counted = (libraries,)
    extra = "torch"
    options = (
        text(
            "model",
            "your function or class that makes the `torch.nn.Module`",
            "none; required for weights",
            SPEC,
            '"module:name" of your function or class, as "net:build"',
        ),
        keywords("args", "its keyword arguments", "none", "a mapping of keywords, as {width: 2}"),
        choice("dtype", _DTYPES, "weights, and inputs that are floats, are cast to it", "that of the weights"),
        choice("autocast", (False, True, *_DTYPES[1:]), "computes under `torch.autocast`, in this type"),
        BATCH_FORMAT,
    )

    def check_keys(self, job: ModelJob) -> None:
        kind, options = kind_of(job), job.model.options
        for name in STATE.options:
            if name in options and name not in kind.options:
                raise JobError(
                    f"model.options.{name}: has no meaning for {kind.what}, as which {job.model.path} is read"
                )
        if kind is STATE and "model" not in options:
            raise JobError(
                f"model.options.model: {job.model.path} holds weights alone; name the function or class of yours that "
                'makes the module, as "net:build"'
            )
        if options.get("autocast") and options.get("dtype", "float32") != "float32":
            raise JobError(
                "model.options.autocast: the weights already have another type by model.options.dtype; keep one"
            )

    def fingerprint(self, job: ModelJob) -> Mapping[str, str]:
        """Empty if the file contains its operations. The user's code calls those of the installed torch."""
        found = super().fingerprint(job)
        return found if kind_of(job) is STATE else {}

    def check_columns(self, job: ModelJob, schema: pa.Schema) -> None:
        features.check_numbers(job, schema)

    def inspect(self, job: ModelJob, path: str) -> None:
        inspect_file(job, path)

    def check_code(self, job: ModelJob, found: Mapping[str, Any]) -> None:
        for key, target in found.items():
            factory_keywords(job, key, target)

    def devices(self) -> str:
        try:
            import torch
        except ImportError:
            return ""
        if not torch.cuda.is_available():
            return f"torch {torch.__version__} sees no GPU here: models run on the CPU"
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return f"torch {torch.__version__} sees {len(names)}: {', '.join(names)}"

    def warm(self) -> None:
        import_module("nightjar.inference.predictors.tabular.modules")
        # For a small model most of the time of `torch.export.load` is this import.
        import_module("torch.export.pt2_archive")

    def load(self, job: ModelJob, path: str) -> Predictor:
        from nightjar.inference.predictors.tabular import modules

        inspect_file(job, path)
        return modules.load_program(job, path) if kind_of(job) is EXPORTED else modules.load_module(job, path)


ADAPTER = Torch()
