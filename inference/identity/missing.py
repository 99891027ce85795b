"""Explains that a predictor does not find a file or module beside the job because it was left out of the snapshot."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from nightjar.inference.errors import JobError, NightjarError
from nightjar.inference.identity.packages import importable_places, module_files


def explained(
    error: NightjarError, cause: BaseException, left_out: Mapping[str, str], live: str, copy: str
) -> NightjarError:
    """Add a hint to the error, if the missing file is in the job's folder and was left out.

    left_out: as in `ScoringSet`. live: the job's folder. copy: the folder from which this process scores.
    """
    for name in _missing(cause, copy) if isinstance(error, JobError) else ():
        inside = (left for left in left_out if left == name or (left.endswith("/") and name.startswith(left)))
        left = next(inside, None)
        if Path(live, name).exists() or (left and not Path(live).exists()):  # another node may not see the folder
            said = f" ({left_out[left]})" if left else ""
            return JobError(
                f"{error}. {left or name} of the job's folder is left out of the snapshot{said}: name it "
                "in model.path, or by its whole path in model.code"
            )
    return error


def _missing(cause: BaseException, copy: str) -> Iterator[str]:
    """The names that the missing file or module can have in the job's folder."""
    names: Iterable[str] = ()
    if isinstance(cause, ModuleNotFoundError) and cause.name:
        files = [*module_files(cause.name), cause.name.replace(".", "/") + "/"]
        names = (place + file for place in importable_places(copy) for file in files)
    elif isinstance(cause, FileNotFoundError) and isinstance(cause.filename, str):
        names = (os.path.relpath(os.path.realpath(cause.filename), os.path.realpath(copy)),)
    return (name for name in names if not name.startswith("../") and not Path(copy, name).exists())
