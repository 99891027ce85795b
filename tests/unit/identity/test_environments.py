"""A virtual environment beside the code, as most have it: installed packages are found where they are installed."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from nightjar.inference.identity.code import find_code
from nightjar.inference.identity.packages import in_environment
from nightjar.inference.job.file import parse_job
from support import Lake

USED = """
import sys
from dataclasses import replace
import pyarrow as pa
import steps as run
from nightjar.inference.scoring.assignment import open_scorers
from nightjar.inference.run.request import fixed, make_request, worker_spec

for place in ("job.yaml", "theirs.yaml"):
    made = make_request(sys.argv[1] + "/" + place, date="2026-11-19")
    request = replace(fixed(made), cache=sys.argv[1] + "/../cache")
    print([file.name for file in request.scoring.code.files], *request.scoring.packages)
    spec = worker_spec(request, run.discover(request).schema)
    print(open_scorers(replace(spec, own_process=True)).loaded[0](pa.table({"x": [1.0]}))["score"].to_pylist())
"""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Its virtual environment knows what this process knows, and has packages of its own."""
    lake = Lake(tmp_path / "job")
    lake.write_file("a.parquet", 0, 1)
    venv.create(lake.folder / ".venv", with_pip=False)
    (site,) = (lake.folder / ".venv").glob("lib/python3*/site-packages")
    places = [*filter(None, sys.path), str(lake.folder / "helpers")]
    # As places of packages: Nightjar itself may be installed as editable, which is a line in one of them.
    (site / "these.pth").write_text("\n".join(f"import site; site.addsitedir({place!r})" for place in places))
    (site / "weights.py").write_text("W = 3\n")
    (site / "lazy.py").write_text("W = 5\n")
    (site / "acme").mkdir()
    (site / "acme" / "__init__.py").write_text(
        "from weights import W\ndef score(batch): return {'score': batch['x'] * W}\n"
    )
    (lake.folder / "helpers").mkdir()
    (lake.folder / "helpers" / "ours.py").write_text("W = 7\n")
    return lake


def test_packages_of_an_environment_beside_the_code_are_used(lake: Lake) -> None:
    """By the predictor's module, by a line that runs late, as the predictor itself; `helpers/` is the snapshot's."""
    lake.write_model(
        "from weights import W\nimport ours\ndef score(batch):\n    import lazy\n"
        "    assert '/cache/' in ours.__file__ and '/.venv/' in lazy.__file__\n"
        "    return {'score': batch['x'] * W * lazy.W * ours.W}\n"
    )
    lake.write_job()
    theirs = lake.job_path.read_text().replace("model:score", "acme:score").replace("uri: out", "uri: out2")
    (lake.folder / "theirs.yaml").write_text(theirs)
    done = subprocess.run(
        [lake.folder / ".venv" / "bin" / "python", "-c", USED, str(lake.folder)],
        capture_output=True,
        text=True,
        check=False,
        cwd=lake.folder,
    )
    assert done.returncode == 0, done.stderr
    code = "['helpers/ours.py', 'model.py']"
    assert done.stdout.splitlines() == [code, "[105.0]", "[] acme", "[3.0]"]


def test_an_environment_of_conda_is_one_too_and_so_is_the_folder_itself(tmp_path: Path) -> None:
    """Neither is taken for code, wherever its marks lie."""
    for name in (
        "env/conda-meta/history",
        "env/lib/python3.11/theirs.py",
        "pyvenv.cfg",
        "lib/python3.11/x.py",
        "predict.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    model = {"uses": "predict:f", "outputs": {"score": "float32"}}
    job = {"name": "j", "input": {"uri": "data/"}, "model": model, "output": {"uri": "out/"}}
    assert set(find_code(parse_job(job, tmp_path / "job.yaml")).files) == {"predict.py"}
    assert in_environment(str(tmp_path / "env" / "lib" / "python3.11"), str(tmp_path))
    assert not in_environment(str(tmp_path / "src"), str(tmp_path))
