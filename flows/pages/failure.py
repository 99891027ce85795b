"""A failed run: how it ended, what readers see, how far it came, and the commands that show or repeat it.

`failure` finds this out once, for both Prefect's page and the terminal.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from nightjar.flows.pages.advice import Commands, aftermath
from nightjar.flows.pages.escaping import address, cell, code, markdown
from nightjar.flows.pages.report.writing import served_at, written
from nightjar.flows.pages.wording import describe, fact_lines, said_of
from nightjar.inference.errors import GateFailed, NightjarError, RunFailed, StorageError, TakenBack, Unanswered
from nightjar.inference.history.run_status import before_it_begins
from nightjar.inference.history.run_tables import Incident, RunReport, lost, mending, remarks
from nightjar.inference.ledger import endings
from nightjar.inference.ledger.lines import Question
from nightjar.inference.output.revisions import newest_revision
from nightjar.inference.run.request import RunRequest
from nightjar.inference.validation.gates import warnings

_REPLAYS = 3
"""The number of rows whose replay commands a page shows for copying; the table has more."""


def gate_rows(error: NightjarError) -> list[str]:
    """The rows that failed gates name, with the commands that score them again."""
    gates = error.gates if isinstance(error, GateFailed) else ()
    found = [(f"{gate.name}: {said_of(offender)}", offender.replay) for gate in gates for offender in gate.where]
    return [f"- {markdown(said)}{f'; {code(replay)}' if replay else ''}" for said, replay in found]


def lost_rows(request: RunRequest, most: int) -> list[tuple[str, str]]:
    """The first rows without a result, as (error and place, the command that scores it again); at most `most`."""
    try:
        newest = newest_revision(request.storage, request.run_uri)
        found = RunReport(request, newest).replays(most) if newest is not None else []
    except StorageError:
        return []  # the step itself, or the next one, reports it
    return [(f"{each.cause}: {each.message} (row {each.row} of {each.file}{_by(each)})", each.replay) for each in found]


def _by(row: Incident) -> str:
    return f", model {row.model}" if row.model else ""


def rows_without_result(request: RunRequest) -> list[str]:
    """The first rows without a result, each with the command that scores it again; a cell's text cannot be copied."""
    lines = [f"- {cell(said)}; {code(replay)}" for said, replay in lost_rows(request, _REPLAYS)]
    return ["", "Rows that could not be scored, the first of them:", "", *lines] if lines else []


@dataclass(frozen=True)
class Failure:
    """The description of a failed run.

    how: how it ended, in a few words. seen: what readers see, as a sentence. facts: (word, text): how far the run came,
    what a person should know about how it was scored, or can do about its files. commands: word → command. report: the
    URI of its report; empty if there is none.
    """

    how: str
    seen: str
    facts: tuple[tuple[str, str], ...]
    commands: Mapping[str, str]
    report: str = ""


def failure(commands: Commands, error: NightjarError, report: str | None = None) -> Failure:
    """Describe a failed run as it is now.

    report: the URI of its report, empty if it left none; default: looked up.
    """
    request = commands.request
    begun, known, facts = _progress(request)
    after = aftermath(request)
    ended = endings.of_error(error, "")
    outcome = ended.outcome if ended else endings.FAILED
    state = "rolled back" if isinstance(error, TakenBack) else outcome if known else "never begun"
    return Failure(
        how=f"{outcome} at {ended.where}" if ended and ended.where else outcome,
        seen=after.seen if begun else "Nothing was scored and nothing new was published.",
        facts=(*facts, *_beside(error)),
        commands=commands.of_error(error, state, fresh=after.fresh),
        report=written(request) if report is None else report,
    )


def _progress(request: RunRequest) -> tuple[bool, bool, list[tuple[str, str]]]:
    """Whether the run has a revision; whether the commands that look at runs know of it; and how far it is."""
    with suppress(StorageError):  # the run may have failed because the storage is away
        newest = newest_revision(request.storage, request.run_uri)
        if newest is None:
            return False, before_it_begins(request) is not None, []
        progress = newest.state.progress
        so_far = [("so far", describe(progress))] if progress.shards else []
        mends = [("mend", each) for each in mending(newest, lost(newest))]
        return True, True, [*so_far, *remarks(newest), *mends]
    return True, True, []


def _beside(error: NightjarError) -> list[tuple[str, str]]:
    """What a person who is asked should know besides: the gates that did not pass either, and only warn."""
    gates = error.gates if isinstance(error, Unanswered) else ()
    return [("warning", said) for said in warnings(gate for gate in gates if gate.verdict == "warn")]


def asking_page(request: RunRequest, question: Question) -> str:
    """What a person is asked, in Markdown, for the form on the run's page."""
    lines = [f"**{markdown(request.job.name)} {markdown(request.run_id)}**: may it be published?", ""]
    lines += [f"- {markdown(gate.name)}: {markdown(gate.sentence)}" for gate in question.gates]
    lines += [f"- {markdown(gate.row)}: {code(gate.replay)}" for gate in question.gates if gate.row]
    look = Commands(request).show
    lines += ["", f"No answer until {question.until} counts as a no. More: the artifacts of this run, and {code(look)}"]
    return "\n".join(lines)


def as_text(found: Failure) -> str:
    """The text for the terminal, where the error itself was printed before."""
    facts = [*found.facts, *found.commands.items(), ("report", found.report)]
    return "\n".join([found.seen, *fact_lines(facts)])


def after_failure(request: RunRequest, error: NightjarError, ray: str | None = None) -> str:
    """The text on what to do after a run has failed. ray: the cluster that was named."""
    return as_text(failure(Commands.here(request, ray), error))


def as_page(found: Failure, request: RunRequest, error: NightjarError) -> str:
    """The page in Markdown, with the rows that gates refuse."""
    lines = [
        f"# {request.job.name} {markdown(request.run_id)}: {markdown(found.how)}",
        "",
        markdown(str(error)),
        "",
        found.seen,
        "",
        *gate_rows(error),
        *[f"- {word}: {markdown(text)}" for word, text in found.facts],
        *[f"- {word}: {code(command)}" for word, command in found.commands.items()],
        *([f"- report: [{markdown(found.report)}]({address(found.report)})"] if found.report else []),
        *([f"- report now: [{markdown(page)}]({page})"] if (page := served_at(request)) else []),
        *(rows_without_result(request) if isinstance(error, RunFailed) else []),
    ]
    return "\n".join(lines)
