"""The configured Prefect API: whether a run can report to it, what it knows, and the addresses of its pages.

Prefect's own client asks it before anything is reported. An API that does not answer, or refuses this command's
credentials, becomes an error of one sentence.
"""

from __future__ import annotations

import os
import re
from typing import Literal
from urllib.parse import unquote
from uuid import UUID

import httpx
from packaging.version import Version
from prefect.client.base import ServerType
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectException
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_UI_URL,
    get_current_settings,
    temporary_settings,
)
from prefect.utilities.urls import url_for

from nightjar.inference.errors import ClusterError
from nightjar.inference.storage.locations import without_password

_FOR_WORKERS = ("PREFECT_API_URL", "PREFECT_CLIENT_MAX_RETRIES", "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED")
_ASK_S = 10.0
"""The longest wait in seconds for a connection to a configured API, and again for its answer."""

_NOT_LET_IN = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)

API_AWAY = (httpx.HTTPError, PrefectException, OSError)
"""Errors of Prefect's client for an API that does not answer, or answers wrongly."""

_UNUSABLE = (*API_AWAY, httpx.InvalidURL, RuntimeError, ValueError)


def check_proxies() -> None:
    """Check that clients of HTTP can be made with the proxies that the environment names, which all of Prefect's have.

    Raises:
        ClusterError: One of them cannot be used.
    """
    try:
        httpx.Client(verify=False).close()
    except (ImportError, ValueError) as error:
        names = ", ".join(name for name in os.environ if name.lower() in {"all_proxy", "http_proxy", "https_proxy"})
        why = without_password(_first_line(error)).rstrip(".")
        raise ClusterError(
            f"{names}: Prefect's client cannot use this proxy: {why}; unset the variable, or name an http:// proxy"
        ) from error


def ask_api(url: str) -> str:
    """Ask a configured API for its version, once, with the same credentials and certificates as a run.

    Prefect's own client asks, with shorter time-outs than its own, because a person waits for the answer.

    Returns the server's version; empty for Prefect Cloud, which fits every client.

    Raises:
        ClusterError: The API does not answer, or does not let this command in, or a proxy cannot be used; no run can
            report to it.
    """
    check_proxies()
    try:
        with (
            temporary_settings({PREFECT_API_URL: url, PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(httpx_settings={"timeout": _ASK_S}, sync_client=True) as client,
        ):
            if client.server_type == ServerType.CLOUD:
                client.read_flows(limit=1)  # every read needs the key
                return ""
            return str(Version(str(client.request("GET", "/admin/version").json())))
    except _UNUSABLE as error:
        raise ClusterError(without_password(_explained(url, error))) from error


def _explained(url: str, error: Exception) -> str:
    """Why no run can report to this API, and what to do about it."""
    if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in _NOT_LET_IN:
        said = f"{error.response.status_code} {error.response.reason_phrase}"
        mended = "set PREFECT_API_AUTH_STRING to what that server was started with (for Prefect Cloud, PREFECT_API_KEY)"
        return f"Prefect at {url} does not let this command in ({said}); {mended}"
    if isinstance(error, OSError):  # errors of the network are httpx's, so this is a file's
        return f"Prefect's certificates cannot be read: {_first_line(error)}; mend PREFECT_API_SSL_CERT_FILE"
    # Not JSON, or no version: the page of some other server.
    why = "it answered, but not as a Prefect API" if isinstance(error, ValueError) else _first_line(error)
    private = ", or PREFECT_API_SSL_CERT_FILE if its certificate is private" if url.startswith("https:") else ""
    return f"no Prefect API at {url}: {why}; start that server, or mend PREFECT_API_URL{private}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def in_words(error: BaseException) -> str:
    """What an error of Prefect's client says, without the password that the URL in it may have."""
    return without_password(str(error) or type(error).__name__)


def is_away(error: BaseException | None) -> bool:
    """Whether a request failed for a reason that may pass: no answer, or an error of the server."""
    if isinstance(error, httpx.HTTPStatusError):
        # 408 and 429 as in Prefect's own client: a time-out, and too many requests.
        return error.response.is_server_error or error.response.status_code in (408, 429)
    return isinstance(error, httpx.TransportError)


def api_url() -> str:
    """The URL of the configured API, to be shown; without one, that of the server that will be started here."""
    return without_user(str(PREFECT_API_URL.value() or "http://127.0.0.1/api"))


def require_api() -> str:
    """The address of the configured API's pages, for commands that need a lasting server, such as `deploy`.

    Raises:
        ClusterError: None is configured, it does not answer, or it does not let this command in.
    """
    configured = PREFECT_API_URL.value()
    if not configured:
        raise ClusterError(
            "PREFECT_API_URL is not set, and a Prefect server keeps the deployments: start one with a password "
            "(`PREFECT_SERVER_API_AUTH_STRING=USER:PASSWORD prefect server start`) and here set PREFECT_API_URL, as "
            "http://127.0.0.1:4200/api, and PREFECT_API_AUTH_STRING; or use `nightjar serve`, which starts its own"
        )
    ask_api(configured)
    return home()


def worker_env() -> dict[str, str]:
    """The settings with which the cluster's workers report to the same API as this process.

    No credentials, and no URL with any: Ray writes these to its logs. The own cluster inherits those; tasks get them
    with their arguments.
    """
    known = get_current_settings().to_environment_variables(exclude_unset=True)
    return {name: without_user(value) for name, value in known.items() if name in _FOR_WORKERS}


def home() -> str:
    """The address of the pages of the API that is configured."""
    return without_user(str(PREFECT_UI_URL.value() or str(PREFECT_API_URL.value() or "").removesuffix("/api")))


def page_of(kind: Literal["flow-run", "deployment"], object_id: UUID | str) -> str:
    """The address of the page of a flow run or a deployment; empty without pages."""
    return without_user(url_for(kind, obj_id=object_id) or "")


_USER = re.compile(r"(?<=://)([^\s/]*)@")


def user_of(url: str) -> str:
    """The user:password of a URL; empty without one."""
    found = _USER.search(url)
    return unquote(found[1]) if found else ""


def without_user(url: str) -> str:
    """The URL without the user and the password that it may have."""
    return _USER.sub("", url)
