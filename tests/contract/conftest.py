"""Shared by the contract tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """A model sets how many threads torch computes with; the next test finds the number as it was."""
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else 0
    yield
    if torch:
        torch.set_num_threads(threads)
