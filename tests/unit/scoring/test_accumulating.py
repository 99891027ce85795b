"""The process in which the user's own accumulators run: what it is given, and how it is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from endpoints import endpoint, upper
from nightjar.inference.errors import JobError
from nightjar.inference.scoring.accumulating import try_all
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.preflight import Loaded, preflight_steps, samples
from nightjar.inference.scoring.streaming import StreamingWorker
from nightjar.inference.scoring.worker import ShardWorker
from support import Lake

OWN = """
import os

class Late:
    def __init__(self):
        self.rows = self.late = 0

    def update(self, rows):
        self.rows += rows.num_rows
        self.late += sum(rows["late"].to_pylist())

    def merge(self, state):
        self.rows, self.late = self.rows + state[0], self.late + state[1]

    def state(self):
        return [self.rows, self.late]

    def results(self):
        return {"share": self.late / self.rows}

class Fragile(Late):
    def update(self, rows):
        ids = rows["id"].to_pylist()
        if 77 in ids:
            raise ValueError("id 77")
        if 88 in ids:
            os._exit(3)
        super().update(rows)
"""


@pytest.fixture
def spec(tmp_path: Path) -> WorkerSpec:
    lake = Lake(tmp_path / "lake")
    lake.ready(accumulators={"late": "mymetrics:Late", "fragile": "mymetrics:Fragile"})
    (lake.folder / "mymetrics.py").write_text(OWN)
    return lake.worker_spec()


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "late": [each % 2 for each in ids]})


def test_what_is_wrong_with_one_is_said_of_it_and_with_the_columns(spec: WorkerSpec) -> None:
    """Whether it raises or ends its process."""
    found = try_all(spec, rows(*range(9)))
    assert found == {"late": ("share",), "fragile": ("share",)}
    with pytest.raises(JobError, match=r"accumulators\.late: .*KeyError.*It is given the columns id$"):
        try_all(spec, rows(1, 2, 3).select(["id"]))
    place = r"\(mymetrics.py:25, in update\)"
    with pytest.raises(
        JobError, match=f"accumulators.fragile: mymetrics:Fragile failed with ValueError: id 77 {place}"
    ):
        try_all(spec, rows(1, 2, 77))
    lost = r"accumulators.fragile: mymetrics:Fragile ended its process \(exit code 3\), without an exception"
    with pytest.raises(JobError, match=lost):
        try_all(spec, rows(1, 2, 88))


TRIED = """
import json
from pathlib import Path

class Seen:
    def __init__(self):
        self.ids = []

    def update(self, rows):
        self.ids = self.ends(rows["id"].to_pylist())
        with Path(__LIVE__, "seen").open("a") as file:
            file.write(json.dumps(rows.to_pylist()) + "\\n")

    def ends(self, ids):
        return [f(self.ids + ids) for f in (min, max) if self.ids + ids]

    def merge(self, state):
        self.ids = self.ends(state)

    def state(self):
        return self.ids

    def results(self):
        return {"least": self.ids[0], "most": self.ids[-1]}
"""


def watched(lake: Lake, own: str = TRIED, **keys: object) -> Lake:
    """A job with one accumulator, which leaves in a file the rows that it is given."""
    lake.write_job(accumulators={"seen": "mymetrics:Seen"}, input__shard_rows=100, **keys)
    (lake.folder / "mymetrics.py").write_text(own.replace("__LIVE__", repr(str(lake.folder))))
    return lake


def seen(lake: Lake) -> list[dict[str, object]]:
    """The rows that it was given first."""
    found: list[dict[str, object]] = json.loads((lake.folder / "seen").read_text().splitlines()[0])
    return found


def tried(lake: Lake) -> list[Loaded]:
    return list(preflight_steps(ShardWorker(lake.worker_spec()), samples(lake.planned())))


def test_preflight_gives_it_the_rows_of_the_sample_as_they_would_be_written(lake: Lake) -> None:
    lake.write_file("a.parquet", 0, 100)
    lake.write_model("def score(batch):\n    return {'score': batch['x'] * 2}\n")
    *_, before, after = tried(watched(lake))
    assert before == after == Loaded("cpu")
    written = [{"id": row, "name": f"row {row}", "score": row * 2.0} for row in range(32)]
    assert seen(lake) == written


def test_a_row_that_cannot_be_scored_is_not_given(lake: Lake) -> None:
    """Nor is a place of the input tried of which no row can be: the accumulators get that of the model's sample. More
    rows of it may be lost than of the run.
    """
    lake.write_file("a.parquet", 0, 100)
    lake.write_file("b.parquet", 100, 100)
    bad = "batch['x'].min() < 100 or (batch['x'] % 3 == 1).any()"
    lake.write_model(
        f"def score(batch):\n    if {bad}:\n        raise ValueError\n    return {{'score': batch['x']}}\n"
    )
    assert isinstance(tried(watched(lake))[-1], Loaded)
    assert [row["id"] for row in seen(lake)] == [row for row in range(100, 132) if row % 3 != 1]


def test_a_check_on_a_figure_that_it_does_not_give_ends_preflight(lake: Lake) -> None:
    """The first that is wrong is named, with the figures that there are."""
    lake.write_file("a.parquet", 0, 100)
    lake.write_model("def score(batch):\n    return {'score': batch['x']}\n")
    right = [{"rows": {"min": 1}}, {"metric": "seen.least", "min": 0}]
    assert isinstance(tried(watched(lake, checks=right))[-1], Loaded)
    watched(lake, checks=[*right, {"metric": "seen.mots", "min": 0}])
    with pytest.raises(JobError) as raised:
        tried(lake)
    assert str(raised.value) == (
        "checks[2].metric: mymetrics:Seen gives no seen.mots, but seen.least and seen.most; did you mean 'seen.most'?"
    )


def test_of_an_endpoint_few_rows_are_asked_for_it(lake: Lake) -> None:
    """Each is paid for."""
    with endpoint(upper) as server:
        lake.write_texts([f"text {row}" for row in range(20)], 20)
        model = {"uses": "openai", "served_model": "m", "prompt": "{text}", "outputs": {"answer": "string"}}
        watched(lake, model={**model, "url": server.url}, carry=["id"])
        steps = list(preflight_steps(StreamingWorker(lake.worker_spec()), samples(lake.planned())))
    assert isinstance(steps[-1], Loaded)
    assert seen(lake) == [{"id": row, "answer": f"TEXT {row}"} for row in range(8)]
