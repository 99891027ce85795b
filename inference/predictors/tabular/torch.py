"""`uses: torch`: an exported program, TorchScript, or weights for a module that the user's own code makes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pyarrow as pa

from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.predictors.adapter import Adapter, Predictor, missing, needed, versions
from nightjar.inference.predictors.tabular import features
from nightjar.inference.predictors.tabular.torchfiles import (
    EXPORTED,
    OPTIONS,
    STATE,
    check_torch_keys,
    inspect_torch,
    kind_of,
)
from nightjar.inference.predictors.user import factory_keywords


class OnTorch(Adapter):
    """Base of the adapters whose models compute with torch."""

    scratch = ("/dev/shm/torch_", "/tmp/torchinductor_", "/var/tmp/torchinductor_")

    def device_errors(self) -> tuple[type[BaseException], ...]:
        found = getattr(sys.modules.get("torch"), "AcceleratorError", None)
        return () if found is None else (found,)


class Torch(OnTorch):
    """The `Adapter` of torch. Its predictor is `exported.Program` or `modules.Module`."""

    libraries = ("torch",)
    extra = "torch"
    options = OPTIONS

    def check_keys(self, job: ModelJob) -> None:
        check_torch_keys(job)

    def fingerprint(self, job: ModelJob) -> Mapping[str, str]:
        """Empty if the file contains its operations. The user's code calls those of the installed torch."""
        found = versions("torch", ("torch",))
        return found if kind_of(job) is STATE else {}

    def check_columns(self, job: ModelJob, schema: pa.Schema) -> None:
        features.check_numbers(job, schema)

    def inspect(self, job: ModelJob, path: str) -> None:
        inspect_torch(job, path)

    def check_code(self, job: ModelJob, found: Mapping[str, Any]) -> None:
        for key, target in found.items():
            factory_keywords(job, key, target)

    def devices(self) -> str:
        if find_spec("torch") is None:
            return ""
        from nightjar.inference.predictors.tabular.placing import describe_devices

        return describe_devices()

    def warm(self) -> None:
        import_module("nightjar.inference.predictors.tabular.exported")
        # For a small model most of the time of `torch.export.load` is this import.
        import_module("torch.export.pt2_archive")

    def load(self, job: ModelJob, path: str | None) -> Predictor:
        path = needed(job, path)
        inspect_torch(job, path)
        try:
            if kind_of(job) is EXPORTED:
                from nightjar.inference.predictors.tabular.exported import load_program

                return load_program(job, path)
            from nightjar.inference.predictors.tabular.modules import load_module

            return load_module(job, path)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise missing("torch", ("torch",)) from error


ADAPTER = Torch()
