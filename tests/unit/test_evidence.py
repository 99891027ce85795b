"""Half the input is not the input: what gates on the input compare with, and that they cost nothing to fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nightjar.inference.errors import GateFailed, JobError
from nightjar.inference.input.discovery import FILES, Discovery
from nightjar.inference.job.model import Job
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.ledger.lines import Published
from nightjar.inference.output import publications as publish
from nightjar.inference.output import visibility
from nightjar.inference.output.parts import checksum
from nightjar.inference.records import UNKNOWN
from nightjar.inference.run import steps as run
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import join
from nightjar.inference.validation.evidence import found, last_night
from nightjar.inference.validation.gates import Found, LastNight
from outputs import FIRST_MANIFEST
from support import Lake


def night(output: Path, run_id: str, rows: int, date: str = "") -> Path:
    """Publish a run of so many rows; returns its manifest."""
    uri = f"runs/{run_id}/r1"
    raw = json.dumps({**FIRST_MANIFEST, "totals": {**FIRST_MANIFEST["totals"], "rows_in": rows}}).encode()
    manifest = output / uri / "manifest-000001.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_bytes(raw)
    writer = open_epoch(LakeStorage(), join(str(output), uri), this_holder("publish"))
    entry = Published(1, f"{uri}/{manifest.name}", checksum(raw), date or run_id)
    publish.publish(writer, str(output), run_id, entry)
    writer.stop(release=True)
    return manifest


def last(output: Path, date: str) -> LastNight | None:
    return last_night(LakeStorage(), str(output), date)


def test_the_last_night_is_the_published_one_of_the_latest_earlier_date(tmp_path: Path) -> None:
    assert last(tmp_path, "2026-11-19") is None
    for date, rows in (("2026-11-17", 17), ("2026-11-20", 20), ("2026-11-18", 18), ("2026-11-19", 19)):
        night(tmp_path, date, rows)
    assert last(tmp_path, "2026-11-17") is None
    assert last(tmp_path, "2026-11-19") == LastNight("2026-11-18", "2026-11-18", 18)
    assert last(tmp_path, "2026-12-24") == LastNight("2026-11-20", "2026-11-20", 20)


def test_of_several_runs_of_one_date_the_one_named_by_it_is_the_night(tmp_path: Path) -> None:
    night(tmp_path, "2026-11-18", 18)
    night(tmp_path, "trial", 3, date="2026-11-18")
    assert last(tmp_path, "2026-11-19") == LastNight("2026-11-18", "2026-11-18", 18)


def test_a_night_that_readers_were_rolled_back_from_is_no_last_night(tmp_path: Path) -> None:
    night(tmp_path, "2026-11-17", 17)
    night(tmp_path, "2026-11-18", 18)
    visibility.rollback(LakeStorage(), str(tmp_path), None)
    assert last(tmp_path, "2026-11-19") == LastNight("2026-11-17", "2026-11-17", 17)


def test_a_night_whose_files_were_removed_is_passed_over_and_one_that_was_changed_is_said(tmp_path: Path) -> None:
    night(tmp_path, "2026-11-17", 17)
    night(tmp_path, "2026-11-18", 18).unlink()
    assert last(tmp_path, "2026-11-19") == LastNight("2026-11-17", "2026-11-17", 17)
    night(tmp_path, "2026-11-19", 19).write_text("{}")
    with pytest.raises(JobError, match="not the manifest that was published"):
        last(tmp_path, "2026-11-20")


@pytest.mark.parametrize("compares", [False, True])
def test_the_evidence_says_what_was_found(tmp_path: Path, compares: bool) -> None:
    """The count of all rows that were read stands for what discovery could not count, but not for what it counted."""
    night(tmp_path, "2026-11-18", 18)
    checks: list[dict[str, Any]] = [{"files": {"min": 1}}, {"rows": {"min": 1}}]
    job = Job.model_validate(
        {
            "name": "j",
            "input": {"uri": "in/"},
            "model": {"uses": "model:score", "outputs": {"score": "float32"}},
            "output": {"uri": str(tmp_path)},
            "checks": [*checks, {"rows": {"against": "last", "change": 0.5}}] if compares else checks,
        }
    )
    last = LastNight("2026-11-18", "2026-11-18", 18) if compares else None

    def said(discovery: Discovery, rows: int | None = None) -> Found:
        return found(LakeStorage(), job, "2026-11-19", discovery, rows)

    counted, uncounted = listed([10], [20, 30], None), listed([10], None, [UNKNOWN], [UNKNOWN])
    assert said(counted) == said(counted, 59) == Found(3, 60, 1, last)
    assert said(uncounted) == Found(4, 10, 1, last, 2)
    assert said(uncounted, 75) == Found(4, 75, 1, last)
    job = job.model_copy(update={"input": job.input.model_copy(update={"where": "x > 1"})})
    assert said(counted) == Found(3, 0, 1, last, 3), "which rows match is not known before they are read"
    assert said(counted, 59) == Found(3, 59, 1, last)


def listed(*files: list[int] | None) -> Discovery:
    """A listing of files with so many rows each, unit by unit; None is a file that cannot be read."""
    lines = [
        {
            "uri": f"f{index}",
            "size": 1,
            "version": "1",
            "rows": rows or [],
            "sizes": [1] * len(rows or []),
            "error": None if rows else "torn",
        }
        for index, rows in enumerate(files)
    ]
    return Discovery(pa.Table.from_pylist(lines, schema=FILES), pa.schema([("x", pa.int64())]))


def test_too_little_input_fails_its_gate_before_anything_is_scored(tmp_path: Path) -> None:
    """No model is loaded and no Ray is there; the plan is in the ledger, so that its state can be looked up."""
    lake = Lake(tmp_path)
    lake.write_files(files=1)
    lake.write_model("raise SystemExit('the model was loaded')\n")
    lake.write_job(checks=[{"files": {"min": 5}}, {"rows": {"min": 2000}}, {"rows": {"against": "last", "change": 0}}])
    night(lake.out, "2026-11-18", 10_000)
    request = lake.request()
    with pytest.raises(GateFailed, match=r"2,000 rows in 1 file, less than checks\[0\]\.files\.min = 5") as failed:
        run.score(request, run.discover(request))
    verdicts = {gate.name: (gate.passed, gate.limit) for gate in failed.value.gates}
    assert verdicts == {
        "files.min": (False, "5"),
        "rows.min": (True, "2,000"),
        "rows.last": (False, "10,000 to 10,000 rows"),
    }
    assert [record["t"] for record in lake.records() if record["t"] in {"planned", "started"}] == ["planned"]
    assert not list(lake.revision().glob("data/*"))


def test_a_limited_run_is_judged_by_the_whole_input(tmp_path: Path) -> None:
    lake = Lake(tmp_path).ready(checks=[{"files": {"min": 5}}])
    request = lake.request(limit=1000)
    with pytest.raises(GateFailed, match="8,000 rows in 4 files"):
        run.score(request, run.discover(request))
