"""Other values of the product's constants, in this process and in those that score on the local engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from nightjar.inference.scoring.child import Child


def set_constants(monkeypatch: pytest.MonkeyPatch, module: str, **values: Any) -> None:
    """Set these constants of a module for the test."""
    begin = Child.__init__

    def began(child: Child, work: Callable[..., Iterable[Any]], *args: Any, **named: Any) -> None:
        begin(child, _with, module, values, work, args, **named)

    _set(monkeypatch, module, values)
    monkeypatch.setattr(Child, "__init__", began)


def _set(monkeypatch: pytest.MonkeyPatch, module: str, values: dict[str, Any]) -> None:
    for name, value in values.items():
        monkeypatch.setattr(f"{module}.{name}", value)


def _with(
    module: str, values: dict[str, Any], work: Callable[..., Iterable[Any]], args: tuple[Any, ...]
) -> Iterator[Any]:
    """In the process: the work with these values."""
    _set(pytest.MonkeyPatch(), module, values)
    yield from work(*args)
