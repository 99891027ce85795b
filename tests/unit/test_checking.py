"""What `nightjar check` prints of what it found: the same for people and for machines."""

from __future__ import annotations

import json
import re
from dataclasses import asdict

import pytest
from rich.text import Text

from nightjar.flows.cli import checking
from nightjar.flows.reports import CheckReport
from nightjar.inference.errors import JobError
from nightjar.inference.run import steps as run
from nightjar.inference.run.samples import Sampled, Shown
from nightjar.inference.run.steps import Checked
from support import Lake

HOSTILE = "\x1b[31mred\n  columns    none"


def said(lake: Lake, sampled: Sampled, *notes: str, placed: str = "") -> CheckReport:
    lake.ready()
    request = lake.request()
    checked = Checked("cpu", sampled, (("id", "int64"), ("score", "float32")), ("its files change",), placed)
    return checking.found(request, run.discover(request), checked, notes)


def test_machines_get_all_of_it_under_names_like_the_job_file_s(lake: Lake) -> None:
    shown = Shown("in/a.parquet", ("id", "score"), (("0", "0.5"),))
    sampled = Sampled(rows=256, places=8, failed=1, nonfinite=(("score", 2),), shown=shown)
    found = said(lake, sampled, "slow", placed="in the model's actors")
    assert json.loads(json.dumps(asdict(found))) == {
        "job": "lake",
        "run_id": "2026-11-19",
        "date": "2026-11-19",
        "state": "ready",
        "files": 4,
        "unreadable_files": 0,
        "rows": 8000,
        "uncounted_files": 0,
        "device": "cpu",
        "output": str(lake.out),
        "columns": [{"name": "id", "type": "int64"}, {"name": "score", "type": "float32"}],
        "identity": ["code: 1 file (model.py)"],
        "sample": {
            "rows": 256,
            "places": 8,
            "failed": 1,
            "nonfinite": {"score": 2},
            "file": "in/a.parquet",
            "names": ["id", "score"],
            "values": [["0", "0.5"]],
        },
        "notes": ["its files change", "slow"],
        "snapshot": "",
        "preprocess": "in the model's actors",
    }


def test_people_read_it_and_no_value_can_pretend_to_be_a_line_of_it(lake: Lake) -> None:
    found = said(lake, Sampled(rows=32, places=1, shown=Shown("a", ("id",), ((HOSTILE,),))), HOSTILE)
    ready, columns, identity, sample, table, *notes = checking.as_text(found)
    assert str(ready).startswith("lake: 4 files, 8,000 rows; the model loads and scores 32 rows of one place on cpu; ")
    assert str(ready).endswith("/out accepts conditional writes. Ready, but see the notes.")
    assert columns == "  columns    id int64, score float32"
    assert identity == "  identity   code: 1 file (model.py)"
    assert sample == "  sample     the first rows of a"
    assert list(table.columns[0].cells) == [Text("\\x1b[31mred columns none")]
    assert notes == ["Note: its files change", "Note: \\x1b[31mred columns none"]


def test_without_a_row_that_was_scored_there_is_no_table(lake: Lake) -> None:
    found = said(lake, Sampled())
    ready, *more = checking.as_text(found)
    assert "the model loads and is on cpu" in str(ready)
    identity = "  identity   code: 1 file (model.py)"
    assert more == ["  columns    id int64, score float32", identity, "Note: its files change"]


def test_it_is_said_where_a_preprocess_would_run(lake: Lake) -> None:
    _, _, _, where, _ = checking.as_text(said(lake, Sampled(), placed="in the model's actors: it is quick"))
    assert where == "  preprocess in the model's actors: it is quick"


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        ("class Model:\n    pass\n", {"model__uses": "model:Model"}, "model.uses: class model:Model has no __call__"),
        (
            "def score(batch):\n    return batch\n",
            {"label": "x"},
            "label: label column 'x' holds 2.0; it must be 0, 1",
        ),
    ],
)
def test_what_needs_no_cluster_is_found_without_one(lake: Lake, model: str, changes: dict[str, str], said: str) -> None:
    """The cheapest look comes first: there is no cluster at this address, and nobody noticed."""
    lake.write_model(model)
    request = lake.ready(**changes).request()
    discovery = run.discover(request)
    with pytest.raises(JobError, match=f"^{re.escape(said)}"):
        checking.report(request, discovery, "127.0.0.1:9", False)
