"""The CPU stage: what comes of each row, and to whom a death is charged, is as if one process did every step."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nightjar.inference.engine import LOCAL
from nightjar.inference.engine.ray import processes
from nightjar.inference.errors import JobError
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.modeljob import scoring_keys
from nightjar.inference.output.parts import states_name
from nightjar.inference.records import Event, Failed, Prepared, Preparing, Receipt, Started, decode, encode
from nightjar.inference.run.failures import Underway
from nightjar.inference.scoring.assignment import Assignment
from nightjar.inference.scoring.prepared_batches import unpacked
from nightjar.inference.scoring.staged import AcceptingWorker, PreparingWorker
from nightjar.inference.scoring.worker import ShardWorker
from support import Lake

CODE = '''
import os

def prep(batch, plus=1.0):
    """x + 1, but not for some rows; and each call is noted."""
    with open(os.path.join(__LIVE__, "prepared"), "a") as calls:
        calls.write(f"{len(batch['x'])}\\n")
    if {5, 1300} & set(batch["x"].tolist()):
        raise ValueError("cannot be prepared")
    return {**batch, "y": batch["x"] + plus}

def score(batch):
    """Twice y, but not for some rows, and not for more than MOST at once."""
    if len(batch["y"]) > MOST:
        raise MemoryError
    if {302, 2900} & set(batch["x"].tolist()):
        raise ValueError("cannot be scored")
    return {"score": batch["y"] * 2}
'''
BAD = [5, 302, 1300, 2900]


@pytest.fixture
def staged(lake: Lake) -> Lake:
    return prepared_lake(lake)


def prepared_lake(lake: Lake, most: int = 1000, **changes: Any) -> Lake:
    lake.write_files(files=2)
    lake.write_model(CODE.replace("MOST", str(most)))
    prep = {"uses": "model:prep", "options": {"plus": 3.0}, "placement": "staged", **changes}
    lake.write_job(profile="all", model__features=["x", "y"], preprocess=prep)
    return lake


def through_both(lake: Lake) -> Iterator[Event]:
    """Each shard prepared by one worker and scored by another, as on Ray, but in this process."""
    spec = lake.worker_spec()
    stage, actor = PreparingWorker(spec), AcceptingWorker(spec)
    for event in stage.process([Assignment(shard) for shard in lake.planned().shards()]):
        yield event
        if stage.handed:
            assignment, packed = stage.handed
            yield from actor.accept(assignment, packed[0])


def prepared_calls(lake: Lake) -> list[int]:
    path = Path(lake.folder / "prepared")
    calls = [int(line) for line in path.read_text().split()]
    path.unlink()
    return calls


def outcome(lake: Lake, events: list[Event]) -> tuple[list[Any], list[Any], list[Any]]:
    """The rows of every part, those in the quarantine, what the receipts count, and the profiles of the parts."""
    receipts = [event for event in events if isinstance(event, Receipt)]
    rows = [row for each in receipts if each.data for row in _rows(lake, each.data.name)]
    bad = [row for each in receipts if each.quarantine for row in _rows(lake, each.quarantine.name)]
    counts = [(each.shard, each.rows_in, each.rows_out, each.rows_quarantined, each.batches_cut) for each in receipts]
    beside = [states_name(each.data.name) for each in receipts if each.data]
    files = (lake.revision() / name for name in beside)
    return rows, bad, [*counts, *(file.read_bytes() for file in files if file.exists())]


def _rows(lake: Lake, name: str) -> list[Any]:
    import pyarrow.parquet as pq

    rows = pq.read_table(lake.revision() / name).to_pylist()
    return [{name: value for name, value in row.items() if name != "traceback"} for row in rows]


def test_two_stages_make_what_one_process_makes(staged: Lake) -> None:
    """Rows that the preprocess or the model refuses are found as ever, by the actor."""
    one = list(ShardWorker(staged.worker_spec()).process([Assignment(each) for each in staged.planned().shards()]))
    fused, calls = outcome(staged, one), sum(prepared_calls(staged))
    two = list(through_both(staged))
    assert outcome(staged, two) == fused
    rows, bad, _ = fused
    assert sorted(row["id"] for row in rows) == [i for i in range(4000) if i not in BAD]
    assert all(row["score"] == 2 * (row["id"] + 3) for row in rows)
    assert sorted(row["_row"] % 2000 for row in bad) == sorted(row % 2000 for row in BAD)
    assert [type(event) for event in two][:4] == [Preparing, Prepared, Started, Receipt]
    # What could be prepared is not prepared again, not even in halves: only the two batches that raised are.
    assert calls > 4000
    assert sum(prepared_calls(staged)) <= 4000 + 2 * 256 * 10


def test_a_receipt_counts_what_the_stage_took_and_tried_again(staged: Lake) -> None:
    spec = staged.worker_spec()
    stage, actor = PreparingWorker(spec), AcceptingWorker(spec)
    for _ in stage.process([Assignment(next(iter(staged.planned().shards())))]):
        if stage.handed:
            assignment, packed = stage.handed
            parcel = unpacked(packed[0])
            earlier = replace(parcel, started_at=parcel.started_at - 100, retries=3)
            *_, receipt = actor.accept(assignment, earlier.packed()[0])
    assert isinstance(receipt, Receipt)
    assert (receipt.started_at, receipt.retries) == (round(earlier.started_at, 3), 3)
    assert 100 < receipt.seconds < 200


NASTY = '''
import time
import numpy as np
import pandas as pd
import pyarrow as pa

class Prep:
    """Fills the same memory for each batch, and is not made for two threads."""

    def __init__(self, kind):
        self.kind, self.x, self.pairs, self.inside = kind, np.empty(4096), np.empty((4096, 2)), False

    def __call__(self, batch):
        if self.inside:
            raise RuntimeError("Already borrowed")
        self.inside, n = True, len(batch["x"])
        self.x[:n] = batch["x"]
        self.pairs[:n, 0], self.pairs[:n, 1] = batch["x"], 1
        time.sleep(0.001)
        self.inside = False
        if 5 in self.x[:n]:
            raise ValueError("cannot be prepared")
        if self.kind == "table":
            return pa.table({"x": pa.array(self.x[:n])})
        made = {"x": self.x[:n], "pair": list(self.pairs[:n])}
        return made if self.kind == "dict" else pd.DataFrame(made, copy=False)

def score(batch):
    """Twice x plus one. Writes over its batch, and then cannot score some rows, nor many at once."""
    x = np.asarray(batch["x"])
    found = x * 2 + (1 if isinstance(batch, pa.Table) else np.array([pair[1] for pair in batch["pair"]]))
    if not isinstance(batch, pa.Table):
        batch["x"] *= 2
        for pair in batch["pair"]:
            pair[:] = -1
    if {605, 4605} & set(found.tolist()):
        raise ValueError("cannot be scored")
    if len(x) > 200:
        raise MemoryError
    return {"score": found}
'''


@pytest.mark.parametrize("kind", ["dict", "frame", "table"])
def test_code_that_uses_its_memory_again_and_writes_over_its_batch_makes_the_same_everywhere(
    lake: Lake, kind: str
) -> None:
    lake.write_files(files=2, rows=1000)
    lake.write_model(NASTY)
    job: dict[str, Any] = {"model__features": ["x", "pair"] if kind != "table" else ["x"]}
    found = []
    for cpus in (1, 2):
        step = {"uses": "model:Prep", "options": {"kind": kind}, "placement": "staged"}
        lake.write_job(**job, preprocess=step, resources={"actors": 1, "cpus": cpus}, retry={"max_quarantined": 0.1})
        work = [Assignment(shard) for shard in lake.planned().shards()]
        found += [
            outcome(lake, list(events))
            for events in (ShardWorker(lake.worker_spec()).process(work), through_both(lake))
        ]
    rows, bad, _ = found[0]
    assert [(row["id"], row["score"]) for row in rows] == [(i, 2 * i + 1) for i in range(2000) if i not in {5, 302}]
    assert [row["_row"] for row in bad] == [5, 302]
    for other in found[1:]:
        assert other[:2] == found[0][:2]


def test_an_odd_row_costs_itself_where_it_changes_what_a_preprocess_returns(staged: Lake) -> None:
    """As a null that makes whole numbers floats, or an item of JSON without a key. A preprocess that is wrong for each
    row is refused.
    """
    wrong = 'del batch["y"]\n    return batch'
    code = 'def prep(batch, plus):\n    batch["y"] = batch["x"] + 1\n    if {}:\n        {}\n    return batch\n'
    code += 'def score(batch):\n    return {{"score": batch["y"]}}\n'
    staged.write_model(code.format('300 in batch["x"]', wrong))
    work = [Assignment(shard) for shard in staged.planned().shards()]
    found = outcome(staged, list(ShardWorker(staged.worker_spec()).process(work)))
    rows, bad, _ = found
    said = "model.features: 'y' is not a column that preprocess returned; it returned x"
    assert (len(rows), [(row["_row"], row["message"]) for row in bad]) == (3999, [(300, said)])
    assert outcome(staged, list(through_both(staged))) == found
    staged.write_model(code.format("True", wrong))
    with pytest.raises(JobError, match=f"none of the first 32 rows of .* can be scored: OutputInvalid: {said}"):
        staged.run(engine=LOCAL)


def test_halves_are_parts_of_what_was_prepared(lake: Lake) -> None:
    """An actor that runs out of memory scores a batch in halves, and does not prepare them again."""
    prepared_lake(lake, most=100)
    lake.write_model(CODE.replace("MOST", "100").replace("{5, 1300}", "{-1}"))
    events = list(through_both(lake))
    assert len(outcome(lake, events)[0]) == 4000 - 2
    assert sum(prepared_calls(lake)) == 4000


def test_what_a_parcel_cannot_hold_is_prepared_by_the_actor(staged: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    full = outcome(staged, list(through_both(staged)))
    monkeypatch.setattr("nightjar.inference.scoring.staged.PARCEL_BYTES", 1)
    assert outcome(staged, list(through_both(staged))) == full


def test_small_files_share_a_parcel_and_its_batches(lake: Lake) -> None:
    for index in range(3):
        lake.write_file(f"small-{index}.parquet", 10_000 + index * 100, 100)
    lake.write_model(CODE.replace("MOST", "1000"))
    lake.write_job(model__features=["x", "y"], preprocess={"uses": "model:prep", "placement": "staged"})
    stage = PreparingWorker(lake.worker_spec())
    (shard,) = lake.planned().shards()
    for event in stage.process([Assignment(shard)]):
        assert isinstance(event, Preparing | Prepared), event
        if stage.handed:
            parcel = unpacked(stage.handed[1][0])
    assert [len(batch.rows) for batch in parcel.batches[""]] == [256, 44]


@pytest.mark.parametrize(("most", "batches"), [(256 * 8, 1), (256 * 8 + 1000, 2)])
def test_nothing_is_added_to_a_parcel_that_holds_what_it_may(
    staged: Lake, monkeypatch: pytest.MonkeyPatch, most: int, batches: int
) -> None:
    """Of two numbers of four bytes for each row, and the names of the columns."""
    monkeypatch.setattr("nightjar.inference.scoring.staged.PARCEL_BYTES", most)
    stage = PreparingWorker(staged.worker_spec())
    for _ in stage.process([Assignment(next(iter(staged.planned().shards())))]):
        if stage.handed:
            assert len(unpacked(stage.handed[1][0]).batches[""]) == batches


def test_a_file_that_cannot_be_read_fails_its_own_shard(staged: Lake) -> None:
    work = staged.planned()
    (staged.folder / "data" / "part-00.parquet").write_bytes(b"changed")
    spec = staged.worker_spec()
    events = list(PreparingWorker(spec).process([Assignment(shard) for shard in work.shards()]))
    failed = [event for event in events if isinstance(event, Failed)]
    assert {event.cause for event in failed} == {"InputChanged"}
    assert len(failed) == 2
    assert sum(isinstance(event, Prepared) for event in events) == 2


LAMBDAS = """
def prep(batch):
    return {"x": batch["x"], "made": [(lambda: 0) if x == 1500 else 0 for x in batch["x"].tolist()]}

def score(batch):
    return {"score": batch["x"] * 2}
"""


def test_a_shard_of_which_something_cannot_be_handed_over_is_left_for_the_actor_to_prepare(lake: Lake) -> None:
    """Tried in Ray's own callable, in which an error would end the worker with all shards of the block."""
    lake.write_files(files=1)
    lake.write_model(LAMBDAS)
    lake.write_job(preprocess={"uses": "model:prep", "placement": "staged", "columns": ["x"]}, model__features=None)
    plan = lake.planned().table
    begun = {"attempt": pa.array([1] * len(plan), pa.int32()), "how": pa.array([""] * len(plan))}
    block = pa.table({**dict(zip(plan.column_names, plan.columns, strict=True)), **begun})
    told, handed = [], []
    for line in processes.Preparing(processes.Sealed(lake.worker_spec()))(block):
        told += [decode(json.loads(text)) for text in line["event"].to_pylist()]
        handed += [unpacked(parcel) for parcel in line["parcel"] if parcel.is_valid]
    assert not [event for event in told if isinstance(event, Failed)]
    assert sum(isinstance(event, Prepared) for event in told) == len(handed) == len(plan)
    assert [sum(map(len, each.batches.values())) for each in handed].count(3) == 1
    assert all(sum(len(read.table) for read in each.reads) for each in handed)


def test_a_stage_that_can_hand_nothing_over_fails_its_shards_for_good(lake: Lake) -> None:
    """Else the actors would prepare everything, and nobody would know."""
    lake.write_files(files=1)
    lake.write_model(LAMBDAS.replace("if x == 1500 else 0", ""))
    lake.write_job(preprocess={"uses": "model:prep", "placement": "staged", "columns": ["x"]}, model__features=None)
    work = [Assignment(shard) for shard in lake.planned().shards()]
    failed = [event for event in PreparingWorker(lake.worker_spec()).process(work) if isinstance(event, Failed)]
    assert len(failed) == len(work)
    assert {(each.cause, each.terminal) for each in failed} == {("JobError", True)}
    assert failed[0].message.startswith("preprocess: what it returns cannot be pickled")


def test_a_preprocess_that_hangs_names_its_rows(lake: Lake) -> None:
    from nightjar.inference.errors import ProcessSpoilt

    lake.write_files(files=1)
    lake.write_model("import time\ndef prep(batch):\n    time.sleep(600 * (300 in batch['x']))\n    return batch\n")
    lake.write_job(
        model__uses="model:prep", preprocess={"uses": "model:prep", "placement": "staged"}, retry={"stall_s": 1}
    )
    events: list[Event] = []
    with pytest.raises(ProcessSpoilt, match="no progress"):
        events.extend(_collected(PreparingWorker(lake.worker_spec()), lake, events))
    last = events[-1]
    assert isinstance(last, Failed)
    assert (last.died, last.row, last.rows) == (True, 256, 256)


def _collected(worker: PreparingWorker, lake: Lake, into: list[Event]) -> list[Event]:
    for event in worker.process([Assignment(shard) for shard in lake.planned().shards()]):
        into.append(event)
    return []


# ---- to whom a death is charged -----------------------------------------------------------------------------------

PREPARING, PREPARED = Preparing("s", 1, "cpu:1"), Prepared("s", 1, "cpu:1")
STARTED = Started("s", 1, "gpu:2")
RECEIPT = Receipt("s", 1, 1, "gpu:2", None, None, 1.0, 1.0, rows_in=1, rows_out=1)
FAILED = Failed("s", 1, "ValueError", "no", worker="gpu:2")


@pytest.mark.parametrize(
    ("events", "worker"),
    [
        ((PREPARING,), "cpu:1"),
        ((PREPARING, PREPARED), None),
        ((PREPARING, PREPARED, STARTED), "gpu:2"),
        ((PREPARING, PREPARED, STARTED, RECEIPT), None),
        ((PREPARING, PREPARED, STARTED, FAILED), None),
        ((PREPARING, FAILED), None),
        ((STARTED,), "gpu:2"),
        ((STARTED, RECEIPT), None),
    ],
)
def test_a_death_is_charged_to_who_had_the_shard_in_whatever_order_it_is_told(
    events: tuple[Event, ...], worker: str | None
) -> None:
    """A shard that waits between the stages when a process is lost is in nobody's hands, and is not charged."""
    for order in itertools.permutations(events):
        underway = Underway()
        for event in order:
            underway.take(event)
        assert [each.worker for each in underway.deaths("")] == ([worker] if worker else [])


@pytest.mark.parametrize("event", [PREPARING, PREPARED])
def test_the_events_of_the_stage_have_a_wire_form(event: Event) -> None:
    assert decode(encode(event)) == event


JOB: dict[str, Any] = {
    "name": "j",
    "input": {"uri": "in/"},
    "model": {"uses": "m:f", "outputs": {"score": "float32"}},
    "output": {"uri": "out/"},
}


def test_a_preprocess_has_a_short_form(tmp_path: Path) -> None:
    short = parse_job({**JOB, "preprocess": "prep:decode"}, tmp_path / "job.yaml")
    long = parse_job({**JOB, "preprocess": {"uses": "prep:decode"}}, tmp_path / "job.yaml")
    assert short == long


def test_where_it_runs_does_not_change_what_it_makes(tmp_path: Path) -> None:
    """So a night may go on with another placement; its options are part of what scores."""

    def keys(**more: Any) -> dict[str, Any]:
        return scoring_keys(parse_job({**JOB, "preprocess": {"uses": "prep:decode", **more}}, tmp_path / "job.yaml"))

    assert keys(placement="staged", cpus=2, workers={"min": 1, "max": 4}) == keys()
    assert keys(options={"size": 224}) != keys()
