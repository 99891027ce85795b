"""`resources.runtime_env`: what the processes that score have besides what is installed, and who gets to see it."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from nightjar.inference.engine import LOCAL
from nightjar.inference.engine.ray.capacity import Demand
from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.job.modeljob import scoring_keys
from support import Lake

SECRET = "hunter2-hunter2"

TELLS = """
import os

TOKEN = os.environ["THE_KEY"]  # set before this module is imported

def score(batch):
    print("it is", TOKEN)
    if 1234 in batch["x"]:
        raise ValueError(f"no answer for {TOKEN}")
    return {"score": batch["x"] * float(os.environ["FACTOR"])}
"""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path, LOCAL)


def ready(lake: Lake, env_vars: dict[str, str], **changes: Any) -> Lake:
    return lake.ready(resources__runtime_env={"env_vars": env_vars}, **changes)


def everything(folder: Path) -> bytes:
    """All bytes of all files, except the job file and the input."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "job.yaml")
    return b"".join(path.read_bytes() for path in files)


def test_variables_are_set_where_the_model_is_loaded_and_secrets_are_seen_nowhere(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither in the ledger nor in the quarantine, the manifest, the kept output or a message."""
    monkeypatch.setenv("OF_TONIGHT", SECRET)
    monkeypatch.setenv("FACTOR", "5")
    lake.write_model(TELLS)
    ready(lake, {"THE_KEY": "${OF_TONIGHT}", "FACTOR": "2"})
    ran = lake.run()
    published = lake.published()
    assert (published["score"] == published["id"] * 2).all()
    (bad,) = lake.quarantined()["message"]
    assert bad == "no answer for ***"
    assert "***" in lake.quarantined()["traceback"][0]
    assert SECRET.encode() not in everything(lake.folder)
    assert SECRET not in repr(lake.request()) + repr(ran) + str(lake.worker_spec())
    assert (os.environ["FACTOR"], "THE_KEY" in os.environ) == ("5", False), "the process is as it was"


def test_a_secret_in_an_error_of_loading_is_not_told(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_TONIGHT", SECRET)
    lake.write_model("import os\nraise ValueError(os.environ['THE_KEY'])\n")
    ready(lake, {"THE_KEY": "${OF_TONIGHT}"})
    with pytest.raises(
        JobError, match=r"^model\.uses: importing module 'model' failed with ValueError: \*\*\* \(model\.py:2\)$"
    ) as caught:
        lake.run()
    assert caught.value.__cause__ is None
    assert SECRET.encode() not in everything(lake.folder)


@pytest.mark.parametrize("given", [f"THE_KEY={SECRET}", {"THE_KEY": [SECRET]}, {"THE_KEY": 20261127}])
def test_a_secret_that_is_written_wrongly_is_not_told(lake: Lake, given: Any) -> None:
    lake.ready(resources__runtime_env={"env_vars": given})
    with pytest.raises(JobError, match=r"resources\.runtime_env\.env_vars") as caught:
        lake.request()
    assert SECRET not in str(caught.value)
    assert "20261127" not in str(caught.value)


def test_a_variable_that_is_not_set_is_named(lake: Lake) -> None:
    ready(lake, {"THE_KEY": "${NOBODY_SETS_THIS}"})
    with pytest.raises(JobError, match=r"^resources\.runtime_env\.env_vars\.THE_KEY: .* NOBODY_SETS_THIS is not"):
        lake.request()
    assert lake.request(scores=False).environment == {}, "commands that only look do without"


def keys(lake: Lake, **env: Any) -> dict[str, Any]:
    lake.write_job(resources__runtime_env=env)
    job: Job = lake.request(scores=False).job
    return scoring_keys(job)


def test_what_can_change_an_output_is_identity(lake: Lake) -> None:
    """Values in the job file by their digest. A value from the environment may be a token, which changes nothing."""
    lake.write_model()
    plain = keys(lake)
    assert "resources.runtime_env" not in plain
    found = [
        keys(lake, env_vars={"A": "1"}),
        keys(lake, env_vars={"A": "2"}),
        keys(lake, env_vars={"B": "1"}),
        keys(lake, pip=["a==1"]),
        keys(lake, pip=["a==2"]),
        plain,
    ]
    assert len({json.dumps(each) for each in found}) == len(found)
    assert keys(lake, env_vars={"A": "${HOME}"}) == plain
    assert keys(lake, env_vars={"B": "2", "A": "1"}) == keys(lake, env_vars={"A": "1", "B": "2"})
    assert "value-of-a" not in json.dumps(keys(lake, env_vars={"A": "value-of-a"}))


def test_ray_is_told_what_to_install_and_no_variable_of_the_job(lake: Lake) -> None:
    """It would write them into its records."""
    lake.write_model()
    lake.write_job(resources__runtime_env={"pip": ["cowsay==6.1"], "env_vars": {"A": SECRET}})
    need = lake.request(scores=False).job.resources
    assert Demand(need).options()["runtime_env"] == {"pip": ["cowsay==6.1"]}
    assert not Demand(need).plain, "no process that is there already has it"
    assert SECRET not in repr(need)
    assert pickle.loads(pickle.dumps(need)) == need


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"working_dir": "."}, "unknown key 'resources.runtime_env.working_dir'; known: pip, env_vars"),
        ({"conda": "x"}, "unknown key 'resources.runtime_env.conda'; known: pip, env_vars"),
        ({"env_vars": {"1A": "x"}}, "resources.runtime_env.env_vars: '1A' is no name of an environment variable"),
        ({"env_vars": {"PYTHONPATH": "x"}}, "resources.runtime_env.env_vars: PYTHONPATH is read when a process starts"),
        ({"env_vars": {"A": 1}}, "resources.runtime_env.env_vars.A: must be text"),
        ({"pip": "a"}, "resources.runtime_env.pip: must be a list, not 'a'"),
    ],
)
def test_what_it_cannot_be_is_said(lake: Lake, env: dict[str, Any], said: str) -> None:
    lake.ready(resources__runtime_env=env)
    with pytest.raises(JobError) as caught:
        lake.request()
    assert said in str(caught.value)


def test_packages_for_the_run_need_ray(lake: Lake) -> None:
    lake.ready(resources__runtime_env={"pip": ["cowsay==6.1"]})
    with pytest.raises(JobError, match=r"^resources\.runtime_env: cowsay==6\.1 is installed by Ray"):
        lake.run()
