"""The configured Prefect API: whether a run can report to it, and what a run must find there.

It is asked with Prefect's own client before anything is reported to it: one that does not answer, or does not let
this command in, is one sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

import httpx
from packaging.version import Version
from prefect.client.base import ServerType
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, get_current_settings, temporary_settings

from nightjar.inference.errors import ClusterError, JobError

_FOR_WORKERS = ("PREFECT_API_URL", "PREFECT_CLIENT_MAX_RETRIES", "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED")
_ASK_S = 10.0
"""Longest wait for a configured API to take a connection, and for it to answer."""

_STOPPED_ASKS_S = 3.0
"""The same for a run that is being stopped: it is killed if it takes too long to end."""

_NOT_LET_IN = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)
_UNUSABLE = (httpx.HTTPError, httpx.InvalidURL, PrefectException, OSError, RuntimeError, ValueError)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a configured API said. problem: why no run can report to it; remedy: what to do; both empty if one can.

    version: the server's; empty for Prefect Cloud, which has none that must fit ours. date: its time, as HTTP has it.
    """

    version: str = ""
    date: str | None = None
    problem: str = ""
    remedy: str = ""


def ask_api(url: str) -> Answer:
    """Ask a configured API for its version, once, as a run would: with Prefect's own sign-in and certificates."""
    try:
        with _client(url) as client:
            if client.server_type == ServerType.CLOUD:
                client.read_flows(limit=1)  # whatever is read needs the key
                return Answer()
            said = client.request("GET", "/admin/version")
        version = str(Version(str(said.json())))
    except _UNUSABLE as error:
        problem, remedy = _explained(url, error)
        return Answer(problem=problem, remedy=remedy)
    return Answer(version, said.headers.get("date"))


@contextmanager
def _client(url: str, patience_s: float = _ASK_S) -> Iterator[SyncPrefectClient]:
    """Prefect's own client, with its settings, but for patience: a person waits for the answer."""
    with (
        temporary_settings({PREFECT_API_URL: url, PREFECT_CLIENT_MAX_RETRIES: 0}),
        get_client(httpx_settings={"timeout": patience_s}, sync_client=True) as client,
    ):
        yield client


def _explained(url: str, error: Exception) -> tuple[str, str]:
    """Why no run can report to this API, and what to do about it."""
    if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in _NOT_LET_IN:
        said = f"{error.response.status_code} {error.response.reason_phrase}"
        mended = "set PREFECT_API_AUTH_STRING to what that server was started with (for Prefect Cloud, PREFECT_API_KEY)"
        return f"Prefect at {url} does not let this command in ({said})", mended
    if isinstance(error, OSError):  # what the network does is an error of httpx
        return f"Prefect's certificates cannot be read: {_first_line(error)}", "mend PREFECT_API_SSL_CERT_FILE"
    # Not JSON, or no version: a page of somebody else's.
    why = "it answered, but not as a Prefect API" if isinstance(error, ValueError) else _first_line(error)
    private = ", or PREFECT_API_SSL_CERT_FILE if its certificate is private" if url.startswith("https:") else ""
    return f"no Prefect API at {url}: {why}", f"start it (`prefect server start`), or mend PREFECT_API_URL{private}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def require(url: str, instead: str = "") -> None:
    """Return if a run can report there. instead: what else could be done, beside the remedy.

    Raises:
        ClusterError: the configured API does not answer, or does not let this command in.
    """
    if (answer := ask_api(url)).problem:
        raise ClusterError(f"{answer.problem}; {answer.remedy}{instead}")


def check_limit(name: str) -> str:
    """Whether a run would find its `resources.concurrency_limit`; a note where that cannot be known yet, else empty.

    Raises:
        JobError: the configured API has no such limit.
        ClusterError: the configured API does not answer, or does not let this command in.
    """
    url = PREFECT_API_URL.value()
    if not url:
        return (
            f"resources.concurrency_limit: {name!r} was not looked up: limits live in a Prefect server, and "
            "PREFECT_API_URL is not set. A run's own server has those in this machine's Prefect database, and no "
            f"others; without {name!r} there it ends before it scores (`prefect gcl create {name} --limit 1`)"
        )
    require(url)
    try:
        with _client(url) as client:
            client.read_global_concurrency_limit_by_name(name)
    except ObjectNotFound as error:
        raise no_such_limit(name) from error
    except _UNUSABLE as error:
        raise ClusterError(
            f"Prefect at {url} did not say whether it has the limit {name!r}: {_first_line(error)}"
        ) from error
    return ""


def lacks_limit(name: str) -> bool:
    """Whether the API that this process reports to has no such limit; no, if it does not say."""
    try:
        with _client(PREFECT_API_URL.value() or "") as client:
            client.read_global_concurrency_limit_by_name(name)
    except ObjectNotFound:
        return True
    except _UNUSABLE:
        return False
    return False


def was_cancelled(flow_run: UUID) -> bool:
    """Whether somebody cancels this flow run in Prefect, or has; no, if the API does not say."""
    url = PREFECT_API_URL.value()
    if not url:
        return False  # a person can cancel nothing there
    try:
        with _client(url, _STOPPED_ASKS_S) as client:
            state = client.read_flow_run(flow_run).state
    except _UNUSABLE:
        return False
    return state is not None and (state.is_cancelling() or state.is_cancelled())


def is_away(error: BaseException | None) -> bool:
    """Whether a request failed because nobody answered, or who answered is not well: that may pass."""
    if isinstance(error, httpx.HTTPStatusError):
        # The last two as Prefect's own client has it: a time-out, and too many questions.
        return error.response.is_server_error or error.response.status_code in (408, 429)
    return isinstance(error, httpx.TransportError)


def no_such_limit(name: str) -> JobError:
    """Says which key names it, and how it is made."""
    return JobError(
        f"resources.concurrency_limit: Prefect has no limit {name!r}; create it with "
        f"`prefect gcl create {name} --limit 1`"
    )


def api_url() -> str:
    """The configured API; without one, a server on this machine's loopback will be started."""
    return str(PREFECT_API_URL.value() or "http://127.0.0.1/api")


def require_api() -> str:
    """The configured API's pages, for what lives in a server and not in a run.

    Raises:
        ClusterError: none is configured, it does not answer, or does not let this command in.
    """
    configured = PREFECT_API_URL.value()
    if not configured:
        raise ClusterError(
            "PREFECT_API_URL is not set, and deployments live in a Prefect server: start one (`prefect server start`) "
            "and `prefect config set PREFECT_API_URL=http://127.0.0.1:4200/api`, or use `nightjar serve`, which starts "
            "its own"
        )
    require(configured)
    return str(configured).removesuffix("/api")


def worker_env() -> dict[str, str]:
    """What the cluster's workers must know to report to the same API as this process.

    No credentials: Ray writes this to its logs. An own cluster inherits them, another one's nodes have them.
    """
    known = get_current_settings().to_environment_variables(exclude_unset=True)
    return {name: value for name, value in known.items() if name in _FOR_WORKERS}
