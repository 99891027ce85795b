"""Small inputs and models of the kinds that public bug reports describe, each run on both engines.

A case is a folder: `make.py` writes its input into `data/`, `job.yaml` and its modules score the input, and
`right.yaml` says what is right. A new bug report becomes a folder here, and nothing else.

`right.yaml`:

    report: one sentence: the mistake that somebody met
    runs:                        # default: one run of job.yaml, which is published
      - job: job.yaml            # default
        date: 2026-11-19         # default
        before: change.py        # optional: a script, run in the folder first
        exit: 0                  # 0 published, 1 the run fails, 2 the job must be changed
        rows: [{id: 1, score: 2.0}]   # the published rows, by file and row; only the named columns are compared
        quarantined: [3]         # optional: `_row` of each row in the quarantine, sorted
        says: [score]            # optional: each of these stands in the error or its notes
    engines: [local, ray]        # default; one of them where the other does not apply

`make cases` prints the table of all outcomes.
"""

from __future__ import annotations

import runpy
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from forked import forked_script
from nightjar.inference.engine import LOCAL, RAY
from nightjar.inference.errors import JobError, NightjarError
from nightjar.inference.run.request import fixed, make_request
from support import NIGHT, data_files, run_steps

CASES = Path(__file__).parent
LARGEST = 20_000
"""How many bytes a case may have in this repository. Larger input is made by its `make.py`."""


def cases() -> list[Any]:
    """Each folder with each of its engines, as parameters of a test."""
    found = []
    for folder in sorted(path.parent for path in CASES.glob("*/right.yaml")):
        for engine in yaml.safe_load((folder / "right.yaml").read_text()).get("engines", [LOCAL, RAY]):
            found.append(pytest.param(folder.name, engine, id=f"{folder.name}-{engine}"))
    return found


@dataclass
class Outcome:
    """How one run ended.

    exit: as the command would exit. said: the error with its notes; empty if the night was published.
    """

    exit: int
    said: str


def outcome(job: Path, date: str, engine: str) -> Outcome:
    """Run one job in this process; only the score step of the engine `ray` leaves it."""
    try:
        run_steps(fixed(make_request(job, date=date, engine=engine)))
    except JobError as error:
        return Outcome(2, _said(error))
    except NightjarError as error:
        return Outcome(1, _said(error))
    return Outcome(0, "")


def _said(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def published(job: Path, date: str, columns: list[str]) -> list[dict[str, Any]]:
    """Some columns of the latest night's rows, in the order of file and row."""
    request = fixed(make_request(job, date=date))
    tables = [pq.read_table(request.storage.open(name)) for name in data_files(request.storage, request.output, None)]
    order = [("_file", "ascending"), ("_row", "ascending")]
    rows: list[dict[str, Any]] = pa.concat_tables(tables).sort_by(order).select(columns).to_pylist()
    return rows


def _near(row: dict[str, Any]) -> dict[str, Any]:
    """The row, with floats that match values near to them."""
    return {
        name: pytest.approx(value, abs=1e-6, nan_ok=True) if isinstance(value, float) else value
        for name, value in row.items()
    }


def quarantined(out: Path) -> list[int]:
    """`_row` of each row in the newest revision's quarantine."""
    revision = max(out.glob("runs/*/r*"), key=lambda path: path.stat().st_mtime)
    return sorted(
        row for part in revision.glob("quarantine/*.parquet") for row in pq.read_table(part)["_row"].to_pylist()
    )


@pytest.mark.parametrize(("case", "engine"), cases())
def test_the_right_result(
    case: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The case ends as its `right.yaml` says."""
    if engine == RAY:
        request.getfixturevalue("ray_local")
    folder = tmp_path / case
    shutil.copytree(CASES / case, folder)
    monkeypatch.chdir(folder)
    right = yaml.safe_load((folder / "right.yaml").read_text())
    (folder / "right.yaml").unlink()
    forked_script(folder / "make.py")
    for number, run in enumerate(right.get("runs", [{}]), start=1):
        if script := run.get("before"):
            runpy.run_path(str(folder / script), run_name="__main__")
        job = folder / run.get("job", "job.yaml")
        date = str(run.get("date", NIGHT))
        found = outcome(job, date, engine)
        assert found.exit == run.get("exit", 0), f"run {number}: {found.said or 'published'}"
        for part in run.get("says", []):
            assert part in found.said, f"run {number} says {found.said!r}"
        if (rows := run.get("rows")) is not None:
            assert published(job, date, list(rows[0])) == [_near(row) for row in rows]
        if "quarantined" in run:
            assert quarantined(folder / yaml.safe_load(job.read_text())["output"]["uri"]) == run["quarantined"]


def test_the_cases_are_small() -> None:
    """What a case needs is written by its `make.py`, not kept in the repository."""
    for folder in (path.parent for path in CASES.glob("*/right.yaml")):
        assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= LARGEST, folder.name
        assert yaml.safe_load((folder / "right.yaml").read_text())["report"], folder.name
