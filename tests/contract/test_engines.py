"""What every engine promises to a run, tried on each: in this process, and on a Ray cluster.

A new engine has one entry in `TRIED`. What only Ray does, and no other engine needs: tests/cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from nightjar.inference.engine import ENGINES, LOCAL, RAY, auditing, opened
from nightjar.inference.engine.auditing import audit_blocks
from nightjar.inference.engine.local import LocalEngine
from nightjar.inference.engine.protocol import Engine
from nightjar.inference.errors import ClusterError, EndpointFailed, EndpointRefused, JobError, PassEnded
from nightjar.inference.input.plan import Plan
from nightjar.inference.output.outcomes import OUTCOMES
from nightjar.inference.records import Crumb, Event, Failed, Receipt, Started
from nightjar.inference.run.checking import Examined, examine
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.preflight import Loaded, samples
from nightjar.inference.scoring.suspects import Attempt
from nightjar.inference.validation.audit import Audited, audit_block
from nightjar.inference.validation.rescore import Rescored
from support import Lake

TRIED = [LOCAL, pytest.param(RAY, marks=pytest.mark.system)]

FAILS = '''
class Model:
    """Cannot be made."""

    def __init__(self):
        raise OSError("no such weights")

    def __call__(self, batch):
        return {"score": batch["x"]}
'''

REFUSES = '''
def score(batch):
    """No row is right."""
    raise ValueError("not a row that I know")
'''

KILLS = '''
import os

def score(batch):
    """Twice x, but one row ends the process."""
    if 2100 in batch["x"]:
        os._exit(1)
    return {"score": batch["x"] * 2}
'''

CHANGES = '''
from pathlib import Path

def score(batch):
    """Twice x; more, once the test says so."""
    return {"score": batch["x"] * 2 + (Path(__LIVE__) / "later").exists()}
'''


@pytest.fixture(params=TRIED)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine, as a step of a run opens it."""
    if request.param == RAY:
        request.getfixturevalue("ray_local")
    with opened(request.param) as engine:
        yield engine


def test_every_engine_is_tried_here() -> None:
    assert {LOCAL, RAY} == set(ENGINES)


def passed(engine: Engine, spec: WorkerSpec, plan: Plan, attempts: Sequence[Attempt] = ()) -> list[Event]:
    """The events of a whole pass."""
    attempts = attempts or [Attempt()] * len(plan)
    return [event for batch in engine.run_pass(spec, plan.table, attempts) for event in batch]


def until_it_ends(engine: Engine, spec: WorkerSpec, shards: pa.Table, attempts: Sequence[Attempt] = ()) -> list[Event]:
    """The events of a pass that may lose its process."""
    found: list[Event] = []
    with suppress(PassEnded):
        for batch in engine.run_pass(spec, shards, attempts or [Attempt()] * shards.num_rows):
            found += batch
    return found


def receipts(events: list[Event]) -> dict[str, Receipt]:
    """Shard → its receipt."""
    found = [event for event in events if isinstance(event, Receipt)]
    assert len({each.shard for each in found}) == len(found), "no shard has two"
    return {each.shard: each for each in found}


def outcomes(plan: Plan, events: list[Event]) -> pa.Table:
    """The plan with the receipts, as a run makes it."""
    found = receipts(events)
    lines: list[dict[str, Any]] = [
        {**line, "status": "committed", **asdict(found[line["shard"]])} for line in plan.table.to_pylist()
    ]
    return pa.Table.from_pylist(lines, schema=OUTCOMES)


class TestPreflight:
    def test_it_loads_the_model_and_scores_the_first_rows(self, engine: Engine, lake: Lake) -> None:
        loaded = engine.preflight(lake.ready().worker_spec(), samples(lake.planned()))
        assert (loaded.device, loaded.sample_error, loaded.hung, loaded.place) == ("cpu", "", False, 0)

    def test_it_does_with_the_model_what_it_is_given(self, engine: Engine, lake: Lake) -> None:
        """As `check` does, which looks at 32 rows of each place."""
        places = samples(lake.ready().planned())
        examined = engine.preflight(lake.worker_spec(), places, examine)
        assert isinstance(examined, Examined)
        assert (examined.sampled.places, examined.sampled.rows) == (len(places), 32 * len(places))

    @pytest.mark.parametrize(
        ("code", "uses", "said"),
        [
            (FAILS, "model:Model", r"^model\.uses: .*OSError.*no such weights"),
            (REFUSES, "model:score", r"^model\.uses: none of the first 32 rows of .*ValueError: not a row that I know"),
        ],
    )
    def test_a_model_that_cannot_score_is_refused_with_the_key(
        self, engine: Engine, lake: Lake, code: str, uses: str, said: str
    ) -> None:
        lake.write_model(code)
        lake.ready(model__uses=uses)
        with pytest.raises(JobError, match=said):
            engine.preflight(lake.worker_spec(), samples(lake.planned()))

    def test_an_endpoint_that_refuses_the_job_is_its_error_and_one_that_does_not_answer_is_noted(
        self, engine: Engine, lake: Lake
    ) -> None:
        places = samples(lake.ready().planned())

        def steps(*_: object, refuses: bool) -> Iterator[Loaded]:
            yield Loaded("cpu")
            raise EndpointRefused("model.url: no such key") if refuses else EndpointFailed("model.url: no answer")

        loaded = engine.preflight(lake.worker_spec(), places, partial(steps, refuses=False))
        assert (loaded.device, loaded.sample_error) == ("cpu", "model.url: no answer")
        with pytest.raises(JobError, match=r"^model\.url: no such key$"):
            engine.preflight(lake.worker_spec(), places, partial(steps, refuses=True))


class TestPass:
    def test_each_shard_is_started_and_then_has_one_receipt(self, engine: Engine, lake: Lake) -> None:
        """The receipt says what lies in storage, and the attempt is the one that was asked for."""
        plan, spec = lake.ready().planned(), lake.worker_spec()
        events = passed(engine, spec, plan, [Attempt(number=3)] * len(plan))
        assert set(receipts(events)) == set(plan.ids())
        for shard, receipt in receipts(events).items():
            about = [event for event in events if isinstance(event, (Started, Receipt)) and event.shard == shard]
            assert [type(event) for event in about] == [Started, Receipt]
            assert {event.attempt for event in about} == {3}
            assert about[0].worker == receipt.worker
            assert (receipt.rows_in, receipt.rows_out, receipt.epoch) == (1000, 1000, spec.epoch)
            assert pq.read_metadata(lake.revision() / receipt.data.name).num_rows == 1000

    def test_a_file_that_cannot_be_read_fails_its_own_shards(self, engine: Engine, lake: Lake) -> None:
        plan = lake.ready().planned()
        bad = lake.folder / "data" / "part-01.parquet"
        bad.write_bytes(b"PAR1" + bytes(bad.stat().st_size - 4))
        events = passed(engine, lake.worker_spec(), plan)
        lost = {shard.id for shard in plan.shards() if shard.pieces[0].uri.endswith(bad.name)}
        assert len(lost) == 2
        failed = [event for event in events if isinstance(event, Failed)]
        assert {event.shard for event in failed} == lost
        assert not any(event.died for event in failed)
        assert set(receipts(events)) == set(plan.ids()) - lost

    def test_a_pass_that_is_closed_ends(self, engine: Engine, lake: Lake) -> None:
        """What it held is free for the next one, which scores everything."""
        plan, spec = lake.ready().planned(), lake.worker_spec()
        events = engine.run_pass(spec, plan.table, [Attempt()] * len(plan))
        assert next(batch for batch in events if batch)
        events.close()
        assert set(receipts(passed(engine, replace(spec, epoch=2), plan))) == set(plan.ids())


def test_a_row_that_kills_its_process_is_charged_to_its_shard(engine: Engine, lake: Lake) -> None:
    """It was started and has no receipt. In the next pass it rides alone: its last crumb is before the row."""
    lake.write_model(KILLS)
    plan, spec = lake.ready().planned(), lake.worker_spec()
    (killer,) = (shard.id for shard in plan.shards() if shard.pieces[0].first_row == 0 and "part-01" in shard.label)
    first = until_it_ends(engine, spec, plan.table)
    started = {event.shard: event.worker for event in first if isinstance(event, Started)}
    charged = {shard: worker for shard, worker in started.items() if shard not in receipts(first)}
    assert killer in charged
    assert set(charged.values()) == {charged[killer]}, "only what that process had begun"
    alone = until_it_ends(
        engine, spec, plan.table.filter(pc.equal(plan.table["shard"], killer)), [Attempt(number=2, crumbs=True)]
    )
    assert receipts(alone) == {}
    last = [event for event in alone if isinstance(event, Crumb)][-1]
    assert last.row <= 100 < last.row + last.rows
    left = [shard for shard in plan.ids() if shard not in receipts(first) and shard != killer]
    if left:  # unless the others were done before the process died
        others = plan.table.filter(pc.is_in(plan.table["shard"], pa.array(left, pa.string())))
        assert set(receipts(until_it_ends(engine, spec, others))) == set(left)


class TestAfterScoring:
    @pytest.mark.parametrize("numbers", [[], [3], list(range(40))], ids=len)
    def test_small_work_is_done_once_for_each_and_its_results_are_in_order(
        self, engine: Engine, lake: Lake, numbers: list[int]
    ) -> None:
        job = lake.ready().worker_spec().job
        found = engine.each(lambda number: number * 2, numbers, job, "test")
        assert [each for each in found if each is not None] == [number * 2 for number in numbers]

    def test_an_error_of_small_work_is_raised_as_it_is(self, engine: Engine, lake: Lake) -> None:
        def refused(number: int) -> int:
            raise JobError(f"no such number: {number}")

        job = lake.ready().worker_spec().job
        with pytest.raises(JobError, match=r"^no such number: 1$"):
            list(engine.each(refused, [1, 1], job, "test"))

    @pytest.fixture
    def scored(self, lake: Lake) -> tuple[WorkerSpec, pa.Table]:
        """A spec, and the outcomes of a pass that scored everything with `CHANGES`."""
        lake.write_model(CHANGES)
        plan = lake.ready(checks=[{"column": "score", "min": 0}]).planned()
        spec = lake.worker_spec()
        with opened(LOCAL) as local:
            return spec, outcomes(plan, passed(local, spec, plan))

    @pytest.mark.parametrize("few", [{}, {"FEW_BYTES": 0}, {"FEW_SHARDS": 7}], ids=["small", "large", "many"])
    def test_the_audit_comes_to_the_same_on_each_to_the_byte(
        self, engine: Engine, scored: tuple[WorkerSpec, pa.Table], few: dict[str, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also a small one, for which no engine starts a process."""
        for limit, value in few.items():
            monkeypatch.setattr(auditing, limit, value)
        spec, table = scored
        assert auditing.is_small(table) == (not few)
        expected = Audited()
        for block in audit_blocks(table):
            expected.merge(audit_block(spec.storage, spec.revision, spec.job, block.to_pylist()))
        *ticks, audited = auditing.audited(engine, spec.storage, spec.revision, spec.job, table)
        assert set(ticks) <= {None}
        assert audited == expected
        assert audited is not None
        assert (audited.shards, audited.counts.rows_in, audited.counts.rows_out, audited.problems) == (8, 8000, 8000, 0)
        assert audited.metrics == expected.metrics
        assert audited.metrics.columns["score"], "there is something to merge"

    def test_what_was_scored_is_scored_again_and_compared(
        self, engine: Engine, lake: Lake, scored: tuple[WorkerSpec, pa.Table]
    ) -> None:
        spec, table = scored
        *ticks, same = engine.rescore(spec, table)
        assert set(ticks) <= {None}
        assert isinstance(same, Rescored)
        assert (same.shards, same.rows, same.differing) == (8, 8000, 0)
        (lake.folder / "later").touch()
        *_, other = engine.rescore(spec, table.slice(0, 2))
        assert isinstance(other, Rescored)
        assert (other.shards, other.rows, other.differing) == (2, 2000, 2000)


def test_there_is_room_for_a_job_that_fits(engine: Engine, lake: Lake) -> None:
    """Where a job's actors do not fit, the key is named; this process has room for each."""
    engine.check_capacity(lake.ready().request().job)
    lake.ready(resources__cpus=512)
    if isinstance(engine, LocalEngine):
        engine.check_capacity(lake.request().job)
        return
    with pytest.raises(ClusterError, match=r"^resources: 1 actors of 512 CPUs .* do not fit"):
        engine.check_capacity(lake.request().job)
