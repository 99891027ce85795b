"""What differs between two identities, in words: which file, package or key makes shards old that have a result."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from nightjar.inference.identity.identity import Identity
from nightjar.inference.job.modeljob import mapping


def differences(before: Identity, now: Identity) -> list[str]:
    """The differences in words, the most important first; empty if there are none."""
    found = [
        *_files("", before.code, now.code),
        *_files("model.path", before.model, now.model),
        *(
            f"{called(name)} changed" if name in before.packages else f"{called(name)} counts now, and did not before"
            for name, content in now.packages.items()
            if before.packages.get(name) != content
        ),
        *(f"{called(name)} does not count any more" for name in before.packages if name not in now.packages),
        *_keys(_plain(before.job), _plain(now.job)),
    ]
    if _plain([before.columns, before.kept]) != _plain([now.columns, now.kept]) and not found:
        found.append("the columns of the input changed")
    return found


def called(name: str) -> str:
    """A package, or a file or folder whose content counts like that of one."""
    return name if "/" in name else f"package {name}"


def _files(key: str, before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    prefix = f"{key} " if key else ""
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            what = "changed" if name in before and name in now else "is new" if name in now else "is gone"
            yield f"{prefix}{name}".strip() + f" {what}"


def _keys(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key in sorted({*before, *now}):
        old, new = before.get(key), now.get(key)
        inner_old, inner_new = mapping(old), mapping(new)
        if inner_old is not None and inner_new is not None:
            inner = list(_keys(inner_old, inner_new, f"{prefix}{key}."))
            yield from inner or ([f"{prefix}{key} has another order in the job"] if old != new else [])
        elif old != new:
            # The columns that a pattern names may have changed in the input.
            yield "the carried columns changed" if prefix + key == "carry" else f"{prefix}{key} changed in the job"


_SHOWN = 5


def summed(found: list[str]) -> str:
    """The first few items, and the number of the others, for one line."""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


def _plain(value: Any) -> Any:
    """The value as it comes back from storage, where tuples are lists."""
    return json.loads(json.dumps(value))
