"""The tables of a job that do not show what readers of the files see."""

from __future__ import annotations

from collections.abc import Iterable

from nightjar.inference.output.targets import TableShown


def late(tables: Iterable[TableShown], newest: int, published: bool) -> tuple[TableShown, ...]:
    """Those that are behind, or cannot be asked. newest: the number of the newest publication of the output.
    published: whether it shows a night; where it shows none there may be no table yet.
    """
    return tuple(
        each for each in tables if each.problem or (each.publication < newest and (published or each.publication))
    )


def mendable(tables: Iterable[TableShown]) -> bool:
    """Whether a command can commit what one of them lacks."""
    return not all(each.final for each in tables)
