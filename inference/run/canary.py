"""The canary: a sample of the shards is scored and judged first, so that a bad model does not cost the whole night.

Only gates that block are judged, by the parts that were written, as the audit reads them. A limit that one row breaks
is broken whatever the other rows are. Figures that are shares or means differ from shard to shard: they count as bad
only if they are bad in each of several groups of the canary's shards, which chance hardly makes. Drift is judged by all
shards of the canary together, as if each were a single row: the rows of a shard may well be alike, as in an input that
is sorted, and then each shard has drifted, and the night has not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.engine.protocol import Engine
from nightjar.inference.errors import GateFailed
from nightjar.inference.input.plan import Plan
from nightjar.inference.ledger.epochs import LedgerWriter
from nightjar.inference.messages import counted
from nightjar.inference.output import outcomes
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.validating import collected
from nightjar.inference.validation import gates
from nightjar.inference.validation.audit import Audited, audit_block
from nightjar.inference.validation.evidence import baselines
from nightjar.inference.validation.gates.rules import gates_of
from nightjar.inference.validation.manifest import keep_refused

GROUPS = 8
"""Of a night that is exactly at a limit each group is bad with a chance of one half: all eight once in 256 nights."""

LEAST = 4
"""The fewest groups by which shares and means are judged."""


def canary_of(request: RunRequest, made: Plan, committed: Set[str]) -> frozenset[str]:
    """Choose the canary: the shards that are scored first. The same plan has the same canary, so a command that goes on
    with the run judges it, too.

    There is none if the job asks for none, or nothing would be left to be spared.
    """
    chosen = _sample(made, request.job.canary) if request.job.canary else frozenset[str]()
    return chosen if set(made.ids()) - committed - chosen else frozenset()


def canary_notes(canary: Set[str], of: int) -> list[str]:
    """What a person should know of a canary. of: all shards of the plan."""
    if not canary or len(canary) >= LEAST:
        return []
    return [
        f"canary: it has {len(canary)} of {counted(of, 'shard')}, too few to judge shares and metrics by; for {LEAST} "
        "or more, lower input.shard_rows or raise canary"
    ]


def _sample(made: Plan, share: float) -> frozenset[str]:
    """The shards with the lowest ids, which are hashes, that together have this share of the rows. Where rows are not
    known, a shard counts as the mean of the others.
    """
    rows = dict(zip(made.ids(), made.table["rows"].to_pylist(), strict=True))
    known = [each for each in rows.values() if each >= 0]
    mean = sum(known) / len(known) if known else 1.0
    wanted, chosen, have = share * mean * len(rows), set[str](), 0.0
    for shard in sorted(rows):
        if have >= wanted:
            break
        chosen.add(shard)
        have += rows[shard] if rows[shard] >= 0 else mean
    return frozenset(chosen)


def judge(request: RunRequest, engine: Engine, uri: str, writer: LedgerWriter, made: Plan, shards: Set[str]) -> None:
    """Judge the shards of the canary that have a result. uri: of the revision. shards: as `Campaign.try_each` says.

    Raises:
        GateFailed: The night cannot pass a gate, or hardly can.
    """
    table = outcomes.outcomes(made, writer.ledger, writer.state)
    mine = pc.and_(pc.equal(table["status"], "committed"), pc.is_in(table["shard"], pa.array(sorted(shards))))
    table = table.filter(mine).sort_by("shard")
    work = partial(audit_block, request.storage, uri, request.job, keys=False)
    groups, parts, whole = list(_groups(table)), list[Audited](), Audited()
    for found in engine.each(work, [group.to_pylist() for group in groups], request.job, "canary"):
        writer.check()
        if found is not None:
            parts.append(found)
            whole.merge(found)
    if not whole.shards:
        return  # the audit of the night says what is wrong with the parts
    nothing, others = gates.Found(0, 0), baselines(request.storage, request.job, request.date)
    each = [
        collected(request, nothing, part, group, others)
        for part, group in zip(parts, groups, strict=True)
        if part.shards
    ]
    together = replace(collected(request, nothing, whole, table, others), sampled=whole.shards)
    failed = [
        replace(result, on_fail=rule.on_fail, sentence=f"Canary: {result.sentence}")
        for rule in gates_of(request.job)
        if rule.on_fail == "block" and (result := _failure(rule.gate, together, each)) is not None
    ]
    if failed:
        size = f"{whole.shards:,} of {counted(len(made), 'shard')}, {counted(whole.counts.rows_in, 'row')}"
        said = "; ".join(map(gates.told, failed))
        refusal = GateFailed(f"the canary ({size}) stopped the run before the other shards: {said}", tuple(failed))
        keep_refused(writer, uri, refusal, whole.metrics.results(), whole)
        raise refusal


def _groups(table: pa.Table) -> Iterable[pa.Table]:
    """The shards in groups of about the same size."""
    size = max(1, math.ceil(table.num_rows / GROUPS))
    return (table.slice(first, size) for first in range(0, table.num_rows, size))


def _failure(gate: gates.Gate, whole: gates.Evidence, groups: list[gates.Evidence]) -> gates.GateResult | None:
    """The verdict on the canary if it does not pass, and the night will not."""
    result = gate.judge(whole)
    if result.passed:
        return None
    if gate.refuses_any(whole):
        return result
    bad = [each for each in groups if gate.can_judge(each) and not gate.judge(each).passed]
    return result if len(groups) >= LEAST and len(bad) == len(groups) else None
