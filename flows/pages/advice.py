"""What a person can do next: commands for exactly this run, and the state after a failure."""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from nightjar.inference.engine import ENGINES, RAY
from nightjar.inference.errors import NeedsRay, NightjarError, StorageError, TablesBehind, Unanswered
from nightjar.inference.history.run_status import RunLine, Standing
from nightjar.inference.ledger.endings import BEFORE_IT_BEGINS, FAILED
from nightjar.inference.output import publications as publish
from nightjar.inference.output import revisions as revs
from nightjar.inference.run.request import RunRequest


def typed(name: str) -> str:
    """A command as this person can type it: with its path if its environment is not activated."""
    return name if shutil.which(name) else shlex.quote(near(str(Path(sys.executable).parent / name)))


def as_typed(command: str) -> str:
    """A command that was kept for all readers, `nightjar …`, as this person can type it."""
    program, _, rest = command.partition(" ")
    return f"{typed(program)} {rest}" if rest else command


def near(path: str) -> str:
    """A path as the person can type it: relative if it is below the current folder."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


def no_run(request: RunRequest) -> str:
    """That there is no such run, and how to see which there are."""
    listed = shlex.join(["runs", near(request.job_path), *request.place])
    return f"there is no run {request.run_id!r} of {request.job.name} yet; `{typed('nightjar')} {listed}` lists them"


def reaching(ray: str | None) -> list[str]:
    """The options that name the run's cluster, if one was named."""
    return ["--ray", ray] if ray else []


def repeating(request: RunRequest, ray: str | None, *, fresh: bool = False) -> str:
    """The options with which the run's command continues it. ray: the cluster that was named."""
    return shlex.join(_again(request, ray, fresh=fresh))


def _again(request: RunRequest, ray: str | None, *, fresh: bool = False) -> list[str]:
    return [*request.again, *(["--fresh"] if fresh else []), *reaching(ray)]


@dataclass(frozen=True)
class Aftermath:
    """The state after a run has failed. seen: what readers see, as a sentence.

    fresh: repeating the run needs `--fresh` again, because it has no revision of its own yet. taken_back: the run was
    published, and a person took it back, so that repeating it changes nothing.
    """

    seen: str
    fresh: bool
    taken_back: bool = False

    @property
    def state(self) -> str:
        """The state in the form that `remedies` takes."""
        return "rolled back" if self.taken_back else FAILED


def check_tables(request: RunRequest, behind: tuple[str, ...]) -> None:
    """Check that every table shows what is published. behind: a sentence for each table that does not.

    Raises:
        TablesBehind: One does not; the message has the command that commits to it.
    """
    if behind:
        raise tables_behind(request, behind)


def tables_behind(request: RunRequest, behind: tuple[str, ...]) -> TablesBehind:
    """The error for tables that are behind, with the command that commits what they lack."""
    return TablesBehind(
        f"readers of the files see it, but {'; '.join(behind)}. What is mended is committed by "
        f"`{committing(request)}`, and by the next run of the job",
        behind,
    )


def committing(request: RunRequest, job: str = "", program: str = "") -> str:
    """The command that commits what the tables of a job lack. job, program: default: as this person can type them."""
    return _command(program, "tables", job or near(request.job_path), *request.place)


def making_way(request: RunRequest, instead: str, job: str = "", program: str = "") -> dict[str, str]:
    """The command that lets `latest/`, `dates/` and tables show this run for its date: word → command. instead: the run
    that they show, empty for this one. job, program: as for `committing`.
    """
    if not instead:
        return {}
    return {"make way": _command(program, "unpublish", job or near(request.job_path), instead, *request.place)}


def _command(program: str, *words: str) -> str:
    """A whole command. program: default: as this person can type it."""
    return f"{program or typed('nightjar')} {shlex.join(words)}"


def aftermath(request: RunRequest) -> Aftermath:
    """Find the state after a failure, because a run may fail after its publication."""
    try:
        newest = revs.newest_revision(request.storage, request.run_uri)
        shown = publish.shown(request.storage, request.output, request.run_id)
    except StorageError:
        # The storage may be why the run failed, which was reported.
        said = "What was committed is kept; what readers see could not be looked up: the storage does not answer."
        return Aftermath(said, request.fresh)
    own = newest is not None and newest.state.planned is not None and newest.begun_by(request.flow_run)
    fresh = request.fresh and not own
    if newest is not None and shown is not None and shown.revision == newest.number:
        return Aftermath(f"Readers see r{newest.number}, the newest of this run, complete.", fresh)
    taken_back = newest is not None and newest.success is not None
    return Aftermath("What was committed is kept and nothing new was published.", fresh, taken_back and not fresh)


def remedies(
    request: RunRequest, state: str, job: str, *, fresh: bool = False, ray: str | None = None, question: str = ""
) -> dict[str, str]:
    """What a person can do about a run: word → command without `nightjar`; empty if the run is fine.

    state: as in `Standing`, or `unknown`, or `never begun` for a run that failed before it began. job: the job file, as
    the person can type it. fresh: whether `--fresh` is needed again. ray: the cluster that was named.
    question: the name of what is asked.
    """
    again = shlex.join([request.command, job, *_again(request, ray, fresh=fresh or state == "rolled back")])
    match state:
        case "unknown" | "never begun" | "rejected":
            tried = {"try": shlex.join(["check", job, "--date", request.date, *request.how])}
            return tried if state == "unknown" else {**tried, "repeat": again}
        case "published" | "limited" | "running" | "publishing" | "unreadable" | "waiting":
            return {}
        case "rolled back":
            return {"republish": shlex.join(["republish", job, *request.named]), "anew": again}
        case "validated" if request.command != "run":
            return {}
        case "validated":
            return {"publish": again}
        case "asks":
            words = [job, request.run_id, *request.place]
            answers = {word: _answer(word, request, job, question) for word in ("approve", "reject")}
            return {"look": shlex.join(["show", *words]), **answers}
    return {"look": shlex.join(["show", job, request.run_id, *request.place]), "repeat": again}


def mended(request: RunRequest, error: str) -> RunRequest:
    """The request that may do better after a run that ended with an error of this class: on Ray, if only that helps."""
    return replace(request, engine=RAY) if error == NeedsRay.__name__ else request


def question_of(error: NightjarError) -> str:
    """The name of the question that a run ends with; '' if it asks nothing."""
    return error.question if isinstance(error, Unanswered) else ""


def _answer(word: str, request: RunRequest, job: str, question: str) -> str:
    """The command that answers this question and no other."""
    return shlex.join([word, job, request.run_id, *request.place, *(["--question", question] if question else [])])


def advised(request: RunRequest, found: Standing, job: str, program: str = "") -> dict[str, str]:
    """`remedies` as whole commands, for a run that is looked at later. program: default: as this person can type it."""
    tried = found.tried is not None and found.state == "published"
    publish = found.state == "validated" or found.ended is None or found.ended.publish
    asked = replace(
        request, publish=publish and not request.limit, engine=found.engine if found.engine in ENGINES else RAY
    )
    never = found.ended is not None and found.ended.step in BEFORE_IT_BEGINS
    asked = mended(asked, found.ended.error if found.ended else "")
    commands = remedies(asked, "never begun" if never or tried else found.state, job, question=found.question)
    if found.may_be_approved:
        commands |= {"approve": _answer("approve", request, job, found.question)}
    return {word: f"{program or typed('nightjar')} {command}" for word, command in commands.items()}


def taking_back(request: RunRequest, line: RunLine, job: str, program: str = "") -> dict[str, str]:
    """The command that takes a night away from readers, if they see it: word → command. job, program: as for `advised`.

    It names the night. A rollback would take back whatever was published last by the time that somebody types it.
    """
    if not line.shown:
        return {}
    return {"if it is wrong": _command(program, "unpublish", job, *request.words)}
