"""The optional distributions that a framework's adapter needs, and what to say where they are missing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata

from nightjar.inference.errors import JobError
from nightjar.inference.job.seams import FRAMEWORKS
from nightjar.inference.predictors.adapter import Adapter


def versions(uses: str, alternatives: Sequence[str]) -> dict[str, str]:
    """The versions of those distributions that are installed, of several that bring the same module.

    Raises:
        JobError: None is installed.
    """
    found = {}
    for name in alternatives:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    if not found:
        raise missing(uses, alternatives[:1])
    return found


def missing(uses: str, needs: Sequence[str]) -> JobError:
    """The error for a framework that is not installed. needs: the distributions of the adapter's extra."""
    adapter: Adapter = FRAMEWORKS[uses].adapter()
    return JobError(
        f"model.uses: the {uses} adapter needs {' and '.join(needs)}; install {'it' if len(needs) == 1 else 'them'}: "
        f"pip install 'nightjar-batch[{adapter.extra}]'"
    )
