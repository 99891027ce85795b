"""A finished run as a record, as text for the terminal, and as the page for the morning."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from nightjar.flows.pages.advice import Commands
from nightjar.flows.pages.escaping import address, code, markdown
from nightjar.flows.pages.evaluated import metric_lines
from nightjar.flows.pages.failure import lost_rows, rows_without_result
from nightjar.flows.pages.report.writing import served_at, written
from nightjar.flows.pages.wording import (
    duration,
    fact_lines,
    language,
    left_out,
    machines_cost,
    memory,
    named_instead,
    partly,
    speed,
    unfinished,
    where_time_went,
)
from nightjar.flows.reports import EngineFigures, RunResult, UsageFigures
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
from nightjar.inference.run.account import workers_cost
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.results import Publication, Verdict
from nightjar.inference.validation.gates import marked, overruled, warnings

if TYPE_CHECKING:
    from nightjar.flows.results import FinishedRun, Launched


def run_result(launched: Launched) -> RunResult:
    """The record of a finished run; times in seconds."""
    run = launched.run
    scored, progress = run.scored, run.scored.progress
    return RunResult(
        job=run.request.job.name,
        run_id=run.request.run_id,
        revision=scored.revision,
        state="published" if run.publication.number else "validated",
        publication=run.publication.number,
        **progress.counts.by_name,
        shards=progress.shards,
        reused_shards=progress.reused_shards,
        failed_attempts=progress.failed_attempts,
        retries=progress.retries,
        deaths=progress.deaths,
        device=scored.device,
        again=scored.again,
        notes=scored.warnings,
        warnings=tuple(warnings(run.verdict.gates)),
        tables_behind=run.publication.tables_behind,
        unreported=launched.unreported,
        metrics=run.verdict.metrics,
        manifest=f"{run.request.output}/{run.publication.manifest}",
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


def _figures(run: FinishedRun) -> list[tuple[str, str]]:
    """The figures of a finished run, as (word, text): in the terminal and on the page."""
    request, scored, progress = run.request, run.scored, run.scored.progress
    where, prices = request.job.input.where, prices_of(request.job)
    rows = (
        f"{progress.rows:,} in = {progress.counts.rows_out:,} out + {progress.counts.rows_quarantined:,} quarantined, "
        f"{partly(progress)}over {counted(progress.shards, 'shard')}"
        + (f" ({progress.reused_shards:,} already done)" if progress.reused_shards else "")
    )
    found = [("rows", rows), *([("where", left_out(progress.counts.rows_left_out, where))] if where else [])]
    if progress.rows_per_s:
        found.append(("speed", f"{speed(progress)}, on {scored.device}"))
    if (cost := workers_cost(request.job, run.account, progress.scored_rows)) is not None:
        found.append(("cost", machines_cost(cost)))
    if run.account is not None:
        found.append(("time", where_time_went(run.account)))
    found += language(progress, prices)
    if progress.memory:
        found.append(("memory", memory(progress)))
    if progress.failed_attempts or progress.retries:
        failed, faults = counted(progress.failed_attempts, "failed attempt"), counted(progress.retries, "fault")
        found.append(("retries", f"{failed} ({progress.deaths} by a lost process), {faults} overcome in place"))
    found.append(("gates", _passed(run.verdict)))
    found += [("warning", said) for said in warnings(run.verdict.gates)]
    return [*found, *metric_lines(run.verdict.metrics)]


def _remarks(run: FinishedRun, more: Iterable[str]) -> list[tuple[str, str]]:
    """What a person should know about how a finished run was scored and published, as (word, text). more: notes."""
    notes = (
        *run.scored.warnings,
        *nonfinite_notes(run.verdict.metrics.columns),
        *unfinished(run.publication),
        *_instead(run.request, run.publication),
        *more,
    )
    return worded(run.scored.again, notes)


def as_text(launched: Launched) -> str:
    """The closing summary: figures, paths, next steps."""
    run = launched.run
    away = [f"Prefect's page may be wrong, its API was away at the end ({launched.unreported})"]
    lost = lost_rows(run.request, 1) if run.scored.progress.counts.rows_in_quarantine else []
    facts = [
        *_figures(run),
        *_paths(run),
        *(("", f"the first: {said}") for said, _ in lost),
        ("report", written(run.request)),
        *_remarks(run, away if launched.unreported else ()),
    ]
    return "\n".join([_headline(run), *fact_lines(facts), "", *_next_steps(launched)])


def _paths(run: FinishedRun) -> list[tuple[str, str]]:
    """Where the files of a finished run are, as (word, URI)."""
    request = run.request
    folder = revs.revision_uri(request.run_uri, run.scored.revision)
    return [
        ("data", f"{folder}/data"),
        ("shards", f"{request.output}/{run.verdict.shards}"),
        ("manifest", f"{request.output}/{run.verdict.manifest}"),
        *([("quarantine", f"{folder}/quarantine")] if run.scored.progress.counts.rows_in_quarantine else []),
    ]


def _instead(request: RunRequest, publication: Publication) -> list[str]:
    """That another run stands for the date of this one, which is published, and the command that makes way."""
    if not publication.number:
        return []
    with suppress(StorageError, JobError):  # how the run ended is known, and `status` says this, too
        if found := shown_instead(publications.newest(request.storage, request.output), request.run_id):
            (command,) = Commands.here(request).make_way(found).values()
            return [f"published, but {named_instead(found)}; `{command}` makes way for it"]
    return []


def _passed(verdict: Verdict) -> str:
    """How many gates passed; none blocked, or the run were not finished."""
    passed = sum(gate.passed for gate in verdict.gates)
    warn = len(verdict.gates) - passed
    return f"{passed} of {len(verdict.gates)} passed" + (f", {warn} warned" if warn else "")


def _headline(run: FinishedRun) -> str:
    name = f"{run.request.job.name} {run.request.run_id} r{run.scored.revision}"
    took = f" in {duration(run.account.wall_s)}" if run.account else ""
    if run.scored.finished:
        return f"{name}: everything is committed and published already, nothing was scored{took}"
    if run.publication.number:
        return f"{name}: published as #{run.publication.number}{took}{marked(**overruled(run.verdict.gates))}"
    return f"{name}: scored and validated, not published{took}"


def _next_steps(launched: Launched) -> list[str]:
    run = launched.run
    commands = Commands.here(run.request, launched.ray)
    steps = []
    if run.scored.progress.counts.rows_in_quarantine:
        steps.append(f"Quarantine:   {commands.show}")
    if run.publication.number:
        steps.append(f"Read it:      {commands.command('files', *run.request.words)}")
        if not run.scored.finished:
            # Not a rollback, which takes back whatever was published last by the time that somebody types it.
            steps.append(f"Take it back: {commands.command('unpublish', *run.request.words)}")
    elif run.request.command == "run" and not run.request.limit:
        publishing = replace(commands, request=replace(run.request, publish=True))
        steps.append(f"Publish it:   {publishing.repeat()}")
    if not launched.own_api:
        steps.append(f"In the UI:    {launched.api_url.removesuffix('/api')} → Runs, and Artifacts")
    return steps


def as_page(run: FinishedRun, report: str = "") -> tuple[str, str]:
    """In a few words whether readers see the run; and the page in Markdown. report: the URI of its report, if it left
    one.
    """
    request, publication = run.request, run.publication
    marks = marked(**overruled(run.verdict.gates))
    state = f"published as #{publication.number}{marks}" if publication.number else "not published"
    mends = f"`{Commands.here(request).commit}` commits what is mended"
    late = [f"published, but {each}; {mends}" for each in publication.tables_behind]
    facts = [*_figures(run), *_remarks(run, late)]
    lines = [
        f"# {markdown(_headline(run))}",
        "",
        "| | |",
        "|---|---|",
        *[f"| {f'**{word}**' if word == 'warning' else markdown(word)} | {markdown(text)} |" for word, text in facts],
        *[f"| {word} | {code(path, cell=True)} |" for word, path in _paths(run)],
        *([f"| report | [{markdown(report)}]({address(report)}) |"] if report else []),
        *([f"| report now | [{markdown(page)}]({page}) |"] if (page := served_at(request)) else []),
        "",
        f"The exact files: {code(Commands(request).command('files', *request.words))}",
        *(rows_without_result(request) if run.scored.progress.counts.rows_in_quarantine else []),
    ]
    return state, "\n".join(lines)
