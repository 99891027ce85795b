"""A whole run, step by step, on a real Ray cluster: what is published, and what is done again."""

from __future__ import annotations

import numpy as np
import pytest

from support import Lake

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_local")]


def test_every_row_is_published_once(lake: Lake) -> None:
    """Promise 1: rows in = rows out, each row of each file once, carried columns untouched."""
    ran = lake.ready().run()
    assert (ran.publication.number, ran.scored.progress.rows_out) == (1, 8000)
    rows = lake.published()
    assert rows["id"].tolist() == list(range(8000))
    assert rows["name"].tolist() == [f"row {i}" for i in range(8000)]
    np.testing.assert_array_equal(rows["score"], np.arange(8000, dtype=np.float32) * 2)
    assert not (lake.revision() / "logs").exists(), "nothing was printed"


def test_a_finished_run_is_not_scored_again(lake: Lake) -> None:
    """Run again: nothing is scored, no model is loaded, the publication stays."""
    lake.ready().run()
    again = lake.run()
    assert again.scored.finished
    assert again.scored.progress.reused_shards == 8
    assert again.publication.number == 1
    assert not (lake.revision(2)).exists()
