"""Collects the evidence of a night, or of a part of it, from what its audit found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from nightjar.inference.metrics.figures import Figures
from nightjar.inference.metrics.slices import Slices
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.output import outcomes
from nightjar.inference.run.request import RunRequest
from nightjar.inference.validation import gates
from nightjar.inference.validation.audit import Audited
from nightjar.inference.validation.violating_rows import with_replays


def collected(
    request: RunRequest,
    found: gates.Found,
    audited: Audited,
    table: pa.Table,
    others: Mapping[str, gates.Baseline],
) -> gates.Evidence:
    """The evidence, without what has its own step: rescored shards, repeated keys, answers of the user's checks.

    table: the lines of `outcomes.OUTCOMES` of the shards that were audited. others: as `evidence.baselines`.
    """
    metrics = Metrics.from_bytes(audited.metrics)
    slices = Slices.from_bytes(audited.slices) if audited.slices else None
    return gates.Evidence(
        found,
        shards=table.num_rows,
        rows_in=audited.rows_in,
        rows_quarantined=audited.rows_quarantined,
        rows_partial=audited.rows_partial,
        columns=metrics.columns,
        offenders=with_replays(request.job_path, request.words, table, audited.offenders),
        usage=outcomes.usage(table),
        evaluation=slices.whole if slices and slices.whole else metrics.evaluation,
        profile=audited.profile.profile() if audited.profile else None,
        slices=slices,
        baselines=others,
    )


def figures(audited: Audited) -> Figures:
    """All metrics of the shards that were audited."""
    found = replace(
        Metrics.from_bytes(audited.metrics).results(),
        profile=audited.profile.profile().results() if audited.profile else {},
    )
    if not audited.slices:
        return found
    slices = Slices.from_bytes(audited.slices)
    whole = slices.whole.results() if slices.whole else found.evaluation
    return replace(found, evaluation=whole, slices=slices.results())
