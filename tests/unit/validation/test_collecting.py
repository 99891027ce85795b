"""The evidence of a night is what its audit found, and nothing is left out of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from nightjar.inference.jsonform import to_json
from nightjar.inference.metrics.profile import Profile
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.output.outcomes import OUTCOMES
from nightjar.inference.records import Counts, replay_command
from nightjar.inference.run.publishing import collected
from nightjar.inference.run.request import RunRequest
from nightjar.inference.usage import NO_USAGE, Usage
from nightjar.inference.validation.audit import Audited
from nightjar.inference.validation.gates import Baseline, Evidence, Found, Offender
from support import Lake


def request_of(lake: Lake) -> RunRequest:
    lake.ready(label="id", checks=[{"column": "score", "min": 0}], profile=["x"])
    return lake.request()


def audited(request: RunRequest) -> tuple[Audited, Metrics, Profile]:
    metrics, profile = Metrics.for_job(request.job, ["x"]), Profile.empty(["x"])
    metrics.update(pa.table({"score": pa.array([0.25, 0.5], pa.float32())}), pa.array([True, False]))
    assert metrics.profile is not None
    for each in (profile, metrics.profile):
        each.update(pa.table({"x": [1.0, 2.0]}))
    counts = Counts(rows_in=30, rows_out=28, rows_quarantined=2, rows_partial=1)
    found = Audited(2, counts, 99, metrics=metrics)
    return found, metrics, profile


def outcomes_of(lake: Lake, *usages: Usage) -> pa.Table:
    """The lines of as many shards of the plan."""
    lines = lake.planned().table.slice(0, len(usages)).to_pylist()
    given: list[dict[str, Any]] = [{**line, "usage": to_json(usage)} for line, usage in zip(lines, usages, strict=True)]
    return pa.Table.from_pylist(given, schema=OUTCOMES)


def test_the_evidence_is_what_the_audit_found(lake: Lake) -> None:
    """With the commands that score again the rows that a gate refuses."""
    request, found = request_of(lake), Found(4, 8000)
    result, metrics, _ = audited(request)
    table = outcomes_of(lake, Usage(requests=3), Usage(requests=4, cut=1), NO_USAGE)
    shard = next(iter(lake.planned().shards()))
    file = shard.pieces[0].uri
    offender = Offender(shard.id, file, 7, "-1.0")
    result.offenders = {"checks[0].min": (offender,)}
    others = {"last": Baseline("2026-11-18", None, "none")}
    evidence = collected(request, found, result, table, others)
    replay = replay_command(request.job_path, request.words, shard, file, 7)
    assert replay
    assert evidence == Evidence(
        found,
        shards=3,
        rows_in=30,
        rows_out=28,
        rows_quarantined=2,
        rows_partial=1,
        metrics=metrics,
        offenders={"checks[0].min": (replace(offender, replay=replay),)},
        usage=Usage(requests=7, cut=1),
        baselines=others,
    )


def test_the_figures_of_a_night_have_its_profile_if_it_has_one(lake: Lake) -> None:
    _, metrics, profile = audited(request_of(lake))
    assert metrics.results().profile == profile.results()
    without = replace(metrics, profile=None)
    assert without.results() == replace(metrics.results(), profile={})
    evidence = collected(lake.request(), Found(1, 1), Audited(metrics=without), outcomes_of(lake), {})
    assert (evidence.metrics.profile, evidence.usage, evidence.shards) == (None, NO_USAGE, 0)
