"""What a column of a table is bound to. A column keeps it when it is renamed; one that is added under the same name has
another. So a name that stands for another column than before is another input, though no file changed.

A source says it in the metadata of its fields. The identity of a result has it, for each column that is used.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

_KEY = b"nightjar:bound"


def bound(field: pa.Field, to: str) -> pa.Field:
    """The field, which says to what it is bound. to: whatever names it in its table, as a number."""
    return field.with_metadata({**(field.metadata or {}), _KEY: to.encode()})


def path(number: int, inner: Iterable[str]) -> str:
    """What a column with a number is bound to, by which its values are found. inner: the paths of the fields in it."""
    within = ",".join(inner)
    return f"{number}({within})" if within else str(number)


def binding(field: pa.Field) -> str:
    """What a field is bound to; empty if its name says it, as in a file."""
    return str((field.metadata or {}).get(_KEY, b""), "utf-8")


def unbound(field: pa.Field) -> pa.Field:
    """The field as it is published: what it was bound to says nothing of the output."""
    if not binding(field):
        return field
    return field.with_metadata({key: value for key, value in field.metadata.items() if key != _KEY} or None)


def rebound(found: pa.Schema, planned: pa.Schema) -> str:
    """The first planned column that is now bound to something else; empty for none. found: the columns now."""
    there = {field.name: binding(field) for field in found}
    return next((each.name for each in planned if there.get(each.name, binding(each)) != binding(each)), "")
