"""A person's yes on Prefect's pages: a run that asks is suspended, with a form, and *Resume* carries the answer.

Only a run of a deployment can be suspended: its process ends, and whoever serves the deployment begins it again. It
then finds its question in the ledger, where the answer is kept, too.
"""

from __future__ import annotations

from typing import Literal, cast
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.flow_runs import resume_flow_run, suspend_flow_run
from prefect.input import RunInput, keyset_from_base_key
from prefect.runtime import deployment, flow_run
from prefect.settings import PREFECT_API_URL
from pydantic import Field, ValidationError

from nightjar.inference.ledger.lines import Decision, Question

_LEAST_S = 60
"""Seconds that Prefect waits at least, so that the ledger's deadline is the one that counts."""

_UNUSABLE = (httpx.HTTPError, PrefectException, OSError, RuntimeError, ValueError)


class Reply(RunInput):
    """The form on the run's page."""

    decision: Literal["approve", "reject"] = Field(description="approve publishes the night, reject leaves it unseen")
    name: str = Field(default="", description="Who answers")
    note: str = Field(default="", description="Why")


def can_suspend() -> bool:
    """Whether this flow run can be suspended: it belongs to a deployment, and is no night of a backfill."""
    return deployment.id is not None and flow_run.parent_flow_run_id is None


def suspend(question: Question, seconds: float, told: str) -> None:
    """End this flow run's process until somebody answers on its page; does not return.

    told: what is asked, in Markdown. seconds: until the deadline.

    Raises:
        RuntimeError: Prefect does not let this flow run be suspended.
    """
    form = Reply.with_initial_data(description=told)
    suspend_flow_run(wait_for_input=form, timeout=int(seconds) + _LEAST_S, key=_key(question))


def reply(question: Question) -> Reply | None:
    """What a person answered on the page of this flow run; None if nobody did."""
    try:
        # In a flow that is not async, it is the form itself.
        return cast("Reply", Reply.load(keyset_from_base_key(f"suspended-{_key(question)}")))
    except ValidationError:
        return None  # it was resumed without the form


def resume(question: Question, decision: Decision) -> str:
    """Let the flow run that asked end, if it is suspended. Returns why it could not be resumed; empty otherwise."""
    if not PREFECT_API_URL.value():
        return ""
    filled = {"decision": "approve" if decision.approved else "reject", "name": decision.by, "note": decision.note}
    try:
        with get_client(sync_client=True) as client:
            found = client.read_flow_run(UUID(question.flow_run))
        if found.state is not None and found.state.is_paused():
            resume_flow_run(found.id, run_input=filled)
    except ObjectNotFound:
        pass  # it was started with another API, or with none
    except _UNUSABLE as error:
        return f"Prefect's run {question.flow_run} could not be resumed ({error or type(error).__name__})"
    return ""


def _key(question: Question) -> str:
    """Prefect's key of what is asked: another one when the run is validated again."""
    return question.published.checksum[:16]
