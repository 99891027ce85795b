"""How a run ended, as one description: published, validated, failed or asking; for the terminal and Prefect's page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nightjar.flows.pages.advice import Commands
from nightjar.flows.pages.escaping import address, code, markdown
from nightjar.flows.pages.evaluated import evaluation_lines, own_lines
from nightjar.flows.pages.reportfiles import served_at, written
from nightjar.flows.pages.wording import (
    describe,
    duration,
    fact_lines,
    language,
    left_out,
    machines_cost,
    named_instead,
    pruned,
    reused_text,
    speed,
    unfinished,
    where_time_went,
)
from nightjar.flows.reports import EngineFigures, RunResult
from nightjar.inference.errors import JobError, NightjarError, StorageError
from nightjar.inference.history.night import RunNow, look
from nightjar.inference.history.run_status import marked, overruled, shown_instead, warnings
from nightjar.inference.history.run_tables import worded
from nightjar.inference.ledger import endings
from nightjar.inference.ledger.lines import Question
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.messages import counted
from nightjar.inference.metrics.states import nonfinite_notes
from nightjar.inference.output import publications
from nightjar.inference.output import revisions as revs
from nightjar.inference.predictors.language.languagemodel import prices_of
from nightjar.inference.run.account import workers_cost
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.results import Publication, Verdict

if TYPE_CHECKING:
    from nightjar.flows.finished_run import FinishedRun, Launched


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended."""

    how: str
    """How the run ended, in a few words."""

    title: str
    """The run and how it ended."""

    seen: str
    """Of a failed run, what readers see, as a sentence; else empty."""

    facts: tuple[tuple[str, str], ...]
    """Figures, warnings and notes, as (word, text)."""

    commands: Mapping[str, str]
    """What a person can do next: word → command; in the terminal also `pages`, the address of Prefect's pages."""

    files: tuple[tuple[str, str], ...] = ()
    """Where the files of a finished run are, as (word, URI)."""

    report: str = ""
    """The URI of the run's report; empty if there is none."""


def as_text(found: Ending) -> str:
    """The text for the terminal, where the error of a failed run was printed before."""
    facts = [*found.facts, *found.files, ("report", found.report), *found.commands.items()]
    return "\n".join([found.seen or found.title, *fact_lines(facts)])


def as_page(found: Ending, request: RunRequest, error: str = "") -> str:
    """The page in Markdown. error: the message of a failed run."""
    lines = [
        f"# {markdown(found.title)}",
        "",
        *([markdown(error), ""] if error else []),
        *([found.seen, ""] if found.seen else []),
        "| | |",
        "|---|---|",
        *[f"| {markdown(word)} | {markdown(said)} |" for word, said in found.facts],
        *[f"| {word} | {code(said, cell=True)} |" for word, said in (*found.files, *found.commands.items())],
        *([f"| report | [{markdown(found.report)}]({address(found.report)}) |"] if found.report else []),
        *([f"| report now | [{markdown(page)}]({page}) |"] if (page := served_at(request)) else []),
    ]
    return "\n".join(lines)


def asking_page(request: RunRequest, question: Question) -> str:
    """What a person is asked, in Markdown, for the form on the run's page."""
    lines = [f"**{markdown(request.job.name)} {markdown(request.run_id)}**: may it be published?", ""]
    lines += [f"- {markdown(gate.name)}: {markdown(gate.sentence)}" for gate in question.gates]
    lines += [f"- {markdown(gate.row)}: {code(gate.replay)}" for gate in question.gates if gate.row]
    look = Commands(request).show
    lines += ["", f"No answer until {question.until} counts as a no. More: the artifacts of this run, and {code(look)}"]
    return "\n".join(lines)


# ---- a run that failed, or asks -----------------------------------------------------------------------------


def failure(commands: Commands, error: NightjarError, found: RunNow | None = None) -> Ending:
    """Describe a failed run as it is now. found: its report, if it left one; default: the run is looked at."""
    request = commands.request
    ended = endings.of_error(error, "")
    how = ended.words if ended else endings.FAILED
    # The storage may be why the run failed, which was reported.
    seen = "What was committed is kept; what readers see could not be looked up: the storage does not answer."
    facts, begun, fresh = list[tuple[str, str]](), True, request.fresh
    with suppress(StorageError):
        found = found or look(request)
        newest, progress = found.newest, found.newest.state.progress if found.newest else Progress()
        if newest is None:
            seen = "Nothing was scored and nothing new was published."
            begun = found.line.standing.state != "unknown"
        else:
            seen = "What was committed is kept and nothing new was published."
            if found.line.shown == newest.number:
                seen = f"Readers see r{newest.number}, the newest of this run, complete."
            # With a revision of its own it is continued without `--fresh`.
            fresh &= newest.state.planned is None or not newest.begun_by(request.flow_run)
        facts += [("so far", describe(progress))] if progress.shards else []
        facts += [("warning", said) for said in found.warnings]
        facts += worded(found.again, (*found.notes, *found.unread))
    outcome = ended.outcome if ended else endings.FAILED
    return Ending(
        how=how,
        title=f"{request.job.name} {request.run_id}: {how}",
        seen=seen,
        facts=tuple(facts),
        commands=commands.of_error(error, outcome if begun else "never begun", fresh=fresh),
        report=written(request),
    )


def after_failure(request: RunRequest, error: NightjarError, ray: str | None = None) -> str:
    """The text on what to do after a run has failed. ray: the cluster that was named."""
    return as_text(failure(Commands.here(request, ray), error))


# ---- a run that came to its end -----------------------------------------------------------------------------


def finished(run: FinishedRun, commands: Commands, report: str = "", notes: Iterable[str] = ()) -> Ending:
    """Describe a finished run. report: as in `Ending`. notes: what a person should know besides."""
    published, marks = run.publication.number, marked(**overruled(run.verdict.gates))
    return Ending(
        how=f"published as #{published}{marks}" if published else "not published",
        title=_title(run),
        seen="",
        facts=(*_figures(run), *_remarks(run, commands, notes)),
        files=tuple(_files(run)),
        commands=_next(run, commands),
        report=report,
    )


def closing_text(launched: Launched) -> str:
    """The closing lines of a command that scored."""
    run, unreported = launched.run, launched.unreported
    away = [f"Prefect's page may be wrong, its API was away at the end ({unreported})"] if unreported else []
    commands = Commands.here(run.request, launched.ray)
    found = finished(run, commands, written(run.request), away)
    pages = {"pages": f"{launched.pages} → Runs, and Artifacts"} if launched.pages else {}
    return as_text(replace(found, commands={**found.commands, **pages}))


def summary(run: FinishedRun, report: str) -> tuple[str, str]:
    """How a finished run ended, in a few words; and the page for the morning. report: as in `Ending`."""
    commands = Commands(run.request)
    mends = f"`{commands.commit}` commits what is mended"
    late = [f"published, but {each}; {mends}" for each in run.publication.tables_behind]
    found = finished(run, commands, report, late)
    return found.how, as_page(found, run.request)


def _title(run: FinishedRun) -> str:
    name = f"{run.request.job.name} {run.request.run_id} r{run.scored.revision}"
    took = f" in {duration(run.account.wall_s)}" if run.account else ""
    if run.scored.finished:
        return f"{name}: everything is committed and published already, nothing was scored{took}"
    if run.publication.number:
        return f"{name}: published as #{run.publication.number}{took}{marked(**overruled(run.verdict.gates))}"
    return f"{name}: scored and validated, not published{took}"


def _figures(run: FinishedRun) -> list[tuple[str, str]]:
    """The figures of a finished run, as (word, text): in the terminal and on the page."""
    job, progress, counts = run.request.job, run.scored.progress, run.scored.progress.counts
    partly = f"{counts.rows_partial:,} partly scored, " if counts.rows_partial else ""
    done = f" ({progress.reused_shards:,} already done)" if progress.reused_shards else ""
    rows = (
        f"{progress.rows:,} in = {counts.rows_out:,} out + {counts.rows_quarantined:,} quarantined, "
        f"{partly}over {counted(progress.shards, 'shard')}{done}"
    )
    cost = workers_cost(job, run.account, progress.scored_rows)
    failed, faults = counted(progress.failed_attempts, "failed attempt"), counted(progress.retries, "fault")
    retries = f"{failed} ({progress.deaths} by a lost process), {faults} overcome in place"
    found = [
        ("rows", rows),
        ("reused", reused_text(run.verdict.reused, counts.rows_in, job.cost.currency if job.cost else "")),
        ("where", left_out(counts.rows_left_out, job.input.where) if job.input.where else ""),
        ("speed", f"{speed(progress)}, on {run.scored.device}" if progress.rows_per_s else ""),
        ("cost", machines_cost(cost) if cost else ""),
        ("time", where_time_went(run.account) if run.account else ""),
        *language(progress, prices_of(job)),
        ("deleted", pruned(run.pruned) if run.pruned and run.pruned.files else ""),
        ("retries", retries if progress.failed_attempts or progress.retries else ""),
        ("gates", _passed(run.verdict)),
        *(("warning", said) for said in warnings(run.verdict.gates)),
        *evaluation_lines(run.verdict.metrics),
        *own_lines(run.verdict.metrics),
    ]
    return [(word, text) for word, text in found if text]


def _remarks(run: FinishedRun, commands: Commands, more: Iterable[str]) -> list[tuple[str, str]]:
    """What a person should know about how a finished run was scored and published, as (word, text). more: notes."""
    notes = (
        *run.scored.warnings,
        *nonfinite_notes(run.verdict.metrics.columns),
        *unfinished(run.publication),
        *old_nights(run),
        *_instead(commands, run.publication),
        *more,
    )
    return worded(run.scored.again, notes)


def old_nights(run: FinishedRun) -> list[str]:
    """Notes on old nights that could not be deleted, or be taken out of a table."""
    found, late = run.pruned, run.publication.tables_behind
    notes = [each for each in (found.behind, *found.tables_behind) if each and each not in late] if found else []
    return [f"old nights: {each}" for each in (*notes, *(found.left if found else ()), run.unpruned) if each]


def _files(run: FinishedRun) -> list[tuple[str, str]]:
    request = run.request
    folder = revs.revision_uri(request.run_uri, run.scored.revision)
    return [
        ("data", f"{folder}/data"),
        ("shards", f"{request.output}/{run.verdict.shards}"),
        ("manifest", f"{request.output}/{run.verdict.published.manifest}"),
        *([("quarantine", f"{folder}/quarantine")] if run.scored.progress.counts.rows_in_quarantine else []),
    ]


def _instead(commands: Commands, publication: Publication) -> list[str]:
    """That another run stands for the date of this one, which is published, and the command that makes way."""
    if not publication.number:
        return []
    request = commands.request
    with suppress(StorageError, JobError):  # how the run ended is known, and `status` says this, too
        if found := shown_instead(publications.newest(request.storage, request.output), request.run_id):
            (command,) = commands.make_way(found).values()
            return [f"published, but {named_instead(found)}; `{command}` makes way for it"]
    return []


def _passed(verdict: Verdict) -> str:
    """How many gates passed; none blocked, or the run were not finished."""
    found = Counter[str](gate.verdict for gate in verdict.gates)
    others = (("warn", "warned"), ("ask", "approved by a person"))
    said = [f", {found[each]} {word}" for each, word in others if found[each]]
    return f"{found['pass']} of {len(verdict.gates)} passed{''.join(said)}"


def _next(run: FinishedRun, commands: Commands) -> dict[str, str]:
    request, steps = run.request, dict[str, str]()
    if run.scored.progress.counts.rows_in_quarantine:
        steps["look"] = commands.show
    if run.publication.number:
        steps["read"] = commands.command("files", *request.words)
        if not run.scored.finished:
            steps["take back"] = commands.take_back
    elif request.command == "run" and not request.limit:
        steps["publish"] = replace(commands, request=replace(request, publish=True)).repeat()
    return steps


def run_result(launched: Launched) -> RunResult:
    """The record of a finished run; times in seconds."""
    run = launched.run
    scored, progress, prices = run.scored, run.scored.progress, prices_of(run.request.job)
    return RunResult(
        job=run.request.job.name,
        run_id=run.request.run_id,
        revision=scored.revision,
        state="published" if run.publication.number else "validated",
        publication=run.publication.number,
        **progress.counts.by_name,
        shards=progress.shards,
        reused_shards=progress.reused_shards,
        reused=run.verdict.reused,
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
        ),
        usage=progress.usage,
        token_rates=progress.token_rates,
        token_cost=round(prices.cost(progress.usage), 6) if prices else None,
        cost=workers_cost(run.request.job, run.account, progress.scored_rows),
        pruned=run.pruned,
    )
