"""The user's code is looked at before anything starts: in a process of its own, for a bounded time."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nightjar.flows.cli import running
from nightjar.inference.errors import JobError
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.user_code import inspect_code
from support import Lake, leaves_nothing

CLASS = """
class Model:
    def __init__(self, size): raise RuntimeError("built")
    def __call__(self, batch): return batch
"""


def request(lake: Lake, source: str, **changes: Any) -> RunRequest:
    lake.write_model(source)
    lake.write_job(**{"model__uses": "model:Model", **changes})
    return replace(lake.request(), cache=str(lake.folder / "cache"))


def test_all_that_can_be_wrong_with_a_class_is_found_without_building_it(lake: Lake) -> None:
    """One sentence each, as of the worker that would load it."""
    wrong: list[tuple[str, dict[str, Any], str]] = [
        (
            CLASS,
            {},
            r"model\.options: model:Model cannot be called: missing a required argument: 'size'; it takes \(size\)",
        ),
        (
            CLASS,
            {"model__options": {"size": 1, "colour": 2}},
            r"model\.options: .* got an unexpected keyword argument 'co",
        ),
        ("class Model:\n    pass\n", {}, r"model\.uses: class model:Model has no __call__\(batch\); give it one"),
        (
            "import nowhere_to_be_found\n",
            {},
            r"model\.uses: importing module 'model' failed with ModuleNotFoundError",
        ),
        ("import os\nos._exit(7)\n", {}, r"model\.uses: importing the job's code ended its process \(exit code 7\)"),
        ("Model = print\n", {"preprocess": "model:absent"}, r"preprocess: module 'model' .* has no 'absent'"),
    ]
    with leaves_nothing():
        for source, changes, sentence in wrong:
            with pytest.raises(JobError) as caught:
                inspect_code(request(lake, source, **changes))
            assert re.match(sentence, str(caught.value)), str(caught.value)


def test_what_is_right_is_not_built_and_prints_nothing(
    lake: Lake, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an import prints must not get into `--json`. The copy of the code is the process's own, in the cache."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    assert inspect_code(request(lake, f"print('hello')\n{CLASS}", model__options={"size": 1})) == ""
    assert capfd.readouterr() == ("", "hello\n")
    assert not (lake.folder / "__pycache__").exists(), "nothing is left beside the user's code"


def test_the_code_is_looked_at_as_a_run_would_have_it(
    lake: Lake, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the snapshot lies, from wherever the command is given, and with what is in the snapshot alone."""
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    (lake.folder / "size.json").write_text("3")
    source = "import json\nSIZE = json.load(open('size.json'))\ndef Model(batch): return batch\n"
    whole = request(lake, source)
    (lake.folder / "size.json").unlink()
    (lake.folder / "model.py").write_text("import nowhere_to_be_found\n")
    assert inspect_code(whole) == ""
    (lake.folder / "size.txt").write_text("3")
    with pytest.raises(JobError, match=r"No such file .*'size\.txt' \(model\.py:2\)\. size\.txt lies beside the job"):
        inspect_code(request(lake, source.replace("'size.json'", "'size' + '.txt'")))
    assert Path.cwd().name.startswith("elsewhere")


def test_an_import_that_hangs_is_ended_and_said(lake: Lake) -> None:
    began = time.monotonic()
    with leaves_nothing():
        note = inspect_code(request(lake, "import threading\nthreading.Event().wait()\n"), patience_s=1)
    assert note == "model.uses: importing the code took longer than 1 s here; every worker has to do it"
    assert time.monotonic() - began < 30


def test_an_import_that_fails_here_does_not_say_that_it_fails_in_the_cluster(lake: Lake) -> None:
    """A laptop need not have what the cluster's image has. What could be imported is the same on both."""
    note = inspect_code(request(lake, "import nowhere_to_be_found\n"), elsewhere=True)
    assert note.startswith("on this machine, model.uses: importing module 'model'")
    with pytest.raises(JobError, match="has no __call__"):
        inspect_code(request(lake, "class Model:\n    pass\n"), elsewhere=True)


def test_a_run_of_what_is_no_predictor_ends_before_ray_starts(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What its import prints is for the run's logs, where the workers print it."""
    lake.write_file("a.parquet", 0, 2)
    monkeypatch.setattr("nightjar.flows.launch.launch", lambda *_, **__: pytest.fail("something was started"))
    request(lake, "print('hello')\nclass Model:\n    pass\n")
    with leaves_nothing(), pytest.raises(JobError, match=r"^model\.uses: class model:Model has no __call__"):
        running.run(str(lake.job_path), "2026-11-19")
    assert capfd.readouterr() == ("", "")
