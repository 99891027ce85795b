"""Which shards are the canary, and what their gates say together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar.inference.engine import LOCAL, opened
from nightjar.inference.errors import GateFailed
from nightjar.inference.input.plan import SHARDS, Plan
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.records import UNKNOWN, UNREADABLE, Receipt
from nightjar.inference.run.canary import canary_notes, canary_of, judge
from nightjar.inference.run.request import RunRequest
from nightjar.inference.scoring.assignment import Assignment
from nightjar.inference.scoring.worker import ShardWorker
from support import Lake, OneStep, planned_line


def plan(*rows: int) -> Plan:
    """Shards `a`, `b` and so on, the last one first."""
    lines = [{"shard": "abcdefghij"[index], "rows": each, "pieces": []} for index, each in enumerate(rows)]
    return Plan(pa.Table.from_pylist(lines[::-1], schema=SHARDS))


def request_of(lake: Lake, **changes: Any) -> RunRequest:
    lake.write_file("part.parquet", 0, 10)
    lake.write_model()
    lake.write_job(**changes)
    return lake.request()


@pytest.mark.parametrize(
    ("share", "rows", "chosen"),
    [
        (0.01, [10, 10, 10], "a"),
        (0.33, [10, 10, 10], "a"),
        (0.34, [10, 10, 10], "ab"),
        (0.5, [10, 90, 100], "ab"),
        (0.5, [100, 90, 10], "a"),
        (0.5, [10, UNKNOWN, 30, 20], "abc"),
        (0.4, [UNKNOWN, 10, 30, 20], "abc"),
        (0.5, [UNKNOWN, UNREADABLE, UNKNOWN, UNKNOWN], "ab"),
        (0.5, [0, 0, 10, 5], "abc"),
    ],
)
def test_the_canary_is_the_first_shards_that_together_have_the_share(
    lake: Lake, share: float, rows: list[int], chosen: str
) -> None:
    """By their ids; a shard whose rows are not known counts as the mean of the others."""
    found = canary_of(request_of(lake, canary=share), plan(*rows), set())
    assert found == set(chosen)


def test_there_is_no_canary_where_nothing_would_be_spared(lake: Lake) -> None:
    """Or where the job asks for none. One whose shards have a result is judged again."""
    request = request_of(lake, canary=0.5)
    made = plan(10, 10, 10, 10)
    assert canary_of(request, made, {"c"}) == {"a", "b"}
    assert canary_of(request, made, {"a", "b"}) == {"a", "b"}
    assert canary_of(request, made, {"c", "d"}) == set()
    assert canary_of(request, plan(10), set()) == set()
    assert canary_of(request_of(lake), made, set()) == set()


@pytest.mark.parametrize(
    ("canary", "notes"),
    [
        ("", []),
        ("abcd", []),
        (
            "abc",
            ["canary: it has 3 of 9 shards, too few to judge shares and metrics by; for 4 or more, lower "
             "input.shard_rows or raise canary"],
        ),
    ],
)  # fmt: skip
def test_a_canary_of_few_shards_says_what_it_cannot_judge(canary: str, notes: list[str]) -> None:
    assert canary_notes(set(canary), 9) == notes


@dataclass
class Begun:
    """A run of shards of 10 rows of one file, whose first shards by name have a result: twice x, and a label."""

    lake: Lake

    def write(self, *x: Iterable[float], **changes: Any) -> Begun:
        """The rows of each shard. Which shard has which id is chance, so most tests have shards that are alike."""
        values = np.concatenate([np.array(list(each), np.float32) for each in x])
        late = np.arange(len(values)) % 2 == 0
        path = self.lake.folder / "data" / "part.parquet"
        path.parent.mkdir()
        table = pa.table({"id": np.arange(len(values)), "name": late.astype(str), "x": values, "late": late})
        pq.write_table(table, path, row_group_size=10)
        self.lake.write_model()
        self.lake.write_job(**{"input__shard_rows": 10, "canary": 0.5, **changes})
        return self

    @cached_property
    def made(self) -> Plan:
        return self.lake.planned()

    def judged(self, shards: int) -> None:
        """Score so many shards, and judge them as the canary."""
        request, spec, chosen = self.lake.request(), self.lake.worker_spec(), set(sorted(self.made.ids())[:shards])
        writer = open_epoch(spec.storage, spec.revision, this_holder("score"))
        wanted = [Assignment(shard) for shard in self.made.shards() if shard.id in chosen]
        events = ShardWorker(spec, Twice()).process(wanted) if wanted else ()
        writer.append([planned_line(), *(each for each in events if isinstance(each, Receipt))])
        try:
            with opened(LOCAL) as engine:
                judge(request, engine, spec.revision, writer, self.made, set(self.made.ids()))
        finally:
            writer.stop(release=True)


class Twice(OneStep):
    """Twice x; a negative one is refused."""

    device = "cpu"

    def __call__(self, table: pa.Table) -> dict[str, pa.Array]:
        x = np.asarray(table["x"])
        if (x < 0).any():
            raise ValueError("negative")
        return {"score": pa.array(x * 2, pa.float32())}


@pytest.fixture
def begun(lake: Lake) -> Begun:
    return Begun(lake)


def test_one_row_beyond_a_limit_stops_the_night_and_is_named(begun: Begun) -> None:
    checks = [{"column": "score", "max": 10, "finite": True}]
    begun.write(*[[0.0] * 9 + [30.0]] * 6, checks=checks)
    with pytest.raises(GateFailed) as failed:
        begun.judged(2)
    assert str(failed.value).startswith(
        "the canary (2 of 6 shards, 20 rows) stopped the run before the other shards: Canary: The greatest 'score' is "
        "60, above checks[0].max = 10. Mend the input or the model, or raise checks[0].max. Row "
    )
    (gate,) = failed.value.gates
    assert (gate.name, gate.passed, gate.observed, gate.on_fail) == ("score.max", False, "60", "block")
    assert len(gate.where) == 2, "a row of each shard"


@pytest.mark.parametrize("check", [{"column": "score", "max": 100}, {"column": "score", "max": 10, "on_fail": "warn"}])
def test_a_canary_that_passes_or_only_warns_stops_nothing(begun: Begun, check: dict[str, Any]) -> None:
    begun.write(*[[0.0] * 9 + [30.0]] * 6, checks=[check]).judged(2)


def test_a_canary_without_a_result_is_not_judged(begun: Begun) -> None:
    """The audit of the night says what is missing."""
    begun.write(*[[30.0] * 10] * 6, checks=[{"column": "score", "max": 10}]).judged(0)


def test_a_canary_writes_no_hashes_of_keys(begun: Begun) -> None:
    """Whether keys are unique is asked of the whole night."""
    begun.write(*[[1.0] * 10] * 4, checks=[{"unique": "name"}]).judged(2)
    assert not list(begun.lake.out.rglob("keys"))


@pytest.mark.parametrize(("shards", "stops"), [(3, False), (4, True), (9, True)])
def test_a_share_is_judged_by_several_groups(begun: Begun, shards: int, stops: bool) -> None:
    """As many as there are shards, up to eight; each of them must be bad, and there must be four."""
    begun.write(*[[0.0, 1.0] * 5] * 12, label="late", checks=[{"metric": "auroc", "min": 0.9}])
    if not stops:
        begun.judged(shards)
        return
    with pytest.raises(GateFailed, match=rf"the canary \({shards} of 12 shards, {shards}0 rows\)") as failed:
        begun.judged(shards)
    assert [gate.name for gate in failed.value.gates] == ["auroc.min"]
    assert failed.value.gates[0].sentence.startswith("Canary: The auroc of 'score' against 'late' is 0,")


def test_a_share_that_is_good_in_one_group_stops_nothing(begun: Begun) -> None:
    """Of eight shards one has the right scores, although all together they are bad."""
    good, bad = [1.0, 0.0] * 5, [0.0, 1.0] * 5
    begun.write(good, *[bad] * 7, label="late", checks=[{"metric": "auroc", "min": 0.9}]).judged(8)


@pytest.mark.parametrize(("share", "stops"), [(0.5, False), (0.05, True), (0, True)])
def test_a_quarantine_is_judged_as_a_share_and_where_none_is_allowed_by_one_row(
    begun: Begun, share: float, stops: bool
) -> None:
    begun.write(*[[-1.0] + [1.0] * 9] * 5, retry__max_quarantined=share)
    if not stops:
        begun.judged(5)
        return
    with pytest.raises(GateFailed, match="Canary: 5 rows in quarantine, more than the"):
        begun.judged(5)


@pytest.mark.parametrize(("allowed", "stops"), [(0, True), (0.05, False)])
def test_one_shard_is_enough_only_where_no_row_may_be_lost(begun: Begun, allowed: float, stops: bool) -> None:
    begun.write(*[[-1.0] + [1.0] * 9] * 5, retry__max_quarantined=allowed)
    if not stops:
        begun.judged(1)
        return
    with pytest.raises(GateFailed, match=r"the canary \(1 of 5 shards, 10 rows\) .*: Canary: 1 row in quarantine"):
        begun.judged(1)
