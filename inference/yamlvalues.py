"""YAML values as JSON values, so that different values stay different. Fingerprints and manifests use this form."""

from __future__ import annotations

from typing import Any

_IN_ORDER = "mapping"


def as_json(value: Any) -> Any:
    """Convert a YAML value. Dates, sets and bytes become pairs of type and value.

    A mapping becomes a list of pairs, unless its keys are texts in sorted order: a predictor may depend on the order of
    a mapping, and 1 is another key than "1".
    """
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and list(value) == sorted(value):
            return {key: as_json(inner) for key, inner in value.items()}
        return [_IN_ORDER, [[as_json(key), as_json(inner)] for key, inner in value.items()]]
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return [type(value).__name__, sorted(map(repr, value)) if isinstance(value, set) else repr(value)]


def mapping(value: Any) -> dict[str, Any] | None:
    """The mapping in a value that `as_json` made, with its keys as text; None for any other value."""
    if isinstance(value, dict):
        return value
    if not (isinstance(value, list) and len(value) == 2 and value[0] == _IN_ORDER and isinstance(value[1], list)):
        return None
    pairs = [pair for pair in value[1] if isinstance(pair, list) and len(pair) == 2]
    return {str(key): inner for key, inner in pairs} if len(pairs) == len(value[1]) else None
