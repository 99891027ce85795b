"""A finished run as a record, as text for the terminal, and as the page for the morning."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from nightjar.flows.pages.addresses import shown_at
from nightjar.flows.pages.advice import committing, making_way, near, repeating, typed
from nightjar.flows.pages.escaping import address, code, line, markdown
from nightjar.flows.pages.evaluated import metric_lines
from nightjar.flows.pages.failure import lost_rows, rows_without_result
from nightjar.flows.pages.report.writing import none_written, written
from nightjar.flows.pages.wording import (
    duration,
    language,
    left_out,
    machines_cost,
    memory,
    named_instead,
    notes,
    partly,
    speed,
    where_time_went,
)
from nightjar.flows.reports import EngineFigures, RunResult, Seconds, UsageFigures
from nightjar.inference.errors import JobError, StorageError
from nightjar.inference.history.run_status import shown_instead
from nightjar.inference.history.run_tables import worded
from nightjar.inference.ledger.progress import Progress, TokenRates
from nightjar.inference.messages import counted
from nightjar.inference.metrics.states import nonfinite_notes
from nightjar.inference.output import publications
from nightjar.inference.output import revisions as revs
from nightjar.inference.predictors.language.languagemodel import TokenPrices, prices_of
from nightjar.inference.records import as_line
from nightjar.inference.run.account import Account, workers_cost
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.steps import Publication, Scored, Verdict
from nightjar.inference.validation.gates import marked, overruled, warnings

if TYPE_CHECKING:
    from nightjar.flows.results import Launched


def run_result(launched: Launched, total_s: float) -> RunResult:
    """The record of a finished run; times in seconds."""
    run = launched.run
    scored, progress = run.scored, run.scored.progress
    return RunResult(
        job=run.request.job.name,
        run_id=run.request.run_id,
        revision=scored.revision,
        state="published" if run.publication.number else "validated",
        publication=run.publication.number,
        rows_in=progress.rows,
        rows_out=progress.rows_out,
        rows_quarantined=progress.rows_quarantined,
        rows_partial=progress.rows_partial,
        rows_left_out=progress.rows_left_out,
        shards=progress.shards,
        reused_shards=progress.reused_shards,
        failed_attempts=progress.failed_attempts,
        retries=progress.retries,
        batches_cut=progress.cuts,
        deaths=progress.deaths,
        device=scored.device,
        again=scored.again,
        notes=scored.warnings,
        warnings=tuple(warnings(run.verdict.gates)),
        tables_behind=run.publication.tables_behind,
        unreported=launched.unreported,
        metrics=run.verdict.metrics,
        manifest=f"{run.request.output}/{run.publication.manifest}",
        seconds=_seconds(launched, total_s),
        account=run.account,
        engine=EngineFigures(
            startup_s=round(scored.startup_s, 3),
            first_start=round(progress.first_start, 3),
            steady_s=round(progress.steady_s, 3),
            rows_per_s=round(progress.rows_per_s),
            workers=len(progress.memory),
            resident_mb=progress.resident_mb,
            proportional_mb=progress.proportional_mb,
        ),
        usage=_usage(progress, prices_of(run.request.job)),
        cost=workers_cost(run.request.job, run.account, progress.scored_rows),
    )


def _usage(progress: Progress, prices: TokenPrices | None) -> UsageFigures:
    used = progress.usage
    return UsageFigures(
        **as_line(used),
        cached_share=round(used.found_in_cache, 4),
        rates=TokenRates(**{name: round(rate, 3) for name, rate in as_line(progress.token_rates).items()}),
        cost=round(prices.cost(used), 6) if prices else None,
        currency=prices.currency if prices else "",
    )


def _seconds(launched: Launched, total_s: float) -> Seconds:
    run = launched.run
    return Seconds(
        total=round(_took_s(launched, total_s), 3),
        ray=round(launched.ray_s, 3),
        prefect=round(launched.prefect_s, 3),
        discover=run.account.parts.get("discover", 0.0) if run.account else 0.0,
        score=round(run.scored.seconds, 3),
        validate=round(run.verdict.seconds, 3),
        publish=round(run.publication.seconds, 3),
    )


def _took_s(launched: Launched, total_s: float) -> float:
    """How long the night took, as every page says it; of a command that found nothing to score, its own time."""
    run = launched.run
    return run.account.wall_s if run.account and not run.scored.finished else total_s


def as_text(launched: Launched, total_s: float) -> str:
    """The closing summary: figures, paths, next steps."""
    run = launched.run
    request, scored, progress = run.request, run.scored, run.scored.progress
    folder = revs.revision_uri(request.run_uri, scored.revision)
    away = filter(None, [launched.unreported])
    lines = [
        _headline(launched, total_s),
        f"  rows       {progress.rows:,} in = {progress.rows_out:,} out + {progress.rows_quarantined:,} quarantined, "
        f"{partly(progress)}"
        f"over {counted(progress.shards, 'shard')}"
        + (f" ({progress.reused_shards:,} already done)" if progress.reused_shards else ""),
    ]
    if request.job.input.where:
        lines.append(f"  where      {left_out(progress.rows_left_out, request.job.input.where)}")
    lines += [f"  again      {why}" for why in scored.again]
    if progress.rows_per_s:
        lines.append(f"  speed      {speed(progress)}, on {scored.device}")
    if (cost := workers_cost(request.job, run.account, progress.scored_rows)) is not None:
        lines.append(f"  cost       {machines_cost(cost)}")
    if run.account is not None:
        lines.append(f"  time       {where_time_went(run.account)}")
    lines += [f"  {word:<10} {text}" for word, text in language(progress, prices_of(request.job))]
    if progress.memory:
        lines.append(f"  memory     {memory(progress)}")
    if progress.failed_attempts or progress.retries:
        lines.append(
            f"  retries    {counted(progress.failed_attempts, 'failed attempt')} "
            f"({progress.deaths} by a lost process), {counted(progress.retries, 'fault')} overcome in place"
        )
    lines.append(f"  gates      {_passed(run.verdict)}")
    lines += [f"  warning    {line(said)}" for said in warnings(run.verdict.gates)]
    lines += [f"  {line(name):<10} {line(value)}" for name, value in metric_lines(run.verdict.metrics)]
    if progress.rows_in_quarantine:
        first = [f"  {'':<10} the first: {line(said)}" for said, _ in lost_rows(request, 1)]
        lines += [f"  quarantine {folder}/quarantine", *first]
    lines += [
        f"  data       {folder}/data",
        f"  manifest   {request.output}/{run.publication.manifest}",
        f"  report     {written(request) or none_written(request)}",
        *[f"  note       {warning}" for warning in scored.warnings],
        *[f"  note       {note}" for note in nonfinite_notes(run.verdict.metrics.outputs)],
        *[f"  note       {note}" for note in notes(run.publication)],
        *[f"  note       {note}" for note in _instead(request, run.publication)],
        *[f"  note       Prefect's page may be wrong, its API was away at the end ({said})" for said in away],
        "",
        *_next_steps(launched),
    ]
    return "\n".join(lines)


def _instead(request: RunRequest, publication: Publication) -> list[str]:
    """That another run stands for the date of this one, which is published, and the command that makes way."""
    if not publication.number:
        return []
    with suppress(StorageError, JobError):  # how the run ended is known, and `status` says this, too
        if found := shown_instead(publications.newest(request.storage, request.output), request.run_id):
            (command,) = making_way(request, found).values()
            return [f"published, but {named_instead(found)}; `{command}` makes way for it"]
    return []


def _passed(verdict: Verdict) -> str:
    """How many gates passed; none blocked, or the run were not finished."""
    passed = sum(gate.passed for gate in verdict.gates)
    warn = len(verdict.gates) - passed
    return f"{passed} of {len(verdict.gates)} passed" + (f", {warn} warned" if warn else "")


def _headline(launched: Launched, total_s: float) -> str:
    run = launched.run
    name = f"{run.request.job.name} {run.request.run_id} r{run.scored.revision}"
    took = f"in {duration(_took_s(launched, total_s))}"
    if run.scored.finished:
        return f"{name}: everything is committed and published already, nothing was scored ({took})"
    if run.publication.number:
        return f"{name}: published as #{run.publication.number} {took}"
    return f"{name}: scored and validated, not published {took}"


def _next_steps(launched: Launched) -> list[str]:
    run = launched.run
    job = shlex.quote(near(run.request.job_path))
    steps = []
    if run.scored.progress.rows_in_quarantine:
        steps.append(f"Quarantine:   {typed('nightjar')} show {job} {shlex.join(run.request.words)}")
    if run.publication.number:
        steps.append(f"Read it:      {typed('nightjar')} files {job} {shlex.join(run.request.named)}")
        if not run.scored.finished:
            # Not a rollback, which takes back whatever was published last by the time that somebody types it.
            steps.append(f"Take it back: {typed('nightjar')} unpublish {job} {shlex.join(run.request.words)}")
    elif run.request.command == "run" and not run.request.limit:
        publishing = replace(run.request, publish=True)
        steps.append(f"Publish it:   {typed('nightjar')} run {job} {repeating(publishing, launched.ray)}")
    if not launched.own_api:
        steps.append(f"In the UI:    {launched.api_url.removesuffix('/api')} → Runs, and Artifacts")
    return steps


def as_page(
    request: RunRequest,
    scored: Scored,
    verdict: Verdict,
    publication: Publication,
    report: str = "",
    account: Account | None = None,
) -> tuple[str, str]:
    """In a few words whether readers see the run; and the page in Markdown. report: the URI of its report, if it left
    one. account: where its time went, if that is known.
    """
    marks = marked(**overruled(verdict.gates))
    state = f"published as #{publication.number}{marks}" if publication.number else "not published"
    mended = f"`{committing(request)}` commits what is mended"
    late = [f"published, but {each}; {mended}" for each in publication.tables_behind]
    late += _instead(request, publication)
    nonfinite = nonfinite_notes(verdict.metrics.outputs)
    remarks = worded(scored.again, (*scored.warnings, *nonfinite, *notes(publication), *late))
    progress = scored.progress
    where = f"{request.run_uri}/r{scored.revision}"
    lines = [
        f"# {request.job.name} {markdown(request.run_id)}: {state}",
        "",
        "| | |",
        "|---|---|",
        f"| rows in | {progress.rows:,} |",
        f"| rows out | {progress.rows_out:,} |",
        f"| quarantined | {progress.rows_quarantined:,} |",
        *([f"| partly scored | {progress.rows_partial:,} |"] if progress.rows_partial else []),
        *(
            [f"| left out | {markdown(left_out(progress.rows_left_out, request.job.input.where))} |"]
            if request.job.input.where
            else []
        ),
        f"| shards | {progress.shards:,} ({progress.reused_shards:,} taken over) |",
        f"| failed attempts | {progress.failed_attempts:,} |",
        f"| gates | {_passed(verdict)} |",
        *[f"| **warning** | {markdown(said)} |" for said in warnings(verdict.gates)],
        *[f"| {markdown(name)} | {markdown(value)} |" for name, value in metric_lines(verdict.metrics)],
        *([f"| took | {duration(account.wall_s)} |"] if account and not scored.finished else []),
        *([f"| speed | {speed(progress)} |"] if progress.rows_per_s else []),
        *([f"| device | {scored.device} |"] if scored.device else []),
        *[f"| {word} | {text} |" for word, text in language(progress, prices_of(request.job))],
        *([f"| memory | {memory(progress)} |"] if progress.memory else []),
        *[f"| {word} | {markdown(text)} |" for word, text in remarks],
        f"| output | {code(f'{where}/data', cell=True)} |",
        *([f"| quarantine | {code(f'{where}/quarantine', cell=True)} |"] if progress.rows_in_quarantine else []),
        f"| every shard | {code(f'{request.output}/{verdict.shards}', cell=True)} |",
        f"| manifest | {code(f'{request.output}/{verdict.manifest}', cell=True)} |",
        *([f"| report | [{markdown(report)}]({address(report)}) |"] if report else []),
        *([f"| report now | [{markdown(page)}]({page}) |"] if (page := shown_at(request)) else []),
        "",
        f"The exact files: {code(shlex.join(['nightjar', 'files', request.job_path, *request.named]))}",
        *(rows_without_result(request) if progress.rows_in_quarantine else []),
    ]
    return state, "\n".join(lines)
