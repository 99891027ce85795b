"""`accumulators`: classes of the user's own that give figures of a night's rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from nightjar.inference.messages import nearest

MOST_ACCUMULATORS = 16
"""The most accumulators of a job: each has a state for every shard."""

_NAME = r"[A-Za-z][A-Za-z0-9_]{0,39}"
_SPEC = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")

FIGURE = r"[\w@%+-][\w@%+.-]{0,63}"
"""The form of a figure's name, by which a check asks for it after the accumulator's: `lift.at_top_decile`."""

OWN_METRIC = rf"^{_NAME}\.{FIGURE}$"
"""The form of a figure of an accumulator, as a check names it."""


def _named(value: dict[str, str]) -> dict[str, str]:
    if len(value) > MOST_ACCUMULATORS:
        raise ValueError(f"are {len(value)}, and {MOST_ACCUMULATORS} are the most")
    for name, spec in value.items():
        if not re.fullmatch(_NAME, name):
            raise ValueError(
                f"{name!r} must be letters, digits and underscores, 40 at most, and begin with a letter: checks name it"
            )
        if not _SPEC.fullmatch(spec):
            raise ValueError(f'{name} must be "module:Name" of a class, not {spec!r}')
    return value


Accumulators = Annotated[dict[str, str], AfterValidator(_named)]
"""Name → "module:Name" of the class."""


def accumulator_of(metric: str) -> str:
    """The accumulator that a check names in `metric`; '' for a metric of the labels."""
    name, dot, _ = metric.partition(".")
    return name if dot else ""


def check_own(key: str, check: Any, accumulators: Mapping[str, str]) -> None:
    """Check a gate on a figure of an accumulator. key: of the check. check: a `MetricCheck`.

    Raises:
        ValueError: The job has no such accumulator, or the check asks for what is of labels alone.
    """
    name = accumulator_of(check.metric)
    if name not in accumulators:
        known = nearest(name, accumulators) or f"; it has {', '.join(accumulators) or 'none'}"
        raise ValueError(f"{key}.metric: {check.metric} is of no accumulator that the job names{known}")
    for other in ("slices", "threshold"):
        if other in check.model_fields_set:
            raise ValueError(f"{key}.{other}: is for metrics of the labels, and {check.metric} is of an accumulator")
