"""Posts to a webhook how a night ended, if the job says so (`notify`).

A message that is refused for a moment is sent again. All tries end within `PATIENCE_S`, and a failure is a warning: it
never fails a night. The address is a secret, and is in no message, log or error. Apprise does not serve: it posts a
body of its own in place of these fields, does not try again, and does not say why a message was refused.
"""

from __future__ import annotations

import html
import json
import logging
import os
import threading
import time

import httpx
from prefect.utilities.urls import url_for

from nightjar.flows.pages.advice import Commands
from nightjar.flows.prefect_api.server import has_pages
from nightjar.flows.results import FinishedRun
from nightjar.inference.errors import NightjarError
from nightjar.inference.job.deployment import Occasion
from nightjar.inference.ledger import endings
from nightjar.inference.messages import clip, hide
from nightjar.inference.run.request import RunRequest
from nightjar.inference.validation.gates import warnings

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
    verdict = f"{ended.outcome} at {ended.where}" if ended.where else ended.outcome
    state = ended.outcome if begun else "never begun"
    commands = Commands(request).of_error(error, state)
    event: Occasion = "asks" if ended.outcome == endings.ASKS else "failed"
    return _post(request, event, verdict, str(error), next(iter(commands.values()), ""), begun)


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
    return (url_for("flow-run", obj_id=request.flow_run) or "") if has_pages() else ""


class _Posting:
    """Posts one message. problem: why it has not arrived; empty once it has. tries: the tries so far."""

    def __init__(self) -> None:
        self.problem, self.tries = "no answer in time", 0

    def post(self, address: str, content: bytes) -> None:
        """Try until the message has arrived, is refused for good, or the time is over."""
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
