"""Buckets of S3, GCS and Azure through obstore. Behind `storage`, which imports this when a URI needs it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

import obstore
import pyarrow as pa
from obstore import exceptions as sdk
from obstore.store import AzureStore, GCSStore, S3Store

from nightjar.inference.errors import AlreadyExists, Denied, Missing, StorageError, Transient
from nightjar.inference.storage import Entry, Names, StorageSettings

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, RetryConfig, S3Config, S3CredentialProvider
    from typing_extensions import Buffer

_PART = 8 << 20
"""Bytes of one request of a large upload or download; several are under way at once."""

_AHEAD = 1 << 20
"""Fewest bytes a read fetches: a Parquet footer in one request, not three."""

_MAX_RETRIES = 10
"""Of one request, within `StorageSettings.retry_s`."""

_Store: TypeAlias = S3Store | GCSStore | AzureStore


class BucketStorage:
    """`Storage` over one bucket. `root`: `s3://bucket`, `gs://bucket` or `az://container`."""

    def __init__(self, root: str, settings: StorageSettings, credentials: S3CredentialProvider | None = None) -> None:
        self.root = root
        with _as_ours(root):
            try:
                self._store = _store(root, settings, credentials)
            except sdk.BaseError as error:
                raise StorageError(f"{root}: {_first_line(error)}") from error
        # Look-alikes, directory buckets and Azure may list folder by folder, not by whole name.
        aws = root.startswith("s3://") and not settings.endpoint and not root.endswith("--x-s3")
        self._lists_sorted = aws or root.startswith("gs://")

    def subfolders(self, folder: str) -> Names:
        with _as_ours(folder):
            found = obstore.list_with_delimiter(self._store, self._key(folder).rstrip("/") or None)
            return sorted(prefix.rpartition("/")[2] for prefix in found["common_prefixes"])

    def read(self, uri: str) -> bytes:
        with _as_ours(uri):
            return bytes(obstore.get(self._store, self._key(uri)).bytes())

    def create(self, uri: str, data: bytes) -> None:
        try:
            with _as_ours(uri):
                obstore.put(self._store, self._key(uri), data, mode="create")
        except AlreadyExists:
            # S3 also refuses while another creation of the name is under way, which may still fail.
            try:
                self.stat(uri)
            except Missing:
                raise Transient(f"{uri}: another writer was creating it and did not") from None
            raise

    def write(self, uri: str, data: Buffer) -> None:
        with _as_ours(uri):
            obstore.put(self._store, self._key(uri), memoryview(data).cast("B"), chunk_size=_PART)

    def list(self, folder: str, after: str = "") -> Iterator[Entry]:
        prefix = folder.rstrip("/") + "/"
        entries = (entry for entry in self._entries(prefix, after) if entry.uri > after)
        return entries if self._lists_sorted else iter(sorted(entries, key=lambda entry: entry.uri))

    def stat(self, uri: str) -> Entry:
        with _as_ours(uri):
            return self._entry(obstore.head(self._store, self._key(uri)), uri)

    def open(self, uri: str) -> pa.NativeFile:
        return pa.PythonFile(_ObjectFile(self._store, self._key(uri), self.stat(uri)), mode="r")

    def delete(self, uris: Iterable[str]) -> None:
        uris = Names(uris)
        try:
            with _as_ours(f"{uris[0]} and {len(uris) - 1} more" if len(uris) > 1 else uris[0]):
                obstore.delete(self._store, [self._key(uri) for uri in uris])
        except Missing:
            # GCS and Azure report an object that is gone; what became of the others is unknown.
            if len(uris) > 1:
                for uri in uris:
                    self.delete([uri])

    def copy(self, source: str, target: str) -> None:
        with _as_ours(source):
            obstore.copy(self._store, self._key(source), self._key(target))

    def _entries(self, prefix: str, after: str) -> Iterator[Entry]:
        """Objects under `prefix`, in the store's order, from `after` or somewhat before it."""
        rest = after.removeprefix(prefix) if after.startswith(prefix) else ""
        start = rest if self._lists_sorted else _early_start(rest)
        offset = self._key(prefix) + start if start else None
        with _as_ours(prefix):
            for batch in obstore.list(
                self._store, self._key(prefix).rstrip("/") or None, offset=offset, chunk_size=1000
            ):
                for meta in batch:
                    uri = f"{self.root}/{meta['path']}"
                    if uri.startswith(prefix) and not self._is_folder_marker(meta):
                        yield self._entry(meta, uri)

    def _is_folder_marker(self, meta: ObjectMeta) -> bool:
        """Consoles keep a folder as an empty object whose name ends with a slash, which obstore cuts off.

        Only asking tells it from an empty file: there is no object of the name without the slash.
        """
        if meta["size"]:
            return False
        try:
            obstore.head(self._store, meta["path"])
        except FileNotFoundError:
            return True
        return False

    def _entry(self, meta: ObjectMeta, uri: str) -> Entry:
        version = meta["e_tag"] or meta["version"] or meta["last_modified"].isoformat()
        return Entry(uri, meta["size"], version)

    def _key(self, uri: str) -> str:
        return uri.removeprefix(self.root).lstrip("/")


def _early_start(name: str) -> str:
    """Where to start a listing so that nothing after `name` is missed, on stores that walk the folders.

    There the folder `a` comes before `a.b`, though `a/x` sorts after it; and starting after `a` leaves
    out all of folder `a` (SeaweedFS). So start before the shortest folder name that could be hit.
    """
    if "/" in name:
        return ""
    cut = next((index for index in range(1, len(name)) if name[index] < "/"), len(name))
    start = name[: max(cut - 1, 0)]
    return start if start.strip(".") else ""


class _ObjectFile(io.RawIOBase):
    """An object as a read-only file. Small reads fetch ahead; large ones come in parts, side by side."""

    def __init__(self, store: _Store, key: str, entry: Entry) -> None:
        self._store, self._key, self._entry = store, key, entry
        self._position = 0
        self._ahead, self._ahead_at = b"", 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._entry.size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        start, whole = self._position, self._entry.size
        end = whole if size is None or size < 0 else min(start + size, whole)
        if start >= end:
            return b""
        self._position = end
        if end - start >= _AHEAD:
            return self._fetch(start, end)
        if not self._ahead_at <= start <= end <= self._ahead_at + len(self._ahead):
            # Near the end it is the footer that is read, backwards: take in what lies before it.
            low = min(start, max(0, whole - _AHEAD))
            self._ahead, self._ahead_at = self._fetch(low, min(max(end, low + _AHEAD), whole)), low
        return self._ahead[start - self._ahead_at : end - self._ahead_at]

    def _fetch(self, start: int, end: int) -> bytes:
        starts = range(start, end, _PART)
        if len(starts) == 1:
            return self._fetch_part(start, end)
        # One S3 connection is slower than the network. (`get_ranges` would join neighbours to one request.)
        with ThreadPoolExecutor(min(len(starts), 8)) as pool:
            return b"".join(pool.map(lambda low: self._fetch_part(low, min(low + _PART, end)), starts))

    def _fetch_part(self, start: int, end: int) -> bytes:
        with _as_ours(self._entry.uri):
            return bytes(obstore.get_range(self._store, self._key, start=start, end=end))


def _store(root: str, settings: StorageSettings, credentials: S3CredentialProvider | None) -> _Store:
    scheme, _, bucket = root.partition("://")
    client: ClientConfig = {"connect_timeout": "10s", "timeout": "60s"}
    retry: RetryConfig = {
        "max_retries": _MAX_RETRIES,
        "retry_timeout": timedelta(seconds=settings.retry_s),
    }
    if scheme == "gs":
        return GCSStore(bucket, client_options=client, retry_config=retry)
    if scheme == "az":
        return AzureStore(bucket, client_options=client, retry_config=retry)
    config: S3Config = {}
    if settings.region:
        config["region"] = settings.region
    if settings.endpoint:
        # Own servers seldom have a host name for each bucket.
        config["endpoint"], config["virtual_hosted_style_request"] = settings.endpoint, False
        client["allow_http"] = settings.endpoint.startswith("http://")
    return S3Store(bucket, config=config, client_options=client, retry_config=retry, credential_provider=credentials)


@contextmanager
def _as_ours(uri: str) -> Iterator[None]:
    """Faults of obstore as ours, by their type."""
    try:
        yield
    except FileNotFoundError as error:
        raise Missing(f"{uri}: no such object") from error
    except sdk.AlreadyExistsError as error:
        raise AlreadyExists(f"{uri}: exists already") from error
    except (sdk.PermissionDeniedError, sdk.UnauthenticatedError) as error:
        raise _denied(error, uri) from error
    except (sdk.InvalidPathError, ValueError) as error:
        raise StorageError(
            f"{uri}: object names with empty, '.' or '..' parts or control characters cannot be used: "
            f"{_first_line(error)}"
        ) from error
    except sdk.GenericError as error:
        raise _by_status(error, uri) from error
    except (sdk.BaseError, OSError) as error:
        raise StorageError(f"{uri}: {_first_line(error)}") from error


def _by_status(error: sdk.GenericError, uri: str) -> StorageError:
    """The one place that reads a message: of all these faults obstore tells the HTTP status only there."""
    text = str(error)
    match = re.search(r"non-2xx status code: (\d{3})", text)
    status = int(match[1]) if match else 0
    # S3 answers to a session token that is over with 400, as to a malformed request.
    if status in {401, 403} or re.search(r"<Code>(ExpiredToken|InvalidToken|TokenRefreshRequired)</Code>", text):
        return _denied(error, uri)
    if status == 404:
        return Missing(f"{uri}: no such bucket")
    if "redirect" in text:
        return StorageError(f"{uri}: the bucket is in another region; set AWS_DEFAULT_REGION to its region")
    # Without a status there was no answer: refused, cut off, timed out, name not resolved.
    if status in {0, 408, 429} or status >= 500:
        return Transient(f"{uri}: {_first_line(error)}")
    return StorageError(f"{uri}: {_first_line(error)}")


def _denied(error: Exception, uri: str) -> Denied:
    reason = re.search(r"<Code>(\w+)</Code>", str(error))
    return Denied(
        f"{uri}: {reason[1] if reason else _first_line(error)}; "
        "check the credentials and what they are allowed to do with this bucket"
    )


def _first_line(error: Exception) -> str:
    """What happened, without the request body and the dump of Rust structures that obstore appends."""
    return str(error).partition("\n")[0].partition(": <?xml")[0][:300]
