"""Addresses of Prefect's pages."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, PREFECT_UI_URL, temporary_settings
from prefect.utilities.urls import url_for

_ASK_S = 3.0
"""The longest wait in seconds for an answer: without one a page has no links, and that is all."""


def home() -> str:
    """The address of the pages of the API that is configured."""
    return str(PREFECT_UI_URL.value() or str(PREFECT_API_URL.value() or "").removesuffix("/api"))


def deployment_page(deployment: UUID) -> str:
    """The address of the page of a deployment."""
    return url_for("deployment", obj_id=deployment) or ""


def run_pages(flow_runs: Iterable[str]) -> dict[str, str]:
    """The addresses of the pages of flow runs, by their ids as given: of those that the configured API knows.

    A run may have reported to another API. None is known of an API that does not answer.
    """
    asked: dict[UUID, str] = {}
    for each in flow_runs:
        with suppress(ValueError):
            asked[UUID(each)] = each
    if not asked or not PREFECT_API_URL.value():
        return {}
    wanted = FlowRunFilter(id=FlowRunFilterId(any_=list(asked)))
    try:
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(httpx_settings={"timeout": _ASK_S}, sync_client=True) as client,
        ):
            found = client.read_flow_runs(flow_run_filter=wanted)
    except (httpx.HTTPError, PrefectException, OSError, RuntimeError, ValueError):
        return {}
    return {asked[each.id]: url_for("flow-run", obj_id=each.id) or "" for each in found}
