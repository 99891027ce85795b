"""Ledger → Prefect artifacts: what a person sees of a run. Bounded, and never a reason to stop scoring.

Keys carry the job's name, so that each has a history over nights.
"""

from __future__ import annotations

import contextvars
import shlex
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any
from urllib.parse import quote

import httpx
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from nightjar.flows.pages.advice import aftermath, remedies
from nightjar.flows.pages.escaping import code, markdown
from nightjar.flows.pages.wording import cells, describe, evaluation_lines
from nightjar.flows.pages.wording import notes as left_to_do
from nightjar.inference.errors import (
    GateFailed,
    NightjarError,
    RunFailed,
    StorageError,
)
from nightjar.inference.ledger import endings
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.messages import counted
from nightjar.inference.metrics.states import nonfinite_notes
from nightjar.inference.output.revisions import Revision, newest_revision
from nightjar.inference.records import Event
from nightjar.inference.run.listeners import Listener
from nightjar.inference.run.report import (
    MAX_LINES,
    Incident,
    RunReport,
    ShardLine,
    follow,
    printed_last,
    remarks_of,
    worded,
)
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.steps import Publication, Scored, Verdict
from nightjar.inference.validation.gates import GateResult, Offender

EVERY_S = 2.0
PATIENCE_S = 5.0
"""So long a task waits at its end for its artifacts to be taken."""

_CELL = 300
_COMMANDS = 400_000
"""A table's replay commands have so many characters; further lines have none, as half a command is of no use."""
_REPLAYS = 3
"""Of so many rows a page has the replay command where it can be copied; the table has more."""
_PRINTED = 3
"""Of so many failed shards a page says what they printed last; the table of shards has more."""

Send = Callable[[], object]


class ProgressArtifact(Listener):
    """A progress bar in Prefect's UI, fed from a thread: an API that is slow or away never delays scoring."""

    def __init__(self, request: RunRequest) -> None:
        self._key = f"{request.job.name}-progress"
        self._run = request.run_id
        self._latest: Progress | None = None
        self._shown = ""
        self._artifact: Any = None
        self._done = threading.Event()
        self._thread = _thread(self._loop)

    def __enter__(self) -> ProgressArtifact:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(PATIENCE_S)

    def progress(self, progress: Progress) -> None:
        """Take note; the thread sends it when it is due."""
        self._latest = progress

    def events(self, events: Sequence[Event]) -> None:
        """The bar shows totals alone."""

    def _loop(self) -> None:
        while True:
            last = self._done.wait(EVERY_S)
            self._send()
            if last:
                return

    def _send(self) -> None:
        progress = self._latest
        if progress is None or not progress.shards:
            return
        share, about = 100.0 * progress.done_shards / progress.shards, _so_far(self._run, progress)
        if about == self._shown:
            return

        def send() -> None:
            if self._artifact is None:
                self._artifact = create_progress_artifact(share, key=self._key, description=about)
            else:
                update_progress_artifact(self._artifact, share, description=about)

        if _sent({self._key: send}):
            self._shown = about


def _so_far(run: str, progress: Progress) -> str:
    return (
        f"{markdown(run)}: {progress.done_shards:,} of {progress.shards:,} shards, {progress.rows_out:,} rows scored, "
        f"{progress.rows_quarantined:,} quarantined, {counted(progress.failed_attempts, 'failed attempt')}"
        + ("; loading the model" if progress.step == "load" else "")
    )


def show_shards(request: RunRequest) -> None:
    """The tables of shards, and of retries and quarantines, of the run's newest revision."""
    try:
        newest = newest_revision(request.storage, request.run_uri)
        tables = _shard_tables(request, newest) if newest is not None else {}
    except StorageError as error:
        # Said of storage that is away or damaged: the step itself, or the next, says it where it matters.
        get_run_logger().warning("no tables of the shards: %s", error)
        return
    deliver(tables)


def show_gates(request: RunRequest, gates: tuple[GateResult, ...]) -> None:
    """The table of gates."""
    deliver(_gate_table(request, gates))


def catch_up(request: RunRequest, scored: Scored, verdict: Verdict) -> None:
    """Send again what the API was away for when it was due."""
    name = request.job.name

    def send() -> None:
        shown = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run.id]))
        client = get_client(sync_client=True)
        known = {artifact.key: artifact for artifact in client.read_artifacts(artifact_filter=shown)}
        bar, about = known.get(f"{name}-progress"), _so_far(request.run_id, scored.progress)
        if bar is None:
            create_progress_artifact(100.0, key=f"{name}-progress", description=about)
        elif bar.description != about:
            update_progress_artifact(bar.id, 100.0, description=about)
        due = {**_gate_table(request, verdict.gates)}
        if not {f"{name}-shards", f"{name}-retries"} <= set(known):
            due |= _shard_tables(request, scored.revision)
        for key, again in due.items():
            if key not in known:
                again()

    deliver({"what was missed": send})


def show_summary(request: RunRequest, scored: Scored, verdict: Verdict, publication: Publication) -> None:
    """The page a person reads in the morning, and a link to the output."""
    where = f"{request.run_uri}/r{scored.revision}"
    state = f"published as #{publication.number}" if publication.number else "not published"
    nonfinite = nonfinite_notes(verdict.metrics.get("outputs", {}))
    page = _summary(request, scored, verdict, state, [*nonfinite, *left_to_do(publication)])
    name = request.job.name
    deliver(
        {
            f"{name}-summary": lambda: create_markdown_artifact(page, key=f"{name}-summary", description=state),
            f"{name}-output": lambda: create_link_artifact(
                _link(where),
                link_text=markdown(where),
                key=f"{name}-output",
                description=f"Output of {markdown(request.run_id)}",
            ),
        }
    )


def show_failure(request: RunRequest, error: NightjarError, ray: str | None) -> None:
    """Send the page of a run that failed. ray: the cluster that was named."""
    key, (how, page) = f"{request.job.name}-summary", _failure(request, error, ray)
    log_remarks(_remarks(request))
    deliver({key: lambda: create_markdown_artifact(page, key=key, description=markdown(how))})


def _failure(request: RunRequest, error: NightjarError, ray: str | None) -> tuple[str, str]:
    """How it ended, in a few words; and why, how far it came, and the commands that look and repeat."""
    progress = None
    with suppress(StorageError):  # that it is away may be why the run failed
        progress = next(follow(request.storage, request.run_uri))
    after = aftermath(request)
    ended = endings.of_error(error, "")
    outcome = ended.outcome if ended else endings.FAILED
    how = f"{outcome} at {ended.where}" if ended and ended.where else outcome
    state = after.state if after.taken_back else outcome
    commands = remedies(request, state, request.job_path, fresh=after.fresh, ray=ray)
    lines = [
        f"# {request.job.name} {markdown(request.run_id)}: {markdown(how)}",
        "",
        markdown(str(error)),
        "",
        after.seen,
        "",
        *_where(error),
        *([f"- so far: {describe(progress)}"] if progress else []),
        *[f"- {word}: {markdown(text)}" for word, text in _remarks(request)],
        *[
            f"- {word}{', which scores only what is missing' if word == 'repeat' and not after.fresh else ''}: "
            f"{code(f'nightjar {command}')}"
            for word, command in commands.items()
        ],
        *(_replays(request) if isinstance(error, RunFailed) else []),
        *_printed(request),
    ]
    return how, "\n".join(lines)


def _remarks(request: RunRequest) -> list[tuple[str, str]]:
    with suppress(StorageError):
        return remarks_of(request.storage, request.run_uri)
    return []


def log_remarks(remarks: list[tuple[str, str]]) -> None:
    """What to know of how a run was scored, in its log."""
    for word, text in remarks:
        get_run_logger().info("%s: %s", word, text)


def _printed(request: RunRequest) -> list[str]:
    """What was printed last where it failed."""
    try:
        found = printed_last(request.storage, request.run_uri)
    except StorageError:
        return []
    if not found:
        return []
    command = shlex.join(["nightjar", "logs", request.job_path, request.run_id, *request.place])
    lines = ["", f"Printed last; all of it: {code(command)}"]
    for shard, last in islice(found.items(), _PRINTED):
        lines += [
            "",
            f"shard {code(shard)}" if shard else "by the workers",
            "",
            *(f"- {code(each)}" for each in last),
        ]
    return lines


def _replays(request: RunRequest) -> list[str]:
    """The first rows without a result, each with the command that scores it again: of a cell it cannot be copied."""
    try:
        newest = newest_revision(request.storage, request.run_uri)
        found = RunReport(request, newest).replays(_REPLAYS) if newest is not None else []
    except StorageError:
        return []  # the step itself, or the next, says it where it matters
    said = (f"{each.cause}: {each.message} (row {each.row} of {each.file})" for each in found)
    lines = [f"- {_cell(about)}; {code(each.replay)}" for about, each in zip(said, found, strict=True)]
    return ["", "Rows that could not be scored, the first of them:", "", *lines] if lines else []


def _where(error: NightjarError) -> list[str]:
    """The rows that failed gates speak of, with the commands that score them again."""
    gates = error.gates if isinstance(error, GateFailed) else ()
    found = [(f"{gate.name}: {_offender(offender)}", offender.replay) for gate in gates for offender in gate.where]
    return [f"- {markdown(said)}{f'; {code(replay)}' if replay else ''}" for said, replay in found]


def _shard_tables(request: RunRequest, revision: int | Revision) -> dict[str, Send]:
    report = RunReport(request, revision)
    shards, incidents = ([_headed(each) for each in lines] for lines in (report.shards(), report.incidents()))
    total = len(report.plan)
    shown = f"All {total:,} shards" if len(shards) == total else f"{len(shards):,} of {total:,} shards"
    more = f" (the first {MAX_LINES})" if len(incidents) == MAX_LINES else ""
    return {
        f"{request.job.name}-shards": lambda: create_table_artifact(
            _bounded(shards),
            key=f"{request.job.name}-shards",
            description=f"{shown} of {markdown(request.run_id)}: without result first, then retried, then slowest. "
            f"Complete in `shards-*.parquet` under {code(report.uri)}",
        ),
        f"{request.job.name}-retries": lambda: create_table_artifact(
            _bounded(incidents),
            key=f"{request.job.name}-retries",
            description=f"Failed attempts and quarantined rows of {markdown(request.run_id)}{more}; "
            "none is an empty table",
        ),
    }


def _headed(record: ShardLine | Incident) -> dict[str, Any]:
    """A line of a table, with headings for people."""
    return {name.replace("_", " "): value for name, value in cells(record).items()}


def _gate_table(request: RunRequest, gates: tuple[GateResult, ...]) -> dict[str, Send]:
    key = f"{request.job.name}-gates"
    table = [
        {
            "gate": gate.name,
            "passed": "yes" if gate.passed else "NO",
            "observed": gate.observed,
            "limit": gate.limit,
            "what it means": gate.sentence,
            "where": "; ".join(_offender(offender) for offender in gate.where),
            "replay": gate.where[0].replay if gate.where else "",
        }
        for gate in gates
    ]
    return {
        key: lambda: create_table_artifact(
            _bounded(table), key=key, description=f"Gates of {markdown(request.run_id)}"
        ),
    }


def _offender(offender: Offender) -> str:
    row = f"row {offender.row} of {offender.file}" if offender.row >= 0 else offender.file
    return f"{row} (shard {offender.shard}): {offender.value}"


def _summary(request: RunRequest, scored: Scored, verdict: Verdict, state: str, notes: list[str]) -> str:
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
        f"| shards | {progress.shards:,} ({progress.reused_shards:,} taken over) |",
        f"| failed attempts | {progress.failed_attempts:,} |",
        f"| gates | {sum(gate.passed for gate in verdict.gates)} of {len(verdict.gates)} passed |",
        *[f"| {name} | {value} |" for name, value in evaluation_lines(verdict.metrics)],
        *([f"| device | {scored.device} |"] if scored.device else []),
        *[f"| {word} | {markdown(text)} |" for word, text in worded(scored.again, (*scored.warnings, *notes))],
        f"| output | {code(f'{where}/data', cell=True)} |",
        *([f"| quarantine | {code(f'{where}/quarantine', cell=True)} |"] if progress.rows_quarantined else []),
        f"| every shard | {code(f'{request.output}/{verdict.shards}', cell=True)} |",
        f"| manifest | {code(f'{request.output}/{verdict.manifest}', cell=True)} |",
        "",
        f"The exact files: {code(shlex.join(['nightjar', 'files', request.job_path, *request.named]))}",
        *(_replays(request) if progress.rows_quarantined else []),
    ]
    return "\n".join(lines)


def _link(uri: str) -> str:
    return quote(uri if "://" in uri else f"file://{uri}", safe="/:")


def _bounded(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cells as the page is to show them, and short enough that the server also emits the table's event.

    The page takes text in a cell for Markdown; the event is refused above about 1.5 MB.
    """
    lines, room = [], _COMMANDS
    for line in table:
        replay = line.get("replay", "")
        room -= len(replay)
        commands = {"replay": markdown(replay if room >= 0 else "")} if "replay" in line else {}
        lines.append({name: _cell(value) for name, value in line.items()} | commands)
    return lines


def _cell(value: Any) -> Any:
    if isinstance(value, tuple):
        text = " ⏎ ".join(value)  # of what was printed, the end says most
        return markdown(text if len(text) <= _CELL else "…" + text[-_CELL:])
    if not isinstance(value, str):
        return value
    return markdown(value if len(value) <= _CELL else value[:_CELL] + "…")


def deliver(due: dict[str, Send]) -> None:
    """Send, by key, for at most `PATIENCE_S`: an API that is away costs artifacts, never the run."""
    thread = _thread(lambda: _sent(due))
    thread.start()
    thread.join(PATIENCE_S)
    if thread.is_alive():
        get_run_logger().warning("Prefect's API took no artifact for %g s; going on: %s", PATIENCE_S, ", ".join(due))


def _sent(due: dict[str, Send]) -> bool:
    for key, send in due.items():
        try:
            send()
        # RuntimeError: the task has ended meanwhile and closed its connection.
        except (httpx.HTTPError, PrefectException, OSError, RuntimeError, StorageError) as error:
            get_run_logger().warning("the artifact %s could not be sent: %s", key, error)
            return False
    return True


def _thread(target: Callable[[], object]) -> threading.Thread:
    """A thread that knows the task run it belongs to."""
    context = contextvars.copy_context()
    return threading.Thread(target=lambda: context.run(target), daemon=True, name="nightjar-artifacts")
