"""What a person is told of a run: how it stands, what is lost, and what cannot be read."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from faults import FaultyStorage, fail
from nightjar.flows.cli.main import app
from nightjar.flows.pages import artifacts
from nightjar.flows.pages.advice import as_typed
from nightjar.flows.pages.standing import status, status_text
from nightjar.inference.errors import Denied, StorageError
from nightjar.inference.history.night import collect
from nightjar.inference.history.run_status import standing
from nightjar.inference.history.run_tables import RunReport, lost
from nightjar.inference.input.plan import Plan
from nightjar.inference.ledger.epochs import LedgerWriter, open_epoch
from nightjar.inference.ledger.holders import Holder, this_holder
from nightjar.inference.ledger.lines import Planned
from nightjar.inference.output import revisions as revs
from nightjar.inference.records import Failed, Receipt
from nightjar.inference.scoring.assignment import Assignment
from nightjar.inference.scoring.worker import ShardWorker
from nightjar.inference.storage.lake import LakeStorage
from support import Lake, OneStep, keys

LEASE_S = 0.6
BAD_ROW = 1400


class Scorer(OneStep):
    """Twice x, but not of `BAD_ROW`, nor of `bad`."""

    device = "cpu"

    def __init__(self, bad: Container[int] = ()) -> None:
        self._bad = bad

    def __call__(self, table: pa.Table) -> dict[str, pa.Array]:
        x = table["x"].to_pylist()
        if any(value == BAD_ROW or value in self._bad for value in x):
            raise ValueError("not this row")
        return {"score": pa.array([value * 2 for value in x], pa.float32())}


@contextmanager
def writing(lake: Lake, writer: Holder | None = None) -> Iterator[LedgerWriter]:
    """The ledger of the first revision, open."""
    leased = open_epoch(LakeStorage(), str(lake.revision()), writer or this_holder("score"), lease_s=LEASE_S)
    try:
        yield leased
    finally:
        leased.stop(release=True)


def plan_in(writer: LedgerWriter, lake: Lake) -> Plan:
    """Tonight's plan, in the ledger."""
    plan, name = lake.planned(), f"plan-{writer.epoch:06d}.parquet"
    LakeStorage().create(str(lake.revision() / name), plan.to_bytes())
    line = Planned(file=name, fingerprint="f", date="2026-11-19", shards=len(plan), rows=plan.rows)
    writer.append([line])
    return plan


def newest(lake: Lake) -> revs.Revision:
    found = revs.newest_revision(LakeStorage(), lake.request().run_uri)
    assert found is not None
    return found


def scored(lake: Lake, bad: Container[int] = ()) -> list[Receipt]:
    """Every shard really scored and committed; that with `BAD_ROW` has a quarantined row, as those with `bad` have."""
    with writing(lake) as writer:
        plan = plan_in(writer, lake)
        events = ShardWorker(lake.worker_spec(), Scorer(bad)).process([Assignment(shard) for shard in plan.shards()])
        receipts = [event for event in events if isinstance(event, Receipt)]
        writer.append(receipts)
    return receipts


def test_a_silent_writer_elsewhere_is_told_from_one_that_works(lake: Lake) -> None:
    """Nobody can ask another machine whether a process lives: a new segment within a lease says so, or nothing does."""
    elsewhere = replace(this_holder("score"), host="night-7/0")
    lake.ready()
    with writing(lake, elsewhere):
        assert standing(newest(lake), 0, LEASE_S) == "running"
        before = newest(lake)
    assert standing(newest(lake), 0, LEASE_S) == "killed"
    segments = sorted((lake.revision() / "ledger").iterdir())
    segments[-1].unlink()  # as if its machine had lost power: it never closed
    assert before.state.holder == elsewhere
    assert standing(newest(lake), 0, LEASE_S) == "silent"


def test_a_process_of_this_machine_is_known_at_once(lake: Lake) -> None:
    lake.ready()
    with writing(lake):
        assert standing(newest(lake), 0, lease_s=3600) == "running"
    sorted((lake.revision() / "ledger").iterdir())[-1].unlink()
    first = sorted((lake.revision() / "ledger").iterdir())[0]
    me = this_holder("score")
    first.write_text(first.read_text().replace(str(me.process_started), str(me.process_started - 3600)))
    assert standing(newest(lake), 0, lease_s=3600) == "killed"


def test_what_was_mended_is_lost_no_more(lake: Lake) -> None:
    """A file that is replaced makes new shards: the old ones' failures stay told, but nobody need mend them."""
    lake.ready()
    with writing(lake) as writer:
        plan = plan_in(writer, lake)
        first, second = plan.ids()[0], plan.ids()[-1]
        writer.append([Failed(shard, 1, "InputCorrupt", "not Parquet") for shard in (first, second)])
    assert set(lost(newest(lake))) == {first, second}
    lake.write_file("part-00.parquet", 0, 3000)
    with writing(lake) as writer:
        assert first not in plan_in(writer, lake).ids()
    assert set(lost(newest(lake))) == {second}
    told = {line.shard: line.what_was_done for line in RunReport(lake.request(), 1).incidents(300)}
    assert told[first] == "planned anew: its file, the model or the job changed since"
    assert told[second] == "no result: repeat the command once it is mended"


def test_more_failed_shards_than_are_named_lead_to_the_command_that_names_all(lake: Lake) -> None:
    """The date is in it where each night has an output of its own."""
    lake.ready(input__shard_rows=250)
    with writing(lake) as writer:
        ids = plan_in(writer, lake).ids()
        writer.append([Failed(shard, 1, "InputCorrupt", "not Parquet") for shard in ids])
    found = status(replace(lake.request(), dated=True))
    assert len(found.failures) == 20 < len(ids) == found.failed_shards
    assert found.commands["more"].endswith(f"2026-11-19 --date 2026-11-19 --lines {len(ids)}")
    assert f"and {len(ids) - 20} more\n" in status_text(found)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b""), lambda path: path.write_text("?")])
def test_a_quarantine_that_cannot_be_read_is_a_line_of_the_table(lake: Lake, damage: object) -> None:
    """The audit finds it and has its shard scored again: telling people of the run must not end it before."""
    lake.ready()
    (part,) = (receipt.quarantine for receipt in scored(lake) if receipt.quarantine is not None)
    (line,) = RunReport(lake.request(), 1).incidents(300)
    assert (line.row, line.cause) == (BAD_ROW, "ValueError")
    assert callable(damage)
    damage(lake.revision() / part.name)
    (line,) = RunReport(lake.request(), 1).incidents(300)
    assert line.cause == "not read"
    assert part.name in line.message


def with_sixty_bad_parts(lake: Lake) -> Lake:
    """Sixty shards, each with a row in its own part of the quarantine."""
    for index in range(60):
        lake.write_file(f"part-{index:02d}.parquet", 2 * index, 2)
    lake.write_model()
    lake.write_job(input__shard_rows=2, retry__max_quarantined=1.0)
    assert len({receipt.quarantine for receipt in scored(lake, range(0, 120, 2))}) == 60
    return lake


def test_the_table_of_retries_in_prefect_says_how_many_of_all_it_has(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part is a request, so that not all are read for a page that a night waits for."""
    sent: dict[str, str] = {}
    monkeypatch.setattr(artifacts, "create_table_artifact", lambda _, key, description: sent.update({key: description}))
    request = with_sixty_bad_parts(lake).request()
    artifacts.tables(request, collect(request))["lake-retries"]()
    assert sent["lake-retries"].startswith("Failed attempts and quarantined rows of 2026-11-19 (50 of 60); ")


@pytest.mark.parametrize(
    ("lines", "shown", "heading"),
    [
        (1000, 60, ""),
        (60, 60, ""),
        (59, 59, " (59 of 60; --lines shows more)"),
        (3, 3, " (3 of 60; --lines shows more)"),
    ],
)
def test_show_has_as_many_quarantined_rows_as_are_asked_for(
    lake: Lake, capsys: pytest.CaptureFixture[str], lines: int, shown: int, heading: str
) -> None:
    """Also if each is in a part of its own, and says so where there are more."""
    with_sixty_bad_parts(lake)
    app(["show", str(lake.job_path), "2026-11-19", "--lines", str(lines)], standalone_mode=False)
    told = capsys.readouterr().out
    assert f"Failed attempts and quarantined rows{heading}\n" in told
    assert told.count("ValueError: not this row") == shown
    app(["show", str(lake.job_path), "2026-11-19", "--lines", str(lines), "--json"], standalone_mode=False)
    assert len(json.loads(capsys.readouterr().out)["incidents"]) == shown


def test_a_shard_without_a_result_is_nobodys_task_while_the_run_goes_on(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is tried again by itself: `show` says so, and so does the report that `nightjar report` makes."""
    lake.ready()
    with writing(lake) as writer:
        writer.append([Failed(plan_in(writer, lake).ids()[0], 1, "InputCorrupt", "not Parquet")])
        app(["show", str(lake.job_path), "2026-11-19"], standalone_mode=False)
        assert "then     no result yet: the run goes on\n" in capsys.readouterr().out
        assert [each.what_was_done for each in collect(lake.request()).incidents] == ["no result yet: the run goes on"]
    app(["show", str(lake.job_path), "2026-11-19"], standalone_mode=False)
    assert "then     no result: repeat the command once it is mended\n" in capsys.readouterr().out
    (after,) = collect(lake.request()).incidents
    assert after.what_was_done == "no result: repeat the command once it is mended"


def test_a_quarantine_that_is_refused_is_a_line_of_the_table(lake: Lake) -> None:
    scored(lake.ready())
    denied = FaultyStorage(LakeStorage(), [fail("open", "*/quarantine/*", None, Denied("quarantine: not yours"))])
    (line,) = RunReport(lake.request(storage=denied), 1).incidents(300)
    assert (line.cause, line.what_was_done) == ("not read", "")
    assert "not yours" in line.message


def test_a_row_at_which_an_attempt_failed_has_its_replay_command(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a quarantined one has: `show` prints both, and no key of its JSON has a space."""
    lake.ready()
    scored(lake)
    with writing(lake) as writer:
        plan = plan_in(writer, lake)
        one, many = plan.ids()[4], plan.ids()[5]
        uri = next(shard.pieces[0].uri for shard in plan.shards() if shard.id == one)
        failed = Failed(one, 1, "OverBudget", "9 rows failed where at most 8 may", True, uri=uri, row=7)
        writer.append([failed, Failed(many, 1, "ProcessDied", "lost", died=True, row=3, rows=50)])
    first, second, row = RunReport(lake.request(), 1).incidents(300)
    run = f"nightjar replay {lake.job_path} 2026-11-19 --shard"
    assert first.replay == f"{run} {one} --row 7"
    assert second.replay == "", "one of fifty rows"
    assert row.replay.startswith(run)
    app(["show", str(lake.job_path), "2026-11-19"], standalone_mode=False)
    assert f"again    {as_typed(first.replay)}\n" in capsys.readouterr().out
    app(["show", str(lake.job_path), "2026-11-19", "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert found["incidents"][0]["replay"] == first.replay
    assert all(re.fullmatch("[a-z0-9_]+", key) for key in keys(found))


def test_a_plan_that_cannot_be_read_is_named(lake: Lake) -> None:
    scored(lake.ready())
    (plan,) = lake.revision().glob("plan-*.parquet")
    plan.write_bytes(plan.read_bytes()[:100])
    with pytest.raises(StorageError, match=rf"{plan}: not a plan this version can read; restore it, or"):
        RunReport(lake.request(), 1)
