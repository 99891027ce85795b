"""What identity does not cover is said: in preflight or once a worker comes to it, again on each repeat; or refused."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import steps as run
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import JobError, RunFailed, ShardsFailed
from support import Lake

MODEL = """
import os, sys
sys.path.insert(0, "{site}")
import mylib

class Predictor:
    def __init__(self):
        self.vocabulary = open("{outside}/vocab.json").read()
        self.threshold = float(os.environ.get("NJ_THRESHOLD", "2"))

    def __call__(self, batch):
        if batch["x"].max() > 5000:
            open(os.path.join("{outside}", "rare.json")).read()
        return {{"score": batch["x"] * self.threshold}}
"""

RARE = """
import os

class Predictor:
    def __call__(self, batch):
        if batch["x"].max() > 5000:
            open(os.path.join("{outside}", chr(114) + "are.json")).read()  # no literal names it
        return {{"score": batch["x"]}}
"""


def install(site: Path, version: str) -> None:
    """A package, as an installer leaves it."""
    text = f"VERSION = '{version}'\n"
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    for name, content in {
        "mylib/__init__.py": text,
        "my_lib.dist-info/METADATA": f"Metadata-Version: 2.1\nName: my-lib\nVersion: {version}\n",
        "my_lib.dist-info/RECORD": f"mylib/__init__.py,sha256={digest},{len(text)}\n",
    }.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(content)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that nothing covers."""
    folder = tmp_path / "outside"
    folder.mkdir()
    for name in ("vocab.json", "rare.json"):
        (folder / name).write_text("{}")
    return folder


def manifest(lake: Lake) -> dict[str, Any]:
    """Of the newest revision."""
    newest = max(lake.out.glob("runs/2026-11-19/r*/manifest-*.json"), key=lambda path: path.stat().st_mtime_ns)
    found: dict[str, Any] = json.loads(newest.read_text())
    return found


def test_what_identity_does_not_cover_is_said_and_kept(tmp_path: Path, outside: Path) -> None:
    """At load, in the environment, and by a worker hours later; repeating the command says it again, and more."""
    site = tmp_path / "site-packages"
    install(site, "1.0")
    lake = Lake(tmp_path / "job", LOCAL)
    lake.write_model(MODEL.format(outside=outside, site=site))
    lake.ready(model__uses="model:Predictor")
    request = lake.request()
    checked = run.check(request, run.discover(request))
    said = [
        f"model.py reads {outside}/vocab.json, which is not part of this run's identity; name it in `model.path` or "
        "put it beside the job",
        "model.py reads NJ_THRESHOLD of the environment, which is not part of this run's identity; write it into "
        "`model.options`",
    ]
    said.append(said[0].replace("vocab", "rare"))
    # `check` looks at rows of every place of the input, the preflight of a run at the first that can be scored.
    assert set(said) <= set(checked.warnings)

    ran = lake.run()
    assert set(said) <= set(ran.scored.warnings)
    noticed = [record for record in lake.records() if record["t"] == "seen"]
    assert (noticed[-1]["kind"], noticed[-1]["name"]) == ("file", f"{outside}/rare.json"), "a worker came to it"
    kept = manifest(lake)
    assert [seen["kind"] for seen in kept["outside"]] == ["module", "file", "environment", "file"]
    assert kept["outside"][3] == {"kind": "file", "name": f"{outside}/rare.json", "by": "model.py:13"}
    assert kept["loaded"]["my-lib"] == ["1.0"]
    assert "numpy" in kept["loaded"]

    again = lake.run()
    assert again.scored.finished
    assert set(said) <= set(again.scored.warnings)
    assert "packages changed" not in "".join(again.scored.warnings)
    install(site, "1.1")
    lake.write_file("part-new.parquet", 8000, 1000)
    broken = lake.folder / "data/part-newer.parquet"
    broken.write_bytes(b"PAR1")
    with pytest.raises(ShardsFailed):
        lake.run()
    broken.unlink()
    more = lake.run()
    # The command before scored the new file, and 8,000 rows are of the first revision.
    assert more.scored.progress.reused_rows == 9000
    assert "my-lib 1.0 → 1.1" in next(each for each in more.scored.warnings if each.startswith("packages changed"))
    assert set(said) <= set(more.scored.warnings)
    assert manifest(lake)["loaded"]["my-lib"] == ["1.0", "1.1"]
    assert manifest(lake)["outside"][-1]["name"] == f"{outside}/rare.json"
    assert manifest(lake)["again"] == list(more.scored.again)
    assert lake.run().scored.warnings == more.scored.warnings


def test_a_strict_job_is_refused_before_anything_is_scored(tmp_path: Path, outside: Path) -> None:
    """Preflight lists what it saw."""
    lake = Lake(tmp_path / "job", LOCAL)
    lake.write_model(MODEL.format(outside=outside, site=tmp_path).replace("import mylib", ""))
    lake.ready(model__uses="model:Predictor", identity="strict")
    with pytest.raises(JobError, match=r"identity: strict: model.py reads .*/vocab.json, which is not part of .*"):
        lake.run()
    assert not list(lake.revision().glob("data/*"))


def test_a_strict_job_ends_when_a_worker_comes_to_something_outside(tmp_path: Path, outside: Path) -> None:
    """What preflight's rows did not lead to; what was scored before it stays, what needed it is not kept."""
    lake = Lake(tmp_path / "job", LOCAL)
    lake.write_model(RARE.format(outside=outside))
    lake.ready(model__uses="model:Predictor", identity="strict")
    with pytest.raises(RunFailed, match=r"identity: strict: model.py reads .*/rare.json"):
        lake.run()
    receipts = [record for record in lake.records() if record["t"] == "receipt"]
    assert 0 < len(receipts) < 8
