"""`nightjar run` where a night goes wrong: it mends what it can, prints what to do else, and refuses a second one."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess

import pytest

from commands import DATE
from forked import forked
from nightjar.inference.errors import ShardsFailed
from nightjar.inference.output import publications as publish
from nightjar.inference.storage.lake import LakeStorage
from service import events
from support import Lake, command, nightjar, wait_until

LOCAL = ("--engine", "local")

TEARS = '''
from pathlib import Path

OUT = Path(__LIVE__) / "out"

def score(batch):
    """Twice x; tears one part that was written before, once."""
    marker = OUT.parent / "torn"
    parts = sorted(OUT.glob("runs/*/r*/data/*.parquet"))
    if parts and not marker.exists():
        marker.write_text(parts[0].name)
        with parts[0].open("r+b") as part:
            part.truncate(parts[0].stat().st_size // 2)
    return {"score": batch["x"] * 2}
'''


def test_the_command_mends_it_by_itself_and_says_so(lake: Lake, api_env: dict[str, str]) -> None:
    """Nobody is woken for a shard that can be scored again; the account of the night has it."""
    lake.write_model(TEARS)
    lake.ready(cost={"cpu_hour": 3600})
    ended = forked("run", lake.job_path, "--date", DATE, "--json", *LOCAL, env=api_env)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert (said["publication"], said["rows_out"], said["failed_attempts"]) == (1, 8000, 1)
    assert (said["reused_shards"], said["again"]) == (0, [])
    cost = said["cost"]
    assert cost["per_million_rows"] == pytest.approx(cost["amount"] / 8000 * 1e6), "seconds and rows of both"
    assert (lake.folder / "torn").exists()
    published = lake.published()
    assert published["id"].tolist() == list(range(8000))
    assert published["score"].tolist() == [2 * i for i in range(8000)]
    assert "PartDamaged" in forked("show", lake.job_path, DATE, env=api_env).stdout
    account = said["account"]
    whole = pytest.approx(account["wall_s"], rel=0.02)
    assert sum(account["parts"].values()) == whole, "also of a night that was scored twice"
    assert account["parts"]["score"] > 0
    assert sum(account["scoring"].values()) == pytest.approx(account["parts"]["score"], abs=0.01)
    rounding = 0.001 * len(account["scoring"])
    spent_s = account["parts"]["score"] - account["scoring"]["idle"]
    assert spent_s <= account["parts"]["score"] + rounding, "workers spent no more than there was"


def test_the_printed_command_mends_the_night(lake: Lake, api_env: dict[str, str]) -> None:
    """The message names file and cause, and the command it prints publishes once the file is mended."""
    lake.ready()
    data = lake.folder / "data" / "part-01.parquet"
    whole = data.read_bytes()
    os.truncate(data, len(whole) * 2 // 3)
    failed = forked("run", lake.job_path, "--date", DATE, *LOCAL, env=api_env)
    assert failed.returncode == 1
    assert "part-01.parquet" in failed.stderr
    assert "not a readable Parquet file" in failed.stderr
    assert lake.snapshot().runs == {}

    data.write_bytes(whole)
    printed = re.search(r"repeat +\S*nightjar (.*?)(?:   .*)?$", failed.stderr, re.MULTILINE)
    assert printed, failed.stderr
    mended = forked(*shlex.split(printed[1]), env=api_env)
    assert mended.returncode == 0, mended.stderr
    receipts = [record["epoch"] for record in lake.records() if record["t"] == "receipt"]
    assert (receipts.count(min(receipts)), receipts.count(max(receipts))) == (6, 2)
    assert lake.published()["id"].tolist() == list(range(8000))


WAITING = '''
import time
from pathlib import Path

def score(batch):
    """Twice x, as soon as somebody says go."""
    while not (Path(__LIVE__) / "go").exists():
        time.sleep(0.05)
    return {"score": batch["x"] * 2}
'''


def test_two_commands_started_together_publish_once(lake: Lake, api_env: dict[str, str]) -> None:
    """The real command, twice: one exits 0; the other exits 3 at once, and names the one that holds the run."""
    lake.write_model(WAITING)
    lake.ready(name="together")
    words = [nightjar(), "run", str(lake.job_path), "--date", DATE, "--json", *LOCAL]
    both = [subprocess.Popen(words, env={**os.environ, **api_env}, stdout=-1, stderr=-1, text=True) for _ in range(2)]
    try:
        wait_until(lambda: any(process.poll() is not None for process in both), 120, "one of the two ends")
        (loser,) = [process for process in both if process.poll() is not None]
        (winner,) = [process for process in both if process is not loser]
        said = loser.communicate(timeout=60)
        assert loser.returncode == 3, said
        (lake.folder / "go").touch()
        published, trouble = winner.communicate(timeout=120)
    finally:
        for process in both:
            process.kill()
            process.wait()
    assert winner.returncode == 0, trouble
    assert json.loads(published)["publication"] == 1
    opened = [record["writer"] for record in lake.records() if record["t"] == "opened"]
    assert f"process {opened[0]['pid']}" in said[1]

    def told() -> list[str]:
        found = events(api_env["PREFECT_API_URL"], "nightjar.run.published")
        return [each.payload["run_id"] for each in found if each.resource.id == "nightjar.job.together"]

    wait_until(lambda: bool(told()), 30, "the server has taken in what was told before")
    assert told() == [DATE]
    assert f"flow run {opened[0]['flow_run']}" in said[1]
    assert lake.published()["id"].tolist() == list(range(8000))
    assert publish.newest(LakeStorage(), str(lake.out)).number == 1


HANGS = """
import threading

import pyarrow as pa

from nightjar.inference import Description, Source


class Hanging(Source):
    name, suffixes = "hanging", (".rec",)

    def describe(self, storage, entry):
        return Description(pa.schema([("x", pa.float64())]), rows=(1,), sizes=(8,))

    def read(self, storage, piece, schema, most=None):
        if piece.uri.endswith("/9.rec"):
            threading.Event().wait()
        return pa.table({"x": [1.0]})
"""


def test_a_command_on_the_local_engine_ends_though_a_read_hangs(lake: Lake, api_env: dict[str, str]) -> None:
    """The thread that reads cannot be ended, but its process can; the other files are scored."""
    (lake.folder / "data").mkdir()
    for index in range(10):
        (lake.folder / f"data/{index}.rec").write_bytes(bytes(8))
    lake.write_model()
    (lake.folder / "hanging.py").write_text(HANGS)
    lake.write_job(input={"uri": "data/", "format": "hanging:Hanging", "shard_rows": 1}, carry=[], retry__stall_s=4)
    done = command("run", lake.job_path, "--date", DATE, *LOCAL, env=api_env, timeout_s=120)
    assert done.returncode == ShardsFailed.exit_code, done.stderr
    assert "no progress for retry.stall_s = 4 s" in done.stderr
    assert sum(record["t"] == "receipt" for record in lake.records()) == 9
