"""Which errors are worth repeating: an attribute of the class, and what decides to repeat asks nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pytest
from prefect.states import Failed as FailedState

from faults import FaultyStorage, fail
from nightjar.flows.nightly_flow import _worth_repeating, score_task
from nightjar.inference import errors
from nightjar.inference.errors import (
    AuditFailed,
    ClusterLost,
    Denied,
    Fenced,
    GateFailed,
    JobError,
    Missing,
    NightjarError,
    OutputInvalid,
    RunFailed,
    ShardsFailed,
    StorageError,
    Transient,
)
from nightjar.inference.records import Failed
from nightjar.inference.scoring.assignment import Assignment
from nightjar.inference.scoring.suspects import GivenUp, next_attempt
from nightjar.inference.scoring.worker import ShardWorker
from nightjar.inference.storage.lake import LakeStorage
from support import Lake, OneStep


class Doubling(OneStep):
    """A real scorer: twice x."""

    device = "cpu"

    def __call__(self, table: pa.Table) -> dict[str, pa.Array]:
        return {"score": pa.compute.multiply(table["x"].combine_chunks(), 2).cast(pa.float32())}


def classes(base: type[NightjarError] = NightjarError) -> Iterator[type[NightjarError]]:
    for found in base.__subclasses__():
        yield found
        yield from classes(found)


def test_the_tree_shows_every_class_below_its_base_with_its_exit_code_and_marks_what_is_worth_repeating() -> None:
    tree = re.sub(r",\n[│ ]+", ", ", str(errors.__doc__))
    drawn, above = {}, ["NightjarError"]
    for indent, base, below in re.findall(r"^([│ ]*)[├└]── ([^:\n]+):? ?(.*)$", tree, re.MULTILINE):
        del above[len(indent) // 4 + 1 :]
        bases = base.split(", ")
        for told, parent in (*((each, above[-1]) for each in bases), *((each, bases[0]) for each in below.split(", "))):
            if found := re.fullmatch(r"(\w+)( \*)?(?: \((\d+)\))?", told):
                drawn[found[1]] = (parent.split(" ")[0], bool(found[2]), int(found[3] or 1))
        above.append(bases[0])
    ours = {found for found in classes() if found.__module__ == errors.__name__}
    assert {each.__name__: (each.__base__.__name__, each.repeatable, each.exit_code) for each in ours} == drawn


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ClusterLost("the cluster lost the audit"), True),
        (Transient("out: timed out"), True),
        (Denied("out: access denied"), False),
        (Missing("out: no such object"), False),
        (StorageError("out: the disk is full"), False),
        (RunFailed("model.bin changed while the run went on"), False),
        (ShardsFailed("2 of 8 shards have no result"), False),
        (GateFailed("too few rows"), False),
        (AuditFailed("a part is damaged", 1), False),
        (JobError("input.uri: no such folder"), False),
        (Fenced("replaced"), False),
        (ValueError("no error of ours"), False),
    ],
)
def test_the_flow_repeats_a_step_only_for_what_is_worth_repeating(error: Exception, again: bool) -> None:
    state = FailedState(data=error)
    assert _worth_repeating(score_task, None, state) is again  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (Transient("out: timed out"), True),
        (OutputInvalid("too few scores"), True),
        (OSError("no error of ours"), True),
        (Denied("out: access denied"), False),
        (Missing("out: no such bucket"), False),
    ],
)
def test_a_worker_tries_a_shard_again_only_for_what_is_worth_repeating(
    lake: Lake, error: Exception, again: bool
) -> None:
    lake.ready()
    storage = FaultyStorage(LakeStorage(), [fail("write", "*/data/*", None, error)])
    worker = ShardWorker(lake.worker_spec(storage), Doubling())
    shard = next(iter(lake.planned().shards()))
    failed = next(event for event in worker.process([Assignment(shard)]) if isinstance(event, Failed))
    assert isinstance(next_attempt([failed], 3), GivenUp) is not again
