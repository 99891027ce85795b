"""The local engine: a whole run in this process, without Ray, which leaves the process as it found it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
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
    ran = lake.ready().run(engine=LOCAL)
    assert ran.publication.number == 1
    assert ran.scored.progress.done_shards == 8
    published = lake.published()
    assert published["id"].tolist() == list(range(8000))
    assert (published["score"] == published["x" if "x" in published else "id"] * 2).all()


def test_what_is_committed_is_not_scored_again(lake: Lake) -> None:
    lake.ready().run(engine=LOCAL)
    (lake.folder / "data" / "part-03.parquet").unlink()
    lake.write_file("part-04.parquet", 8000, 2000)
    ran = lake.run(engine=LOCAL)
    assert ran.scored.progress.reused_shards == 6
    assert ran.publication.number == 2
    assert lake.published()["id"].tolist() == [*range(6000), *range(8000, 10000)]


def test_the_process_is_left_as_it_was_and_the_next_run_uses_the_code_of_now(lake: Lake) -> None:
    """As in a notebook: the same process, the same module names, another model."""
    lake.write_model(WHERE)
    (lake.folder / "beside.py").write_text("FACTOR = 2\n")
    before = Path.cwd(), list(sys.path)
    lake.ready().run(engine=LOCAL)
    assert (Path.cwd(), list(sys.path)) == before
    assert "beside" not in sys.modules
    assert not witness.seen()
    (lake.folder / "beside.py").write_text("FACTOR = 3\n")
    ran = lake.run(engine=LOCAL)
    assert ran.scored.again == ("beside.py changed: 8 of 8 shards are scored again",)
    published = lake.published()
    assert (published["score"] == published["id"] * 3).all()


def test_modules_that_the_caller_has_of_the_folder_are_his_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook has imported the live module: the run scores with its own copy, and the notebook keeps what it has."""
    lake.write_model(WHERE)
    (lake.folder / "beside.py").write_text("FACTOR = 2\n")
    monkeypatch.syspath_prepend(str(lake.folder))
    import beside  # type: ignore[import-not-found]

    lake.ready().run(engine=LOCAL)
    assert sys.modules["beside"] is beside
    monkeypatch.delitem(sys.modules, "beside")


def test_a_bad_row_costs_that_row(lake: Lake) -> None:
    lake.write_model(
        "def score(batch):\n"
        "    if 1234 in batch['x']:\n"
        "        raise ValueError('1234 cannot be scored')\n"
        "    return {'score': batch['x'] * 2}\n"
    )
    ran = lake.ready().run(engine=LOCAL)
    assert ran.scored.progress.rows_quarantined == 1
    assert lake.quarantined()["_row"].tolist() == [1234]
    assert len(lake.published()) == 7999


def test_a_model_that_cannot_be_loaded_is_one_sentence(lake: Lake) -> None:
    lake.write_model("raise ImportError('no such thing')\n")
    with pytest.raises(
        JobError, match=r"^model\.uses: importing module 'model' failed with ImportError: no such thing"
    ):
        lake.ready().run(engine=LOCAL)
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
        lake.run(engine=LOCAL)
    assert lake.run(engine=LOCAL, limit=5000).scored.progress.done_shards == 5


KILLED = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from nightjar.inference.run import campaign
from support import Lake
campaign.FLUSH_S = 0.0
Lake(Path({folder!r})).run(engine="local")
"""


def test_a_row_that_kills_the_process_costs_the_command_and_ray_finds_it(lake: Lake, ray_local: None) -> None:
    lake.write_model(
        "import os, signal\n\n\ndef score(batch):\n    if 5000 in batch['x']:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n    return {'score': batch['x'] * 2}\n"
    )
    lake.ready(retry__max_quarantined=0.001)
    code = KILLED.format(tests=str(Path(__file__).parent.parent), folder=str(lake.folder))
    ended = subprocess.run([sys.executable, "-c", code], env={**os.environ}, check=False)
    assert ended.returncode == -signal.SIGKILL
    ran = lake.run()
    assert ran.scored.progress.reused_shards >= 4
    assert lake.quarantined()["_row"].tolist() == [1000]
    assert len(lake.published()) == 7999


def test_both_engines_publish_the_same(lake: Lake, ray_local: None) -> None:
    """Byte for byte in rows, parts and metrics."""
    checks = [{"column": "score", "min": 0}]
    lake.ready(checks=checks, resources={"actors": 2})
    here = lake.run(run_id="here", engine=LOCAL)
    there = lake.run(run_id="there")
    assert here.verdict.metrics == there.verdict.metrics
    pd.testing.assert_frame_equal(lake.published("here"), lake.published("there"))
    assert _parts(lake, "here") == _parts(lake, "there")


def _parts(lake: Lake, run_id: str) -> list[bytes]:
    """The parts' bytes, by the first row they hold."""
    parts = (lake.revision(run_id=run_id) / "data").glob("*.parquet")
    first = {pq.read_table(part)["id"][0].as_py(): part.read_bytes() for part in parts}
    return [first[key] for key in sorted(first)]
