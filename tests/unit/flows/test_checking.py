"""What `nightjar check` prints of what it found: the same for people and for machines."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.text import Text

import steps as run
from faults import FaultyStorage, fail
from nightjar.flows import starting
from nightjar.flows.cli.tables import sample_rows
from nightjar.flows.pages import estimate
from nightjar.flows.reports import CheckReport
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import Denied, JobError, NightjarError, StorageError, Transient
from nightjar.inference.run.checking import Checked, Sampled
from nightjar.inference.storage.lake import LakeStorage
from support import Lake

HOSTILE = "\x1b[31mred\n  columns    none"


def said(lake: Lake, sampled: Sampled, *notes: str) -> CheckReport:
    lake.ready()
    request = lake.request()
    checked = Checked("cpu", sampled, (("id", "int64"), ("score", "float32")), ("its files change",))
    return estimate.checked(request, run.discover(request), checked, notes)


def test_machines_get_all_of_it_under_names_like_the_job_file_s(lake: Lake) -> None:
    rows = {"file": "in/a.parquet", "names": ("id", "score"), "values": (("0", "0.5"),)}
    sampled = Sampled(rows=256, places=8, failed=1, nonfinite={"score": 2}, **rows)
    found = said(lake, sampled, "slow")
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
        "identity": ["code: model.py (model.uses)"],
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
        "where": "",
        "reads": [
            {"name": "id", "type": "int64"},
            {"name": "x", "type": "float32"},
            {"name": "name", "type": "string"},
        ],
    }


def test_people_read_it_and_no_value_can_pretend_to_be_a_line_of_it(lake: Lake) -> None:
    found = said(lake, Sampled(rows=32, places=1, file="a", names=("id",), values=((HOSTILE,),)), HOSTILE)
    ready, reads, columns, identity, sample, *notes = estimate.check_text(found).splitlines()
    table = sample_rows(found.sample.names, found.sample.values)
    assert ready.startswith("lake: 4 files, 8,000 rows; the model loads and scores 32 rows of 1 place on cpu; ")
    assert ready.endswith("/out accepts conditional writes. Ready, but see the notes.")
    assert reads == "  reads      id int64, x float32, name string"
    assert columns == "  columns    id int64, score float32"
    assert identity == "  identity   code: model.py (model.uses)"
    assert sample == "  sample     the first rows of a"
    assert list(table.columns[0].cells) == [Text("\\x1b[31mred columns none")]
    assert notes == ["Note: its files change", "Note: \\x1b[31mred columns none"]


def test_without_a_row_that_was_scored_there_is_no_table(lake: Lake) -> None:
    found = said(lake, Sampled())
    ready, *more = estimate.check_text(found).splitlines()
    assert "the model loads and is on cpu" in ready
    identity = "  identity   code: model.py (model.uses)"
    reads = "  reads      id int64, x float32, name string"
    assert more == [reads, "  columns    id int64, score float32", identity, "Note: its files change"]


def test_an_input_that_no_file_gives_as_the_job_declares_it_is_refused_before_a_cluster_starts(lake: Lake) -> None:
    """Each of its shards would fail. One file that can be read is enough to go on."""
    request = lake.ready(input__schema={"id": "list<int32>"}).request()
    discovery = run.discover(request)
    with pytest.raises(JobError) as refused:
        run.check_input(request, discovery)
    first = lake.folder / "data" / "part-00.parquet"
    assert str(refused.value).startswith(
        "input.schema: the first rows of 8 places of the input were tried, and none can be read; the first: "
        f"{first}: column 'id' is int64 here, and cannot be read without loss as list<int32>, which input.schema"
    )
    last = lake.folder / "data" / "part-03.parquet"
    table = pq.read_table(last)
    pq.write_table(table.set_column(0, "id", pa.array([[1]] * table.num_rows, pa.list_(pa.int32()))), last)
    run.check_input(request, run.discover(request))


def test_rows_that_all_have_a_value_of_another_type_are_refused_too(lake: Lake) -> None:
    """A text file has no types of its own: each row is a failure of its own."""
    lake.ready(input={"uri": "rows.csv", "schema": {"x": "float32"}}, carry=["id"])
    (lake.folder / "rows.csv").write_text("id,x\n1,many\n2,few\n")
    request = lake.request()
    with pytest.raises(JobError, match=r"^input\.schema: the first rows of 1 place .* 2 rows of .*/rows\.csv can be"):
        run.check_input(request, run.discover(request))


@pytest.mark.parametrize(("error", "raised"), [(Denied("not yours"), JobError), (Transient("away"), Transient)])
def test_files_that_cannot_be_opened_are_the_jobs_fault_unless_the_storage_is_away(
    lake: Lake, error: StorageError, raised: type[NightjarError]
) -> None:
    request = lake.ready().request()
    discovery = run.discover(request)
    closed = replace(request, storage=FaultyStorage(LakeStorage(), [fail("open", "*", None, error)]))
    with pytest.raises(raised, match=str(error)) as refused:
        run.check_input(closed, discovery)
    assert raised is Transient or str(refused.value).startswith("input.uri: the first rows of 8 places")


def test_a_condition_that_no_sampled_row_meets_is_a_note_because_the_model_was_not_tried(tmp_path: Path) -> None:
    """The night would publish nothing. The count of the rows is from before the condition."""
    lake = Lake(tmp_path, LOCAL).ready(input__where="x > 100000")
    request = lake.request()
    discovery = run.discover(request)
    said = estimate.checked(request, discovery, run.check(request, discovery), ())
    assert said.where == "x > 100000"
    ready, *more = estimate.check_text(said).splitlines()
    assert ready.startswith("lake: 4 files, 8,000 rows (before input.where); the model loads and is on cpu; ")
    assert ready.endswith("Ready, but see the notes.")
    assert more[-1] == (
        "Note: none of the sampled rows matches input.where, so the model was loaded and not tried; if no other row "
        "matches, the night does not pass the gate `complete`, unless a check `rows: {min: 0}` allows it"
    )
    lake.write_job(input__where="x > 5")
    request = lake.request()
    assert run.check(request, discovery).warnings == ()


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        ("class Model:\n    pass\n", {"model__uses": "model:Model"}, "model.uses: class model:Model has no __call__"),
        (
            "def score(batch):\n    return batch\n",
            {"label": "x"},
            "label: label column 'x' holds 2; it must be 0, 1",
        ),
    ],
)
def test_what_needs_no_cluster_is_found_without_one(lake: Lake, model: str, changes: dict[str, str], said: str) -> None:
    """The cheapest look comes first: there is no cluster at this address, and nobody noticed."""
    lake.write_model(model)
    request = lake.ready(**changes).request()
    discovery = run.discover(request)
    with pytest.raises(JobError, match=f"^{re.escape(said)}"):
        starting.check(request, discovery, "127.0.0.1:9", False)
