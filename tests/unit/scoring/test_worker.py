"""One process, shard after shard: what it says and when, what it reads ahead, and what it leaves behind."""

from __future__ import annotations

import itertools
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from faults import Fault, FaultyStorage, fail, pause
from nightjar.inference.errors import JobError, RunFailed
from nightjar.inference.identity.identity import verify_packages
from nightjar.inference.input.sources.reading import read_piece
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.output.parts import read_metrics
from nightjar.inference.output.rowindex import RowReuse
from nightjar.inference.process import host_of, this_worker
from nightjar.inference.records import Crumb, Event, Failed, Receipt, Seen, Shard, Started
from nightjar.inference.scoring import attempts
from nightjar.inference.scoring import worker as working
from nightjar.inference.scoring.assignment import Assignment, WorkerSpec, open_scorers
from nightjar.inference.scoring.attempts import JoinedPieces
from nightjar.inference.scoring.known_rows import EarlierRows, KnownRows
from nightjar.inference.scoring.scored_rows import ScoredRows
from nightjar.inference.scoring.suspects import Attempt, Rows
from nightjar.inference.scoring.worker import Assembly, ShardWorker
from nightjar.inference.stopwatch import Stopwatch
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Entry, Storage
from nightjar.inference.usage import Usage
from nightjar.inference.witness import audit as witness
from nightjar.inference.witness.notes import Notes
from nightjar.inference.witness.seen import PER_FOLDER
from support import Lake, OneStep, wait_until

SUSPECT = Attempt(2, crumbs=True)


class Doubling(OneStep):
    """A real scorer, twice x, that remembers the rows of each call."""

    device = "cpu"

    def __init__(self, before: Callable[[list[int]], None] = lambda _: None) -> None:
        self.before = before
        self.calls: list[list[int]] = []

    def __call__(self, table: pa.Table) -> dict[str, pa.Array]:
        rows = [int(x) for x in table["x"].to_pylist()]
        self.calls.append(rows)
        self.before(rows)
        return {"score": pa.array(np.asarray(table["x"]) * 2, pa.float32())}


def worker(lake: Lake, scorer: Doubling | None = None, *, storage: Storage | None = None) -> ShardWorker:
    return ShardWorker(lake.worker_spec(storage), scorer or Doubling())


def assignments(lake: Lake, *attempts: Attempt) -> list[Assignment]:
    """The lake's shards; the first ones with these attempts."""
    shards = list(lake.planned().shards())
    return [Assignment(shard, *attempts[i : i + 1]) for i, shard in enumerate(shards)]


def small_files(lake: Lake, files: int = 3) -> Lake:
    """A lake whose files make one packed shard."""
    for index in range(files):
        lake.write_file(f"small-{index}.parquet", index * 100, 100)
    lake.write_model()
    lake.write_job()
    return lake


def told(events: list[Event], shard: Shard) -> list[str]:
    return [type(event).__name__ for event in events if event.shard == shard.id]


def test_each_shard_is_started_once_and_ends_once(lake: Lake) -> None:
    """Started, then a receipt that says what was written; nothing else, and no crumb from shards nobody suspects."""
    work = assignments(lake.ready())
    events = list(worker(lake).process(work))
    for assignment in work:
        assert told(events, assignment.shard) == ["Started", "Receipt"]
    for event in events:
        if isinstance(event, Receipt):
            assert event.data is not None
            assert (event.rows_in, event.rows_out, event.rows_quarantined) == (1000, 1000, 0)
            assert pq.read_metadata(lake.revision() / event.data.name).num_rows == 1000


def test_the_next_shard_is_read_while_one_is_scored(lake: Lake) -> None:
    """Reading ahead is said: whoever dies now is charged with both."""
    lake.ready()
    first, second, *_ = work = assignments(lake)
    events = [(type(event), event.shard) for event in worker(lake).process(work)]
    assert events.index((Started, second.shard.id)) < events.index((Receipt, first.shard.id))


def test_what_is_known_of_the_next_shard_is_found_while_one_is_scored(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys take time, and so does reading what an earlier night has: no model waits for either but for the first."""
    lake.ready()
    work = assignments(lake)[:2]
    spec = replace(lake.worker_spec(), reuse=RowReuse(b"sixteen bytes !!", {"": "any"}))
    lookups = threading.Semaphore(0)
    ahead: list[bool] = []

    class Watched(EarlierRows):
        def known(self, *more: Any) -> KnownRows:
            lookups.release()
            return super().known(*more)

    monkeypatch.setattr(working, "earlier_rows", lambda spec: Watched(spec.reuse, spec.storage, Path(spec.cache)))
    scorer = Doubling(before=lambda rows: ahead.append(bool(ahead) or all(lookups.acquire(timeout=30) for _ in work)))
    events = list(ShardWorker(spec, scorer).process(work))
    assert ahead[0]
    assert [event.shard for event in events if isinstance(event, Receipt)] == [each.shard.id for each in work]


def test_a_shard_is_started_before_its_file_is_touched(lake: Lake) -> None:
    """A file may kill who reads it: then, too, the shard is known to have been begun."""
    lake.ready()
    touched: list[str] = []
    watching = FaultyStorage(LakeStorage(), [pause("stat", nth=None, before=touched.append)])
    events = worker(lake, storage=watching).process(assignments(lake)[:1])
    assert isinstance(next(events), Started)
    assert touched == []
    assert isinstance(next(events), Receipt)
    assert len(set(touched)) == 1


def test_a_suspect_rides_alone(lake: Lake) -> None:
    """Nothing begins before the one before it is done with."""
    lake.ready()
    work = assignments(lake, SUSPECT, SUSPECT)[:2]
    events = list(worker(lake).process(work))
    one, other = (assignment.shard.id for assignment in work)
    order = [(type(event).__name__, event.shard) for event in events if not isinstance(event, Crumb)]
    assert order == [("Started", one), ("Receipt", one), ("Started", other), ("Receipt", other)]


def test_a_suspect_leaves_a_crumb_before_each_batch_and_each_row_asked_for(lake: Lake) -> None:
    """When the scorer is called, the newest crumb names exactly its rows; the last one says that none is scored."""
    lake.ready()
    work = assignments(lake, Attempt(3, crumbs=True, singly=Rows(str(lake.folder / "data/part-00.parquet"), 256, 256)))
    scorer = Doubling()
    crumbs: list[Crumb] = []
    for event in worker(lake, scorer).process(work[:1]):
        if isinstance(event, Crumb):
            crumbs.append(event)
            assert len(scorer.calls) == len(crumbs) - 1
    assert [(crumb.row, crumb.rows) for crumb in crumbs[:-1]] == [(rows[0], len(rows)) for rows in scorer.calls]
    assert [len(rows) for rows in scorer.calls] == [256, *[1] * 256, 256, 232]
    assert crumbs[-1].rows == 0
    assert {crumb.shard for crumb in crumbs} == {work[0].shard.id}
    assert crumbs[-1].row == 0


def opened(lake: Lake, attempt: Attempt) -> list[str]:
    """The files of one packed shard in the order in which its worker opens them."""
    found: list[str] = []
    watching = FaultyStorage(LakeStorage(), [pause("open", nth=None, before=found.append)])
    list(worker(lake, storage=watching).process(assignments(lake, attempt)))
    return [Path(uri).name for uri in found]


@pytest.mark.parametrize("attempt", [Attempt(), SUSPECT])
def test_files_of_a_shard_share_micro_batches(lake: Lake, attempt: Attempt) -> None:
    scorer = Doubling()
    list(worker(small_files(lake), scorer).process(assignments(lake, attempt)))
    assert [len(rows) for rows in scorer.calls] == [256, 44]


class Overlapping(Doubling):
    """In two steps. Notes whether the second batch is prepared while the first one is scored."""

    def __init__(self, patience_s: float) -> None:
        super().__init__()
        self.patience_s = patience_s
        self.second = threading.Event()
        self.overlapped = False
        self.prepared = 0

    def prepare(self, table: pa.Table) -> pa.Table:
        self.prepared += 1
        if 256 in table["x"].to_pylist():
            self.second.set()
        return table

    def score(self, table: pa.Table) -> dict[str, pa.Array]:
        if 0 in table["x"].to_pylist():
            self.overlapped = self.second.wait(self.patience_s)
        return self(table)


@pytest.mark.parametrize(("attempt", "patience_s", "ahead"), [(Attempt(), 20, True), (SUSPECT, 0.05, False)])
def test_nothing_is_prepared_while_a_batch_of_a_suspect_is_scored(
    lake: Lake, attempt: Attempt, patience_s: float, ahead: bool
) -> None:
    """A row that kills its process in the preprocess must not be taken for one that the model has."""
    lake.ready(resources={"actors": 1, "cpus": 2})
    scorer = Overlapping(patience_s)
    list(worker(lake, scorer).process(assignments(lake, attempt)[:1]))
    assert (scorer.overlapped, scorer.prepared) == (ahead, 4), "each batch once"


def test_a_shard_whose_files_are_read_slowly_gives_signs_of_life_that_blame_nobody(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each further file. A clock that runs fast stands for a storage that is slow."""
    small_files(lake)
    lake.write_job(retry__shard_s=10**9)
    ticks = itertools.count(time.monotonic(), 200)
    monkeypatch.setattr(attempts, "time", SimpleNamespace(monotonic=lambda: next(ticks), time=time.time))
    work = assignments(lake)
    crumbs = [event for event in worker(lake).process(work) if isinstance(event, Crumb)]
    file = str(lake.folder / "data/small-{}.parquet")
    assert crumbs[:2] == [Crumb(work[0].shard.id, file.format(index), 0, 0, attempt=1) for index in (1, 2)]


def test_a_suspect_that_takes_too_long_says_at_which_row(lake: Lake) -> None:
    """That of its last crumb."""
    lake.ready(retry__shard_s=0.000001)
    events = list(worker(lake).process(assignments(lake, Attempt(2, crumbs=True))[:1]))
    crumb, failed = events[-2:]
    assert isinstance(crumb, Crumb)
    assert isinstance(failed, Failed)
    assert failed.cause == "ShardTooSlow"
    assert f"it came to row {crumb.row} of {crumb.uri}." in failed.message


def test_a_clock_that_is_set_meanwhile_makes_no_shard_slow(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    work = assignments(lake.ready())[:1]
    later = SimpleNamespace(monotonic=time.monotonic, time=lambda: time.time() + 3600)
    monkeypatch.setattr(working, "time", later)
    last = list(worker(lake).process(work))[-1]
    assert isinstance(last, Receipt)
    assert last.seconds < 1000


def test_what_a_language_model_took_may_be_told_with_a_shard(lake: Lake) -> None:
    """Where the rows of several shards are underway at once, nobody but the caller knows whose it is."""
    (assignment,) = assignments(small_files(lake, files=1))
    one = worker(lake)
    (piece,) = assignment.shard.pieces
    read = read_piece(LakeStorage(), one.spec.job, piece, one.spec.schema)
    scored = ScoredRows(pa.table({"score": read.table["x"]}), None, ())
    assembly = Assembly(one.spec, assignment.shard, JoinedPieces([piece], [read]), scored)
    receipt = one.write(one.begin(assignment), assembly, one.ceilings(), Usage(requests=3))
    assert isinstance(receipt, Receipt)
    assert (receipt.rows_out, receipt.usage) == (100, Usage(requests=3))


@pytest.mark.parametrize("attempt", [Attempt(), SUSPECT])
def test_each_file_is_opened_once(lake: Lake, attempt: Attempt) -> None:
    assert sorted(opened(small_files(lake), attempt)) == [f"small-{index}.parquet" for index in range(3)]


def test_a_suspect_of_several_files_is_read_before_any_of_its_rows_is_scored(lake: Lake) -> None:
    """A death in reading the second file must not be blamed on a row of the first."""
    work = assignments(small_files(lake), SUSPECT)
    read: list[str] = []
    watching = FaultyStorage(LakeStorage(), [pause("open", nth=None, before=read.append)])
    crumbs = 0
    for event in worker(lake, storage=watching).process(work):
        if isinstance(event, Crumb):
            crumbs += 1
            assert len(read) == 3
    assert crumbs


def test_killers_are_not_scored_and_keep_their_input(lake: Lake) -> None:
    """Rows known to kill go to the quarantine as they are, and the rest of their batch is scored."""
    work = assignments(
        small_files(lake), Attempt(4, crumbs=True, skip=(Rows(str(lake.folder / "data/small-1.parquet"), 7, 1),))
    )
    scorer = Doubling()
    receipt = list(worker(lake, scorer).process(work))[-1]
    assert isinstance(receipt, Receipt)
    assert (receipt.rows_in, receipt.rows_out, receipt.rows_quarantined) == (300, 299, 1)
    assert not any(107 in rows for rows in scorer.calls)
    row = lake.quarantined().iloc[0]
    assert (row["_row"], row["error"], row["input"]["id"]) == (7, "ProcessDied", 107)


def test_what_can_be_caught_costs_the_shard_and_the_worker_goes_on(lake: Lake) -> None:
    """A broken file, a file changed since it was planned, and more bad rows than the run may lose."""
    lake.ready()
    work = [Assignment(shard) for shard in lake.planned().shards()]

    def too_many(rows: list[int]) -> None:
        if any(5000 <= row < 6000 for row in rows):
            raise ValueError("not these")

    os.utime(lake.folder / "data" / "part-00.parquet", ns=(1, 1))
    (lake.folder / "data" / "part-01.parquet").unlink()
    events = list(worker(lake, Doubling(too_many)).process(work))
    failed = [event for event in events if isinstance(event, Failed)]
    assert [event.cause for event in failed] == ["InputChanged"] * 4 + ["OverBudget"]
    assert all(event.terminal and not event.died for event in failed)
    assert [event.row for event in failed] == [-1] * 4 + [1000], "where it is known which row failed first"
    assert "the first is row 1000: ValueError: not these" in failed[-1].message
    assert sum(isinstance(event, Receipt) for event in events) == 3


def test_a_receipt_says_everything_about_its_attempt(lake: Lake) -> None:
    """Rows that failed are counted over all its files, as are the batches that were cut for them."""
    work = assignments(small_files(lake), Attempt(3))

    def refuse(rows: list[int]) -> None:
        if {5, 299} & set(rows):
            raise ValueError("not this row")

    began = time.time()
    receipt = list(worker(lake, Doubling(refuse)).process(work))[-1]
    assert isinstance(receipt, Receipt)
    assert receipt.data is not None
    assert receipt.quarantine is not None
    assert (receipt.data.rows, receipt.quarantine.rows) == (298, 2)
    assert began - 0.001 <= receipt.started_at <= receipt.started_at + receipt.seconds <= time.time() + 0.001
    assert receipt.seconds > 0
    assert (round(receipt.seconds, 3), round(receipt.started_at, 3)) == (receipt.seconds, receipt.started_at)
    assert receipt == Receipt(
        shard=work[0].shard.id,
        attempt=3,
        epoch=1,
        worker=this_worker(),
        rows_in=300,
        rows_out=298,
        rows_quarantined=2,
        data=receipt.data,
        quarantine=receipt.quarantine,
        seconds=receipt.seconds,
        started_at=receipt.started_at,
        retries=0,
        batches_cut=2,
        spent=receipt.spent,
    )


def test_a_worker_says_who_it_turns_to_and_what_its_predictor_used(lake: Lake) -> None:
    """Each in a whole record; without an assignment it says nothing."""
    work = assignments(lake.ready(), Attempt(3))[:1]
    tables = [lake.folder.with_name(f"table-{index}.csv") for index in range(PER_FOLDER + 1)]
    for table in tables:
        table.write_text("1")
    turned: list[Started] = []
    scorer = Doubling(lambda _: [open(table).close() for table in tables])  # type: ignore[func-returns-value]  # noqa: PTH123
    witness.watch(Notes(str(Path(__file__).parent)))
    try:
        with_turns = ShardWorker(lake.worker_spec(), scorer, turn_to=turned.append)
        assert list(with_turns.process([])) == []
        events = list(with_turns.process(work))
        seen = witness.seen()
    finally:
        witness.watch(None)
    started = Started(work[0].shard.id, 3, this_worker())
    assert events[0] == started
    assert turned == [started]
    assert [event for event in events if isinstance(event, Seen)] == [
        *(Seen("file", str(table), seen[0].by) for table in tables[:-1]),
        Seen("file", str(lake.folder.parent), seen[-1].by, more=True),
    ]


def test_a_killer_is_left_out_wherever_its_piece_begins(lake: Lake) -> None:
    file = str(lake.ready().folder / "data/part-00.parquet")
    work = assignments(lake, Attempt(), Attempt(4, crumbs=True, skip=(Rows(file, 1007, 1),)))[1:2]
    receipt = list(worker(lake).process(work))[-1]
    assert isinstance(receipt, Receipt)
    assert lake.quarantined()["_row"].tolist() == [1007]


def test_a_killer_is_left_out_of_a_file_whose_rows_nobody_counted(lake: Lake) -> None:
    """How many there are is known once it is read."""
    lake.write_file("a.parquet", 0, 1000)
    lake.to_json_lines(a="gzip")
    lake.write_model()
    lake.write_job()
    file = str(lake.folder / "data/a.jsonl.gz")
    receipt = list(worker(lake).process(assignments(lake, Attempt(4, crumbs=True, skip=(Rows(file, 7, 1),)))))[-1]
    assert isinstance(receipt, Receipt)
    assert (receipt.rows_in, receipt.rows_out) == (1000, 999)
    assert lake.quarantined()["_row"].tolist() == [7]


@pytest.mark.parametrize("bad", [set(), {7, 107}])
def test_metrics_are_of_the_rows_that_were_scored_and_their_labels(lake: Lake, bad: set[int]) -> None:
    """Over all files of the shard, as if the part and its labels were read again."""
    small_files(lake, files=2)
    for path in sorted((lake.folder / "data").iterdir()):
        table = pq.read_table(path)
        pq.write_table(table.append_column("late", pa.array([row % 3 == 0 for row in table["id"].to_pylist()])), path)
    lake.write_job(label="late", checks=[{"column": "score", "min": 0}], retry__max_quarantined=0.01)

    def refuse(rows: list[int]) -> None:
        if bad & set(rows):
            raise ValueError("not this row")

    receipt = list(worker(lake, Doubling(refuse)).process(assignments(lake)))[-1]
    assert isinstance(receipt, Receipt)
    assert receipt.data is not None
    part = pq.ParquetFile(lake.revision() / receipt.data.name)
    written = part.read()
    expected = Metrics.for_job(lake.request().job)
    expected.update(written, pa.chunked_array([[row % 3 == 0 for row in written["id"].to_pylist()]]))
    found = read_metrics(LakeStorage(), str(lake.revision()), receipt.data.name, part.metadata.metadata)
    assert found.to_bytes() == expected.to_bytes()
    assert expected.evaluation is not None


@pytest.mark.parametrize("attempt", [Attempt(), SUSPECT])
@pytest.mark.parametrize("budget", [8, None])
def test_the_budget_is_of_all_files_of_a_shard(lake: Lake, budget: int | None, attempt: Attempt) -> None:
    """Five rows of each of two files are more than eight. A budget that is not known yet refuses nothing."""
    work = assignments(small_files(lake, files=2), attempt)

    def refuse(rows: list[int]) -> None:
        if {*range(5), *range(100, 105)} & set(rows):
            raise ValueError("not this row")

    spec = replace(lake.worker_spec(), budget=budget)
    last = list(ShardWorker(spec, Doubling(refuse)).process(work))[-1]
    if budget is None:
        assert isinstance(last, Receipt)
        assert last.rows_quarantined == 10
    else:
        assert isinstance(last, Failed)
        assert last.cause == "OverBudget"
        assert last.message.startswith("9 rows failed where at most 8 may (retry.max_quarantined); the first is")


def test_rows_that_are_left_out_are_counted_and_do_not_shift_those_that_are_named(lake: Lake) -> None:
    """10 of one file and 5 of another; row 60 of the first file is the 50th that is scored."""
    small_files(lake, files=2)
    lake.write_job(input__where="x >= 10 AND (x < 100 OR x >= 105)")

    def refuse(rows: list[int]) -> None:
        if 60 in rows:
            raise ValueError("not this row")

    work = assignments(lake)
    last = list(worker(lake, Doubling(refuse)).process(work))[-1]
    assert isinstance(last, Receipt)
    assert (last.rows_in, last.rows_left_out, last.rows_out, last.rows_quarantined) == (185, 15, 184, 1)
    assert lake.quarantined()["_row"].tolist() == [60]
    (lake.folder / "data" / "small-1.parquet").unlink()
    spec = replace(lake.worker_spec(), budget=0)
    last = list(ShardWorker(spec, Doubling(refuse)).process(assignments(lake)))[-1]
    assert isinstance(last, Failed)
    assert (last.row, "the first is row 60: ValueError" in last.message) == (60, True)


def test_a_failure_says_everything_about_its_attempt(lake: Lake) -> None:
    """Also of an error that says nothing; and an error that Nightjar does not know may be tried again."""
    lake.ready()
    faults = [
        fail("open", "*/part-00.parquet", nth=None, error=RuntimeError()),
        fail("write", "*/data/*", error=RuntimeError("no room")),
    ]
    work = assignments(lake, Attempt(2), Attempt(4), Attempt(5))
    events = list(worker(lake, storage=FaultyStorage(LakeStorage(), faults)).process(work[1:3]))
    first, second = [event for event in events if isinstance(event, Failed)]
    assert first.spent_s > 0
    assert first == Failed(
        shard=work[1].shard.id,
        attempt=4,
        cause="RuntimeError",
        message="RuntimeError",
        uri=str(lake.folder / "data/part-00.parquet"),
        worker=this_worker(),
        spent_s=first.spent_s,
    )
    other = str(lake.folder / "data/part-01.parquet")
    assert second == replace(
        first, shard=work[2].shard.id, attempt=5, message="no room", uri=other, spent_s=second.spent_s
    )


def test_the_seconds_that_a_failure_cost_are_said_in_milliseconds(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without those in which nothing was to do."""
    lake.ready()
    failing = worker(lake, storage=FaultyStorage(LakeStorage(), [fail("open", "*/data/*", error=RuntimeError())]))
    monkeypatch.setattr(failing.watch, "claim", lambda: {"read": 1.00049, "predict": 0.25149, "idle": 7.0})
    failed = next(event for event in failing.process(assignments(lake)) if isinstance(event, Failed))
    assert failed.spent_s == 1.251


@pytest.mark.parametrize("cores", [1, 2])
def test_a_worker_says_what_its_time_was_spent_on(lake: Lake, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thing of a known length is found under its name, and nothing counts twice."""

    class Looked(Stopwatch):
        doing = ""

        def turn_to(self, doing: str) -> str:
            self.doing = doing
            return super().turn_to(doing)

    def takes(what: str, seconds: float) -> Callable[[str], None]:
        """It begins when the thread that scores waits for it: what another thread did before is no time of that one."""

        def wait(_: str) -> None:
            wait_until(lambda: made.watch.doing == what, 10, f"the worker waits for what it calls {what}")
            time.sleep(seconds)

        return wait

    class Slow(Doubling):
        def prepare(self, table: pa.Table) -> pa.Table:
            time.sleep(0.03)
            return table

    lake.write_files()
    lake.write_model()
    lake.write_job(resources__cpus=cores)
    faults = [
        pause("open", "*/part-00.parquet", nth=None, before=takes("read", 0.1)),
        pause("write", "*/data/*", nth=2, before=takes("write", 0.2)),
    ]
    work = assignments(lake)[:2]
    monkeypatch.setattr(attempts, "Stopwatch", Looked)
    began = time.monotonic()
    made = worker(lake, Slow(lambda _: time.sleep(0.05)), storage=FaultyStorage(LakeStorage(), faults))
    first, second = [event.spent for event in made.process(work) if isinstance(event, Receipt)]
    passed = time.monotonic() - began
    assert first.read >= 0.1
    assert first.predict >= 2 * 4 * 0.05, "the second shard is scored while the first one is written"
    if cores == 1:
        assert first.prepare >= 2 * 4 * 0.03
    assert second.write >= 0.2
    assert (second.prepare, second.predict) == (0, 0)
    assert first.plus(second).total <= passed


def test_a_worker_is_named_by_its_host_and_process() -> None:
    assert host_of(this_worker()) == socket.gethostname()
    assert this_worker().endswith(f":{os.getpid()}")
    assert host_of("fe80::1:77") == "fe80::1"


@pytest.mark.parametrize("operation", ["open", "stat", "write"])
def test_a_fault_is_counted_with_the_shard_that_met_it(lake: Lake, operation: str) -> None:
    """Not with the one that was being scored meanwhile."""
    lake.ready(input__shard_rows=2000)  # a shard is a file: of two shards, either may be the first to open their file
    second: str = assignments(lake)[1].shard.id
    pattern = f"*/data/{second}-*" if operation == "write" else "*/part-01.parquet"
    faults: list[Fault] = [fail(operation, pattern)]
    events = list(worker(lake, storage=FaultyStorage(LakeStorage(), faults)).process(assignments(lake)))
    retries = {event.shard: event.retries for event in events if isinstance(event, Receipt)}
    assert len(retries) == 4
    assert {shard: count for shard, count in retries.items() if count} == {second: 1}


def test_memory_is_learnt_once_and_said_from_then_on(lake: Lake) -> None:
    """Shards before the lesson are not said to have been affected by it."""
    lake.ready()

    def short_of_memory(rows: list[int]) -> None:
        if rows[0] >= 2000 and len(rows) > 100:
            raise MemoryError

    events = worker(lake, Doubling(short_of_memory)).process(assignments(lake))
    receipts = [event for event in events if isinstance(event, Receipt)]
    assert [receipt.ceilings for receipt in receipts] == [(), (), *[(64,)] * 6]


def test_a_replaced_writers_worker_writes_nothing(lake: Lake) -> None:
    """Before a part appears the epoch is checked."""
    lake.ready()
    for task in ("score", "score again"):
        open_epoch(LakeStorage(), str(lake.revision()), this_holder(task)).stop(release=True)
    events = list(worker(lake).process(assignments(lake)[:1]))
    assert [type(event) for event in events] == [Started, Failed]
    assert events[-1].cause == "Fenced"  # type: ignore[union-attr]
    assert not (lake.revision() / "data").exists()


def test_what_the_runs_own_writer_adds_to_the_ledger_fences_no_worker(lake: Lake) -> None:
    """And a look at the ledger lists only what came since the last one."""
    lake.ready()
    writer = open_epoch(LakeStorage(), str(lake.revision()), this_holder("score"))
    segments: list[int] = []

    class Watching(LakeStorage):
        def list(self, folder: str, after: str = "") -> Iterator[Entry]:
            if folder.endswith("/ledger"):
                segments.append(len(found := [*super().list(folder, after)]))
                return iter(found)
            return super().list(folder, after)

    try:
        events = list(worker(lake, storage=Watching()).process(assignments(lake)[:2]))
    finally:
        writer.stop(release=False)
    assert sum(isinstance(event, Receipt) for event in events) == 2
    assert segments == [1, 0, 0, 0]


def test_replay_commands_can_be_pasted_whatever_the_path(tmp_path: Path) -> None:
    """Spaces and quotes in a path do not break the command, and a row of a packed shard names its file."""
    folder = tmp_path / "Jane's lake"
    folder.mkdir()
    lake = small_files(Lake(folder))
    file = str(folder / "data/small-2.parquet")
    work = assignments(lake, Attempt(4, crumbs=True, skip=(Rows(file, 99, 1),)))
    list(worker(lake).process(work))
    assert shlex.split(lake.quarantined()["replay"][0]) == [
        *("nightjar", "replay", str(lake.job_path), "2026-11-19"),
        *("--shard", work[0].shard.id, "--row", "99", "--file", file),
    ]


def test_a_bad_row_costs_itself_whatever_its_error_and_the_jobs_path_hold(tmp_path: Path) -> None:
    """Neither need be UTF-8, and the quarantine file takes nothing else."""
    data = Lake(tmp_path / "lake")
    data.write_file("a.parquet", 0, 1000)
    lake = Lake(tmp_path / os.fsdecode(b"caf\xe9"))
    lake.write_model()
    places = {"input__uri": f"{data.folder}/data/", "output__uri": str(data.out)}
    lake.write_job(**places, retry__max_quarantined=0.01)

    def refuse(rows: list[int]) -> None:
        if 5 in rows:
            raise ValueError("bad text: \ud83d")

    receipt = list(ShardWorker(lake.worker_spec(), Doubling(refuse)).process(assignments(lake)))[-1]
    assert isinstance(receipt, Receipt), receipt
    assert (receipt.rows_out, receipt.rows_quarantined) == (999, 1)
    assert receipt.quarantine is not None
    part = (lake.revision() / receipt.quarantine.name).read_bytes()
    lost = pq.read_table(pa.BufferReader(part)).to_pylist()[0]
    assert (lost["_row"], lost["message"]) == (5, r"bad text: \ud83d")
    assert r"caf\udce9/job.yaml" in lost["replay"]


@pytest.mark.parametrize(("view", "given"), [(pa.string_view(), "row {}"), (pa.binary_view(), b"row")])
def test_view_types_survive_a_quarantined_row(lake: Lake, view: pa.DataType, given: str | bytes) -> None:
    """Arrow cannot take rows from a view column; a bad row in such a shard costs that row all the same."""
    path = lake.write_file("views.parquet", 0, 1000)
    table = pq.read_table(path)
    names = [given.format(i) if isinstance(given, str) else given + str(i).encode() for i in range(1000)]
    pq.write_table(table.set_column(2, pa.field("name", view), pa.array(names, view)), path)
    lake.write_model()
    lake.write_job(retry__max_quarantined=0.01)

    def refuse(rows: list[int]) -> None:
        if 5 in rows:
            raise ValueError("5 cannot be scored")

    events = list(worker(lake, Doubling(refuse)).process(assignments(lake)))
    receipt = events[-1]
    assert isinstance(receipt, Receipt), receipt
    assert (receipt.rows_out, receipt.rows_quarantined) == (999, 1)
    assert receipt.data is not None
    assert receipt.quarantine is not None
    written = pq.read_table(lake.revision() / receipt.data.name)
    assert (
        written["name"].cast(pa.large_binary()).to_pylist()[5] == b"row6" or written["name"].to_pylist()[5] == "row 6"
    )
    lost = pq.read_table(lake.revision() / receipt.quarantine.name)["input"].to_pylist()
    assert [row["name"] for row in lost] == [names[5]]


REUSING = '''
import numpy as np

HELD = np.zeros({size})


class Reusing:
    """Twice x, each time in the same memory, as runtimes do that bind their outputs once."""

    def __call__(self, batch):
        out = HELD[: len(batch["x"])]
        np.multiply(batch["x"], 2, out=out)
        return {{"score": {given}}}
'''


@pytest.mark.parametrize("batch_size", [100, 1000])
@pytest.mark.parametrize("given", ["out", "__import__('torch').from_numpy(out)", "__import__('pyarrow').array(out)"])
def test_a_predictor_may_use_its_memory_again(lake: Lake, given: str, batch_size: int) -> None:
    """What it returned is the batch's for good, also while the next shard is scored and this one is written."""
    lake.write_model(REUSING.format(size=batch_size, given=given))
    lake.ready(model__uses="model:Reusing", model__outputs={"score": "float64"}, model__batch_size=batch_size)
    spec = lake.worker_spec()
    receipts = [e for e in ShardWorker(spec).process(assignments(lake)) if isinstance(e, Receipt)]
    assert len(receipts) == 8
    parts = [pq.read_table(lake.revision() / receipt.data.name) for receipt in receipts if receipt.data is not None]
    written = pa.concat_tables(parts).sort_by("id")
    assert written["id"].to_pylist() == list(range(8000))
    assert written["score"].to_pylist() == [2.0 * i for i in range(8000)]


def score_one(spec: WorkerSpec) -> list[float]:
    """One row, by a scorer that is opened for it."""
    values: list[float] = open_scorers(spec).loaded[0](pa.table({"x": [1.0]}))["score"].to_pylist()
    return values


def test_an_installed_package_of_another_release_is_not_loaded(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is part of the identity like code beside the job file: a node with an old image must add nothing."""
    package = tmp_path.with_name("site") / "nightjar_acme.py"
    package.parent.mkdir()
    package.write_text("def score(batch):\n    return {'score': batch['x'] * 2}\n")
    monkeypatch.syspath_prepend(str(package.parent))
    spec = lake.ready(model__uses="nightjar_acme:score").worker_spec()
    assert score_one(spec) == [2.0]
    package.write_text("def score(batch):\n    return {'score': batch['x'] * 1000}\n")
    said = (
        r"^model\.uses: the installed package 'nightjar_acme' on \S+ is not the one the run began with: it was changed "
        r"meanwhile, or that node has another release, or none\. Install the same on each node and start the run again$"
    )
    with pytest.raises(JobError, match=said):
        open_scorers(spec)


def test_an_installed_package_edited_in_mid_run_adds_nothing_and_is_not_published(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module of it may be imported late. That another environment shares its files changes nothing."""
    package = tmp_path.with_name("site-late") / "nightjar_late"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "def score(batch):\n    from nightjar_late import late\n    return {'score': batch['x'] * late.FACTOR}\n"
    )
    (package / "late.py").write_text("FACTOR = 2\n")
    monkeypatch.syspath_prepend(str(package.parent))
    spec = lake.ready(model__uses="nightjar_late:score").worker_spec()
    worker, opened = ShardWorker(spec), open_scorers(spec)
    (tmp_path / "another.py").hardlink_to(package / "late.py")
    opened.check()
    verify_packages(spec.job, spec.scoring)
    (package / "late.py").write_text("FACTOR = 1000\n")
    ends = [event for event in worker.process(assignments(lake)) if isinstance(event, (Receipt, Failed))]
    assert {getattr(event, "cause", None) for event in ends} == {"ModelChanged"}
    assert not list(lake.revision().glob("data/*"))
    with pytest.raises(
        RunFailed, match=r"^the installed package 'nightjar_late' changed while the run went on; repeat"
    ):
        verify_packages(spec.job, spec.scoring)


def test_code_that_changed_since_the_run_began_is_loaded_as_it_was(lake: Lake) -> None:
    """An actor made later scores with the run's own code, whatever lies in the job's folder by then."""
    spec = lake.ready().worker_spec()
    assert score_one(spec) == [2.0]
    lake.write_model("def score(batch):\n    return {'score': batch['x'] * 1000}\n")
    assert score_one(spec) == [2.0]
    lake.write_model("def score(batch:\n")
    assert score_one(spec) == [2.0]


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("importlib.import_module('parts.' + 'hidden')", "parts/"),
        ("importlib.import_module('pri' + 'vate')", "private/"),
        ("Path(__file__).with_name('vocab' + '.json').read_text()", "vocab.json"),
        ("Path(__file__).parent.joinpath('data', 'words.json').read_text()", "data/words.json"),
    ],
)
def test_a_file_that_the_search_for_code_misses_is_explained(lake: Lake, line: str, missing: str) -> None:
    """A computed name, or a file that lies in the input; what is not there at all is just missing."""
    lake.write_model(f"import importlib\nfrom pathlib import Path\n{line}\ndef score(batch): return batch\n")
    with pytest.raises(JobError, match=r"No (module named|such file)") as plain:
        open_scorers(lake.ready().worker_spec())
    assert "model.code" not in str(plain.value)
    for name in ("parts/__init__.py", "parts/hidden.py", "private/x.py", "vocab.json", "data/words.json"):
        (lake.folder / name).parent.mkdir(exist_ok=True)
        (lake.folder / name).write_text("{}")
    with pytest.raises(JobError, match=rf"\. {missing} lies beside the job and is not part of what scores; add it to"):
        open_scorers(lake.worker_spec())


def test_a_module_imported_later_and_a_file_read_later_are_the_runs(lake: Lake) -> None:
    """They are read from the process's own copy, even when they change between two batches."""
    lake.write_model(
        "from pathlib import Path\n\ndef score(batch):\n    import late\n"
        "    more = float(Path(__file__).with_name('more.json').read_text())\n"
        "    return {'score': batch['x'] * late.FACTOR + more}\n"
    )
    (lake.folder / "late.py").write_text("FACTOR = 2\n")
    (lake.folder / "more.json").write_text("10")
    scorer = open_scorers(lake.ready().worker_spec()).loaded[0]
    (lake.folder / "late.py").write_text("FACTOR = 3\n")
    (lake.folder / "more.json").write_text("20")
    assert scorer(pa.table({"x": [1.0]}))["score"].to_pylist() == [12.0]


def test_a_sign_of_life_does_not_take_back_which_rows_a_suspect_is_at(lake: Lake) -> None:
    """The driver may take long to take the crumb, and the process may die just then."""
    scores = worker(lake.ready())
    told: list[int] = []
    for event in scores.process(assignments(lake, SUSPECT)[:1]):
        if isinstance(event, Crumb):
            told.append(event.rows)
        scores._said = -1e9
    assert told[-1] == 0, "all rows are scored"
    assert 0 not in told[:-1]


def test_a_write_has_time_of_its_own(lake: Lake) -> None:
    """Not what the model's last step has left of it."""
    scores = worker(lake.ready())
    begun, signs = False, 0
    calling, submit = scores.watchdog.calling, scores.writer.submit

    def sign() -> None:
        nonlocal signs
        signs += begun
        calling()

    def begin(*given: object) -> object:
        nonlocal begun
        begun = True
        return submit(*given)  # type: ignore[arg-type]

    scores.watchdog.calling = sign  # type: ignore[method-assign]
    scores.writer.submit = begin  # type: ignore[method-assign, assignment]
    (*_, receipt) = scores.process(assignments(lake)[:1])
    assert isinstance(receipt, Receipt)
    assert signs == 1


ENDED_AT_ONCE = """
import os, signal
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))  # before the hooks of the import

from nightjar.inference.scoring import attempts

def handler(*args):
    os._exit(7)

handler.__module__ = "prefect.engine"
signal.signal(signal.SIGTERM, handler)
if (child := os.fork()) == 0:
    os._exit(8)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""


def test_a_forked_process_that_is_ended_at_once_does_not_run_its_parents_handler() -> None:
    """The signal waits for the child's own handler, and is blocked in neither process afterwards."""
    done = subprocess.run([sys.executable, "-c", ENDED_AT_ONCE], capture_output=True, text=True, check=True)
    assert done.stdout == f"{-signal.SIGTERM} set()\n"
