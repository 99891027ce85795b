"""The flow: discover, score, validate, publish. It decides when a job runs and what people see, and never touches a
row.

On Ray the four tasks run in the cluster (`cluster.tasks`). On the local engine, and if nothing is left to score, they
run in this process, which then does not use Ray.
"""

from __future__ import annotations

import datetime as dt
import threading
from dataclasses import dataclass
from typing import Annotated, Any, Protocol
from uuid import UUID

import httpx
from prefect import Task, flow
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectException, TerminationSignal
from prefect.logging import get_run_logger
from prefect.runtime import deployment, flow_run
from prefect.states import Completed, Failed
from pydantic import Field

from nightjar.flows import notifying
from nightjar.flows.cluster import ClusterRunner, is_connected
from nightjar.flows.pages import artifacts
from nightjar.flows.pages.advice import tables_behind
from nightjar.flows.pages.failure import asking_page
from nightjar.flows.pages.wording import describe
from nightjar.flows.parameters import asked, begun, due, job_name, requested, run_name
from nightjar.flows.prefect_api import events, replies
from nightjar.flows.prefect_api.api import (
    was_cancelled,
    worker_env,
)
from nightjar.flows.prefect_api.ending import note_ending
from nightjar.flows.prefect_api.logs import expect_failures
from nightjar.flows.results import FinishedRun
from nightjar.flows.tasks import discover_task, publish_task, score_task, validate_task
from nightjar.flows.waiting import slot, wait_for_input
from nightjar.inference.engine import LOCAL, RAY
from nightjar.inference.errors import (
    AuditFailed,
    ClusterError,
    GateFailed,
    Held,
    Interrupted,
    NightjarError,
    NoSuchShard,
    Rejected,
    RunFailed,
    StorageError,
    Unanswered,
)
from nightjar.inference.garbage import seldom_collected
from nightjar.inference.history.run_tables import worded
from nightjar.inference.ledger.endings import stopped_by
from nightjar.inference.output.revisions import newest_revision, revision_uri
from nightjar.inference.run import approving, failure_notes, steps
from nightjar.inference.run.account import AGAIN, AUDIT, SCORE, VALIDATE, Account, account_of, keep
from nightjar.inference.run.publishing import unanswered
from nightjar.inference.run.request import RunRequest, fixed
from nightjar.inference.run.steps import Publication, Scored, Verdict
from nightjar.inference.stopwatch import Stopwatch

_KEEP_S = 10.0
"""Seconds that a run waits at its end until its reason is kept."""

_FORESEEN = (NightjarError, OSError, httpx.HTTPError, PrefectException)
"""Errors whose message says enough. Any other one is a fault of the code."""

CANCELLED = "cancelled in Prefect, on its page or by its command"
"""The reason of a run that somebody cancelled; Prefect does not keep who it was."""


@dataclass(frozen=True)
class _News:
    """What of a flow run's end is still to be told: to Prefect's automations, and to whom the job says."""

    events: bool = True
    message: bool = True


_ALL_NEW = _News()


@flow(name="nightly", flow_run_name=run_name, persist_result=False, task_runner=ClusterRunner())
def nightly(
    job: str,
    date: dt.date | None = None,
    limit: Annotated[int, Field(ge=1)] | None = None,
    fresh: bool = False,
    publish: bool = True,
    run_id: str | None = None,
    shards: list[str] | None = None,
    ray: str | None = None,
    engine: str = RAY,
) -> State[Any]:
    """Score one job for one logical date, check it, and publish it all or nothing.

    A run that was interrupted is continued: only what has no committed result is scored.

    Args:
        job: Path of the job file, where the run's process sees it.
        date: The night to score. Default: the day the run was scheduled for, in the job's time zone.
        limit: Score only the first shards with at least this many rows; never published.
        fresh: Score everything again, as a new revision, whatever is done already.
        publish: Off: stop after the gates.
        run_id: A name for the run; a run of this name is continued. Default: its logical date.
        shards: Score only these of the missing shards. Default: all of them.
        ray: The Ray cluster, host:port or ray://host:port. Default: NIGHTJAR_RAY, or one of the run's own.
        engine: Where shards are scored: on Ray, or in the run's own process (small nights; a row that kills a process
            kills the run).
    """
    expect_failures()
    request: RunRequest | None = None
    watch = Stopwatch("start", begun())
    try:
        request = due(flow_run.parameters)  # before its code is looked at: then it is known whom to tell of a failure
        if deployment.id and (answered := _answered(request, ray)) is not None:
            return answered
        request = requested(flow_run.parameters)
        # Wait before there is a cluster, which would be idle. A cluster that exists is needed by others.
        with watch.during("input"):
            waited = wait_for_input(request, patient=not is_connected())
        if waited:
            request = fixed(asked(flow_run.parameters))  # with the job and the code of now
        local = request.engine == LOCAL
        finished = _four_steps(request, _Here(), watch) if local else _on_ray(request, ray, watch)
    except Exception as given:
        error = given if isinstance(given, NightjarError) else RunFailed(f"{type(given).__name__}: {given}")
        note_ending(error)
        if request is not None:
            ended = _failed(request, error, ray)
        else:
            events.refused(job_name(flow_run.parameters), job, error)
            ended = Failed(message=str(error), data=error)
        if not isinstance(given, _FORESEEN):
            raise  # people are told; whoever mends it needs the traceback
        return ended
    except (KeyboardInterrupt, TerminationSignal) as signal:
        stopped = _stopped(signal)
        note_ending(stopped)
        if request is not None:
            keep_reason(request, stopped)
        raise
    return _completed(finished)


def _completed(finished: FinishedRun, news: _News = _ALL_NEW) -> State[Any]:
    """The state of a flow run that came to its end."""
    note_ending(finished)
    artifacts.show_summary(finished)
    _tell_published(finished, news)
    if behind := finished.publication.tables_behind:
        # Readers of the files see the night, but somebody must mend a table: the run's page is to be red.
        late = tables_behind(finished.request, behind)
        return Failed(message=str(late), data=late)
    return Completed(message=finished.sentence)


def _failed(request: RunRequest, error: NightjarError, ray: str | None, news: _News = _ALL_NEW) -> State[Any]:
    """The state of a flow run that ended with an error, once people have been told."""
    keep_reason(request, error)
    if not isinstance(error, Held):  # the night goes on: its holder says how it stands, and how it ends
        artifacts.show_failure(request, error, ray)
        if not isinstance(error, NoSuchShard):  # a mistake of whoever typed it, at whose terminal it is said
            _tell_failed(request, error, news)
    if isinstance(error, Unanswered):
        return _ask(request, error, ray)
    # The run's page shows the message alone; calling the flow still raises the error.
    return Failed(message=str(error), data=error)


def _tell_failed(request: RunRequest, error: NightjarError, news: _News) -> None:
    """Tell Prefect's automations, and whom the job says."""
    if news.events:
        events.asks(request, error) if isinstance(error, Unanswered) else events.failed(request, error)
    if news.message and (problem := notifying.failed(request, error)):
        get_run_logger().warning("%s", problem)


def _tell_published(finished: FinishedRun, news: _News) -> None:
    """As above."""
    if news.events:
        events.published(finished)
    if news.message and (problem := notifying.published(finished)):
        get_run_logger().warning("%s", problem)


def _ask(request: RunRequest, error: Unanswered, ray: str | None) -> State[Any]:
    """Suspend this flow run until a person answers on its page, if Prefect can; nothing of the run is running now.

    Returns the state of one that ends instead: the commands `approve` and `reject` answer it.
    """
    question = approving.asked(request)
    try:
        if question is not None and replies.can_suspend():
            if (answered := _answered(request, ray)) is not None:
                return answered  # by somebody who was told of the question, and was faster than this run
            replies.suspend(question, request.job.approval.deadline_h * 3600, asking_page(request, question))
    except (httpx.HTTPError, PrefectException, RuntimeError) as fault:
        get_run_logger().warning("this run cannot be suspended (%s); `nightjar approve` answers it", fault)
    return Failed(name="Asks", message=str(error), data=error)


def _answered(request: RunRequest, ray: str | None) -> State[Any] | None:
    """How this flow run ends that was suspended because it asked; None if it asked nothing, or nobody has answered."""
    newest = newest_revision(request.storage, request.run_uri)
    if newest is None or (question := newest.state.question) is None or question.flow_run != request.flow_run:
        if (unheard := replies.last_reply()) is not None:
            get_run_logger().warning(
                "the answer %r of %s on this run's page is to an older validation, and counts for nothing: another run "
                "has gone on with this night since. If the gates still ask, this run asks again",
                unheard.decision,
                unheard.name or "somebody",
            )
        return None
    before, shown, said = newest.state.decision, newest.state.published, replies.reply(question)
    approves = said is not None and said.decision == "approve"
    if said is not None and (before is None or (approves and not before.approved)):
        done = approving.answer(
            request,
            approved=approves,
            by=said.name or "somebody on Prefect's page",
            note=said.note,
            name=question.name,
        )
    elif (kept := approving.carried_out(request)) is not None:
        done = kept
    else:
        return None
    get_run_logger().info("%s", done.decision.words)
    news = _ALL_NEW
    if done.decision == before and (shown is not None or done.publication is None):
        # A command did this. It tells of it, unless it has resumed this run, which tells then; a retry tells nothing.
        first = not replies.ended_since_asked()
        news = _News(events=first, message=first and replies.repeats(said, done.decision))
    if done.publication is None:
        no = Rejected(question.no(done.decision))
        note_ending(no)
        return _failed(request, no, ray, news)
    return _completed(FinishedRun(request, done.scored, done.verdict, done.publication), news)


def _stopped(signal: BaseException) -> Interrupted:
    """Who stopped this run. A run that is cancelled in Prefect is sent SIGTERM, as others are: the API knows which."""
    if isinstance(signal, TerminationSignal) and was_cancelled(UUID(flow_run.id)):
        return Interrupted(CANCELLED)
    return stopped_by(signal)


def keep_reason(request: RunRequest, error: NightjarError) -> None:
    """Keep why a run ends, for whoever asks once the terminal is closed. Storage that hangs holds up nothing."""
    step = "start" if isinstance(error, ClusterError) else "discover"
    thread = threading.Thread(
        target=failure_notes.keep, args=(request, error, step), daemon=True, name="nightjar-reason"
    )
    thread.start()
    thread.join(_KEEP_S)


class _Tasks(Protocol):
    """How the flow's tasks are carried out."""

    def done(self, task: Task[Any, Any], *given: Any) -> Any:
        """The task, done: its result, or what stands for it as a task's argument."""

    def result(self, done: Any) -> Any:
        """The result itself."""


class _Here:
    """In this thread."""

    def done(self, task: Task[Any, Any], *given: Any) -> Any:
        return task(*given)

    def result(self, done: Any) -> Any:
        return done


def _on_ray(request: RunRequest, address: str | None, watch: Stopwatch) -> FinishedRun:
    """The four steps on a cluster; without one where discovery finds nothing to score, in a run published before."""
    found = None
    if not is_connected() and steps.was_published(request):
        with watch.during("discover"):
            found = discover_task(request)
        if steps.nothing_to_score(request, found):
            return _further_steps(request, _Here(), found, watch)
    # Imported only now: importing Ray takes a while.
    with seldom_collected():
        from nightjar.flows.cluster.tasks import on_cluster

    with on_cluster(address, request, worker_env()) as tasks:
        if found is not None:
            return _further_steps(request, tasks, found, watch)
        return _four_steps(request, tasks, watch)


def _four_steps(request: RunRequest, tasks: _Tasks, watch: Stopwatch) -> FinishedRun:
    with watch.during("discover"):
        found = tasks.done(discover_task, request)
    return _further_steps(request, tasks, found, watch)


def _further_steps(request: RunRequest, tasks: _Tasks, found: Any, watch: Stopwatch) -> FinishedRun:
    """Those after discovery. found: what it left, as the tasks take it."""
    watch.turn_to("flow")
    try:
        scored, verdict = _scored_and_validated(request, tasks, found, watch)
    except AuditFailed as error:
        if not error.revoked:
            raise
        # Parts were damaged where they lie. Scoring these shards again mends it; if not, a person is needed.
        get_run_logger().warning("%s", error)
        watch.count_as(AGAIN, SCORE)
        watch.count_as(AUDIT, VALIDATE)
        scored, verdict = _scored_and_validated(request, tasks, found, watch)
    if verdict.question is not None:
        _keep_account(request, scored, account_of(watch.claim(), scored, verdict))
        raise unanswered(verdict)
    with watch.during("publish"):
        publication: Publication = tasks.result(tasks.done(publish_task, request, scored, verdict))
    artifacts.log_remarks(worded(scored.again, scored.warnings))
    get_run_logger().info("publication %s; manifest %s", publication.number or "left out", publication.manifest)
    account = account_of(watch.claim(), scored, verdict, publication)
    _keep_account(request, scored, account)
    artifacts.catch_up(request, scored, verdict)
    return FinishedRun(request, scored, verdict, publication, account)


def _keep_account(request: RunRequest, scored: Scored, made: Account) -> None:
    """For whoever asks later. How the night ends is known, so a storage that fails now is told of, and no more."""
    if scored.finished:
        return
    try:
        keep(request.storage, revision_uri(request.run_uri, scored.revision), scored.epoch, made)
    except StorageError as error:
        get_run_logger().warning("where the time of this run went could not be kept: %s", error)


def _scored_and_validated(request: RunRequest, tasks: _Tasks, found: Any, watch: Stopwatch) -> tuple[Scored, Verdict]:
    with watch.during("turn"), slot(request, request.job.resources.concurrency_limit), watch.during(SCORE):
        scored: Scored = tasks.result(tasks.done(score_task, request, found))
    get_run_logger().info("scored: %s", describe(scored.progress))
    # Validating needs what the limit counts only if it scores, too.
    limit = request.job.resources.concurrency_limit if request.job.rescore.share else None
    try:
        with watch.during("turn"), slot(request, limit), watch.during(VALIDATE):
            verdict: Verdict = tasks.result(tasks.done(validate_task, request, scored, found))
    except GateFailed:
        _keep_account(request, scored, account_of(watch.claim(), scored))
        raise
    return scored, verdict
