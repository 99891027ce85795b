"""What the adapters of boosted trees share: a model in one file of its library, which computes on the CPU.

The file has the trees, but not the code that walks them. So the version of the library is part of a result's identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.job.options import Option
from nightjar.inference.predictors.adapter import Predictor, WithoutDevices, check_cpu, needed
from nightjar.inference.predictors.installed import versions
from nightjar.inference.predictors.tabular import features


class BoosterAdapter(WithoutDevices):
    """Base of these adapters. See `adapter.Adapter`.

    name: of the library, for messages. libraries: the distributions that bring it, one of which is enough. options:
    what `model.options` may name. how: how to write the model's file, for messages.
    """

    name: str
    libraries: tuple[str, ...]
    extra: str
    options: tuple[Option, ...] | None
    how: str
    reads_arrow = True
    scratch: tuple[str, ...] = ()

    def check_values(self, job: Job) -> None:
        """Check that the options fit together.

        Raises:
            JobError: They do not.
        """
        raise NotImplementedError

    def check_content(self, content: bytes) -> None:
        """Check that this is a model of the library, and a whole one, where the library itself would crash.

        Raises:
            ValueError: It is not.
        """
        raise NotImplementedError

    def loaded(self, job: Job, content: bytes) -> Predictor:
        """The predictor of a model.

        Raises:
            JobError: The library is not installed, or cannot load the model.
        """
        raise NotImplementedError

    def check_keys(self, job: Job) -> None:
        """As `Adapter.check_keys`."""
        self.check_values(job)
        check_cpu(job)

    def fingerprint(self, job: Job) -> Mapping[str, str]:
        """As `Adapter.fingerprint`."""
        return versions(job.model.uses, self.libraries)

    def check_columns(self, job: Job, schema: pa.Schema) -> None:
        """As `Adapter.check_columns`."""
        features.check_numbers_and_categories(job, schema)

    def inspect(self, job: Job, path: str) -> None:
        """As `Adapter.inspect`."""
        self._read(job, path)

    def load(self, job: Job, path: str | None) -> Predictor:
        """As `Adapter.load`."""
        return self.loaded(job, self._read(job, needed(job, path)))

    def _read(self, job: Job, path: str) -> bytes:
        try:
            content = Path(path).read_bytes()
            self.check_content(content)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise JobError(
                f"model.path: {job.model.path} is not a readable {self.name} model: {reason}; {self.how}"
            ) from error
        return content
