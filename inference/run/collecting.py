"""Collects the evidence of a night, or of a part of it, from what its audit found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from nightjar.inference.metrics.figures import Figures
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
    metrics, slices = audited.metrics, audited.slices
    assert metrics is not None
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
        profile=audited.profile,
        slices=slices,
        baselines=others,
    )


def figures(audited: Audited) -> Figures:
    """All metrics of the shards that were audited."""
    assert audited.metrics is not None
    found = replace(audited.metrics.results(), profile=audited.profile.results() if audited.profile else {})
    if (slices := audited.slices) is None:
        return found
    whole = slices.whole.results() if slices.whole else found.evaluation
    return replace(found, evaluation=whole, slices=slices.results())
