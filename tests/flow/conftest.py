"""Whole commands, each run once a session and looked at by many tests."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
import yaml

from commands import DATE, Flights, Partial, Watched, at_terminal, watching
from forked import forked
from support import FLIGHTS, Lake, command, leaves_nothing

OBEYED = "\x1b]0;owned\x07\x1b[2J\x9b2J\nnightjar: published as #99"
"""What a terminal would obey, and a line that reads like one of the command's own."""

EVENTFUL = f'''
import os
import time
from pathlib import Path


def score(batch):
    """Twice x, slowly. One row cannot be scored, and one ends its process when it is first seen."""
    print({OBEYED!r})
    x, seen = batch["x"], Path(__LIVE__, "seen")
    time.sleep(0.2)
    if 2500 in x and not seen.exists():
        seen.touch()
        os._exit(9)
    if 1234 in x:
        raise ValueError("1234 cannot be scored")
    return {{"score": x * 2}}
'''


@pytest.fixture(scope="session")
def api_env(prefect_api: str, prefect_home: Path) -> dict[str, str]:
    """The environment of commands that report to the session's Prefect server."""
    return {"PREFECT_API_URL": prefect_api, "PREFECT_HOME": str(prefect_home)}


@pytest.fixture(scope="session")
def flights(tmp_path_factory: pytest.TempPathFactory, api_env: dict[str, str], empty_database: Path) -> Flights:
    """Both runs; neither leaves a process behind. The second one's own server finds its database made."""
    folder = tmp_path_factory.mktemp("flights")
    job = yaml.safe_load((FLIGHTS / "job.yaml").read_text())
    job["input"]["uri"] = str(FLIGHTS / "data")
    job["model"]["path"] = str(FLIGHTS / "models" / "delay.pt2")
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job, sort_keys=False))
    # Ray's sockets want a short path.
    with tempfile.TemporaryDirectory(prefix="njt-", dir="/tmp") as ray, leaves_nothing() as mark:
        with watching(mark) as scoring:
            first = command("run", path, "--date", DATE, env={**api_env, **mark, "RAY_TMPDIR": ray})
        left = sorted(path.name for path in Path(ray).iterdir())
    home = tmp_path_factory.mktemp("home")
    shutil.copy(empty_database, home / "prefect.db")
    own = {"PREFECT_HOME": str(home), "PREFECT_API_URL": ""}
    with leaves_nothing() as mark, watching(mark) as repeating:
        again = forked("run", path, "--date", DATE, "--json", env={**own, **mark})
    return Flights(path, first, again, scoring, repeating, left)


@pytest.fixture(scope="session")
def eventful(tmp_path_factory: pytest.TempPathFactory, api_env: dict[str, str]) -> Watched:
    """A run on Ray at a terminal with a quarantined row and a lost process; its model prints what would be obeyed."""
    lake = Lake(tmp_path_factory.mktemp("eventful"))
    lake.write_model(EVENTFUL)
    lake.ready(name="eventful", resources={"actors": 2}, retry__max_quarantined=0.001)
    code, written = at_terminal("run", lake.job_path, "--date", DATE, env=api_env)
    return Watched(lake, code, written)


@pytest.fixture(scope="session")
def partial(tmp_path_factory: pytest.TempPathFactory, api_env: dict[str, str]) -> Partial:
    """Seven of eight shards can be scored."""
    lake = Lake(tmp_path_factory.mktemp("partial")).ready(name="partial")
    damaged = lake.folder / "data" / "part-02.parquet"
    data = bytearray(damaged.read_bytes())
    data[100:400] = bytes(300)  # pages of the first row group; the footer stays as it is
    damaged.write_bytes(data)
    return Partial(lake, forked("run", lake.job_path, "--date", DATE, "--engine", "local", env=api_env))
