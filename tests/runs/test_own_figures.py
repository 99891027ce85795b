"""`accumulators`: figures of the user's own, computed where the rows are, and merged whatever happens to the run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nightjar.inference.errors import GateFailed, JobError
from nightjar.inference.history.comparison import diff
from nightjar.inference.metrics.figures import AccumulatorFigures
from nightjar.inference.run import publishing
from nightjar.inference.scoring.accumulating import accumulated
from support import Lake, Ran
from writers import BEFORE_RECEIPTS, die_at

TAIL = """
class Tail:
    def __init__(self):
        self.rows = self.high = self.named = 0

    def update(self, rows):
        assert rows.column_names == ["id", "name", "score"], rows.column_names
        self.rows += rows.num_rows
        self.high += sum(score > __LIMIT__ for score in rows["score"].to_pylist())
        self.named += sum(name.endswith("7") for name in rows["name"].to_pylist())

    def merge(self, state):
        self.rows, self.high, self.named = self.rows + state[0], self.high + state[1], self.named + state[2]

    def state(self):
        return [self.rows, self.high, self.named]

    def results(self):
        return {"rows": self.rows, "high": self.high / self.rows, "named": self.named / self.rows}
"""
KEYS: dict[str, Any] = {"accumulators": {"tail": "mymetrics:Tail"}, "retry__stall_s": 60}


def ready(lake: Lake, source: str = TAIL, **keys: Any) -> Lake:
    lake.ready(**{**KEYS, **keys})
    write(lake, source)
    return lake


def write(lake: Lake, source: str, limit: int = 8000) -> None:
    (lake.folder / "mymetrics.py").write_text(source.replace("__LIMIT__", str(limit)))


def of(ran: Ran) -> AccumulatorFigures:
    return ran.verdict.metrics.accumulators["tail"]


def test_a_killed_run_gives_the_same_figures_and_an_edit_scores_nothing_again(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The states of two blocks of shards are merged, and then those of the blocks."""
    ready(lake, checks=[{"metric": "tail.high", "min": 0.4, "on_fail": "warn"}])
    die_at(lake.request(run_id="killed"), BEFORE_RECEIPTS, tmp_path)
    with monkeypatch.context() as smaller:
        smaller.setattr(publishing, "accumulated", partial(accumulated, block=5))
        ran = lake.run(run_id="killed")
    assert of(ran).values == {"rows": 8000, "high": 3999 / 8000, "named": 0.1}

    write(lake, TAIL, limit=12000)
    again = lake.run(run_id="killed")
    assert again.scored.revision == 2
    assert again.scored.progress.reused_shards == 8
    assert of(again).values["high"] == 1999 / 8000
    assert [gate.name for gate in again.verdict.gates if gate.verdict == "warn"] == ["tail.high.min"]
    assert lake.run(run_id="killed").scored.revision == 2
    compared = diff(lake.request(), "killed", "killed", rows=0)
    assert {each.name: each.now for each in compared.figures}["tail.high"] == 1999 / 8000


def test_an_accumulator_that_fails_costs_its_figures_alone_until_it_is_mended(lake: Lake) -> None:
    """Rows of which preflight's sample has none: the night is scored, and says once why there are no figures."""
    broken = TAIL.replace(
        "def update(self, rows):",
        "def update(self, rows):\n        assert 1999 not in rows['id'].to_pylist(), 'id 1999'",
    )
    ready(lake, broken, checks=[{"metric": "tail.rows", "min": 8000}])
    with pytest.raises(GateFailed) as refused:
        lake.run()
    reason = "accumulators.tail: mymetrics:Tail failed with AssertionError: id 1999 (mymetrics.py:7, in update)"
    assert reason in str(refused.value)
    assert [(gate.name, gate.verdict) for gate in refused.value.gates[2:]] == [
        ("tail", "warn"),
        ("tail.rows.min", "block"),
    ]
    write(lake, TAIL)
    ran = lake.run()
    assert (ran.scored.progress.reused_shards, ran.scored.progress.counts.rows_quarantined) == (8, 0)
    assert of(ran).values["rows"] == 8000


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("raise ValueError('id 1999')", "failed with ValueError: id 1999 (mymetrics.py:8, in update) (shard "),
        ("import os; os._exit(3)", "ended its process (exit code 3), without an exception"),
    ],
    ids=["raises", "ends its process"],
)
def test_the_audit_says_which_accumulator_failed_and_publishes(lake: Lake, way: str, said: str) -> None:
    """The figures of the others are there."""
    broken = TAIL.replace(
        "def update(self, rows):",
        f"def update(self, rows):\n        if 1999 in rows['id'].to_pylist():\n            {way}",
    ).replace("class Tail", "class Broken")
    ready(lake, broken + TAIL, accumulators={"broken": "mymetrics:Broken", "tail": "mymetrics:Tail"})
    found = lake.run().verdict.metrics.accumulators
    assert (found["broken"].reason or "").startswith(f"accumulators.broken: mymetrics:Broken {said}")
    assert found["tail"].values["rows"] == 8000


def test_a_class_that_cannot_be_used_is_refused_before_anything_starts(lake: Lake) -> None:
    ready(lake, "class Tail:\n    def state(self): pass")
    with pytest.raises(JobError, match=r"accumulators\.tail: mymetrics:Tail failed with .* has no attribute 'update'"):
        lake.run()


def test_a_class_that_hangs_is_named_by_preflight_and_not_the_model(lake: Lake) -> None:
    ready(
        lake,
        "import time\n" + TAIL.replace("self.named +=", "time.sleep(99)\n        self.named +="),
        retry__stall_s=20,  # half of it is left for its process to start
    )
    said = r"^accumulators\.tail: mymetrics:Tail gave no answer within 10 s, a part of retry\.stall_s"
    with pytest.raises(JobError, match=said):
        lake.run()


def test_a_figure_that_the_class_does_not_give_is_refused_before_the_night(lake: Lake) -> None:
    ready(lake, checks=[{"metric": "tail.hihg", "min": 0}])
    said = r"checks\[0\].metric: mymetrics:Tail gives no tail.hihg, .*did you mean 'tail.high'"
    with pytest.raises(JobError, match=said):
        lake.run()
    assert not lake.snapshot().runs
