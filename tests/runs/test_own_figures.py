"""`accumulators`: figures of the user's own, computed where the rows are, and merged whatever happens to the run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nightjar.inference.errors import GateFailed, JobError
from nightjar.inference.history.comparison import compare
from nightjar.inference.metrics.accumulators import Kind, unpacked
from nightjar.inference.metrics.figures import AccumulatorFigures
from nightjar.inference.run import validating
from nightjar.inference.run.inspection import inspect_code
from nightjar.inference.validation.accumulated import accumulated
from support import NIGHT, Lake, Ran
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


def states(lake: Lake, run_id: str = NIGHT, number: int = 1) -> list[bytes]:
    """What lies beside the parts, in the order of the shards."""
    kept = sorted((lake.revision(number, run_id) / "exports" / "accumulators").iterdir())
    assert {path.stem for path in kept} == {path.stem for path in (lake.revision(number, run_id) / "data").iterdir()}
    return [unpacked(path.read_bytes())[1]["tail"].state for path in kept]


class Added(list[int]):
    """Sums of lists."""

    def merge(self, state: list[int]) -> None:
        self[:] = [a + b for a, b in zip(self or [0] * len(state), state, strict=True)]

    def state(self) -> list[int]:
        return list(self)


def direct(lake: Lake) -> bytes:
    """The state of all rows that were published, in one go."""
    space: dict[str, Any] = {}
    exec(TAIL.replace("__LIMIT__", "8000"), space)
    rows = lake.published("killed")[["id", "name", "score"]]
    return Kind("tail", "", space["Tail"]).of_rows([pa.Table.from_pandas(rows, preserve_index=False)])


def test_a_killed_run_gives_the_same_figures_and_an_edit_scores_nothing_again(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The states of two blocks of shards are merged, and then those of the blocks."""
    ready(lake, checks=[{"metric": "tail.high", "min": 0.4, "on_fail": "warn"}])
    die_at(lake.request(run_id="killed"), BEFORE_RECEIPTS, tmp_path)
    with monkeypatch.context() as smaller:
        smaller.setattr(validating, "accumulated", partial(accumulated, block=5))
        ran = lake.run(run_id="killed")
    assert of(ran).values == {"rows": 8000, "high": 3999 / 8000, "named": 0.1}
    assert Kind("tail", "", Added).of_states(states(lake, "killed")) == direct(lake)

    write(lake, TAIL, limit=12000)
    again = lake.run(run_id="killed")
    assert again.scored.revision == 2
    assert again.scored.progress.reused_shards == 8
    assert of(again).values["high"] == 1999 / 8000
    assert of(again).code != of(ran).code
    assert [gate.name for gate in again.verdict.gates if gate.verdict == "warn"] == ["tail.high.min"]
    assert lake.run(run_id="killed").scored.revision == 2
    compared = compare(lake.request().storage, "lake", str(lake.out), "killed", "killed")
    assert {each.name: each.now for each in compared.figures}["tail.high"] == 1999 / 8000
    assert compared.recounted == ()


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
    assert (ran.scored.progress.reused_shards, ran.scored.progress.rows_quarantined) == (8, 0)
    assert of(ran).values["rows"] == 8000


def test_a_class_that_cannot_be_used_is_refused_before_anything_starts(lake: Lake) -> None:
    ready(lake, "class Tail:\n    def state(self): pass")
    said = "accumulators.tail: mymetrics:Tail has no method update, merge and results; it needs update, merge, state"
    with pytest.raises(JobError, match=said):
        inspect_code(lake.request())


def test_a_figure_that_the_class_does_not_give_is_refused_before_the_night(lake: Lake) -> None:
    ready(lake, checks=[{"metric": "tail.hihg", "min": 0}])
    said = r"checks\[0\].metric: mymetrics:Tail gives no tail.hihg, .*did you mean 'tail.high'"
    with pytest.raises(JobError, match=said):
        lake.run()
    assert not lake.snapshot().runs
