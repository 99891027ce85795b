"""The CPU stage on a cluster of machines with GPUs and one that has only CPUs, and what the loss of that one costs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from readers import parts_of, records_of

from fleet import Fleet
from support import GATE, Lake, permit, wait_until
from world import Node

NIGHT = "2026-01-01"
ROWS, SHARDS = 16000, 16

MODEL = '''
import ray
from gate import Gate


def here(rows):
    return [ray.get_runtime_context().get_node_id()] * rows


class Prepare:
    """x + 1, no faster than the gate lets it; and on which node each row was prepared."""

    def __init__(self, permits):
        self.gate = Gate(permits)

    def __call__(self, batch):
        self.gate.wait(len(batch["x"]))
        return {**batch, "y": batch["x"] + 1, "on": here(len(batch["x"]))}


class Score:
    """Twice y, no faster than the gate lets it; and on which node each row went through which step."""

    def __init__(self, permits):
        self.gate = Gate(permits)

    def __call__(self, batch):
        self.gate.wait(len(batch["y"]))
        return {"score": batch["y"] * 2, "prepared_on": batch["on"], "scored_on": here(len(batch["y"]))}
'''


@dataclasses.dataclass
class Staged:
    """A job whose model needs a GPU and whose preprocess does not, and the machine without one.

    prepared, scored: the permits of the two stages.
    """

    fleet: Fleet
    lake: Lake
    output: str
    prepared: Path
    scored: Path
    plain: Node

    def receipts(self) -> int:
        """How many shards are committed."""
        return sum(record["t"] == "receipt" for record in records_of(self.fleet.world.storage, self.output, NIGHT))

    def published(self) -> pd.DataFrame:
        """The night's rows."""
        storage = self.fleet.world.storage
        parts = [uri for uri, kind, _, _ in parts_of(storage, self.output, NIGHT) if kind == "data"]
        return pa.concat_tables(pq.read_table(storage.open(uri)) for uri in parts).to_pandas()

    def gpu_nodes(self) -> set[str]:
        """What Ray calls the machines with GPUs."""
        return {node.node_id() for node in self.fleet.world.nodes}


@pytest.fixture
def staged(fleet: Fleet, request: pytest.FixtureRequest) -> Iterator[Staged]:
    """The job, which may score nothing yet."""
    world = fleet.world
    prepared, scored = (world.folder / f"{step}-{request.node.name}" for step in ("prepared", "scored"))
    prepared.mkdir()
    scored.mkdir()
    lake, output = world.lake(
        ROWS,
        MODEL,
        name="staged",
        input__shard_rows=ROWS // SHARDS,
        preprocess={
            "uses": "model:Prepare",
            "options": {"permits": str(prepared)},
            "placement": "staged",
            "workers": 2,
        },
        model__uses="model:Score",
        model__options={"permits": str(scored)},
        model__batch_size=ROWS // SHARDS,
        model__features=["y", "on"],
        model__outputs={"score": "float32", "prepared_on": "string", "scored_on": "string"},
        resources={"actors": 1, "gpus": 1},
    )
    (lake.folder / "gate.py").write_text(GATE)
    with world.further("node-c", "--num-cpus=3") as plain:
        yield Staged(fleet, lake, output, prepared, scored, plain)


def test_the_cpu_stage_runs_where_there_are_only_cpus_and_the_model_where_there_are_gpus(staged: Staged) -> None:
    """On nodes with GPUs a CPU is free, too; the stage leaves it to those that need both."""
    permit(staged.prepared, SHARDS)
    permit(staged.scored, SHARDS)
    command = staged.fleet.world.run(staged.lake, NIGHT)
    wait_until(lambda: command.look() is not None, 300, "the command ends")
    assert command.process.returncode == 0, command.said + command.trouble
    rows = staged.published()
    assert sorted(rows["id"]) == list(range(ROWS))
    assert set(rows["prepared_on"]) == {staged.plain.node_id()}
    assert set(rows["scored_on"]) <= staged.gpu_nodes()


@pytest.mark.long
def test_a_machine_of_the_cpu_stage_that_is_lost_costs_no_row(staged: Staged) -> None:
    """Promise 1: what it had prepared stays, or is prepared again; the rest is prepared elsewhere."""
    permit(staged.prepared, SHARDS // 2)
    permit(staged.scored, 3)
    command = staged.fleet.world.run(staged.lake, NIGHT)
    wait_until(lambda: command.look() is not None or staged.receipts() >= 3, 180, "three shards are committed")
    assert command.process.poll() is None, command.said + command.trouble
    lost = staged.plain.node_id()
    staged.plain.kill()
    permit(staged.prepared, SHARDS * 2)
    permit(staged.scored, SHARDS * 2)
    wait_until(lambda: command.look() is not None, 300, "the command ends")
    assert command.process.returncode == 0, command.said + command.trouble
    said = json.loads(command.said)
    assert (said["state"], said["rows_in"], said["rows_out"], said["rows_quarantined"]) == ("published", ROWS, ROWS, 0)
    rows = staged.published()
    assert sorted(rows["id"]) == list(range(ROWS))
    assert (rows["score"] == (rows["id"] + 1) * 2).all()
    prepared = set(rows["prepared_on"])
    assert lost in prepared
    assert prepared - {lost} <= staged.gpu_nodes()
    assert prepared - {lost}, "what was not prepared yet was prepared elsewhere"
