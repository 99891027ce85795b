"""The pages of all jobs that are served, at one address: the jobs, the nights of each, and the report of each run.

They can only be read. A run is looked up by the name of its job and its own name, in the output that the job's file
names: no address is a path. Each page is made anew, because a night may be rolled back or its process killed at any
time, and nothing keeps a copy. A thread of `nightjar serve` serves them; the nights run in processes of their own.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from typing import TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nightjar.flows.prefect_api.api import home
from nightjar.flows.prefect_api.ownserver import listening, passwords
from nightjar.flows.serving.lookup import Served, index_page, newest, nights_page, problem_page, report_page
from nightjar.inference.errors import ClusterError, NightjarError

_JOB_S, _PAGE_S = 15.0, 120.0
"""The longest time in seconds that the page of all jobs, and a page of one job, wait for the storage of a job."""

USUAL_PORT = 4201
LOCAL = "127.0.0.1"

_END_S = 5.0
"""Seconds that requests have to end when serving ends."""

_HEADERS = {
    # What reports need, and no more: their style and plots are in the page.
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the pages are."""

    shared: socket.socket
    """The socket that listens."""
    host: str
    """The host as the command named it."""

    @property
    def address(self) -> str:
        """The address for a browser."""
        name = socket.gethostname() if ip_address(self.shared.getsockname()[0]).is_unspecified else self.host
        return f"http://{f'[{name}]' if ':' in name else name}:{self.shared.getsockname()[1]}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host names of requests that are answered; on a loopback address, only this machine's."""
        if ip_address(self.shared.getsockname()[0]).is_loopback:
            return (LOCAL, "localhost", "[::1]", "::1", self.host)
        return ("*",)


@contextmanager
def place(host: str, port: int | None) -> Iterator[Place]:
    """Listen. port: None for the usual one or, if that is taken, any other.

    Raises:
        ClusterError: This machine has no such host, or the port is taken.
    """
    try:
        shared = listening(port, USUAL_PORT, host)
    except OSError as error:
        named = f"--reports-host {host}" + (f" --reports-port {port}" if port else "")
        raise ClusterError(f"{named}: no pages can be served there: {error}; choose another one") from error
    with shared:
        yield Place(shared, host)


@contextmanager
def pages_of(served: Sequence[Served], at: Place) -> Iterator[None]:
    """Serve the pages of these jobs in this context."""
    app = site(served, at.hosts, passwords()["Reports"])
    config = uvicorn.Config(app, log_level="error", lifespan="off", server_header=False, timeout_graceful_shutdown=3)
    server = uvicorn.Server(config)
    # A daemon, as a storage that does not answer must not hold up the end.
    thread = threading.Thread(
        target=copy_context().run, args=(server.run, [at.shared]), daemon=True, name="nightjar-pages"
    )
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(_END_S)


def site(served: Sequence[Served], hosts: Sequence[str], password: str, patience_s: float = _JOB_S) -> ASGIApp:
    """The pages of these jobs. hosts: the host names of requests that are answered; `*` for any. password: as
    `name:password`. patience_s: the longest wait for the storage of a job.
    """
    pages = _Pages(served, patience_s)
    routes = [
        Route("/", pages.jobs),
        Route("/jobs/{job}/", pages.nights),
        Route("/jobs/{job}/runs/{run}", pages.report),
        Route("/favicon.ico", _no_icon),  # browsers ask for it, and would call its absence an error
    ]
    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)
    return _Guarded(Starlette(routes=routes, middleware=[trusted], exception_handlers={404: _no_page}), password)


class _Guarded:
    """Lets in who gives the password by HTTP's own sign-in, and adds the headers to every answer.

    A cookie would go to every other port of this host, too.
    """

    def __init__(self, app: ASGIApp, password: str) -> None:
        self._app, self._expected = app, b"Basic " + base64.b64encode(password.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        await (self._app if hmac.compare_digest(given, self._expected) else _unknown)(scope, receive, sent)


class _Pages:
    """Answers requests. What is read of storage is read in threads."""

    def __init__(self, served: Sequence[Served], patience_s: float) -> None:
        self._served = {each.name: each for each in served}
        self._patience_s = patience_s

    async def jobs(self, _: Request) -> Response:
        found = await asyncio.gather(*map(self._newest, self._served.values()))
        return HTMLResponse(index_page(found, home()))

    async def _newest(self, served: Served) -> Served:
        """The newest nights of a job, or why they cannot be shown: that must not hide the other jobs."""
        try:
            return await _answered(partial(newest, served), self._patience_s)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one job, the others are shown
            return replace(served, problem=_said(error, served))

    async def nights(self, request: Request) -> Response:
        return await self._page(request, nights_page)

    async def report(self, request: Request) -> Response:
        made = partial(report_page, run_id=request.path_params["run"], date=request.query_params.get("date"))
        return await self._page(request, made)

    async def _page(self, request: Request, make: Callable[[Served], str | None]) -> Response:
        served = self._served.get(request.path_params["job"])
        if served is None:
            return _problem(404, "No such job", "No job of this name is served here.")
        try:
            page = await _answered(partial(make, served), max(_PAGE_S, self._patience_s))
        except Exception as error:  # noqa: BLE001 - it is said on the page, and logged if nothing foresaw it
            return _problem(503, "This page cannot be shown now", _said(error, served))
        if page is None:
            return _problem(404, "No such run", f"Nothing of such a run of {served.name} was begun.")
        return HTMLResponse(page)


async def _answered(look: Callable[[], T], patience_s: float) -> T:
    """Look at storage in a daemon thread, which knows Prefect's settings of this context.

    Raises:
        TimeoutError: The look has not ended in this time. Its thread ends when the storage gives up.
    """
    found = Future[T]()
    found.set_running_or_notify_cancel()  # a request that gives up does not cancel it

    def work() -> None:
        try:
            found.set_result(look())
        except BaseException as error:  # noqa: BLE001 (whoever waits for it gets it)
            found.set_exception(error)

    threading.Thread(target=copy_context().run, args=(work,), daemon=True, name="nightjar-look").start()
    async with asyncio.timeout(patience_s):
        return await asyncio.wrap_future(found)


def _said(error: Exception, served: Served) -> str:
    """Why a job's page cannot be shown."""
    if isinstance(error, NightjarError):
        return str(error)
    if isinstance(error, TimeoutError):
        return (
            f"The storage of {served.name} has not answered in time. Load the page again. "
            f"`nightjar check {served.path}` says what is wrong with it."
        )
    _log.error("a page of %s could not be made", served.name, exc_info=error)
    return f"{type(error).__name__}: {error}"


def _problem(status: int, title: str, said: str) -> Response:
    return HTMLResponse(problem_page(title, said), status)


async def _unknown(scope: Scope, receive: Receive, send: Send) -> None:
    said = "`nightjar serve` prints the address that signs in, or says which file has the name and the password."
    answer = _problem(401, "Sign in", said)
    answer.headers["WWW-Authenticate"] = 'Basic realm="Nightjar", charset="UTF-8"'
    await answer(scope, receive, send)


async def _no_icon(_: Request) -> Response:
    return Response(status_code=204)


async def _no_page(_: Request, __: Exception) -> Response:
    return _problem(404, "No such page", "There is no such page. The page of all jobs is at the root.")
