"""A reverse proxy that does wrong to chosen HTTP requests, to stand between a client and the real S3 server.

    with fault_proxy(server.endpoint) as proxy:
        rule = proxy.on(status(503, "SlowDown"), "PUT", "*/data/*", first=2, times=3)
        ...
        assert rule.hits == 3

The second to fourth PUT of a name in `data/` is told to slow down. Requests are forwarded with the headers
they came with: a signature holds for the `Host` it was made for.
"""

from __future__ import annotations

import http.client
import http.server
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote, urlsplit

from s3 import S3Server

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}
_UPSTREAM_S = 120
_ABORT = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    length: int
    """The content length it named; more than the body has when the request was a HEAD."""


@dataclass(frozen=True)
class Exchange:
    """One request, and what may be done with it."""

    handler: _Handler
    body: bytes
    closing: threading.Event

    @property
    def path(self) -> str:
        """The decoded path, with its query."""
        return unquote(self.handler.path)

    def forward(self) -> Answer:
        """Pass it on and return what the server says."""
        upstream = http.client.HTTPConnection(self.handler.server.target, timeout=_UPSTREAM_S)
        with closing(upstream):
            upstream.putrequest(self.handler.command, self.handler.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.handler.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    upstream.putheader(name, value)
            if self.body or self.handler.command in {"PUT", "POST"}:
                upstream.putheader("Content-Length", str(len(self.body)))
            upstream.endheaders(self.body or None)
            said = upstream.getresponse()
            body = said.read()
            headers = [(name, value) for name, value in said.getheaders() if name.lower() not in _HOP_BY_HOP]
            return Answer(said.status, headers, body, int(said.getheader("Content-Length") or len(body)))

    def reply(self, answer: Answer, *, share: float = 1.0) -> None:
        """Give that answer; of its body only so much, and then cut the connection."""
        self.handler.send_response_only(answer.status)
        for name, value in answer.headers:
            self.handler.send_header(name, value)
        self.handler.send_header("Content-Length", str(answer.length))
        self.handler.end_headers()
        self.handler.wfile.write(answer.body[: int(len(answer.body) * share)])
        if share < 1:
            self.handler.wfile.flush()
            # Closed in order, not aborted: what was sent must arrive.
            self.handler.close_connection = True

    def cut(self) -> None:
        """Reset the connection without an answer."""
        self.handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        self.handler.close_connection = True


Action = Callable[[Exchange], None]


def forwarded(exchange: Exchange) -> None:
    """Nothing wrong."""
    exchange.reply(exchange.forward())


def status(code: int, name: str = "InternalError") -> Action:
    """The proxy answers with that status and S3's error document of that name; the server hears nothing."""
    document = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{name}</Code><Message>On purpose.</Message></Error>'

    def act(exchange: Exchange) -> None:
        body = b"" if exchange.handler.command == "HEAD" else document.encode()
        exchange.reply(Answer(code, [("Content-Type", "application/xml")], body, len(document)))

    return act


def reset(exchange: Exchange) -> None:
    """The connection breaks before the server hears of it."""
    exchange.cut()


def answer_lost(exchange: Exchange) -> None:
    """The server does it; then the connection breaks without an answer."""
    exchange.forward()
    exchange.cut()


def answer_replaced(code: int, name: str = "InternalError") -> Action:
    """The server does it; a front end that lost touch with it answers with that status."""
    answer = status(code, name)

    def act(exchange: Exchange) -> None:
        exchange.forward()
        answer(exchange)

    return act


def late(seconds: float) -> Action:
    """The server does it at once; the answer comes that much later."""

    def act(exchange: Exchange) -> None:
        answer = exchange.forward()
        exchange.closing.wait(seconds)
        exchange.reply(answer)

    return act


def cut_short(exchange: Exchange) -> None:
    """The answer's head, half of its body, and then the end of the connection."""
    exchange.reply(exchange.forward(), share=0.5)


def deaf_to_conditions(server: S3Server) -> Action:
    """As a front end that does not know `If-None-Match`: the object is put, whether there is one or not."""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name=server.region,
    )

    def act(exchange: Exchange) -> None:
        bucket, _, key = exchange.path.lstrip("/").partition("/")
        put = client.put_object(Bucket=bucket, Key=key, Body=exchange.body)
        exchange.reply(Answer(200, [("ETag", put["ETag"])], b"", 0))

    return act


@dataclass
class Rule:
    """Which requests get which action. `seen`: requests that matched, by path; `hits`: those it was done to."""

    action: Action
    method: str
    path: str
    first: int
    times: int | None
    each: bool
    seen: Counter[str] = field(default_factory=Counter)
    hits: int = 0

    def is_due(self, method: str, path: str) -> bool:
        """Whether this request is one for its action; counts it if it matches."""
        if self.method not in {method, "*"} or not fnmatchcase(path, self.path):
            return False
        self.seen[path] += 1
        number = self.seen[path] if self.each else self.seen.total()
        return number >= self.first and (self.times is None or number < self.first + self.times)


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came. `at`: on the monotonic clock, in seconds."""

    method: str
    path: str
    at: float


@dataclass
class FaultProxy:
    """Where it listens, what it does wrong, and every request it was sent."""

    endpoint: str
    rules: list[Rule] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def on(
        self,
        action: Action,
        method: str = "*",
        path: str = "*",
        *,
        first: int = 1,
        times: int | None = 1,
        each: bool = False,
    ) -> Rule:
        """From now on: `action` to the requests of that method and path, from the `first` on, so many `times`.

        method: or "*". path: glob on the decoded path with its query; "*" crosses slashes. times: None is all
        of them until `lift`. each: each path is counted by itself. Of several rules that are due the first counts.
        """
        rule = Rule(action, method, path, first, times, each)
        with self._lock:
            self.rules.append(rule)
        return rule

    def lift(self) -> None:
        """From now on nothing is wrong."""
        with self._lock:
            self.rules.clear()

    def sent(self, method: str = "*", path: str = "*") -> list[Request]:
        """The requests of that method and path that came."""
        with self._lock:
            return [
                request
                for request in self.requests
                if method in {request.method, "*"} and fnmatchcase(request.path, path)
            ]

    def choose(self, method: str, path: str) -> Action:
        """What to do with this request; notes it."""
        with self._lock:
            self.requests.append(Request(method, path, time.monotonic()))
            due = [rule for rule in self.rules if rule.is_due(method, path)]
            if not due:
                return forwarded
            due[0].hits += 1
            return due[0].action


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        action = self.server.proxy.choose(self.command, unquote(self.path))
        # A client that gave up in the meantime is not waiting for any answer.
        with suppress(BrokenPipeError, ConnectionResetError):
            action(Exchange(self, body, self.server.closing))

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 (the base class calls them so)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests look at `FaultProxy.requests`."""


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True

    def __init__(self, target: str, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.target = target
        self.closing = threading.Event()
        self.proxy = FaultProxy(f"http://127.0.0.1:{self.server_address[1]}")

    def shutdown_request(self, request: Any) -> None:
        """Without the farewell of the base class, after which no connection could be reset."""
        self.close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections end in the middle: that is what this server is for."""


@contextmanager
def fault_proxy(endpoint: str, port: int = 0) -> Iterator[FaultProxy]:
    """A proxy in front of the server at `endpoint` (http://host:port), for the length of the block.

    port: where it listens; by default at a free port.
    """
    server = _Server(urlsplit(endpoint).netloc, port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.proxy
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
