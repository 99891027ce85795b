"""`rescore.share`: what comes out different the second time is not published.

That it is scored in another process, on Ray: tests/cluster/test_rescore_audit.py.
"""

from __future__ import annotations

import pytest

from nightjar.inference.errors import GateFailed
from rescoring import FIRST_TIME, in_two_steps, model
from support import Lake


@pytest.mark.parametrize(
    "how",
    [
        "out = out + np.random.default_rng().random(len(out)) * (len(out) > 32)",  # another answer each time
        FIRST_TIME + "out = np.roll(out, 1) if first and len(out) > 32 else out",  # outputs of other rows
    ],
)
def test_what_comes_out_different_is_not_published(lake: Lake, how: str) -> None:
    """The sentence has one value and who wrote it, and what to do."""
    lake.write_model(model(how))
    lake.ready(rescore={"share": 0.2})
    with pytest.raises(GateFailed, match=r"[\d,]+ of 2,000 rows of 2 shards came out different") as failed:
        in_two_steps(lake, (lake.folder / "again").touch)
    said = str(failed.value)
    assert "'score' was" in said
    assert ", written by " in said
    assert "--fresh" in said
    assert not (lake.out / "publications").exists()


def test_rows_in_quarantine_are_not_tried_again(lake: Lake) -> None:
    """The others of the shard are compared."""
    refuses = "if first: raise ValueError('not this one')\n        (Path(__LIVE__) / 'tried').touch()"
    lake.write_model(model(FIRST_TIME + f"if 4600 in batch['x']:\n        {refuses}"))
    lake.ready(rescore={"share": 1})
    verdict = in_two_steps(lake, (lake.folder / "again").touch)
    assert lake.quarantined()["_row"].tolist() == [600]
    gate = next(gate for gate in verdict.gates if gate.name == "rescore")
    assert (gate.passed, gate.observed) == (True, "0 of 7,999 rows of 8 shards differ")
    assert not (lake.folder / "tried").exists()


def test_a_row_that_fails_only_the_second_time_is_a_difference(lake: Lake) -> None:
    lake.write_model(model(FIRST_TIME + "\n    if not first and 4600 in batch['x']: raise ValueError('not again')"))
    lake.ready(rescore={"share": 1})
    with pytest.raises(GateFailed, match=r"1 row of shard .* could be scored at first, but not again"):
        in_two_steps(lake, (lake.folder / "again").touch)


def test_what_is_no_longer_there_cannot_be_compared_and_is_said(lake: Lake) -> None:
    """Input overwritten after it was scored: the parts hold the rows of the file that was planned."""
    lake.write_model(model())
    lake.ready(rescore={"share": 1})

    verdict = in_two_steps(lake, lambda: lake.write_file("part-00.parquet", 100_000, 3000))
    gate = next(gate for gate in verdict.gates if gate.name == "rescore")
    assert gate.observed == "0 of 6,000 rows of 6 shards differ (2 left out: their input has changed since)"
