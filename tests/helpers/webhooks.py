"""A real HTTP server that takes messages, and answers each as a test says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "T0PS3CRET-of-the-channel"

HANG = 0
"""In place of a status: there is no answer until the test is over."""


@dataclass
class Webhook:
    """The server. answers: one after the other, the last of them for ever. posted: bodies, in order. at: when.
    on_message: called with each body before it is answered.
    """

    url: str = ""
    answers: Sequence[int] = (200,)
    posted: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    on_message: Callable[[dict[str, Any]], object] = bool
    over: threading.Event = field(default_factory=threading.Event)


@contextmanager
def webhook(*answers: int) -> Iterator[Webhook]:
    """Serves until the block ends."""
    found = Webhook(answers=answers or (200,))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = found.answers[min(len(found.posted), len(found.answers) - 1)]
            found.posted.append(body)
            found.headers.append(dict(self.headers))
            found.at.append(time.monotonic())
            found.on_message(body)
            if status == HANG:
                found.over.wait(60)
                return
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", f"{found.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Not on the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}/{SECRET}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
