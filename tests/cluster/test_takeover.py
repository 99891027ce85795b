"""Promise 5 where workers are processes of a cluster: a writer that stalls while they write changes nothing later."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import Held
from support import Lake, run_steps
from writers import BEFORE_RECEIPTS, SHORT_S, Writer, assert_published_once, published_parts

pytestmark = pytest.mark.usefixtures("ray_local")


def test_a_writer_that_stalls_between_parts_and_receipts_is_replaced(lake: Lake) -> None:
    """One publication, no doubled row, no stray part; the sleeper is told that it was replaced when it wakes."""
    lake.ready().run(run_id="undisturbed", engine=LOCAL)
    rows = lake.published("undisturbed")
    sleeper = Writer(lake.request(run_id="stalls"), BEFORE_RECEIPTS)
    sleeper.start_and_stall()
    try:
        assert list((lake.revision(run_id="stalls") / "data").iterdir())
        assert not [each for each in lake.records(run_id="stalls") if each["t"] == "receipt"]
        run_steps(replace(lake.request(run_id="stalls"), lease_s=SHORT_S))
        assert_published_once(lake, "stalls", rows)
        before = published_parts(lake, "stalls")
    finally:
        error = sleeper.wake_and_join()
    assert isinstance(error, Held), error
    assert error.exit_code == 3
    assert_published_once(lake, "stalls", rows)
    assert published_parts(lake, "stalls") == before
