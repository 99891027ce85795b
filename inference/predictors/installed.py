"""The optional distributions that a framework's adapter needs, and what to say where they are missing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata

from nightjar.inference.errors import JobError


def versions(uses: str, alternatives: Sequence[str], extra: str = "") -> dict[str, str]:
    """The versions of those distributions that are installed, of several that bring the same module.

    extra: as in `missing`.

    Raises:
        JobError: None is installed.
    """
    found = {}
    for name in alternatives:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    if not found:
        raise missing(uses, alternatives[:1], extra)
    return found


def missing(uses: str, needs: Sequence[str], extra: str = "") -> JobError:
    """The error for a framework that is not installed.

    needs: the distributions of the extra. extra: its name, if it is not that of the adapter.
    """
    return JobError(
        f"model.uses: the {uses} adapter needs {' and '.join(needs)}; install {'it' if len(needs) == 1 else 'them'}: "
        f"pip install 'nightjar-batch[{extra or uses}]'"
    )
