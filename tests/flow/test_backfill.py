"""Six nights, killed in the middle and run again: each published once, and the latest stays the latest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from forked import forked
from outputs import aged
from support import Lake, conforms, leaves_nothing, nightjar, wait_until

FIRST, LAST = "2026-11-01", "2026-11-06"
NIGHTS = [f"2026-11-{day:02d}" for day in range(1, 7)]
LATER = "2026-11-07"
LOCAL = ("--engine", "local")


WAITING = """
import time
from pathlib import Path


def score(batch):
    while not Path(__LIVE__, "go").exists():
        time.sleep(0.05)
    return {"score": batch["x"] * 2}
"""


def dated(folder: Path, **changes: object) -> Lake:
    """A lake with a folder of input a night."""
    lake = Lake(folder)
    for day in range(1, 8):
        lake.write_file(f"2026-11-{day:02d}/part.parquet", day * 1000, 1000)
    lake.write_model()
    lake.write_job(**{"name": "nights", "input__uri": "data/{date}/", "input__shard_rows": 500, **changes})
    return lake


def test_a_killed_backfill_is_continued(tmp_path: Path, api_env: dict[str, str]) -> None:
    """SIGKILL while a night in the middle is under way; published nights are skipped, and no night rewinds readers."""
    lake = dated(tmp_path)
    words = ("backfill", str(lake.job_path), "--from", FIRST, "--to", LAST, *LOCAL)
    with leaves_nothing() as mark:
        later = forked("run", lake.job_path, "--date", LATER, *LOCAL, env={**api_env, **mark})
        assert later.returncode == 0, later.stderr
        process = subprocess.Popen(
            [nightjar(), *words], env={**os.environ, **api_env, **mark}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        wait_until(
            lambda: len(lake.snapshot().runs) >= 3 or process.poll() is not None, 180, "two nights are published"
        )
        process.send_signal(signal.SIGKILL)
        process.communicate()
        before = lake.snapshot()
        assert 3 <= len(before.runs) < 7
        again = forked(*words, "--json", env={**api_env, **mark})
    assert again.returncode == 0, again.stderr
    found = {night["date"]: night["state"] for night in json.loads(again.stdout)}
    assert found == {night: "skipped" if night in before.runs else "published" for night in NIGHTS}
    after = lake.snapshot()
    assert set(after.runs) == {*NIGHTS, LATER}
    assert {entry.revision for entry in after.runs.values()} == {1}, "each night was published once"
    assert after.number == 7
    assert after.latest() == LATER
    for day, night in enumerate(NIGHTS, start=1):
        assert lake.published(night)["id"].tolist() == list(range(day * 1000, day * 1000 + 1000))


def test_only_nights_of_the_schedule_and_one_without_its_input_holds_up_no_other(
    tmp_path: Path, api_env: dict[str, str]
) -> None:
    """A run of its own would wait an hour for it."""
    monday, tuesday = "2026-11-02", "2026-11-03"
    waits = {"for": "1h", "until": "_SUCCESS"}
    lake = dated(tmp_path, name="nights-late", input__wait=waits, schedule={"cron": "0 2 * * MON,TUE"})
    (lake.folder / "data" / tuesday / "_SUCCESS").touch()
    words = ("--from", FIRST, "--to", LAST, "--json", *LOCAL)
    done = forked("backfill", lake.job_path, *words, env=api_env)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    conforms(found, "backfill")
    assert [(night["date"], night["state"]) for night in found] == [(monday, "failed"), (tuesday, "published")]
    assert found[0]["said"].startswith(f"Looked once for _SUCCESS in {lake.folder}/data/{monday}: not there")


def test_a_night_that_readers_see_under_another_name_is_left_alone(tmp_path: Path, api_env: dict[str, str]) -> None:
    lake = dated(tmp_path, name="nights-repaired")
    lake.run(engine="local", date=FIRST, run_id="repair")
    done = forked("backfill", lake.job_path, "--from", FIRST, "--to", FIRST, "--json", *LOCAL, env=api_env)
    (night,) = json.loads(done.stdout)
    assert (night["state"], night["said"]) == ("skipped", "published before, as r1 of the run repair")
    assert set(lake.snapshot().runs) == {"repair"}


def test_a_night_after_the_one_whose_ray_was_lost_has_its_own(tmp_path: Path, api_env: dict[str, str]) -> None:
    """Without it, the rest of the nights would end with the lost one, and so would the command a minute later."""
    lake = dated(tmp_path)
    lake.write_model(WAITING)
    words = ("backfill", str(lake.job_path), "--from", NIGHTS[0], "--to", NIGHTS[1], "--json")
    with leaves_nothing() as mark:
        process = subprocess.Popen(
            [nightjar(), *words], env={**os.environ, **api_env, **mark}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        ledger = lake.out / "runs" / NIGHTS[0] / "r1" / "ledger"
        wait_until(lambda: ledger.exists() or process.poll() is not None, 120, "the first night is being scored")
        [head] = [each for each in psutil.Process(process.pid).children(recursive=True) if each.name() == "gcs_server"]
        head.kill()
        (lake.folder / "go").touch()
        printed, said = process.communicate(timeout=240)
    assert process.returncode == 1, said
    first, second = json.loads(printed)
    assert (first["state"], first["said"]) == ("failed", "the Ray cluster of this run was lost")
    assert second["state"] == "published"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--from", LAST, "--to", FIRST),
            "there is no night from 2026-11-06 to 2026-11-01: the first is after the last",
        ),
        (("--from", "soon", "--to", LAST), "--from 'soon': write a date as 2026-11-19"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    tmp_path: Path, api_env: dict[str, str], words: tuple[str, ...], message: str
) -> None:
    lake = dated(tmp_path)
    done = forked("backfill", lake.job_path, *words, env=api_env)
    assert (done.returncode, message in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr


def test_nights_that_do_not_fit_the_cluster_are_one_sentence(tmp_path: Path, api_env: dict[str, str]) -> None:
    lake = dated(tmp_path, resources={"actors": 64})
    done = forked("backfill", lake.job_path, "--from", FIRST, "--to", LAST, env=api_env)
    message = "resources: 64 actors of 1 CPUs and 0 GPUs each do not fit"
    assert (done.returncode, message in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr


def test_old_nights_are_deleted_after_a_night_is_published(tmp_path: Path, api_env: dict[str, str]) -> None:
    """By the flow, as `output.keep` says; the record and the page say what went."""
    lake = dated(tmp_path, output__keep={"nights": 1})
    for night in NIGHTS[:2]:
        lake.run(engine="local", date=night)
    aged(lake.out, 40)
    done = forked("run", lake.job_path, "--date", NIGHTS[2], *LOCAL, "--json", env=api_env)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    conforms(found, "run")
    assert (found["publication"], found["pruned"]["runs"], found["pruned"]["publication"]) == (3, NIGHTS[:2], 4)
    assert [path.name for path in (lake.out / "runs").iterdir()] == [NIGHTS[2]]
    assert set(lake.snapshot().runs) == {NIGHTS[2]}
