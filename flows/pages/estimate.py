"""`nightjar plan` and `nightjar check`: what is known of a run before it scores, as records and in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nightjar.flows.pages.escaping import line
from nightjar.flows.pages.wording import fact_lines, rows_known
from nightjar.flows.reports import CheckReport, Column, PlanReport
from nightjar.inference.arrow_types import type_name
from nightjar.inference.identity.differences import called, summed
from nightjar.inference.identity.identity import ScoringSet
from nightjar.inference.input.plan import Discovery
from nightjar.inference.job.model import Job
from nightjar.inference.job.modeljob import counted_format, model_jobs
from nightjar.inference.messages import counted
from nightjar.inference.run.checking import Checked
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.results import RunPlan, Sample

_SHOWN = 40
"""The most columns of the input that are shown to people."""


def planned(request: RunRequest, discovery: Discovery, made: RunPlan) -> PlanReport:
    """What would be scored."""
    plan = made.plan
    sizes = [shard.rows for shard in plan.shards()]
    known = [rows for rows in sizes if rows >= 0]
    return PlanReport(
        **about_input(request, discovery, plan.rows),
        unread=discovery.unread,
        files_left_out=discovery.left_out,
        shards=len(plan),
        committed=made.committed,
        to_score=made.left,
        reusable_shards=made.alike,
        reusable_rows=made.alike_rows,
        reuses=made.takes_over,
        source=made.source.revision.name if made.source and made.alike else "",
        rows_from=made.rows_from,
        rows_per_shard=(min(known, default=0), max(known, default=0)),
        columns=len(discovery.schema),
        again=made.again,
    )


def about_input(request: RunRequest, discovery: Discovery, rows: int) -> dict[str, Any]:
    """The fields of `Ahead`. rows: those that are known."""
    return {
        "job": request.job.name,
        "run_id": request.run_id,
        "files": discovery.files.num_rows,
        "unreadable_files": discovery.unreadable,
        "rows": rows,
        "uncounted_files": discovery.uncounted,
        "where": request.job.input.where or "",
        "snapshot": discovery.snapshot,
        "reads": tuple(Column(each.name, type_name(each.type)) for each in discovery.schema),
        "identity": tuple(described(request.job, request.scoring)),
    }


def columns_text(columns: Sequence[Column]) -> str:
    """The first columns with their types, as text for people."""
    more = f" … and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
    return ", ".join(f"{line(each.name)} {each.type}" for each in columns[:_SHOWN]) + more


def identity_facts(identity: Sequence[str]) -> list[tuple[str, str]]:
    """What scores the shards, as (word, text)."""
    return [("" if index else "identity", each) for index, each in enumerate(identity)]


def plan_text(found: PlanReport) -> str:
    """The plan as text for people."""
    low, high = found.rows_per_shard
    rows = counted(low, "row") if low == high else f"{low:,} to {high:,} rows"
    shares = f", {rows} a shard" if high else ""
    head = (
        f"{found.job} {found.run_id}: {found.to_score:,} of {found.shards:,} shards to score, "
        f"{rows_known(found.rows, found.uncounted_files)} in {counted(found.files, 'file')}{shares}"
    )
    without = f"; {counted(found.files_left_out, 'other file')} cannot match" if found.files_left_out else ""
    facts = [
        ("input", f"snapshot {found.snapshot} of its table" if found.snapshot else ""),
        ("reuse", reusable_text(found)),
        *(("again", why) for why in found.again),
        ("where", f"of these rows only those with {found.where}{without}" if found.where else ""),
        ("reads", columns_text(found.reads)),
        *identity_facts(found.identity),
        ("note", found.unread),
    ]
    return "\n".join([head, *fact_lines(facts)])


def reusable_text(found: PlanReport) -> str:
    """Which shards an earlier revision has a result of; empty if there are none."""
    rows = f"rows of the same values from {found.rows_from.replace('/', ' ')}" if found.rows_from else ""
    if not found.source:
        return rows
    said = (
        f"{counted(found.reusable_shards, 'shard')} of {counted(found.reusable_rows, 'row')} from "
        f"{found.source.replace('/', ' ')}"
    )
    if not found.reuses:
        return f"{said}, if the job said `reuse: shards`"
    return f"{said}; {rows}" if rows else said


def checked(request: RunRequest, discovery: Discovery, found: Checked, notes: Sequence[str]) -> CheckReport:
    """Everything that `check` found. notes: besides those of the check."""
    return CheckReport(
        **about_input(request, discovery, discovery.rows),
        notes=(*found.warnings, *notes),
        date=request.date,
        state="ready",
        device=found.device,
        output=request.output,
        columns=tuple(Column(name, kind) for name, kind in found.columns),
        sample=Sample(**{name: getattr(found.sampled, name) for name in Sample.__dataclass_fields__}),
    )


def check_text(found: CheckReport) -> str:
    """What `check` found, for people; a table of the scored rows comes after it."""
    sample = found.sample
    rows = rows_known(found.rows, found.uncounted_files)
    rows += " (before input.where)" if found.where and found.rows else ""
    scores = f"scores {sample.rows:,} rows of {counted(sample.places, 'place')} on" if sample.rows else "is on"
    facts = [
        ("input", f"snapshot {found.snapshot} of its table" if found.snapshot else ""),
        ("reads", columns_text(found.reads)),
        ("columns", ", ".join(f"{line(each.name)} {each.type}" for each in found.columns)),
        *identity_facts(found.identity),
        ("sample", f"the first rows of {sample.file}" if sample.values else ""),
    ]
    ready = (
        f"{found.job}: {counted(found.files, 'file')}, {rows}; the model "
        f"loads and {scores} {found.device}; {found.output} accepts conditional writes. "
        f"{'Ready, but see the notes.' if found.notes else 'Ready.'}"
    )
    return "\n".join([ready, *fact_lines(facts), *(f"Note: {line(note)}" for note in found.notes)])


_FILES = 20
"""The most files of the code that have a line each."""


def described(job: Job, scoring: ScoringSet) -> list[str]:
    """Lines for people that say what the identity is made of, and why each file is code."""
    code = [f"{file.name} ({scoring.reasons.get(file.name, 'kept')})" for file in scoring.code.files]
    lines = [f"code: {each}" for each in code[:_FILES]]
    if len(code) > _FILES:
        lines.append(f"code: {summed(code[_FILES:])}")
    for each, taken in zip(model_jobs(job), scoring.models, strict=False):
        if taken.files:
            names = [file.name or str(each.model.path) for file in taken.files]
            lines.append(f"{each.key}.path: {counted(len(names), 'file')} ({summed(names)})")
    lines += map(called, scoring.packages)
    for each in model_jobs(job):
        if each.model.version is not None:
            lines.append(f"{each.key}.version: {each.model.version}")
    if given := counted_format(job):
        lines.append(f"input.format: {given}")
    for snapshot in scoring.snapshots:
        lines += [
            f"{file.source}: too large to copy; it is read where it lies, and watched for changes"
            for file in snapshot.linked
        ]
    return lines
