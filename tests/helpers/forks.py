"""The process that the local engine forks its processes off, in tests: what it has imported is imported once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from unittest.mock import patch

from nightjar.inference.scoring import child

_begin = child.prepare


def begin() -> None:
    """Instead of `child.prepare`: the process finds `installed` beside this file, and imports it, too."""
    with patch.dict(os.environ, PYTHONPATH=str(Path(__file__).parent)):
        _begin()


@contextmanager
def forks_have(*modules: str) -> Iterator[None]:
    """Let the processes that score begin with these modules imported: else each imports them for seconds."""
    with patch.object(child, "_IMPORTED", [*child._IMPORTED, *modules]):
        forkserver._forkserver._stop()  # type: ignore[attr-defined]
        yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


child.prepare = begin
child._IMPORTED.append("installed")
