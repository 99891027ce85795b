"""`nightjar baseline`: a training set is scored and described. What nights make of it: tests/runs/test_baselines.py."""

from __future__ import annotations

import json
from pathlib import Path

from commands import DATE
from forked import HEAVY, forked, forked_call, forked_light
from support import Lake, conforms

LOCAL = ("--engine", "local")


def test_a_baseline_that_a_check_asks_for_is_made_and_continued(tmp_path: Path, api_env: dict[str, str]) -> None:
    lake = Lake(tmp_path / "job").ready(name="trained", checks=[{"drift": "x", "against": "baseline"}])
    train = tmp_path / "train"
    train.mkdir()
    (lake.folder / "data" / "part-00.parquet").rename(train / "part.parquet")
    refused = forked("run", lake.job_path, "--date", DATE, *LOCAL, env=api_env)
    assert refused.returncode == 1
    assert "Make it of the training set: `nightjar baseline JOB --input URI`" in refused.stderr
    made = forked("baseline", lake.job_path, "--input", train, "--json", *LOCAL, env=api_env)
    assert made.returncode == 0, made.stderr
    found = json.loads(made.stdout)
    conforms(found, "baseline")
    assert (found["state"], found["run_id"], found["rows_in"], found["publication"]) == (
        "validated",
        "baseline",
        2000,
        0,
    )
    again = forked("baseline", lake.job_path, "--input", train, *LOCAL, env=api_env)
    assert "2,000 in = 2,000 out" in again.stdout
    assert "2 already done" in again.stdout
    assert "Publish it" not in again.stdout
    from_python = forked_call("scripted:describe_training_set", lake.job_path, train, env=api_env, after=HEAVY)
    assert from_python.stdout == "validated baseline 2000 0\n", from_python.stderr
    assert "the script goes on" in from_python.stderr, "Prefect prints again what it did not print of the run"


def test_a_baseline_that_fails_says_how_to_repeat_it_and_no_other_command_takes_its_name(
    tmp_path: Path, api_env: dict[str, str]
) -> None:
    lake = Lake(tmp_path / "job").ready(name="untrained", profile="all")
    train = tmp_path / "train"
    train.mkdir()
    for index in range(2):
        data = (lake.folder / "data" / f"part-0{index}.parquet").read_bytes()
        (train / f"{index}.parquet").write_bytes(data if index else data[:100] + bytes(300) + data[400:])
    failed = forked("baseline", lake.job_path, "--input", train, *LOCAL, env=api_env)
    assert failed.returncode == 1
    assert f"baseline {lake.job_path} --input {train} --engine local" in failed.stderr
    told = forked_light("status", lake.job_path, "baseline").stdout
    assert f"baseline {lake.job_path} --input URI --engine local" in told
    for words in (("run", lake.job_path, "--run-id", "baseline"), ("retry", lake.job_path, "baseline")):
        refused = forked(*words, *LOCAL, env=api_env)
        assert refused.returncode == 2
        assert "is the name of what `nightjar baseline JOB --input URI` makes of a training set" in refused.stderr
