"""Labels of a night, by slices: measured where the rows are, judged before publication, and the same after a kill."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import steps
from nightjar.flows.pages.evaluated import evaluation_lines
from nightjar.inference.errors import AuditFailed, GateFailed
from nightjar.inference.history.comparison import diff
from nightjar.inference.metrics.slices import Slices
from support import Lake
from writers import BEFORE_MANIFEST, BEFORE_RECEIPTS, Point, die_at, metrics_of

FILES, ROWS = 4, 2000
MODEL = """\
def score(batch):
    return {'score': batch['x'], 'kind': ['AA' if x > 0.5 else 'DL' for x in batch['x']]}
"""
SLICED: dict[str, Any] = {"label": "late", "carry": ["id", "carrier", "query"], "evaluation": {"slices": ["carrier"]}}


def labelled(lake: Lake, **changes: Any) -> Lake:
    """8 shards. x is between 0 and 1, and labels are likelier where it is greater, but not for the carrier HA."""
    random = np.random.default_rng(7)
    folder = lake.folder / "data"
    folder.mkdir(parents=True)
    for file in range(FILES):
        x = random.random(ROWS)
        carrier = random.choice(["AA", "DL", "HA"], ROWS, p=[0.6, 0.3, 0.1])
        delay = x * 60 + random.normal(size=ROWS)
        late = random.random(ROWS) < np.where(carrier == "HA", 1 - x, x)
        ids = np.arange(ROWS) + file * ROWS
        columns = {
            "id": ids,
            "name": ids.astype(str),
            "carrier": carrier,
            "x": x.astype(np.float32),
            "late": late,
            "delay": delay,
            "query": ids % 300,
            "grade": np.where(late, 3 * x, 0).astype(np.int8),
        }
        pq.write_table(pa.table(columns), folder / f"part-{file:02d}.parquet", row_group_size=1000)
    lake.write_model(MODEL)
    lake.write_job(**{**SLICED, **changes})
    return lake


def test_the_slices_of_a_night_are_those_of_its_rows_however_they_were_cut(lake: Lake) -> None:
    ran = labelled(lake).run()
    table = pa.concat_tables([pq.read_table(path) for path in sorted((lake.folder / "data").iterdir())])
    job = lake.request().job
    direct = Slices.for_job(job)
    direct.update(table.rename_columns([name.replace("x", "score") for name in table.column_names]), table["late"])
    assert ran.verdict.metrics.slices == direct.results()
    assert ran.verdict.metrics.evaluation is not None
    slices = ran.verdict.metrics.slices["carrier"].slices
    assert [each.value for each in slices] == ["AA", "DL", "HA"]
    assert sum(each.evaluation.rows for each in slices) == ran.verdict.metrics.evaluation.rows == FILES * ROWS
    ((name, said),) = [found for found in evaluation_lines(ran.verdict.metrics) if found[0].startswith("by ")]
    assert name == "by carrier"
    assert said.startswith("3 slices; least auroc 0.1")
    assert "(HA, " in said


TASKS: dict[str, dict[str, Any]] = {
    "binary": {},
    "multiclass": {
        "label": "carrier",
        "model__outputs": {"score": "float32", "kind": "string"},
        "checks": [{"metric": "macro_f1", "max": 0.5, "slices": ["carrier"]}, {"metric": "accuracy", "min": 0.4}],
    },
    "ranking": {"label": "grade", "checks": [{"metric": "ndcg", "min": 0.5}, {"metric": "mrr", "min": 0.2}]},
    "regression": {"label": "delay", "checks": [{"metric": "r2", "max": 0, "slices": ["carrier"]}]},
}


@pytest.mark.parametrize("point", [BEFORE_RECEIPTS, BEFORE_MANIFEST], ids=str)
@pytest.mark.parametrize("task", TASKS)
def test_a_run_that_was_killed_has_the_same_metrics(lake: Lake, tmp_path: Path, task: str, point: Point) -> None:
    own = {"group": "query", "k": 5} if task == "ranking" else {}
    labelled(lake, evaluation={"task": task, "slices": ["carrier"], **own}, **TASKS[task]).run(run_id="undisturbed")
    die_at(lake.request(run_id="killed"), point, tmp_path)
    lake.run(run_id="killed")
    assert metrics_of(lake, "killed") == metrics_of(lake, "undisturbed")
    assert len(metrics_of(lake, "killed")["slices"]["carrier"]["slices"]) == 3
    assert metrics_of(lake, "killed")["evaluation"]["rows"] == FILES * ROWS


def test_a_slice_that_is_wrong_stops_a_night_that_is_right_as_a_whole(lake: Lake) -> None:
    """And its limit is judged again without scoring."""
    checks = [{"metric": "auroc", "min": 0.6}, {"metric": "auroc", "min": 0.6, "slices": ["carrier"]}]
    with pytest.raises(
        GateFailed, match=r"is below checks\[1\].min = 0.6 in 1 of 3 slices of 'carrier': HA 0\.1"
    ) as no:
        labelled(lake, evaluation=None, checks=checks).run()
    assert [(gate.name, gate.verdict) for gate in no.value.gates[-2:]] == [
        ("auroc.min", "pass"),
        ("carrier.auroc.min", "block"),
    ]
    assert not lake.snapshot().runs
    lake.write_job(**{**SLICED, "checks": [checks[0], {**checks[1], "min_rows": 5000}]})
    with pytest.raises(GateFailed, match="Left out, because fewer than 5,000 rows were compared: AA"):
        lake.run()
    lake.write_job(**{**SLICED, "checks": [checks[0], {**checks[1], "on_fail": "warn"}]})
    ran = lake.run()
    assert ran.scored.progress.reused_shards == 8
    assert ran.verdict.gates[-1].verdict == "warn"


def test_a_column_of_many_values_has_no_slices_and_says_so(lake: Lake) -> None:
    ran = labelled(lake, evaluation={"slices": ["id"]}).run()
    assert dataclasses.astuple(ran.verdict.metrics.slices["id"]) == ((), True)
    assert ("by id", "too many values, or too long ones, for slices") in evaluation_lines(ran.verdict.metrics)


def test_slices_that_are_damaged_are_found_by_the_audit_and_their_shard_scored_again(lake: Lake) -> None:
    request = labelled(lake).request()
    found = steps.discover(request)
    scored = steps.score(request, found)
    first = min((lake.revision() / "sidecars").iterdir())
    first.write_bytes(first.read_bytes()[:-1] + b"x")
    with pytest.raises(AuditFailed, match=r"sidecars/.*Repeat the command: it scores this shard again"):
        steps.validate(request, scored, found)
    assert lake.run().verdict.metrics.slices["carrier"].slices


def test_slices_that_are_asked_for_later_are_made_of_every_shard_and_two_runs_are_compared(lake: Lake) -> None:
    labelled(lake, evaluation=None).run()
    lake.write_job(**SLICED)
    ran = lake.run()
    assert ran.scored.again == ("slices changed in the job: 8 of 8 shards are scored",)
    lake.run(run_id="again")
    request = lake.request()
    figures = diff(request, request.run_id, "again", rows=0).figures
    sliced = [each for each in figures if "=" in each.name]
    assert [each.name for each in sliced] == ["auroc carrier=AA", "auroc carrier=DL", "auroc carrier=HA"]
    assert all(each.before == each.now is not None for each in sliced)
