"""`resources.actors: 0`: shards are scored by tasks, and a death is charged to the shard that was in the task."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import pytest
import ray

from nightjar.inference.engine.ray.capacity import check_cluster
from nightjar.inference.errors import ClusterError
from nightjar.inference.logs.printed import Reading
from nightjar.inference.storage.lake import LakeStorage
from support import Lake

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_local")]

LOADED = """
import os
from pathlib import Path

import ray

here = ray.get_runtime_context()
(Path(__LIVE__) / f"{os.getpid()}-{here.get_actor_id()}.loaded").touch(exist_ok=False)

def score(batch):
    assert os.environ["TOKEN"] == "hunter2-hunter2"
    if 1234 in batch["x"] and here.get_actor_id() is None:
        (Path(__LIVE__) / f"{os.getpid()}.died").touch()
        os.kill(os.getpid(), 9)
    return {"score": batch["x"] * 2}
"""


TRIPLE = """
def score(batch):
    if len(batch["x"]) == 1000:
        print("from", int(batch["x"][0]), flush=True)
    return {"score": batch["x"] * 3}
"""


PROCESSES = """
import os
from pathlib import Path

def score(batch):
    (Path(__LIVE__) / f"{os.getpid()}.pid").touch()
    return {"score": batch["x"] * FACTOR}
"""


@pytest.mark.long
def test_tasks_score_every_row_once_and_a_row_that_kills_its_task_is_found(lake: Lake) -> None:
    """In = out + quarantined; each process loads the model once, whatever it scores; and only the row's shard is
    charged. A variable of the job is there, and Ray has not written it down.
    """
    lake.write_model(LOADED)
    env = {"env_vars": {"TOKEN": "hunter2-hunter2"}}
    lake.ready(resources={"actors": 0, "runtime_env": env}, retry__max_quarantined=0.01)
    ran = lake.run()
    assert lake.published()["id"].tolist() == [row for row in range(8000) if row != 1234]
    assert (lake.published()["score"] == lake.published()["id"] * 2).all()
    assert lake.quarantined()["_row"].tolist() == [1234]
    killed = [event for event in lake.records() if event["t"] == "failed"]
    assert {event["shard"] for event in killed} == {shard_of(lake, 1234)}
    assert ran.scored.progress.deaths == len(killed) == len(list(lake.folder.glob("*.died")))
    receipts = [event for event in lake.records() if event["t"] == "receipt"]
    assert len({event["shard"] for event in receipts}) == len(receipts) == 8
    logs = Path(ray._private.worker._global_node.get_session_dir_path())
    texts = (path.read_bytes() for path in logs.rglob("*") if path.is_file())
    assert not any(b"hunter2-hunter2" in text for text in texts)


def shard_of(lake: Lake, row: int) -> str:
    """The shard with this row of the first file."""
    shards = lake.planned().shards()
    piece = ((shard.id, shard.pieces[0]) for shard in shards if shard.pieces[0].uri.endswith("part-00.parquet"))
    return next(name for name, each in piece if each.first_row <= row < each.first_row + each.rows)


def test_what_tasks_score_and_print_is_there_once(lake: Lake) -> None:
    """What a process prints is kept once, whichever task it runs."""
    lake.write_model(TRIPLE)
    lake.ready(resources={"actors": 0}, model__batch_size=1000).run()
    published = lake.published()
    assert published["id"].tolist() == list(range(8000))
    assert (published["score"] == published["id"] * 3).all()
    printed = (line.text for line in Reading(LakeStorage(), str(lake.revision())).new())
    assert sorted(int(text.split()[1]) for text in printed if text.startswith("from ")) == list(range(0, 8000, 1000))


@pytest.mark.long
def test_a_run_finds_no_code_of_another_run_in_its_processes(lake: Lake, tmp_path: Path) -> None:
    """A process outlives its task; but no process scores for two runs, whatever their modules are called."""
    other = Lake(tmp_path / "other")
    for each, factor in ((lake, "2"), (other, "3")):
        each.write_model(PROCESSES.replace("FACTOR", factor))
        published = each.ready(resources={"actors": 0}).run() and each.published()
        assert (published["score"] == published["id"] * int(factor)).all()
    one, two = ({path.name for path in each.folder.glob("*.pid")} for each in (lake, other))
    assert one
    assert two
    assert not one & two


def test_a_cluster_without_room_for_one_task_is_refused(lake: Lake) -> None:
    with pytest.raises(ClusterError, match=r"^resources: 1 tasks of 64 CPUs and 0 GPUs each do not fit"):
        check_cluster(lake.ready(resources={"actors": 0, "cpus": 64}).request().job)


@pytest.mark.long
def test_packages_of_the_run_are_there_where_it_scores(lake: Lake, tmp_path: Path) -> None:
    """In preflight, in the pool, and where shards are scored again; on this machine nobody has the package."""
    wheel = tmp_path / "njtwice-1.0-py3-none-any.whl"
    about = "njtwice-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("njtwice.py", "FACTOR = 2\n")
        made.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: njtwice\nVersion: 1.0\n")
        made.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(f"{about}/RECORD", f"njtwice.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n")
    lake.write_model("import njtwice\n\ndef score(batch):\n    return {'score': batch['x'] * njtwice.FACTOR}\n")
    lake.ready(resources={"actors": 1, "runtime_env": {"pip": [str(wheel)]}}, rescore__share=0.5).run()
    published = lake.published()
    assert (published["score"] == published["id"] * 2).all()
    assert importlib.util.find_spec("njtwice") is None
