"""`input.where`: which rows of the input are scored, as a condition of SQL.

sqlglot reads the text. What it may say, and what it means, is decided here, so that another release of the parser
cannot change which rows are scored. Values are compared as in SQL: a comparison with a null is neither true nor false,
and a row counts only if the whole condition is true. A value is never rounded to compare it: that is an error.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from nightjar.inference.job.where.conditions import Condition

if TYPE_CHECKING:
    from nightjar.inference.job.where.compiling import Compiler

__all__ = ["Condition", "columns_of", "condition", "on_some"]


def columns_of(text: str) -> tuple[str, ...]:
    """The columns that a condition names, in its order.

    Raises:
        JobError: It is not a condition. Says where.
    """
    made = _compiler(text, None)
    names = made.columns()
    made.check()
    return names


@cache
def condition(text: str, schema: pa.Schema) -> Condition:
    """A condition on the columns of an input.

    Raises:
        JobError: It is not a condition, the input has not its columns, or they have other types. Says where.
    """
    found = _compiler(text, schema).condition()
    assert found is not None
    return found


def on_some(text: str, schema: pa.Schema) -> Condition | None:
    """Those parts of a condition that name only columns of the schema, which is not all of the input; None if no part
    does.

    Raises:
        JobError: As in `condition`.
    """
    return _compiler(text, schema).condition(some=True)


def _compiler(text: str, schema: pa.Schema | None) -> Compiler:
    from nightjar.inference.job.where.compiling import Compiler  # sqlglot takes a while to import

    return Compiler(text, schema)
