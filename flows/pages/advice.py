"""What a person can do next: commands for exactly this run, and the state after a failure."""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nightjar.inference.engine import ENGINES, RAY
from nightjar.inference.errors import NightjarError, TablesBehind, TakenBack, Unanswered
from nightjar.inference.history.run_status import Standing
from nightjar.inference.ledger.endings import BEFORE_IT_BEGINS
from nightjar.inference.run.request import RunRequest

if TYPE_CHECKING:
    from nightjar.inference.history.night import RunNow


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


@dataclass(frozen=True)
class Commands:
    """The whole commands about one run."""

    request: RunRequest
    """The run."""

    program: str = "nightjar"
    """The program as the reader types it; by default as any reader of a page can."""

    job: str = ""
    """The path of the job file as the reader types it; empty for the whole path, as any reader of a page can."""

    ray: str | None = None
    """The address of the cluster that was named; None if none was."""

    @classmethod
    def here(cls, request: RunRequest, ray: str | None = None) -> Commands:
        """As this person can type them, in the current folder."""
        return cls(request, typed("nightjar"), near(request.job_path), ray)

    def command(self, name: str, *words: str) -> str:
        """A command of this name about the job."""
        return f"{self.program} {shlex.join([name, self.job or self.request.job_path, *words])}"

    @property
    def show(self) -> str:
        """Shows the run."""
        return self.command("show", *self.request.words)

    @property
    def commit(self) -> str:
        """Commits what the tables of the job lack."""
        return self.command("tables", *self.request.place)

    def repeat(self, *, fresh: bool = False) -> str:
        """Continues the run. fresh: `--fresh` is needed again."""
        return self.command(self.request.command, *self.request.again, *(["--fresh"] if fresh else []), *self._where)

    @property
    def check(self) -> str:
        """Tries the night on a few rows."""
        return self.command("check", "--date", self.request.date, *self.request.how, *self._where)

    @property
    def _where(self) -> list[str]:
        return ["--ray", self.ray] if self.ray else []

    def answer(self, word: str, question: str) -> str:
        """Answers this question and no other. word: approve or reject."""
        return self.command(word, *self.request.words, *(["--question", question] if question else []))

    def of_run(self, found: RunNow) -> dict[str, str]:
        """What a person can do about a run, its tables, and another run that stands for its date: word → command."""
        commits = {"commit": self.commit} if found.late_tables else {}
        return {**self.of_standing(found.line.standing), **self.make_way(found.instead), **commits}

    def make_way(self, instead: str) -> dict[str, str]:
        """The command that lets `latest/`, `dates/` and tables show this run for its date.

        instead: the run that they show now; empty for this one.
        """
        return {"make way": self.command("unpublish", instead, *self.request.place)} if instead else {}

    @property
    def take_back(self) -> str:
        """Takes this night from readers. A rollback takes back what was published last when somebody types it."""
        return self.command("unpublish", *self.request.words)

    def of_state(self, state: str, *, fresh: bool = False, question: str = "") -> dict[str, str]:
        """What a person can do about a run: word → command; empty if the run is fine.

        state: as in `Standing`, or `unknown`, or `never begun` for a run that failed before it began. fresh: whether
        `--fresh` is needed again. question: the name of what is asked.
        """
        request, again = self.request, self.repeat(fresh=fresh or state == "rolled back")
        match state:
            case "unknown":
                return {"look": self.command("runs", *request.place), "try": self.check}
            case "never begun" | "rejected":
                return {"try": self.check, "repeat": again}
            case "published" | "limited" | "running" | "publishing" | "unreadable" | "waiting":
                return {}
            case "rolled back":
                return {"republish": self.command("republish", *request.words), "anew": again}
            case "validated":
                return {"publish": again} if request.command == "run" else {}
            case "asks":
                return {"look": self.show, **{word: self.answer(word, question) for word in ("approve", "reject")}}
        return {"look": self.show, "repeat": again}

    def of_error(self, error: NightjarError, state: str, *, fresh: bool = False) -> dict[str, str]:
        """`of_state` for a run that has just ended with an error."""
        if isinstance(error, TakenBack):
            return self._of_taken_back(error.run)
        question = error.question if isinstance(error, Unanswered) else ""
        return self.of_state(state, fresh=fresh, question=question)

    def _of_taken_back(self, run: str) -> dict[str, str]:
        """The choice of a run that goes on with results of another run, or of itself, which were taken back: it goes on
        when they are published again.
        """
        again = {"repeat": self.repeat()} if run != self.request.run_id else {}
        republish = self.command("republish", run, *self.request.place)
        return {"republish": republish, **again, "anew": self.repeat(fresh=True)}

    def of_standing(self, found: Standing) -> dict[str, str]:
        """`of_state` for a run that is looked at later."""
        tried = found.tried is not None and found.state == "published"
        publish = found.state == "validated" or found.ended is None or found.ended.publish
        asked = replace(
            self.request,
            publish=publish and not self.request.limit,
            engine=found.engine if found.engine in ENGINES else RAY,
        )
        never = found.ended is not None and found.ended.step in BEFORE_IT_BEGINS
        about = replace(self, request=asked)
        if found.ended is not None and found.ended.taken_back:
            return about._of_taken_back(found.ended.taken_back)
        commands = about.of_state("never begun" if never or tried else found.state, question=found.question)
        return {**commands, **({"approve": self.answer("approve", found.question)} if found.may_be_approved else {})}


def no_run(request: RunRequest) -> str:
    """That there is no such run, and how to see which there are."""
    lists = Commands.here(request).command("runs", *request.place)
    return f"there is no run {request.run_id!r} of {request.job.name} yet; `{lists}` lists them"


def check_tables(request: RunRequest, behind: tuple[str, ...]) -> None:
    """Check that every table shows what is published. behind: a sentence for each table that does not.

    Raises:
        TablesBehind: One does not; the message has the command that commits to it.
    """
    if behind:
        raise tables_behind(Commands.here(request), behind)


def tables_behind(commands: Commands, behind: tuple[str, ...]) -> TablesBehind:
    """The error for tables that are behind, with the command that commits what they lack."""
    return TablesBehind(
        f"readers of the files see it, but {'; '.join(behind)}. What is mended is committed by `{commands.commit}`",
        behind,
    )
