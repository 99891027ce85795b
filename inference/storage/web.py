"""Files of web servers, `https://…`, to read only: `lake` imports this module when a URI needs it.

A server that takes ranges is read in parts, as a bucket is; of another one a file is fetched whole when it is opened.
The bytes are those that the server sends, whatever it says of their encoding. No server lists its files: a listing is
empty, and what is there is found by its whole name.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import TypeVar

import httpx
import pyarrow as pa

from nightjar.inference.errors import Denied, Missing, StorageError, Transient
from nightjar.inference.messages import clip
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.locations import Reach, host_of, signed
from nightjar.inference.storage.protocol import Entry, ReadOnly, file_name
from nightjar.inference.storage.retrying import PART, RetryPolicy, opened

T = TypeVar("T")

_PLAIN = {"Accept-Encoding": "identity"}
"""Else a server may pack what it sends, and bytes would have other numbers."""

_PACKED = (".gz", ".tgz", ".zst")
"""The ends of names for which an encoding is the file's own, and not one that a server puts around it."""

_PASSING = {408, 425, 429, 500, 502, 503, 504}

logging.getLogger("httpx").setLevel(logging.WARNING)  # its other lines have the URL of each request


class WebStorage(ReadOnly):
    """`Storage` over web servers."""

    refusal = "files of a web server can only be read"

    def __init__(self, settings: StorageSettings) -> None:
        self._policy = RetryPolicy(settings.retry_s)
        timeout = httpx.Timeout(settings.timeout_s, connect=10.0)
        # A place that the job names as http is reached by https, too.
        self._reach = Reach((*settings.web, *(uri.replace("http://", "https://", 1) for uri in settings.web)))
        hooks = {"request": [self._check_request]}
        self._client = httpx.Client(timeout=timeout, follow_redirects=True, headers=_PLAIN, event_hooks=hooks)

    def stat(self, uri: str) -> Entry:
        return self._retried(self._begun, uri)[0]

    def read(self, uri: str) -> bytes:
        return self._retried(self._get, uri)

    def open(self, uri: str) -> pa.NativeFile:
        entry, takes_ranges = self._retried(self._begun, uri)
        if not takes_ranges:
            return self._retried(self._fetched, uri)
        return opened(lambda start, end: self._range(uri, start, end), entry.size, self._policy)

    def list(self, folder: str, after: str = "") -> Iterator[Entry]:
        return iter(())

    def _begun(self, uri: str) -> tuple[Entry, bool]:
        """The entry of a file, and whether its server takes ranges.

        HEAD is not used: some servers refuse it, as those whose URLs are signed for GET alone.
        """
        with self._answer(uri, {"Range": "bytes=0-0"}) as answer:
            version = _version(answer.headers)
            if answer.status_code == 416:
                return Entry(uri, 0, version), True  # of an empty file no byte can be asked for
            whole = answer.headers.get("Content-Range", "").rpartition("/")[2]
            if answer.status_code == 206 and whole.isdecimal():
                return Entry(uri, int(whole), version), True
            if answer.status_code != 206:
                return _whole(uri, answer), False
        with self._answer(uri) as answer:  # the range was sent without the file's size
            return _whole(uri, answer), False

    def _range(self, uri: str, start: int, end: int) -> bytes:
        with self._answer(uri, {"Range": f"bytes={start}-{end - 1}"}) as answer:
            found = b"".join(answer.iter_raw()) if answer.status_code == 206 else b""
        if len(found) != end - start:
            raise StorageError(f"{uri}: it was overwritten while it was read, or its server has stopped to send ranges")
        return found

    def _fetched(self, uri: str) -> pa.NativeFile:
        """The whole file, on this machine's disk until it is closed."""
        try:
            kept = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
            with self._answer(uri) as answer:
                for block in answer.iter_raw(PART):
                    kept.write(block)
            kept.seek(0)
        except OSError as error:  # those of the network are httpx's
            raise StorageError(
                f"{uri}: this machine's disk does not take it: {error}; the environment variable TMPDIR names another "
                "place for it"
            ) from error
        return pa.PythonFile(kept, mode="r")

    def _get(self, uri: str) -> bytes:
        with self._answer(uri) as answer:
            return b"".join(answer.iter_raw())

    @contextmanager
    def _answer(self, uri: str, headers: dict[str, str] | None = None) -> Iterator[httpx.Response]:
        """What the server answers, if it is no error. Errors of httpx become ours."""
        try:
            with self._client.stream("GET", signed(uri), headers=headers) as answer:
                self._check(uri, answer)
                yield answer
        except httpx.TransportError as error:
            raise Transient(f"{uri}: {type(error).__name__}: {error}") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise StorageError(f"{uri}: {error}") from error

    def _check_request(self, request: httpx.Request) -> None:
        """Check each request, those that follow a redirect, too, before it is sent."""
        if request.url.userinfo or not self._reach.has(str(request.url)):
            shown = request.url.copy_with(userinfo=b"", query=None, fragment=None)
            raise Denied(
                f"{shown}: the job does not name this place of a web server, to which a redirect or the input itself "
                f"leads; if it is input, add it to the job: input: {{within: [{host_of(str(shown))}/]}}"
            )

    def _check(self, uri: str, answer: httpx.Response) -> None:
        status = answer.status_code
        said = f"{uri}: the server answers {status} {answer.reason_phrase}".rstrip()
        if status in {404, 410}:
            raise Missing(said)
        if status in {401, 403, 407}:
            again = "; its signature may have expired: sign it again" if signed(uri) != uri else ""
            raise Denied(f"{said}; only files that anybody may read can be input, or those of a signed URL{again}")
        if status in _PASSING:
            raise Transient(said)
        if status not in {200, 206, 416}:  # the last one: no such range
            raise StorageError(said)
        encoding = answer.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in {"", "identity"} and not file_name(uri).lower().endswith(_PACKED):
            raise StorageError(
                f"{uri}: the server sends it packed (Content-Encoding: {clip(encoding)}), though it was asked for the "
                "file as it is; make it send the file without that header, or give the file a name that ends in .gz"
            )

    def _retried(self, call: Callable[[str], T], uri: str) -> T:
        return self._policy.call(lambda: call(uri))


def _whole(uri: str, answer: httpx.Response) -> Entry:
    """The entry of a file that an answer has whole."""
    size = answer.headers.get("Content-Length")
    return Entry(uri, int(size) if size is not None else sum(map(len, answer.iter_raw())), _version(answer.headers))


def _version(headers: httpx.Headers) -> str:
    """The file's etag, else when it was last modified; without both only its length tells it from another."""
    if etag := headers.get("ETag", ""):
        return f"etag:{etag.replace(' ', '%20')}"
    try:
        return "modified:" + parsedate_to_datetime(headers["Last-Modified"]).isoformat()
    except (KeyError, ValueError):
        return "unversioned"
