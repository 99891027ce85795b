"""A worker whose writer was replaced leaves no part behind, however long it stood still."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import steps as run
from faults import Fault, FaultyStorage, pause
from nightjar.inference.job.sections import budget_rows
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.output import parts as sink
from nightjar.inference.records import Event, Failed, Receipt
from nightjar.inference.scoring.assignment import Assignment, WorkerSpec, read_schema
from nightjar.inference.scoring.worker import ShardWorker
from nightjar.inference.storage.lake import LakeStorage
from support import Lake

ALL_BUT_FIVE = """
def score(batch):
    if 5 in batch["x"]:
        raise ValueError("not this row")
    return {"score": batch["x"]}
"""


def score_first_shard(
    lake: Lake, replace_before: str, source: str = ALL_BUT_FIVE, faults: Sequence[Fault] = (), **changes: Any
) -> list[Event]:
    """Score one shard in this process; its writer is replaced just before `replace_before` touches a data part."""
    lake.write_model(source)
    lake.ready(retry__max_quarantined=0.01, profile="outputs", **changes)
    request = lake.request()
    found = run.discover(request)
    made = run.plan(request, found).plan
    revision = str(lake.revision())
    first = open_epoch(LakeStorage(), revision, this_holder("score", "one"))

    def succeed(_: str) -> None:
        open_epoch(LakeStorage(), revision, this_holder("score", "one")).stop(release=True)

    replaced = [pause(replace_before, "*/data/*", before=succeed)] if replace_before else []
    storage = FaultyStorage(LakeStorage(), [*replaced, *faults])
    spec = WorkerSpec(
        job=request.job,
        job_path=request.job_path,
        run=(request.run_id,),
        revision=revision,
        storage=storage,
        schema=read_schema(request.job, found.schema),
        epoch=first.epoch,
        segment=first.state.number,
        budget=budget_rows(0.01, made.rows),
        scoring=request.scoring,
        cache=str(lake.folder / "cache"),
        own_process=False,
    )
    events = list(ShardWorker(spec).process([Assignment(next(made.shards()))]))
    first.stop(release=False)
    return events


def test_a_worker_whose_writer_still_holds_leaves_its_part(lake: Lake) -> None:
    """The other test says something only because of this one."""
    receipt = score_first_shard(lake, "")[-1]
    assert isinstance(receipt, Receipt)
    assert receipt.data is not None
    part = lake.revision() / receipt.data.name
    assert sink.checksum(part.read_bytes()) == receipt.data.checksum
    assert receipt.quarantine is not None
    assert (lake.revision() / receipt.quarantine.name).exists()
    (profile,) = (lake.revision() / "sidecars").iterdir()
    assert profile.stem == part.stem


def test_a_worker_replaced_between_its_check_and_its_write_takes_its_part_back(lake: Lake) -> None:
    """Promise 5: `data/` holds exactly the published parts, even if a replaced worker wakes after `_SUCCESS`."""
    failed = score_first_shard(lake, "write")[-1]
    assert isinstance(failed, Failed)
    assert (failed.cause, failed.terminal) == ("Fenced", True)
    assert failed.message == "epoch 1 was replaced by epoch 2"
    left = [path for name in ("data", "sidecars", "quarantine") for path in (lake.revision() / name).glob("*")]
    assert left == []
