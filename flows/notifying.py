"""Tells others how a night ended: the job's webhook (`notify`); and automations, by an event of a published night.

A message to the webhook that is refused for a moment is sent again. All tries end within `PATIENCE_S`, and a failure is
a warning: it never fails a night. The address is a secret, and is in no message, log or error. Apprise does not serve:
it posts a body of its own in place of these fields, does not try again, and does not say why a message was refused.

The event is about `nightjar.job.<name>`; Prefect adds the flow run, its deployment and its tags. If the API is away,
the event is lost, but never a run. Prefect is imported when it is emitted, because that takes seconds. That a run
failed or asks, Prefect's own events of the flow run say.
"""

from __future__ import annotations

import html
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nightjar.flows.pages.advice import Commands
from nightjar.inference.errors import NightjarError, StorageError
from nightjar.inference.history.run_status import warnings
from nightjar.inference.ledger import endings
from nightjar.inference.messages import clip, hide
from nightjar.inference.output.revisions import revision_uri
from nightjar.inference.run.request import RunRequest, fixed, make_request, to_begin, unrecorded_request
from nightjar.inference.run.waiting import keep_failure

if TYPE_CHECKING:
    from nightjar.flows.finished_run import FinishedRun
    from nightjar.inference.job.deployment import Occasion

PATIENCE_S = 5.0
"""The longest time in seconds that a message may delay the end of a run, with all tries."""

_TRY_S = 2.0
"""The longest time in seconds for one step of a try: to connect, or to wait for the answer."""

_PAUSE_S = 0.25
"""Seconds before the second try; doubled each time."""

_PASSING = {408, 425, 429, 500, 502, 503, 504}
"""Answers after which the same message may be taken."""


def published(finished: FinishedRun) -> str:
    """Post that a night is published; nothing for a run that had nothing to do, or was not to publish.

    Returns why the message could not be sent; empty otherwise.
    """
    request, publication = finished.request, finished.publication
    if not publication.number or (finished.scored.finished and not publication.tables_behind):
        return ""
    cause = "; ".join([*publication.tables_behind, *warnings(finished.verdict.gates)])
    commands = Commands(request)
    command = commands.commit if publication.tables_behind else commands.command("files", *request.words)
    return _post(request, "published", finished.sentence, cause, command)


def failed(request: RunRequest, error: NightjarError, *, begun: bool = True) -> str:
    """Post that a run ended without a publication, or asks a person first.

    begun: whether the flow began, and so has a page. Returns as `published`.
    """
    ended = endings.of_error(error, "")
    if ended is None:  # another writer goes on with the night
        return ""
    state = ended.outcome if begun else "never begun"
    commands = Commands(request).of_error(error, state)
    event: Occasion = "asks" if ended.outcome == endings.ASKS else "failed"
    return _post(request, event, ended.words, str(error), next(iter(commands.values()), ""), begun)


def _post(request: RunRequest, event: Occasion, verdict: str, cause: str, command: str, begun: bool = True) -> str:
    notify = request.job.notify
    if notify is None or event not in notify.on:
        return ""
    address = notify.address(os.environ)
    if not address:
        return "notify.webhook: its variable has no address where this run's flow is, so nobody was told; set it there"
    hide([address])
    message = _message(request, event, verdict, clip(cause), command, _link(request) if begun else "")
    posting, content = _Posting(), json.dumps(message).encode()
    thread = threading.Thread(target=posting.post, args=(address, content), daemon=True, name="nightjar-notify")
    thread.start()
    thread.join(PATIENCE_S)
    if not posting.problem:
        return ""
    problem = clip(posting.problem)  # it may have the address
    return f"notify.webhook: nobody was told: {problem} (tried {posting.tries} times in {PATIENCE_S:g} s at most)"


def _message(request: RunRequest, event: Occasion, verdict: str, cause: str, command: str, link: str) -> dict[str, str]:
    """The JSON body of the request. text: all of it, for a chat."""
    about = f"{request.job.name} {request.run_id}: {verdict}"
    text = "\n".join(filter(None, [about, cause, f"`{command}`" if command else "", link]))
    return {
        "event": event,
        "job": request.job.name,
        "run_id": request.run_id,
        "date": request.date,
        "verdict": verdict,
        "cause": cause,
        "command": command,
        "link": link,
        # Slack and Mattermost take <…> for links and mentions, as <!channel>; the cause may hold values of the input.
        "text": html.escape(text, quote=False),
    }


def _link(request: RunRequest) -> str:
    """The page of the run's flow run. A server of the command's own ends with it, and has no pages."""
    from nightjar.flows.prefect_api.api import page_of
    from nightjar.flows.prefect_api.server import has_pages

    return page_of("flow-run", request.flow_run) if has_pages() else ""


class _Posting:
    """Posts one message. problem: why it has not arrived; empty once it has. tries: the tries so far."""

    def __init__(self) -> None:
        self.problem, self.tries = "no answer in time", 0

    def post(self, address: str, content: bytes) -> None:
        """Try until the message has arrived, is refused for good, or the time is over."""
        import httpx

        logging.getLogger("httpx").addFilter(_without_address)
        deadline, pause = time.monotonic() + PATIENCE_S, _PAUSE_S
        headers = {"Content-Type": "application/json", "User-Agent": "nightjar"}
        with httpx.Client(timeout=_TRY_S, headers=headers) as client:
            while True:
                self.tries += 1
                try:
                    answer = client.post(address, content=content)
                    self.problem = "" if answer.is_success else f"the webhook answered {answer.status_code}"
                    again = answer.status_code in _PASSING
                except Exception as error:  # noqa: BLE001 (whatever it is, the night is done, and the warning says so)
                    self.problem, again = f"{type(error).__name__} {error}", isinstance(error, httpx.TransportError)
                if not again or time.monotonic() + pause >= deadline:
                    return
                time.sleep(pause)
                pause *= 2


def _without_address(record: logging.LogRecord) -> bool:
    """Keep secrets out of the line that httpx logs of each request."""
    record.msg, record.args = clip(record.getMessage()), ()
    return True


def published_event(finished: FinishedRun) -> None:
    """A night is there to be read. A run that had nothing to do, or was not to publish, is no news."""
    from prefect.events import emit_event

    publication, request, progress = finished.publication, finished.request, finished.scored.progress
    if not publication.number or finished.scored.finished:
        return
    job = {"prefect.resource.id": f"nightjar.job.{request.job.name}", "prefect.resource.name": request.job.name}
    payload = {
        "job": request.job_path,
        "run_id": request.run_id,
        "date": request.date,
        "publication": publication.number,
        "revision": publication.revision,
        **progress.counts.by_name,
        "shards": progress.shards,
        "data": f"{revision_uri(request.run_uri, publication.revision)}/data",
        "manifest": f"{request.output}/{publication.manifest}",
    }
    about = {"nightjar.run": request.run_id, "nightjar.date": request.date}
    emit_event("nightjar.run.published", resource={**job, **about}, payload=payload)


def could_not_begin(request: RunRequest, error: NightjarError, step: str) -> None:
    """Send the job's notification, and keep the reason. step: where the run ended.

    The notification goes first, because storage that is away delays the rest. If it cannot be sent, the error gets a
    note.
    """
    if problem := failed(request, error, begun=False):
        error.add_note(problem)
    keep_failure(request, error, step)


def request_to_begin(job: str | Path, **given: Any) -> RunRequest:
    """The request for a run that is to begin; for `given` see `make_request`.

    If code or model is missing, or the run's folder cannot be read, the reason is kept and the notification sent. If
    the job file cannot be read, or the command's options are wrong, only the error is raised.

    Raises:
        NightjarError: As `make_request`, `to_begin` and `fixed`.
    """
    try:
        request = to_begin(make_request(job, **given))
    except StorageError as error:
        with suppress(NightjarError):
            could_not_begin(unrecorded_request(job, **given), error, "discover")
        raise
    with telling(request, "discover"):
        return fixed(request)


@contextmanager
def telling(request: RunRequest, step: str) -> Iterator[None]:
    """Call `could_not_begin` if the block fails."""
    try:
        yield
    except NightjarError as error:
        could_not_begin(request, error, step)
        raise
