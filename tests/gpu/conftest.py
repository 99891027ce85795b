"""Tests that compute on a GPU: `make test-gpu`. They are skipped where torch sees none."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "/tests/gpu/" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason="torch sees no GPU here"))


@pytest.fixture(scope="session")
def ray_gpu() -> Iterator[None]:
    """A Ray cluster in this process, with the GPUs that Ray finds."""
    import ray

    folder = tempfile.mkdtemp(prefix="njt-", dir="/tmp")
    ray.init(address="local", include_dashboard=False, logging_level="ERROR", log_to_driver=False, _temp_dir=folder)
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
