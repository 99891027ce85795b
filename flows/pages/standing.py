"""`status`, `runs` and `show`: how a run stands, how far it is, and what to do about it, as records and in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from itertools import islice

from nightjar.flows.pages.advice import Commands, as_typed, near
from nightjar.flows.pages.evaluated import late_lines
from nightjar.flows.pages.wording import describe, fact_lines, late_table, named_instead
from nightjar.flows.reports import RunListed, RunStatus
from nightjar.inference.history.night import look
from nightjar.inference.history.run_status import RunFigures, RunLine
from nightjar.inference.history.run_tables import worded
from nightjar.inference.records import as_line
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.waiting import waits

_FAILURES = 20
"""The most failed shards that `status` names; it also has the number of all."""

_PUBLISHED = 10
"""The most published runs that `status` names: the last ones by name."""


def status(request: RunRequest) -> RunStatus:
    """Say how far a run is, how it stands and what to do about it, from its ledger and the publications."""
    found, about = look(request), Commands.here(request)
    known = RunStatus(
        **as_line(run_listed(request, found.line)),
        job=request.job.name,
        job_file=near(request.job_path),
        instead=found.instead,
        output_publication=found.now.number,
        published=tuple(sorted(found.now.runs)[-_PUBLISHED:]),
        tables=found.tables,
        again=found.again,
        failed_shards=len(found.failed),
        failures=tuple(said[-1] for said in islice(found.failed.values(), _FAILURES)),
        evaluation=found.late,
    )
    commands = about.of_run(found)
    if (newest := found.newest) is None:
        return replace(known, commands=commands)
    if known.failed_shards > _FAILURES:
        commands["more"] = about.command("show", *request.words, "--lines", str(known.failed_shards))
    progress, openers = newest.state.progress, newest.state.openers
    # A command that continues the run may wait for its input.
    waiting = waits(request, openers[-1][1].at if openers else "")
    return replace(
        known,
        commands=commands,
        holder=str(newest.state.holder) if newest.state.holder else None,
        summary=describe(progress, running=known.state == "running") if progress.shards else "not planned yet",
        warnings=tuple(found.warnings),
        notes=(*([str(waiting)] if waiting else []), *found.notes, *found.unread),
    )


def status_text(found: RunStatus) -> str:
    """The text of `status` for people."""
    seen = f"r{found.shown}" if found.shown else "nothing of it"
    name = f"{found.job} {found.run_id}"
    if found.revision:
        head = f"{name} r{found.revision}: {found.standing}, {found.summary}"
    elif found.shown:
        head = f"{name}: readers see {seen} of it, and nothing of it is there"
    elif found.state == "unknown":
        head = f"{found.run_id}: no such run is there; published runs: {', '.join(found.published) or 'none'}"
    else:
        head = f"{name}: {found.standing}, nothing of it was begun"
    more = found.failed_shards - len(found.failures)
    facts = [
        ("writer", found.holder or ""),
        *_explained_facts(found),
        ("readers", f"see {seen} (publication {found.output_publication})" if found.revision else ""),
        ("but", named_instead(found.instead) if found.instead else ""),
        *(("table", late_table(each, found.output_publication)) for each in found.late_tables),
        *(("warning", said) for said in found.warnings),
        *(late_lines(found.evaluation, found.revision) if found.evaluation else ()),
        *worded(found.again, found.notes),
        *(("shard", f"{each.shard}: {each.cause}: {each.message}") for each in found.failures),
        ("", f"and {more:,} more" if more else ""),
        *found.commands.items(),
    ]
    return "\n".join([head, *fact_lines(facts)])


def runs_listed(request: RunRequest, lines: Iterable[RunLine]) -> list[RunListed]:
    """Runs of the request's output, each with the commands about it."""
    return [run_listed(line.of(request), line) for line in lines]


def run_listed(request: RunRequest, run: RunLine) -> RunListed:
    """A run with why it stands so, and the commands that show more, repeat or mend it."""
    found = run.standing
    return RunListed(
        **{each.name: getattr(run, each.name) for each in fields(RunFigures)},
        state=found.state,
        standing=found.words,
        cause=found.cause,
        ended=found.ended,
        tried_again=found.tried,
        commands=Commands.here(request).of_standing(found),
    )


def _explained_facts(found: RunListed) -> list[tuple[str, str]]:
    """Why a run stands as it does, and since when, as (word, text)."""
    facts = [("why", found.cause)]
    if found.ended:
        for gate in found.ended.gates:
            facts += [("row", gate.row), ("replay", as_typed(gate.replay))]
        facts.append(("ended", found.ended.at))
    if tried := found.tried_again:
        facts.append(("tried", f"again {tried.at}: {tried.outcome} at {tried.step}: {tried.message}"))
    return facts


def reason_text(found: RunListed) -> str:
    """The text for one run of a list: how it stands, why, and what to do about it."""
    facts = [*_explained_facts(found), *found.commands.items()]
    return "\n".join([f"{found.run_id}: {found.standing}", *fact_lines(facts)])
