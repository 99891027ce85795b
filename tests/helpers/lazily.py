"""Libraries that the tests of a file import only when they use them.

Every process of `pytest -n` imports every file of tests. With all libraries that any test uses it would have 9,000
modules from the start: to import them takes ten seconds, and each night scored in the process looks at all of them.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest


class _Lazy:
    """Stands for a module, or for a name in one, and imports it when an attribute is asked for, or when it is called.

    No base class and no exception to catch: those must be there.
    """

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def _there(self) -> Any:
        if self._module in ("transformers", "skops"):
            import skops.io  # noqa: F401 (a module of its own; and before transformers, of whose modules it asks all names)
        module = import_module(self._module)
        return getattr(module, self._name) if self._name else module

    def __getattr__(self, name: str) -> Any:
        if name == "_mock_name" or (name.startswith("__") and name not in ("__version__", "__file__", "__name__")):
            raise AttributeError(name)  # pytest asks each name of a file whether it is a test
        return getattr(self._there(), name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("_module", "_name"):
            super().__setattr__(name, value)
        else:
            setattr(self._there(), name, value)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._there()(*given, **named)

    def __instancecheck__(self, thing: object) -> bool:
        return isinstance(thing, self._there())

    def __reduce__(self) -> tuple[Any, ...]:
        return lazily, (self._module, self._name)


def lazily(module: str, name: str = "") -> Any:
    """A module, or a name in it, that is imported when it is first used."""
    return _Lazy(module, name)


def skip_without(module: str, reason: str) -> None:
    """Skip the tests of this file if a library is not installed: `pytest.importorskip` would import it, too."""
    if find_spec(module) is None:
        pytest.skip(reason, allow_module_level=True)
