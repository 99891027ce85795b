"""Buckets of S3, GCS and Azure through obstore. `lake` imports this module when a URI needs it.

This module retries a call that is one request. So each error is counted, a creation knows of its earlier tries, and a
request that obstore would not repeat (a bulk delete) is retried, too. If a call is many requests (a listing, or an
upload in parts), obstore retries each of them. Both go on for `StorageSettings.retry_s`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import obstore
import pyarrow as pa
from obstore import exceptions as sdk
from obstore.store import AzureStore, GCSStore, S3Store

from nightjar.inference.errors import AlreadyExists, Denied, Missing, StorageError, Transient
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.protocol import ANYBODY, Entry, Names, Storage
from nightjar.inference.storage.retrying import PART, RetryPolicy, current_on_retry, opened, settling

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, RetryConfig, S3Config, S3Credential
    from typing_extensions import Buffer

    from nightjar.inference.storage.credentials import Keys


_OVER = "ExpiredToken|ExpiredTokenException|RequestExpired|TokenRefreshRequired"
"""S3's error codes for credentials that have expired."""

_ROLE = re.compile(r"://[^ /]+/(computeMetadata|metadata/identity)/")
"""Where obstore asks for the credentials of a machine's role: a machine without credentials ends there."""

_SIGNING_IN = {
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or sign in with gcloud",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


def fault_of(error: Exception, uri: str) -> StorageError:
    """Convert an error of obstore to one of ours, by its type."""
    if isinstance(error, FileNotFoundError):
        return Missing(f"{uri}: no such object")
    if isinstance(error, sdk.AlreadyExistsError):
        return AlreadyExists(f"{uri}: exists already")
    if isinstance(error, sdk.PermissionDeniedError | sdk.UnauthenticatedError):
        return _denied(error, uri)
    if isinstance(error, sdk.InvalidPathError | ValueError):
        return StorageError(
            f"{uri}: object names with empty, '.' or '..' parts or control characters cannot be used: {said(error)}"
        )
    if isinstance(error, sdk.GenericError):
        return _by_status(error, uri)
    return StorageError(f"{uri}: {said(error)}")


def _by_status(error: sdk.GenericError, uri: str) -> StorageError:
    """Convert an error by its HTTP status. Only here is a message read: obstore gives the status nowhere else."""
    text, status, code = str(error), status_of(error), _code_of(error)
    if _ROLE.search(text) and status < 500:
        how = _SIGNING_IN[uri.partition(":")[0]]
        return Transient(f"{uri}: no credentials found, nor a role of this machine: {said(error)}; {how}")
    # S3 answers an expired session token with 400, like a malformed request, and a deletion that it refuses with 200.
    if status in {401, 403} or re.fullmatch(rf"{_OVER}|InvalidToken|AccessDenied", code):
        return _denied(error, uri)
    if status == 404:
        return Missing(f"{uri}: no such bucket")
    if status == 416:
        return StorageError(f"{uri}: it was overwritten while it was read, by a shorter object")
    if "redirect" in text:
        return StorageError(f"{uri}: the bucket is in another region; set AWS_DEFAULT_REGION to its region")
    if status == 0:
        return Transient(f"{uri}: {said(error)}; check its address and this machine's network")
    if status in {408, 429} or (status >= 500 and status != 501):  # 501 does not pass
        return Transient(f"{uri}: {said(error)}")
    why = f"{said(error)} ({code})" if code else said(error)
    # S3 answers 400 if a body came too slowly.
    if code in {"RequestTimeout", "RequestTimeoutException"}:
        return Transient(f"{uri}: {why}")
    return StorageError(f"{uri}: {why}")


def status_of(error: Exception) -> int:
    """The HTTP status of the answer; 0 when there was none."""
    match = re.search(r"non-2xx status code: (\d{3})", str(error))
    return int(match[1]) if match else 0


def _code_of(error: Exception) -> str:
    """S3's code in an answer, also for one object of a bulk delete; empty if there is none."""
    match = re.search(r"<Code>(\w+)</Code>|\(code: (\w+)\)", str(error))
    return match[1] or match[2] if match else ""


def _denied(error: Exception, uri: str) -> Denied:
    code = _code_of(error)
    if re.fullmatch(_OVER, code):
        return Denied(
            f"{uri}: the credentials have expired ({code}); get new ones where the run starts and repeat the "
            "command: what is committed is kept"
        )
    return Denied(
        f"{uri}: {code or said(error)}; check the credentials and what they are allowed to do with this bucket"
    )


def said(error: Exception) -> str:
    """The text of an error, without the request and the dump of Rust structures that obstore appends."""
    text = str(error)
    line = text.partition("\n")[0].partition(": <?xml")[0].rstrip(": ")
    asked = re.search(r"Error performing (\w+) (\w+://[^/ ]+)\S* in [^ ,]+(, after \d+ retries)?.*? - (.*)", line)
    if asked:
        line = f"{asked[1]} {asked[2]}{asked[3] or ''}: {asked[4]}"
    # Only the dump says how a connection failed.
    how = re.search(r'(?:message|error): "([^"]+)"|source: (TimedOut)', text) if "status code" not in line else None
    return line[:300] + (f" ({how[1] or 'timed out'})" if how else "")


_UNLIMITED = 10_000
"""The number of retries by obstore, so large that only the time limits them."""

_Store: TypeAlias = S3Store | GCSStore | AzureStore
T = TypeVar("T")


class BucketStorage(Storage):
    """`Storage` over one bucket. `root`: `s3://bucket`, `gs://bucket` or `az://container`."""

    def __init__(self, root: str, settings: StorageSettings, keys: Keys | None = None) -> None:
        self.root, self._settings, self._keys = root, settings, keys
        self._policy = RetryPolicy(settings.retry_s)
        with self._as_ours(root):
            try:
                self._once = _store(root, settings, keys, retries=0)
                self._patient = _store(root, settings, keys, retries=_UNLIMITED)
            except sdk.BaseError as error:
                raise StorageError(f"{root}: {said(error)}") from error
        # Other servers with S3's API, directory buckets and Azure may list folder by folder, not sorted by whole name.
        aws = root.startswith("s3://") and not settings.endpoint and not root.endswith("--x-s3")
        self._lists_sorted = aws or root.startswith("gs://")

    def subfolders(self, folder: str) -> Names:
        key = self._key(folder).rstrip("/") or None
        found = self._retried(folder, lambda: obstore.list_with_delimiter(self._patient, key))
        return sorted(prefix.rpartition("/")[2] for prefix in found["common_prefixes"])

    def read(self, uri: str) -> bytes:
        return self._retried(uri, lambda: self._get(uri))

    def create(self, uri: str, data: bytes, mode: int = ANYBODY) -> None:
        self._retried(uri, settling(lambda: self._create(uri, data), lambda: self._get(uri), data))

    def write(self, uri: str, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        if len(view) <= PART:
            self._retried(uri, lambda: obstore.put(self._once, self._key(uri), view, use_multipart=False))
        else:
            with self._as_ours(uri):
                obstore.put(self._patient, self._key(uri), view, chunk_size=PART)

    def list(self, folder: str, after: str = "") -> Iterator[Entry]:
        prefix = folder.rstrip("/") + "/"
        if self._lists_sorted:
            return self._policy.listing(lambda last: self._entries(prefix, last), after, current_on_retry())
        entries = self._retried(prefix, lambda: list(self._entries(prefix, after)))
        return iter(sorted(entries, key=lambda entry: entry.uri))

    def stat(self, uri: str) -> Entry:
        return self._entry(self._retried(uri, lambda: self._head(uri)), uri)

    def open(self, uri: str) -> pa.NativeFile:
        return opened(lambda start, end: self._range(uri, start, end), self.stat(uri).size, self._policy)

    def delete(self, uris: Iterable[str]) -> None:
        uris = Names(uris)
        which = f"{uris[0]} and {len(uris) - 1} more" if len(uris) > 1 else uris[0]
        try:
            self._retried(which, lambda: obstore.delete(self._once, [self._key(uri) for uri in uris]))
        except Missing:
            # GCS and Azure report an object that does not exist; whether the others were deleted is unknown.
            if half := len(uris) // 2:
                self.delete(uris[:half])
                self.delete(uris[half:])

    def copy(self, source: str, target: str) -> None:
        self._retried(source, lambda: obstore.copy(self._once, self._key(source), self._key(target)))

    def options(self, uri: str) -> dict[str, str]:
        anonymous = self.root.startswith("s3://") and self.root in self._settings.anonymous
        if self._keys is None and not anonymous:
            return {}
        endpoint = self._settings.endpoint
        keys = {"aws_skip_signature": "true"} if self._keys is None else _as_options(self._keys())
        found = {
            **keys,
            "aws_region": self._settings.region,
            "aws_endpoint_url": endpoint,
            "aws_virtual_hosted_style_request": "false" if endpoint else None,
            "aws_allow_http": "true" if endpoint and endpoint.startswith("http://") else None,
            "timeout": f"{self._settings.timeout_s:g}s",
        }
        return {name: value for name, value in found.items() if value}

    def _get(self, uri: str) -> bytes:
        return bytes(obstore.get(self._once, self._key(uri)).bytes())

    def _range(self, uri: str, start: int, end: int) -> bytes:
        with self._as_ours(uri):
            found = bytes(obstore.get_range(self._once, self._key(uri), start=start, end=end))
        if len(found) != end - start:
            raise StorageError(f"{uri}: it was overwritten while it was read, by a shorter object")
        return found

    def _head(self, uri: str) -> ObjectMeta:
        if not self._key(uri):  # S3 would answer for the bucket
            raise FileNotFoundError(uri)
        try:
            return obstore.head(self._once, self._key(uri))
        except (sdk.GenericError, sdk.PermissionDeniedError) as error:
            if status_of(error) in {400, 403}:
                # An answer to HEAD has no body. A request for one byte makes the server say what is wrong.
                obstore.get_range(self._once, self._key(uri), start=0, end=1)
            raise

    def _create(self, uri: str, data: bytes) -> None:
        try:
            obstore.put(self._once, self._key(uri), data, mode="create", use_multipart=False)
        except sdk.AlreadyExistsError as error:
            # S3 also refuses while another writer is creating the name, and that may still fail.
            try:
                self._head(uri)
            except FileNotFoundError:
                raise Transient(f"{uri}: another writer began to create it and did not finish") from None
            raise AlreadyExists(f"{uri}: exists already") from error

    def _retried(self, uri: str, call: Callable[[], T]) -> T:
        """Return the answer to one request, which is retried while its error may pass."""

        def once() -> T:
            with self._as_ours(uri):
                return call()

        return self._policy.call(once)

    @contextmanager
    def _as_ours(self, uri: str) -> Iterator[None]:
        try:
            yield
        except (sdk.BaseError, OSError, ValueError) as error:
            # Where the keys were looked for, more is known about why there are none.
            trouble = self._keys.trouble if self._keys and isinstance(error, sdk.UnauthenticatedError) else None
            raise (trouble or fault_of(error, uri)) from error

    def _entries(self, prefix: str, after: str) -> Iterator[Entry]:
        """Objects below `prefix` and after `after`, in the store's order."""
        rest = after.removeprefix(prefix) if after.startswith(prefix) else ""
        start = rest if self._lists_sorted else _early_start(rest)
        offset = self._key(prefix) + start if start else None
        with self._as_ours(prefix):
            for batch in obstore.list(
                self._patient, self._key(prefix).rstrip("/") or None, offset=offset, chunk_size=1000
            ):
                for meta in batch:
                    uri = f"{self.root}/{meta['path']}"
                    if uri.startswith(prefix) and uri > after and not self._is_folder_marker(meta):
                        yield self._entry(meta, uri)

    def _is_folder_marker(self, meta: ObjectMeta) -> bool:
        """Whether this is a console's marker of a folder: an empty object whose name ends with a slash.

        obstore cuts off the slash. Only a request tells the marker from an empty file: there is no object of the name
        without the slash.
        """
        if meta["size"]:
            return False
        try:
            obstore.head(self._patient, meta["path"])
        except FileNotFoundError:
            return True
        return False

    def _entry(self, meta: ObjectMeta, uri: str) -> Entry:
        version = meta["e_tag"] or meta["version"] or meta["last_modified"].isoformat()
        return Entry(uri, meta["size"], version)

    def _key(self, uri: str) -> str:
        return uri.removeprefix(self.root).lstrip("/")


def _as_options(keys: S3Credential) -> dict[str, str | None]:
    return {
        "aws_access_key_id": keys["access_key_id"],
        "aws_secret_access_key": keys["secret_access_key"],
        "aws_session_token": keys.get("token"),
    }


def _early_start(name: str) -> str:
    """Where to start a listing so that no name after `name` is missed on stores that list folder by folder.

    On such stores the folder `a` comes before `a.b`, though `a/x` sorts after it, and starting after `a` leaves out the
    whole folder `a` (SeaweedFS). So the listing starts before the shortest folder name that could matter.
    """
    if "/" in name:
        return ""
    cut = next((index for index in range(1, len(name)) if name[index] < "/"), len(name))
    start = name[: max(cut - 1, 0)]
    return start if start.strip(".") else ""


def _store(root: str, settings: StorageSettings, keys: Keys | None, retries: int) -> _Store:
    scheme, _, bucket = root.partition("://")
    client: ClientConfig = {"connect_timeout": "10s", "timeout": timedelta(seconds=settings.timeout_s)}
    retry: RetryConfig = {
        "max_retries": retries,
        "retry_timeout": timedelta(seconds=settings.retry_s),
        # Each wait is random, between the first wait and three times the last one.
        "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=10), "base": 3},
    }
    anonymous = root in settings.anonymous
    if scheme == "gs":
        return GCSStore(bucket, config={"skip_signature": anonymous}, client_options=client, retry_config=retry)
    if scheme == "az":
        return AzureStore(bucket, config={"skip_signature": anonymous}, client_options=client, retry_config=retry)
    config: S3Config = {"skip_signature": True} if anonymous else {}
    if settings.region:
        config["region"] = settings.region
    if settings.endpoint:
        # Servers of one's own seldom have a host name for each bucket.
        config["endpoint"], config["virtual_hosted_style_request"] = settings.endpoint, False
        client["allow_http"] = settings.endpoint.startswith("http://")
    return S3Store(bucket, config=config, client_options=client, retry_config=retry, credential_provider=keys)
