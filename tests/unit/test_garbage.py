"""Python looks for garbage seldom while much is imported, and as often as before afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys
from contextlib import ExitStack

import pytest

from nightjar.inference.garbage import seldom_collected


def test_it_is_as_before_afterwards_whatever_happened() -> None:
    before = gc.get_threshold()
    with pytest.raises(OSError, match="gone"), seldom_collected():
        assert gc.get_threshold()[0] > before[0]
        raise OSError("gone")
    assert gc.get_threshold() == before


def test_it_is_as_before_when_two_threads_leave_it_in_the_order_in_which_they_came() -> None:
    before = gc.get_threshold()
    first, second = ExitStack(), ExitStack()
    first.enter_context(seldom_collected())
    second.enter_context(seldom_collected())
    first.close()
    second.close()
    assert gc.get_threshold() == before


COUNTS = """
import gc
from contextlib import nullcontext
from nightjar.inference.garbage import seldom_collected

before = sum(each["collections"] for each in gc.get_stats())
with {how}():
    import sklearn.ensemble
print(sum(each["collections"] for each in gc.get_stats()) - before)
"""


def collections(how: str) -> int:
    """How often Python looked for garbage while it imported a library."""
    words = [sys.executable, "-c", COUNTS.format(how=how)]
    return int(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=120).stdout)


def test_an_import_is_hardly_disturbed() -> None:
    assert collections("seldom_collected") * 10 < collections("nullcontext")
