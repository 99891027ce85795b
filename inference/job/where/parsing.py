"""The text of a condition as sqlglot reads it, its columns, and messages that say where in it something is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from nightjar.inference.errors import JobError
from nightjar.inference.messages import clip

if TYPE_CHECKING:
    from sqlglot import exp

GRAMMAR = (
    "write column = value (also <>, <, <=, >, >=), IN (…), BETWEEN … AND …, LIKE, IS NULL, joined by AND, OR, NOT and "
    "brackets"
)


@cache
def parsed(text: str) -> exp.Expr:
    """The parsed text.

    Raises:
        JobError: It is not SQL. Says where.
    """
    import sqlglot
    from sqlglot.errors import ParseError, SqlglotError

    try:
        found = sqlglot.parse(text)
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        at = _offset(text, first.get("line") or 1, first.get("col") or 0) - len(first.get("highlight") or "")
        said = str(first.get("description") or "it cannot be read").rstrip(".").removeprefix("Invalid expression / ")
        said = "a value or a condition is missing" if said.startswith("Required keyword") else said
        raise _error(text, max(0, at), f"{said}; {GRAMMAR}") from None
    except SqlglotError as error:
        said = clip(" ".join(str(error).split()))
        raise _error(text, None, f"{said}: is a quote or a bracket left open? {GRAMMAR}") from None
    if len(found) != 1 or found[0] is None:
        raise _error(text, None, f"this is not one condition; {GRAMMAR}")
    return found[0]


def _offset(text: str, line: int, column: int) -> int:
    """The index in a text of a character that is named by its line and column, both from 1 on."""
    before = text.split("\n")[: line - 1]
    return sum(len(each) + 1 for each in before) + column


def refused(text: str, node: exp.Expr, said: str) -> JobError:
    """The error that says what is wrong with a node, and where in the text it begins."""
    starts = [each.meta["start"] for each in node.walk() if "start" in each.meta]
    return _error(text, min(starts, default=None), said)


def _error(text: str, at: int | None, said: str) -> JobError:
    where = "" if at is None else f"at character {min(at, len(text)) + 1}: "
    return JobError(f"input.where: {where}{said} (in {clip(text)!r})")


def conjuncts(node: exp.Expr) -> Iterator[exp.Expr]:
    """The conditions that AND joins, the whole one if there is no AND."""
    from sqlglot import exp

    node = node.unnest()
    if isinstance(node, exp.And):
        yield from conjuncts(node.this)
        yield from conjuncts(node.expression)
    else:
        yield node


def columns_named(node: exp.Expr, text: str) -> Iterator[str]:
    """The columns in a part of the text, in its order, each as often as it stands there.

    Raises:
        JobError: As in `column_name`.
    """
    from sqlglot import exp

    for each in node.find_all(exp.Column, bfs=False):
        yield column_name(each, text)


def column_name(node: exp.Column, text: str) -> str:
    """The name of one column.

    Raises:
        JobError: It names a field within a column.
    """
    parts = [part.name for part in node.parts]
    if len(parts) != 1:
        whole = ".".join(parts)
        raise refused(text, node, f'{whole!r}: only whole columns can be compared; a dot in a name needs "{whole}"')
    return parts[0]
