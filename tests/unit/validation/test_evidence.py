"""Half the input is not the input: what gates on the input compare with, and that they cost nothing to fail."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import steps as run
from nightjar.inference.errors import GateFailed, JobError
from nightjar.inference.input.plan import FILES, Discovery
from nightjar.inference.job.model import Job
from nightjar.inference.ledger.endings import done
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.ledger.lines import Published
from nightjar.inference.metrics.profile import Profile
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.output import publications as publish
from nightjar.inference.output.parts import checksum
from nightjar.inference.records import UNKNOWN
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import join
from nightjar.inference.validation.evidence import baselines, found, judge_input, night_before, run_manifest
from nightjar.inference.validation.gates import Evidence, Found, GateResult, NightEvidence, evaluate
from nightjar.inference.validation.gates.rules import gates_of
from nightjar.inference.validation.manifest import manifest_of
from outputs import FIRST_MANIFEST
from publishing import roll_back
from support import Lake


def night(
    output: Path,
    run_id: str,
    rows: int,
    date: str = "",
    *,
    x: Sequence[float] = (),
    ended: Any = None,
    profile: bytes = b"",
) -> Path:
    """Publish a run of so many rows, or end it as is said; returns its manifest. x: values that its profile has.
    profile: as it is kept, in place of these.
    """
    uri = f"runs/{run_id}/r1"
    manifest = output / uri / "manifest-000001.json"
    manifest.parent.mkdir(parents=True)
    content = {**FIRST_MANIFEST, "date": date or run_id, "totals": {**FIRST_MANIFEST["totals"], "rows_in": rows}}
    if x:
        content["totals"]["rows_out"] = len(x)
        profile = profile or profile_of(x).to_bytes()
        (manifest.parent / "profile-000001").write_bytes(profile)
        content["profile"] = {"file": "profile-000001", "checksum": checksum(profile), "size": len(profile)}
    raw = json.dumps(content).encode()
    manifest.write_bytes(raw)
    writer = open_epoch(LakeStorage(), join(str(output), uri), this_holder("publish"))
    if ended is None:
        entry = Published(1, f"{uri}/{manifest.name}", checksum(raw), date or run_id)
        publish.publish(writer, str(output), run_id, entry)
    writer.stop(release=True, ending=ended)
    return manifest


def profile_of(*nights: Sequence[float]) -> Profile:
    """That of all values."""
    profile = Profile.empty(["x"])
    for x in nights:
        profile.update(pa.table({"x": pa.array(x, pa.float64())}))
    return profile


def job_of(output: Path, *checks: dict[str, Any]) -> Job:
    content = {
        "name": "j",
        "input": {"uri": "in/"},
        "model": {"uses": "model:score", "outputs": {"score": "float32"}},
        "output": {"uri": str(output)},
        "checks": checks,
    }
    return Job.model_validate(content)


def last(output: Path, date: str) -> tuple[str, str, int] | None:
    job = job_of(output)
    found = night_before(LakeStorage(), job, date)
    return (found.run_id, found.date, found.rows_in) if found else None


def test_the_last_night_is_the_published_one_of_the_latest_earlier_date(tmp_path: Path) -> None:
    assert last(tmp_path, "2026-11-19") is None
    for date, rows in (("2026-11-17", 17), ("2026-11-20", 20), ("2026-11-18", 18), ("2026-11-19", 19)):
        night(tmp_path, date, rows)
    assert last(tmp_path, "2026-11-17") is None
    assert last(tmp_path, "2026-11-19") == ("2026-11-18", "2026-11-18", 18)
    assert last(tmp_path, "2026-12-24") == ("2026-11-20", "2026-11-20", 20)


def test_of_several_runs_of_one_date_the_one_named_by_it_is_the_night(tmp_path: Path) -> None:
    night(tmp_path, "2026-11-18", 18)
    night(tmp_path, "trial", 3, date="2026-11-18")
    assert last(tmp_path, "2026-11-19") == ("2026-11-18", "2026-11-18", 18)


def test_a_night_that_readers_were_rolled_back_from_is_no_last_night(tmp_path: Path) -> None:
    night(tmp_path, "2026-11-17", 17)
    night(tmp_path, "2026-11-18", 18)
    roll_back(LakeStorage(), str(tmp_path), None)
    assert last(tmp_path, "2026-11-19") == ("2026-11-17", "2026-11-17", 17)


def test_a_night_whose_files_were_removed_is_passed_over_and_one_that_was_changed_is_said(tmp_path: Path) -> None:
    night(tmp_path, "2026-11-17", 17)
    night(tmp_path, "2026-11-18", 18).unlink()
    assert last(tmp_path, "2026-11-19") == ("2026-11-17", "2026-11-17", 17)
    night(tmp_path, "2026-11-19", 19).write_text("{}")
    with pytest.raises(JobError, match="not the file that was published"):
        last(tmp_path, "2026-11-20")


@pytest.mark.parametrize("compares", [False, True])
def test_the_evidence_says_what_was_found(tmp_path: Path, compares: bool) -> None:
    """The count of all rows that were read stands for what discovery could not count, but not for what it counted."""
    night(tmp_path, "2026-11-18", 18)
    checks: list[dict[str, Any]] = [{"files": {"min": 1}}, {"rows": {"min": 1}}]
    job = job_of(tmp_path, *checks, *([{"rows": {"against": "last", "change": 0.5}}] if compares else []))
    last = night_before(LakeStorage(), job, "2026-11-19") if compares else None

    def said(discovery: Discovery, rows: int | None = None) -> Found:
        return found(LakeStorage(), job, "2026-11-19", discovery, rows)

    counted, uncounted = listed([10], [20, 30], None), listed([10], None, [UNKNOWN], [UNKNOWN])
    assert said(counted) == said(counted, 59) == Found(3, 60, 1, last)
    assert said(uncounted) == Found(4, 10, 1, last, 2)
    assert said(uncounted, 75) == Found(4, 75, 1, last)
    job = job.model_copy(update={"input": job.input.model_copy(update={"where": "x > 1"})})
    assert said(counted) == Found(3, 0, 1, last, 3), "which rows match is not known before they are read"
    assert said(counted, 59) == Found(3, 59, 1, last)


def compared(output: Path, against: str, date: str = "2026-11-19") -> tuple[str, bytes | None, str]:
    """With what a check on drift compares: its name, the bytes of its profile, and why there is none."""
    job = job_of(output, {"drift": "x", "against": against})
    ((name, found),) = baselines(LakeStorage(), job, date).items()
    assert name == against
    return found.called, found.profile.to_bytes() if found.profile else None, found.why


def test_drift_from_the_last_night_is_from_the_one_before_this(tmp_path: Path) -> None:
    assert compared(tmp_path, "last") == ("last", None, "no earlier night is published")
    night(tmp_path, "2026-11-17", 3, x=[1, 2, 3])
    night(tmp_path, "again", 2, "2026-11-18", x=[4, 5])
    night(tmp_path, "2026-11-20", 1, x=[6])
    called = "the run again of 2026-11-18, the last published night"
    assert compared(tmp_path, "last") == (called, profile_of([4, 5]).to_bytes(), "")
    called = "2026-11-17, the last published night"
    assert compared(tmp_path, "last", "2026-11-18") == (called, profile_of([1, 2, 3]).to_bytes(), "")
    night(tmp_path, "2026-11-21", 1)
    called = "2026-11-21, the last published night"
    assert compared(tmp_path, "last", "2026-11-22") == (called, None, f"the columns of {called} were not described")


def test_drift_from_a_run_is_from_one_that_was_published_or_validated(tmp_path: Path) -> None:
    nothing = "no run 'baseline' is published, or was validated without being published"
    assert compared(tmp_path, "baseline") == ("baseline", None, nothing)
    night(tmp_path, "baseline", 3, "2026-10-01", x=[1, 2, 3], ended=done("validate", limited=False))
    called = "the run baseline of 2026-10-01"
    assert compared(tmp_path, "baseline") == (called, profile_of([1, 2, 3]).to_bytes(), "")
    night(tmp_path, "2026-12-24", 2, x=[7, 8])
    assert compared(tmp_path, "2026-12-24") == ("2026-12-24", profile_of([7, 8]).to_bytes(), "")
    night(tmp_path, "2026-12-25", 2)
    assert compared(tmp_path, "2026-12-25")[1:] == (None, "the columns of 2026-12-25 were not described")
    night(tmp_path, "limited", 2, "2026-10-01", x=[1], ended=done("validate", limited=True))
    assert compared(tmp_path, "limited")[0] == "limited"
    found = run_manifest(LakeStorage(), str(tmp_path), "baseline")
    assert found is not None
    assert (found[0].date, found[1].totals.rows_in) == ("2026-10-01", 3)
    found = run_manifest(LakeStorage(), str(tmp_path), "2026-12-24")
    assert found is not None
    assert (found[0].date, found[1].totals.rows_in) == ("2026-12-24", 2)


def test_a_profile_of_another_version_is_none_and_the_check_says_so(tmp_path: Path) -> None:
    """A night must not be lost because the one before it was described by an older version."""
    older = zlib.compress(json.dumps({"v": 1, "columns": {}}).encode())
    night(tmp_path, "2026-11-17", 3, x=[1, 2, 3], profile=older)
    for against, verdict in (("last", "warn"), ("2026-11-17", "block")):
        job = job_of(tmp_path, {"drift": "x", "against": against})
        others = baselines(LakeStorage(), job, "2026-11-19")
        assert others[against].unreadable
        metrics = Metrics(profile=profile_of([1, 2, 3]))
        gate = evaluate(gates_of(job), Evidence(Found(1, 3), metrics=metrics, baselines=others))[-1]
        assert (gate.name, gate.verdict) == ("x.drift", verdict)
        assert "another version of Nightjar wrote the profile of 2026-11-17" in gate.sentence


def test_each_night_is_found_once_and_only_if_checks_are_judged(tmp_path: Path) -> None:
    night(tmp_path, "2026-11-18", 1, x=[1])
    checks = [{"drift": "x"}, {"drift": "x", "psi": 0.1}, {"drift": "x", "against": "june"}, {"files": {"min": 1}}]
    job = job_of(tmp_path, *checks)
    assert set(baselines(LakeStorage(), job, "2026-11-19")) == {"last", "june"}
    assert baselines(LakeStorage(), job.model_copy(update={"judged": False}), "2026-11-19") == {}


def test_a_check_of_ones_own_is_given_the_last_night_as_its_manifest_has_it(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    assert night_before(LakeStorage(), job, "2026-11-19") is None
    manifest = night(tmp_path, "trial", 2300, "2026-11-18")
    found = json.loads(manifest.read_bytes())
    found["totals"]["rows_partial"] = 7
    night(tmp_path, "2026-11-17", 5)
    partial = json.dumps(found).encode()
    manifest.write_bytes(partial)
    with pytest.raises(JobError, match="not the file that was published"):
        night_before(LakeStorage(), job, "2026-11-19")
    entry = Published(1, "runs/trial/r1/manifest-000001.json", checksum(partial), "2026-11-18")
    snapshot = publish.newest(LakeStorage(), str(tmp_path))
    runs = {**snapshot.runs, "trial": entry}
    publish.add(LakeStorage(), str(tmp_path), snapshot.number + 1, runs, publish.Origin("publish", "trial", 1))
    assert night_before(LakeStorage(), job, "2026-11-19") == NightEvidence(
        job="j",
        run_id="trial",
        date="2026-11-18",
        shards=3,
        rows_in=2300,
        rows_out=2299,
        rows_quarantined=1,
        rows_partial=7,
        metrics=manifest_of(partial, "manifest.json").metrics,
    )


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


@pytest.mark.parametrize(
    ("run", "then"),
    [
        ("june", "Name another published run in checks[1].against, or write `last`."),
        ("baseline", "Make it of the training set: `nightjar baseline JOB --input URI`."),
    ],
)
def test_a_run_to_compare_with_that_is_not_there_blocks_before_anything_is_scored(
    tmp_path: Path, run: str, then: str
) -> None:
    """Once for each run, and only if the check blocks: the first night has no last one."""

    def judged(*checks: dict[str, Any]) -> tuple[GateResult, ...]:
        return judge_input(LakeStorage(), job_of(tmp_path, *checks), "2026-11-19", listed([5]))

    check = {"drift": "x", "against": run}
    (gate,) = judged({"drift": "x"}, check, {**check, "psi": 0.3})
    assert (gate.name, gate.passed, gate.verdict) == ("x.drift", False, "block")
    assert (gate.observed, gate.limit) == ("nothing to compare with", "psi 0.2")
    assert gate.sentence == (
        f"checks[1].drift has nothing to compare with: no run {run!r} is published, or was validated without being "
        f"published. {then}"
    )
    assert not judged({**check, "on_fail": "warn"})
    unjudged = job_of(tmp_path, check).model_copy(update={"judged": False})
    assert not judge_input(LakeStorage(), unjudged, "2026-11-19", listed([5]))
    night(tmp_path, run, 3, "2026-10-01", x=[1, 2, 3])
    assert not judged(check)


def test_a_limited_run_is_judged_by_the_whole_input(tmp_path: Path) -> None:
    lake = Lake(tmp_path).ready(checks=[{"files": {"min": 5}}])
    request = lake.request(limit=1000)
    with pytest.raises(GateFailed, match="8,000 rows in 4 files"):
        run.score(request, run.discover(request))
