"""A real HTTP server that speaks OpenAI's API, and does with each request what a test says."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, dict[str, str], Any]
"""Status, headers, and the body as JSON."""

Behave = Callable[["Asked"], Reply]


@dataclass(frozen=True)
class Asked:
    """A request. number: from 1 on, in the order of arrival. at: on the monotonic clock. text: of the last message or
    the prompt. again: how often the same text was asked before.
    """

    number: int
    at: float
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    again: int

    @property
    def text(self) -> str:
        """What is asked."""
        if "messages" in self.body:
            content: str = self.body["messages"][-1]["content"]
            return content
        return str(self.body.get("prompt", self.body.get("input")))


class Hang(Exception):
    """Raised by what a test says: the server does not answer until the client has gone."""


class Half(Exception):
    """The server begins an answer, and closes the connection."""


@dataclass
class Endpoint:
    """The server. asked: all requests so far. most: how many were underway at once."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    underway: int = 0
    most: int = 0
    over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def texts(self) -> list[str]:
        """What was asked, in the order of arrival."""
        return [each.text for each in self.asked]


def said(text: str, *, reason: str = "stop", prompt_tokens: int = 7, output_tokens: int = 3) -> Reply:
    """An answer."""
    choice = {"index": 0, "finish_reason": reason, "message": {"role": "assistant", "content": text}, "text": text}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens, "total_tokens": 10}
    kind = {"id": "a", "object": "chat.completion", "created": 1, "model": "m"}
    return 200, {}, {**kind, "choices": [choice], "usage": usage}


def vector(numbers: list[float]) -> Reply:
    """A vector."""
    data = [{"object": "embedding", "index": 0, "embedding": numbers}]
    return 200, {}, {"object": "list", "model": "m", "data": data, "usage": {"prompt_tokens": 4, "total_tokens": 4}}


def fault(status: int, message: str = "no", **headers: str) -> Reply:
    """An error."""
    return status, {name.replace("_", "-"): value for name, value in headers.items()}, {"error": {"message": message}}


def upper(asked: Asked) -> Reply:
    """The text in capitals."""
    return said(asked.text.upper())


@contextmanager
def endpoint(behave: Behave = upper) -> Iterator[Endpoint]:
    """Run the server on a free port of this machine."""
    found = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Nothing."""

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with found.lock:
                asked = Asked(len(found.asked) + 1, time.monotonic(), self.path, dict(self.headers), body, 0)
                asked = Asked(asked.number, asked.at, asked.path, asked.headers, body, found.texts().count(asked.text))
                found.asked.append(asked)
                found.underway += 1
                found.most = max(found.most, found.underway)
            try:
                self._answer(*behave(asked))
            except Hang:
                found.over.wait()
            except Half:
                self.send_response(200)
                self.send_header("content-length", "1000")
                self.end_headers()
                self.wfile.write(b'{"id": ')
            else:
                return
            finally:
                with found.lock:
                    found.underway -= 1
            self.close_connection = True

        def _answer(self, status: int, headers: dict[str, str], body: Any) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            about = {"content-type": "application/json", "content-length": str(len(content))}
            for name, value in {**headers, **about}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

        def handle_error(self, *_: Any) -> None:
            """A client that has gone is no news."""

    server = Server(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.over.set()
        gc.collect()  # clients that are not used any more close their connections
        server.shutdown()
        server.server_close()
        thread.join()
