"""A reason stays found: with the terminal closed, `runs` and `status` alone lead to the cause and to the command.

What ends a run is made to happen where it happens, inside a step's leased of the real ledger, or beside it.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from prefect.exceptions import TerminationSignal

from faults import FaultyStorage, fail, pause
from nightjar.flows.cli.main import app
from nightjar.flows.pages.advice import as_typed
from nightjar.inference.errors import (
    AuditFailed,
    ClusterError,
    Damaged,
    Fenced,
    GateFailed,
    Held,
    JobError,
    Missing,
    QuarantineFull,
    RunFailed,
    ShardsFailed,
    StorageError,
    TakenBack,
    Terminated,
    Transient,
)
from nightjar.inference.history.run_status import stands
from nightjar.inference.ledger.endings import stopped_by, utc
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.output import revisions as revs
from nightjar.inference.output import visibility
from nightjar.inference.output.owner import claim_output
from nightjar.inference.run import waiting
from nightjar.inference.run.lease import leased
from nightjar.inference.run.request import RunRequest
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.validation.gates import GateResult, Offender
from publishing import finished
from support import Lake, keys, planned_line

NIGHT = "2026-11-19"
NULLS = "'score' is null in 3 rows, more than the 0 that checks[0].nulls = 0 allows."
GATES = (GateResult("complete", True, "", "", "All done."), GateResult("score.nulls", False, "3", "0", NULLS))


def fails(lake: Lake, step: str, error: BaseException, **options: object) -> RunRequest:
    """A step of a run of tonight is ended by this, as its code would end it."""
    request = lake.request(**options)
    with pytest.raises(type(error)), leased(request, f"{request.run_uri}/r1", step, keep=True):
        raise error
    return request


def begun(lake: Lake) -> RunRequest:
    """A step of a run of tonight works, and nothing ends it."""
    request = lake.request()
    open_epoch(request.storage, f"{request.run_uri}/r1", this_holder("score", request.flow_run)).stop(release=False)
    return request


def killed(lake: Lake) -> None:
    """A process of its own opens the ledger, and is killed."""
    code = (
        "import os, signal; from nightjar.inference.ledger.epochs import open_epoch; "
        "from nightjar.inference.storage.lake import LakeStorage; "
        "from nightjar.inference.ledger.holders import this_holder; "
        f"open_epoch(LakeStorage(), {str(lake.revision())!r}, this_holder('score')); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL


def no_input(lake: Lake, *options: str) -> None:
    """The real command, on a night whose input did not come."""
    for path in (lake.folder / "data").iterdir():
        path.unlink()
    with pytest.raises(JobError):
        app(["run", str(lake.job_path), "--date", NIGHT, *options], standalone_mode=False)


def unfinished(lake: Lake) -> RunRequest:
    """Another flow run, after one that failed."""
    fails(lake, "score", ShardsFailed("1 of 8 shards has no result"))
    return lake.request(flow_run="another")


def taken_back(lake: Lake) -> None:
    finished(str(lake.out), NIGHT)
    visibility.unpublish(LakeStorage(), str(lake.out), NIGHT)


@dataclass(frozen=True)
class Case:
    """What happens, and what is to be read of it."""

    happens: Callable[[Lake], object]
    words: str
    cause: str
    commands: tuple[str, ...] = ("nightjar show JOB 2026-11-19", "nightjar run JOB --run-id 2026-11-19")


TO_BE_CHANGED = ("nightjar check JOB --date 2026-11-19", "nightjar run JOB --run-id 2026-11-19")

CASES = {
    "shards without result": Case(
        lambda lake: fails(lake, "score", ShardsFailed("1 of 8 shards has no result; the first is part-02")),
        "failed at score",
        "1 of 8 shards has no result; the first is part-02",
    ),
    "too many rows in quarantine": Case(
        lambda lake: fails(lake, "score", QuarantineFull("900 rows are quarantined, more than the 8")),
        "failed at score",
        "900 rows are quarantined, more than the 8",
    ),
    "a model that cannot be loaded": Case(
        lambda lake: fails(lake, "score", JobError("model.uses: model:score raised ImportError: no module 'xgb'")),
        "rejected at score",
        "no module 'xgb'",
        TO_BE_CHANGED,
    ),
    "a gate": Case(lambda lake: fails(lake, "validate", GateFailed(NULLS, GATES)), "failed at gate score.nulls", NULLS),
    "on the local engine": Case(
        lambda lake: fails(lake, "score", ShardsFailed("1 of 8 shards has no result"), engine="local"),
        "failed at score",
        "1 of 8 shards has no result",
        ("nightjar show JOB 2026-11-19", "nightjar run JOB --run-id 2026-11-19 --engine local"),
    ),
    "no input for the local engine": Case(
        lambda lake: no_input(lake, "--engine", "local"),
        "rejected at discover",
        "input.uri: no input files at",
        tuple(f"{command} --engine local" for command in TO_BE_CHANGED),
    ),
    "an audit": Case(
        lambda lake: fails(lake, "validate", AuditFailed("the files written do not prove the cover, 2 findings")),
        "failed at validate",
        "do not prove the cover",
    ),
    "storage that refuses the publication": Case(
        lambda lake: fails(lake, "publish", StorageError("out/publications/00000001.json: access denied")),
        "failed at publish",
        "access denied",
    ),
    "no input": Case(no_input, "rejected at discover", "input.uri: no input files at", TO_BE_CHANGED),
    "no cluster": Case(
        lambda lake: waiting.keep_failure(lake.request(), ClusterError("no usable Ray cluster at head:6379"), "start"),
        "failed at start",
        "no usable Ray cluster at head:6379",
        TO_BE_CHANGED,
    ),
    "a lost cluster": Case(
        lambda lake: waiting.keep_failure(begun(lake), RunFailed("the Ray cluster of this run was lost"), "discover"),
        "failed at score",
        "the Ray cluster of this run was lost",
    ),
    "Ctrl-C": Case(
        lambda lake: fails(lake, "score", KeyboardInterrupt()),
        "stopped at score",
        "stopped by Ctrl-C (SIGINT), process",
    ),
    "SIGTERM, while a step works elsewhere": Case(
        lambda lake: waiting.keep_failure(begun(lake), stopped_by(Terminated()), "discover"),
        "stopped at score",
        "stopped by SIGTERM, process",
    ),
    "SIGTERM, as Prefect has it": Case(
        lambda lake: waiting.keep_failure(
            begun(lake), stopped_by(TerminationSignal(signal=signal.SIGTERM)), "discover"
        ),
        "stopped at score",
        "stopped by SIGTERM, process",
    ),
    "killed": Case(killed, "killed", "its process ended without a word: it was killed, or the machine was lost"),
    "without a reason in its ledger": Case(
        lambda lake: open_epoch(LakeStorage(), str(lake.revision()), this_holder("score")).stop(release=True),
        "killed",
        "its process ended without a word: it was killed, or the machine was lost",
    ),
    "taken back by a person": Case(
        taken_back,
        "rolled back",
        "a person rolled it back or unpublished it since",
        ("nightjar republish JOB 2026-11-19", "nightjar run JOB --run-id 2026-11-19 --fresh"),
    ),
    "results of another night, which a person took back": Case(
        lambda lake: waiting.keep_failure(lake.request(), TakenBack("r1 was unpublished", "2026-11-18"), "discover"),
        "failed at discover",
        "r1 was unpublished",
        (
            "nightjar republish JOB 2026-11-18",
            "nightjar run JOB --run-id 2026-11-19",
            "nightjar run JOB --run-id 2026-11-19 --fresh",
        ),
    ),
    "an earlier revision, which a person took back while the newest one had failed": Case(
        lambda lake: waiting.keep_failure(unfinished(lake), TakenBack("r1 was unpublished", NIGHT), "discover"),
        "failed at discover",
        "r1 was unpublished",
        ("nightjar republish JOB 2026-11-19", "nightjar run JOB --run-id 2026-11-19 --fresh"),
    ),
    "not asked to be published": Case(
        lambda lake: validated(lake, publish=False), "validated", "", ("nightjar run JOB --run-id 2026-11-19",)
    ),
}


def validated(lake: Lake, **options: object) -> RunRequest:
    """A run that passes its gates and is not to be published."""
    request = lake.request(**options)
    with leased(request, f"{request.run_uri}/r1", "validate", keep=request.publish):
        pass
    return request


@pytest.fixture
def job(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A job that has run before: the output is its own. Its commands are pasted from its folder."""
    lake.ready()
    claim_output(LakeStorage(), str(lake.out), "lake")
    monkeypatch.chdir(lake.folder)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    return lake


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `nightjar …` prints, in this process."""
    capsys.readouterr()
    app(list(words), standalone_mode=False)
    return capsys.readouterr().out


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_runs_and_status_lead_to_cause_and_command(job: Lake, case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of them alone: for a person, and with --json the same in fields."""
    case.happens(job)
    commands = [command.replace("JOB", "job.yaml") for command in case.commands]
    for words in (("status", "job.yaml", NIGHT), ("runs", "job.yaml")):
        told = said(capsys, *words)
        lines = [line.strip() for line in told.splitlines()]
        assert case.words in told
        assert case.cause in told
        if case.cause or words[0] == "status":
            assert all(any(line.endswith(f" {command}") for line in lines) for command in commands), told
        found = json.loads(said(capsys, *words, "--json"))
        (found,) = found if isinstance(found, list) else (found,)
        assert (found["standing"], case.cause in found["cause"]) == (case.words, True)
        assert found["state"] == case.words.split(" at ")[0]
        assert list(found["commands"].values()) == commands
        assert [key for key in keys(found) if not re.fullmatch("[a-z][a-z_]*", key)] == []


def test_gates_are_kept_by_name_with_their_sentence(job: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    """And the step, the class of the error and the time: for programs."""
    fails(job, "validate", GateFailed(NULLS, GATES))
    ended = json.loads(said(capsys, "status", "job.yaml", NIGHT, "--json"))["ended"]
    assert ended["gates"] == [{"name": "score.nulls", "sentence": NULLS, "row": "", "replay": ""}]
    assert (ended["outcome"], ended["step"], ended["error"]) == ("failed", "validate", "GateFailed")
    assert ended["at"] >= job.records()[0]["writer"]["at"]


def test_a_row_that_speaks_against_a_gate_is_kept_with_its_command(
    job: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole, however long the sentences before it are."""
    replay = "nightjar replay job.yaml 2026-11-19 --shard s1 --row 7"
    offender = Offender("s1", "/lake/part-00.parquet", 7, "null", replay)
    gate = GateResult("score.nulls", False, "3", "0", NULLS + " Mend it." * 200, (offender,))
    fails(job, "validate", GateFailed(NULLS, (gate,)))
    told = said(capsys, "status", "job.yaml", NIGHT)
    assert "  row        Row 7 of /lake/part-00.parquet (shard s1) holds null\n" in told
    assert f"  replay     {as_typed(replay)}\n" in told


def test_a_limited_run_that_is_done_is_not_called_stopped(job: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is to be done about it; nor does it say that anything went wrong."""
    request = validated(job, limit=1000)
    found = json.loads(said(capsys, "status", "job.yaml", request.run_id, "--json"))
    assert (found["state"], found["standing"], found["cause"], found["commands"]) == ("limited", "limited", "", {})


def test_what_is_tried_again_is_running_and_its_new_end_counts(job: Lake) -> None:
    fails(job, "score", ShardsFailed("the first end"))
    request = begun(job)
    assert stood(request) == ("running", "")
    waiting.keep_failure(request, RunFailed("the second end"), "")
    assert stood(request) == ("failed at score", "the second end")


def test_a_step_that_kept_why_is_believed_more_than_the_flow(job: Lake) -> None:
    """The flow hears of it later, and perhaps less."""
    request = fails(job, "score", ShardsFailed("1 of 8 shards has no result"))
    records = job.records()
    waiting.keep_failure(request, RunFailed("a task failed"), "")
    assert job.records() == records


def test_a_retry_in_prefect_that_could_not_begin_says_why(job: Lake) -> None:
    """It has the id of the flow run whose step kept why the first try ended."""
    request = fails(job, "score", ShardsFailed("1 of 8 shards has no result"))
    again = replace(request, again_since=utc(1))
    waiting.keep_failure(again, JobError("input.uri: no input files"), "discover")
    assert stood(request) == ("rejected at discover", "input.uri: no input files")
    open_epoch(request.storage, f"{request.run_uri}/r1", this_holder("score", request.flow_run)).stop(release=False)
    waiting.keep_failure(again, RunFailed("the second end"), "discover")
    kept = [record["message"] for record in job.records() if record["t"] == "ended"]
    assert kept == ["1 of 8 shards has no result", "the second end"], "once a step has begun, the ledger keeps it"


def test_who_was_replaced_says_nothing_about_the_run(job: Lake) -> None:
    """Another writer goes on with it: how that one ends counts."""
    mine = fails(job, "score", ShardsFailed("the other's end"))
    fails(job, "validate", Fenced("this writer was replaced"))
    fails(job, "validate", Held("this run was taken over"))
    waiting.keep_failure(replace(mine, flow_run="third"), Held("is being written by"), "score")
    assert stood(mine) == ("failed at score", "the other's end")


def test_a_living_step_is_overtaken_to_say_that_the_run_was_stopped(job: Lake) -> None:
    """It may append at that very moment; whoever stops the run tries again, and the step can write no more."""
    request = job.request()
    step = open_epoch(LakeStorage(), f"{request.run_uri}/r1", this_holder("score", request.flow_run))
    appends = iter([[planned_line()], []])

    def overtake(_: str) -> None:
        for records in appends:
            step.append(records)

    racing = FaultyStorage(LakeStorage(), [pause("create", "*/ledger/*", before=overtake)])
    waiting.keep_failure(replace(request, storage=racing), stopped_by(KeyboardInterrupt()), "")
    with pytest.raises(Fenced):
        step.append([])
    step.stop(release=True)
    assert stood(request)[0] == "stopped at score"


def test_what_the_storage_refuses_is_not_kept_and_hides_nothing(job: Lake) -> None:
    """The error that ended the run is the one that is raised."""
    away = FaultyStorage(LakeStorage(), [fail("create", "*/ledger/00000002*", None, StorageError("away"))])
    fails(job, "score", Transient("the input's storage is away"), storage=away)
    waiting.keep_failure(job.request(storage=away), ClusterError("none"), "start")
    assert "ended" not in {record["t"] for record in job.records()}


def test_a_published_night_stays_so_when_a_later_try_could_not_begin(
    job: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    """What readers see is said first, and then what became of the try."""
    finished(str(job.out), NIGHT)
    no_input(job)
    told = said(capsys, "runs", "job.yaml")
    assert "published r1" in told
    assert "rejected at discover: input.uri" in told
    found = json.loads(said(capsys, "status", "job.yaml", NIGHT, "--json"))
    assert (found["state"], found["tried_again"]["step"]) == ("published", "discover")


def test_a_try_that_could_not_begin_is_forgotten_when_a_later_one_had_nothing_to_do(
    lake: Lake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing newer is in the ledger, and the reason is none any more."""
    monkeypatch.chdir(lake.folder)
    lake.ready()
    lake.run(engine="local")
    Path("data").rename("elsewhere")
    Path("data").mkdir()
    no_input(lake)
    assert "rejected at" in said(capsys, "status", "job.yaml", NIGHT)
    Path("data").rmdir()
    Path("elsewhere").rename("data")
    assert lake.run(engine="local").scored.finished
    for words in (["status", "job.yaml", NIGHT], ["runs", "job.yaml"]):
        told = said(capsys, *words)
        assert "published" in told
        assert "rejected at" not in told


def test_a_run_that_could_not_begin_is_repeated_for_its_own_date_and_limit(
    job: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    no_input(job, "--run-id", "tried", "--limit", "5")
    found = {each["run_id"]: each for each in json.loads(said(capsys, "runs", "job.yaml", "--json"))}
    assert (found["tried"]["date"], found["tried"]["state"]) == (NIGHT, "rejected")
    assert f"--date {NIGHT}" in found["tried"]["commands"]["repeat"]
    repeated = job.request(date=None, run_id="tried")
    assert (repeated.date, repeated.limit) == (NIGHT, 5)


def test_why_a_night_of_a_dated_output_could_not_begin_is_kept_and_claims_nothing(
    lake: Lake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each night of such an output is free at first."""
    monkeypatch.chdir(lake.folder)
    lake.ready(output__uri="out/{date}")
    no_input(lake)
    for told in (said(capsys, "status", "job.yaml", NIGHT), said(capsys, "runs", "job.yaml", "--date", NIGHT)):
        assert f"{NIGHT}: rejected at discover" in told
        assert "why        input.uri" in told
    assert not list(lake.folder.rglob("out/**/job.json"))


@pytest.mark.parametrize("owner", [None, "another"])
def test_nothing_is_written_into_a_place_that_is_not_the_jobs(lake: Lake, owner: str | None) -> None:
    """A run that never began must not claim it."""
    lake.ready()
    if owner:
        claim_output(LakeStorage(), str(lake.out), owner)
    before = sorted(lake.folder.rglob("*"))
    no_input(lake)
    (lake.folder / "data" / "gone").touch()
    assert [path for path in sorted(lake.folder.rglob("*")) if path not in before] == [lake.folder / "data" / "gone"]


@pytest.mark.parametrize(("number", "remedy"), [(1, "use another output.uri"), (4, "use a newer Nightjar")])
def test_a_ledger_of_another_format_is_refused_by_every_command(job: Lake, number: int, remedy: str) -> None:
    """It is not read as far as it is understood: what it says may have another meaning."""
    fails(job, "score", ShardsFailed("1 of 8 shards has no result"))
    segment = job.revision() / "ledger" / "00000001.jsonl"
    text = segment.read_text()
    assert '"format":3' in text
    segment.write_text(text.replace('"format":3', f'"format":{number}'))
    refused = f"{segment}: a ledger of format {number}, and this version reads only format 3: {remedy}"
    for command in (job.run, lambda: app(["status", "job.yaml", NIGHT], standalone_mode=False)):
        with pytest.raises(Damaged, match=f"^{re.escape(refused)}$"):
            command()


def test_a_run_that_cannot_be_read_hides_no_other(job: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    """It has its line: why, and what readers see of it."""
    finished(str(job.out), "2026-11-18")
    fails(job, "score", ShardsFailed("1 of 8 shards has no result"))
    segment = job.out / "runs" / "2026-11-18" / "r1" / "ledger" / "00000001.jsonl"
    segment.write_bytes(b"")
    told = said(capsys, "runs", "job.yaml")
    assert f"2026-11-18: unreadable\n  why        {segment}: not a ledger segment" in told
    assert "1 of 8 shards has no result" in told
    found = {each["run_id"]: each for each in json.loads(said(capsys, "runs", "job.yaml", "--json"))}
    assert {name: each["state"] for name, each in found.items()} == {"2026-11-18": "unreadable", NIGHT: "failed"}
    assert (found["2026-11-18"]["shown"], found["2026-11-18"]["commands"]) == (1, {})


@pytest.mark.parametrize("file", ["run.json", "r1/_SUCCESS"])
@pytest.mark.parametrize("content", ["", '{"a": ', "[]"])
def test_a_run_with_a_damaged_file_has_its_line_and_names_it(
    job: Lake, capsys: pytest.CaptureFixture[str], file: str, content: str
) -> None:
    """What nobody's run made is no run."""
    finished(str(job.out), "2026-11-18")
    finished(str(job.out), "2026-11-17")
    path = job.out / "runs" / "2026-11-18" / file
    path.write_text(content)
    (job.out / "runs" / "my notes" / "r1").mkdir(parents=True)
    found = {each["run_id"]: each for each in json.loads(said(capsys, "runs", "job.yaml", "--json"))}
    assert {name: each["state"] for name, each in found.items()} == {
        "2026-11-18": "unreadable",
        "2026-11-17": "published",
    }
    assert found["2026-11-18"]["cause"].startswith(f"{path}: not the ")
    assert f"2026-11-18: unreadable\n  why        {path}: not the " in said(capsys, "runs", "job.yaml")
    with pytest.raises(Damaged, match=f"{path}: not the .* delete it, and"):
        said(capsys, "status", "job.yaml", "2026-11-18")


def test_a_run_whose_beginning_cannot_be_read_hides_no_other(
    lake: Lake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan says its date, so that nobody asks before its commands are made."""
    monkeypatch.chdir(lake.folder)
    lake.ready()
    lake.run(engine="local")
    finished(str(lake.out), "2026-11-18")
    path = lake.out / "runs" / NIGHT / "run.json"
    path.write_text("junk")
    found = {each["run_id"]: each for each in json.loads(said(capsys, "runs", "job.yaml", "--json"))}
    assert {name: each["state"] for name, each in found.items()} == {NIGHT: "published", "2026-11-18": "published"}
    with pytest.raises(Damaged, match=f"{path}: not the "):
        said(capsys, "status", "job.yaml", NIGHT)


def test_a_run_that_never_began_hides_no_other_when_the_schedule_changes(
    job: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its name is of an instant at which no run is due any more, and nothing of it says when it began."""
    job.write_job(schedule={"cron": "0 * * * *", "timezone": "UTC"})
    finished(str(job.out), "2026-11-19T04")
    request = job.request(date=None, run_id="2026-11-19T05", scores=False)
    waiting.keep_failure(request, JobError("model.uses: no module"), "discover")
    job.write_job(schedule={"cron": "30 * * * *", "timezone": "UTC"})
    found = {each["run_id"]: each for each in json.loads(said(capsys, "runs", "job.yaml", "--json"))}
    assert {name: each["state"] for name, each in found.items()} == {
        "2026-11-19T04": "published",
        "2026-11-19T05": "rejected",
    }


def test_a_published_night_with_a_damaged_manifest_says_so(job: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    entry = finished(str(job.out), NIGHT)
    assert "damaged" not in said(capsys, "status", "job.yaml", NIGHT)
    (job.out / entry.manifest).write_text("{")
    told = said(capsys, "status", "job.yaml", NIGHT)
    assert f"  note       damaged: {job.out / entry.manifest}: not the file that was published" in told
    assert "or score this run anew with --fresh" in told


def test_a_published_night_whose_files_were_deleted_is_not_an_unknown_one(
    job: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command says so, and how it is scored again."""
    finished(str(job.out), NIGHT)
    shutil.rmtree(job.out / "runs" / NIGHT)
    gone = f"the files of the run '{NIGHT}' were deleted after it was published"
    again = f"; `nightjar run JOB --run-id {NIGHT} --fresh` scores it again"
    first, second, *_ = said(capsys, "status", "job.yaml", NIGHT).splitlines()
    assert first == f"lake {NIGHT}: readers see r1 of it, and nothing of it is there"
    assert second == f"  why        {gone}{again}"
    for command, error, detail in (("files", Missing, r" \(.*: no such file\)"), ("retry", JobError, "")):
        with pytest.raises(error, match=f"^{re.escape(gone)}{detail}{re.escape(again)}$"):
            said(capsys, command, "job.yaml", NIGHT)


def test_a_run_with_a_name_of_its_own_whose_files_were_deleted_is_scored_again_for_its_own_date(
    job: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    """What said its date is gone with its files."""
    finished(str(job.out), "repair", date="2026-11-18")
    shutil.rmtree(job.out / "runs" / "repair")
    again = "; `nightjar run JOB --run-id repair --date 2026-11-18 --fresh` scores it again"
    assert again in said(capsys, "status", "job.yaml", "repair")
    with pytest.raises(Missing, match=re.escape(again)):
        said(capsys, "files", "job.yaml", "repair")


def test_a_run_nobody_heard_of_leads_to_check(job: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    told = said(capsys, "status", "job.yaml", "2020-01-01").splitlines()
    assert told == [
        "2020-01-01: no such run is there; published runs: none",
        "  look       nightjar runs job.yaml",
        "  try        nightjar check job.yaml --date 2020-01-01",
    ]


def stood(request: RunRequest) -> tuple[str, str]:
    """How the run stands, and why."""
    newest = revs.newest_revision(LakeStorage(), request.run_uri)
    assert newest is not None
    found = stands(request, newest, None)
    return found.words, found.cause
