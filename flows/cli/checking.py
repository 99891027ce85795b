"""`nightjar check`: finds what can be known before a night, for people and for machines."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from nightjar.flows.cli.tables import sample_rows
from nightjar.flows.cluster import named
from nightjar.flows.pages.escaping import line
from nightjar.flows.pages.estimate import about_input, columns_text, identity_facts
from nightjar.flows.pages.wording import fact_lines, rows_known
from nightjar.flows.prefect_api.api import check_limit
from nightjar.flows.reports import CheckReport, Column, Sample
from nightjar.flows.starting import check_output
from nightjar.inference.engine import LOCAL
from nightjar.inference.input.discovery import Discovery
from nightjar.inference.messages import counted
from nightjar.inference.run.checking import Checked, check, check_input
from nightjar.inference.run.inspection import inspect_code
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.samples import Sampled


def report(request: RunRequest, discovery: Discovery, ray: str | None, verbose: bool) -> CheckReport:
    """Check everything that a night needs besides its input; the cheapest checks come first.

    Raises:
        JobError, ClusterError: Something must be changed.
    """
    check_input(request, discovery)
    check_output(request, ray)
    limit = request.job.resources.concurrency_limit
    notes = [check_limit(limit) if limit else "", inspect_code(request, elsewhere=named(ray) is not None)]
    if request.engine == LOCAL:
        checked = check(request, discovery)
    else:
        from nightjar.flows.cluster.connection import cluster  # Ray takes a while to import
        from nightjar.flows.cluster.tasks import call

        with cluster(ray, request.job, {}, verbose):
            checked = call(check, request, discovery)
    return found(request, discovery, checked, [note for note in notes if note])


def found(request: RunRequest, discovery: Discovery, checked: Checked, notes: Sequence[str]) -> CheckReport:
    """Everything that `check` found, as a record."""
    return CheckReport(
        **about_input(request, discovery, discovery.rows, (*checked.warnings, *notes)),
        date=request.date,
        state="ready",
        device=checked.device,
        output=request.output,
        columns=tuple(Column(name, kind) for name, kind in checked.columns),
        sample=_sample(checked.sampled),
    )


def _sample(sampled: Sampled) -> Sample:
    shown = sampled.shown
    return Sample(
        rows=sampled.rows,
        places=sampled.places,
        failed=sampled.failed,
        nonfinite=dict(sampled.nonfinite),
        file=shown.uri if shown else None,
        names=tuple(shown.names) if shown else (),
        values=tuple(tuple(row) for row in shown.rows) if shown else (),
    )


def as_text(said: CheckReport) -> list[str | Table]:
    """What `check` found, for people: lines, and a table of the scored rows."""
    sample = said.sample
    rows = rows_known(said.rows, said.uncounted_files) + (" (before input.where)" if said.where and said.rows else "")
    columns = (f"{line(each.name)} {each.type}" for each in said.columns)
    scores = f"scores {sample.rows:,} rows of {_places(sample.places)} on" if sample.rows else "is on"
    facts = [
        ("input", f"snapshot {said.snapshot} of its table" if said.snapshot else ""),
        ("reads", columns_text(said.reads)),
        ("columns", ", ".join(columns)),
        *identity_facts(said.identity),
        ("sample", f"the first rows of {sample.file}" if sample.values else ""),
    ]
    parts: list[str | Table] = [
        f"{said.job}: {counted(said.files, 'file')}, {rows}; the model "
        f"loads and {scores} {said.device}; {said.output} accepts conditional writes. "
        f"{'Ready, but see the notes.' if said.notes else 'Ready.'}",
        *fact_lines(facts),
    ]
    if sample.values:
        parts.append(sample_rows(sample.names, sample.values))
    return parts + [f"Note: {line(note)}" for note in said.notes]


def _places(count: int) -> str:
    return "one place" if count == 1 else f"{count} places"
