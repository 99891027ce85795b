"""The local engine: a whole run in this process, without Ray, which leaves the process as it found it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nightjar.inference import witness
from nightjar.inference.engine import LOCAL, opened
from nightjar.inference.errors import JobError, RunFailed
from nightjar.inference.scoring.suspects import Attempt
from support import Lake

WHERE = '''
import os
from pathlib import Path

import beside

HERE = Path(__file__).parent


def score(batch):
    """Twice x, by a factor that lies beside the code."""
    assert Path.cwd() == HERE
    assert HERE != Path(__LIVE__)
    return {"score": batch["x"] * beside.FACTOR}
'''


def test_a_run_publishes_every_row_once(lake: Lake) -> None:
    ran = lake.ready().run()
    assert ran.publication.number == 1
    assert ran.scored.progress.done_shards == 8
    published = lake.published()
    assert published["id"].tolist() == list(range(8000))
    assert (published["score"] == published["x" if "x" in published else "id"] * 2).all()


def test_what_is_committed_is_not_scored_again(lake: Lake) -> None:
    lake.ready().run()
    (lake.folder / "data" / "part-03.parquet").unlink()
    lake.write_file("part-04.parquet", 8000, 2000)
    ran = lake.run()
    assert ran.scored.progress.reused_shards == 6
    assert ran.publication.number == 2
    assert lake.published()["id"].tolist() == [*range(6000), *range(8000, 10000)]


def test_a_finished_run_is_not_scored_again(lake: Lake) -> None:
    """Run again: nothing is scored, no model is loaded, the publication stays."""
    lake.ready().run()
    again = lake.run()
    assert again.scored.finished
    assert again.scored.progress.reused_shards == 8
    assert again.publication.number == 1
    assert not (lake.revision(2)).exists()


def test_the_process_is_left_as_it_was_and_the_next_run_uses_the_code_of_now(lake: Lake) -> None:
    """As in a notebook: the same process, the same module names, another model."""
    lake.write_model(WHERE)
    (lake.folder / "beside.py").write_text("FACTOR = 2\n")
    before = Path.cwd(), list(sys.path)
    lake.ready().run()
    assert (Path.cwd(), list(sys.path)) == before
    assert "beside" not in sys.modules
    assert not witness.seen()
    (lake.folder / "beside.py").write_text("FACTOR = 3\n")
    ran = lake.run()
    assert ran.scored.again == ("beside.py changed: 8 of 8 shards are scored again",)
    published = lake.published()
    assert (published["score"] == published["id"] * 3).all()


def test_modules_that_the_caller_has_of_the_folder_are_his_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook has imported the live module: the run scores with its own copy, and the notebook keeps what it has."""
    lake.write_model(WHERE)
    (lake.folder / "beside.py").write_text("FACTOR = 2\n")
    monkeypatch.syspath_prepend(str(lake.folder))
    import beside  # type: ignore[import-not-found]

    lake.ready().run()
    assert sys.modules["beside"] is beside
    monkeypatch.delitem(sys.modules, "beside")


def test_a_bad_row_costs_that_row(lake: Lake) -> None:
    lake.write_model(
        "def score(batch):\n"
        "    if 1234 in batch['x']:\n"
        "        raise ValueError('1234 cannot be scored')\n"
        "    return {'score': batch['x'] * 2}\n"
    )
    ran = lake.ready().run()
    assert ran.scored.progress.rows_quarantined == 1
    assert lake.quarantined()["_row"].tolist() == [1234]
    assert len(lake.published()) == 7999


def test_a_model_that_cannot_be_loaded_is_one_sentence(lake: Lake) -> None:
    lake.write_model("raise ImportError('no such thing')\n")
    with pytest.raises(
        JobError, match=r"^model\.uses: importing module 'model' failed with ImportError: no such thing"
    ):
        lake.ready().run()
    assert not list((lake.revision() / "data").glob("*"))


def test_what_ended_a_process_before_is_left_to_ray(lake: Lake) -> None:
    """It would end this one, and the command with it."""
    plan, spec = lake.ready().planned(), lake.worker_spec()
    with opened(LOCAL) as engine:
        assert engine.preflight(spec, []).device == "cpu"
        events = engine.run_pass(spec, plan.table.slice(0, 1), [Attempt(number=2, crumbs=True)])
        with pytest.raises(RunFailed, match=r"ended the process that scored it.*leave --engine local out"):
            next(events)


def test_code_that_hangs_ends_the_run_not_the_process(lake: Lake) -> None:
    lake.write_model(
        "import time\n\n\ndef score(batch):\n    while 5000 in batch['x']:\n        time.sleep(0.01)\n"
        "    return {'score': batch['x'] * 2}\n"
    )
    lake.ready(retry__stall_s=4, model__batch_size=1000)
    with pytest.raises(RunFailed, match=r"can score no more: Stalled: no progress for retry.stall_s = 4 s"):
        lake.run()
    assert lake.run(limit=5000).scored.progress.done_shards == 5
