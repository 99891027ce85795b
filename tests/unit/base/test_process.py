"""Python looks for garbage seldom while much is imported, and as often as before afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys
from contextlib import ExitStack

import pytest

from modeljobs import model_job
from nightjar.inference import predictors
from nightjar.inference.errors import JobError
from nightjar.inference.process import seldom_collected
from support import Lake


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
from nightjar.inference.process import seldom_collected

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


@pytest.mark.parametrize("own", [0, 200_000])
def test_a_process_that_looks_as_seldom_by_itself_goes_on_with_that(own: int) -> None:
    before = gc.get_threshold()
    gc.set_threshold(own, 3, 3)
    try:
        with seldom_collected():
            assert gc.get_threshold() == (own, 3, 3)
        assert gc.get_threshold() == (own, 3, 3)
    finally:
        gc.set_threshold(*before)


def test_code_that_changes_it_meanwhile_has_the_last_word() -> None:
    before = gc.get_threshold()
    try:
        with seldom_collected():
            gc.set_threshold(4321)
        assert gc.get_threshold()[0] == 4321
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize(("uses", "seldom"), [("torch", True), ("mine:Model", False)])
def test_a_framework_is_imported_undisturbed_and_the_users_class_is_not_constructed_so(
    uses: str, seldom: bool, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the class leaves while it is constructed may be large."""
    thresholds = list[int]()

    def load(*_: object) -> None:
        thresholds.append(gc.get_threshold()[0])
        raise JobError("enough")

    job = lake.ready().request().job
    job = job.model_copy(update={"models": (job.models[0].model_copy(update={"uses": uses}),)})
    monkeypatch.setattr(predictors, "check_keys", lambda _: None)
    monkeypatch.setattr(type(predictors.adapter_of(model_job(job))), "load", load)
    before = gc.get_threshold()[0]
    with pytest.raises(JobError, match=r"^enough$"):
        predictors.load_scorer(model_job(job), None)
    assert (thresholds[0] > before) == seldom
