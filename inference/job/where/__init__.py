"""`input.where`: which rows of the input are scored, as a condition of SQL.

sqlglot reads the text. What it may say, and what it means, is decided here, so that another release of the parser
cannot change which rows are scored. Values are compared as in SQL: a comparison with a null is neither true nor false,
and a row counts only if the whole condition is true. A value is never rounded to compare it: that is an error.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from nightjar.inference.job.where.compiling import Compiler, columns_named, parsed
from nightjar.inference.job.where.conditions import Condition

__all__ = ["Condition", "columns_of", "condition", "on_some"]


def columns_of(text: str) -> tuple[str, ...]:
    """The columns that a condition names, in its order.

    Raises:
        JobError: It is not a condition. Says where.
    """
    names = tuple(dict.fromkeys(columns_named(parsed(text), text)))
    Compiler(text, None).check()
    return names


def condition(text: str, schema: pa.Schema) -> Condition:
    """A condition on the columns of an input.

    Raises:
        JobError: It is not a condition, the input has not its columns, or they have other types. Says where.
    """
    return _bound(text, schema)


def on_some(text: str, schema: pa.Schema) -> Condition | None:
    """Those parts of a condition that name only columns of the schema, which is not all of the input; None if no part
    does.

    Raises:
        JobError: As in `condition`.
    """
    return Compiler(text, schema).condition(some=True)


@cache
def _bound(text: str, schema: pa.Schema) -> Condition:
    found = Compiler(text, schema).condition()
    assert found is not None
    return found
