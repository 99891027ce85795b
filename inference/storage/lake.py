"""The one owner of object storage and of its credentials.

`Storage` is the interface, `LakeStorage` the real one: local files (`localstore`), S3, GCS and Azure
(`objectstore`). `RetryingStorage` adds patience and counts (`retrying`). An absolute URI names an object:
`/a/b` on this machine, `s3://bucket/key`, `gs://bucket/key`, `az://container/key`. A local path starts with a
slash and may hold any other character. Everything raised is from `errors`, by type, and names the URI.

SDKs are imported where they are first needed: a run over local files never loads one.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from nightjar.inference.errors import (
    AlreadyExists,
    Denied,
    NightjarError,
    StorageError,
    Transient,
)
from nightjar.inference.storage.retrying import RetryingStorage as RetryingStorage

if TYPE_CHECKING:
    import boto3
    import pyarrow as pa
    from obstore.store import S3Config, S3Credential
    from typing_extensions import Buffer

Names = list[str]  # inside the classes `list` is the method

_BULK = 1000
"""Objects deleted by one request: the limit of S3's bulk delete."""

_HOW_TO_SIGN_IN = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, where the run starts, "
    "or give the workers' machines a role"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One object. size: bytes. version: its etag, or a local file's `local_version`."""

    uri: str
    size: int
    version: str


def local_version(found: os.stat_result) -> str:
    """A local file's: the times, in ns, of its last write and change; its inode; its links, permissions and owners.

    A copy may keep size and time of writing; the time of change is the system's own, and nobody can set it.
    """
    links = f"{found.st_nlink}.{found.st_mode:o}.{found.st_uid}.{found.st_gid}"
    return f"{found.st_mtime_ns}+{found.st_ctime_ns}+{found.st_ino}+{links}"


def same_version(now: str, then: str) -> bool:
    """Whether an object is of the version that an earlier command saw.

    Of local files the times decide, as far as they are known: old ledgers have the last write alone. Not the inode:
    a mounted file system may give out others when it is mounted again.
    """
    known = _fields(then)[:2]
    return _fields(now)[: len(known)] == known


def untouched(now: str, then: str) -> bool:
    """Whether nobody wrote to an object, or replaced it, since this command saw that version.

    New links, permissions or owners of the same file move the time of its change, too: those are no reason to fail.
    """
    new, old = _fields(now), _fields(then)
    if len(old) < _LOCAL:  # an etag, or what an older version planned
        return new[0] == old[0]
    return new[0] == old[0] and (new[1] == old[1] or (new[2] == old[2] and new[3] != old[3]))


_LOCAL = 4
"""Fields of a local file's version."""


def _fields(version: str) -> list[str]:
    """An etag is one, whatever is in it."""
    return version.split("+") if version[:1].isdecimal() else [version]


class Storage(Protocol):
    """What Nightjar asks of storage. Every method may raise `Denied`, `Transient` and `StorageError`."""

    def subfolders(self, folder: str) -> Names:
        """Names of the folders right under this one, sorted."""

    def read(self, uri: str) -> bytes:
        """The whole object. Raises: Missing."""

    def create(self, uri: str, data: bytes) -> None:
        """Create the object, whole and durable, if there is none. Raises: AlreadyExists.

        `Transient` leaves open whether this call created it (an answer may be lost): read back to know.
        `LakeStorage` reads back itself when it sent a request again: its `AlreadyExists` is another's object.
        """

    def write(self, uri: str, data: Buffer) -> None:
        """Write the whole object, durable, under a name that nobody else writes; replaces what is there."""

    def list(self, folder: str, after: str = "") -> Iterator[Entry]:
        """Every object under the folder, at any depth, sorted by URI; only those with a URI > `after`.

        A folder without objects gives nothing; a bucket that does not exist raises Missing.
        """

    def stat(self, uri: str) -> Entry:
        """Size and version. Raises: Missing, also for a folder."""

    def open(self, uri: str) -> pa.NativeFile:
        """The object for random access; close it. Parquet: open with `pre_buffer=True`. Raises: Missing.

        Reading a local file raises OSError: `localstore.storage_error` gives its type.
        """

    def delete(self, uris: Iterable[str]) -> None:
        """Delete these objects; one that is gone already is fine."""

    def copy(self, source: str, target: str) -> None:
        """Copy inside one bucket or file system without reading; replaces the target. Raises: Missing.

        A local copy is a hard link: both names see a later change in place. `write` makes none.
        """

    def leftovers(self, folder: str) -> dict[str, str]:
        """What lies right in this folder of objects that were begun: URI → URI of the object it was to become.

        It is not listed, and may be deleted if no living writer is at that object. Nothing in a bucket, where an
        object is whole or not there: an upload in parts that was broken off is for the bucket's lifecycle rules.
        """


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """How to reach S3 and as whom; travels from the driver to the workers.

    What is None is found where it is used, by boto3's own chain (environment, profile, role).
    retry_s: how long one request is tried again, with longer and longer jittered waits, before its fault is
    raised as `Transient`. timeout_s: how long one try may take, its answer included. So an operation of one
    request ends after retry_s + timeout_s at most; a listing, a large upload and a read of an opened object
    are many requests, each with that bound.
    GCS and Azure find their credentials in each machine's own environment.
    """

    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    retry_s: float = 60.0
    timeout_s: float = 60.0

    @classmethod
    def from_environment(cls) -> StorageSettings:
        """What boto3 finds on this machine, credentials that expire left out: each worker finds its own.

        Raises:
            Denied: the environment or profile is contradictory; the message says what to set.
        """
        import boto3
        from botocore.credentials import RefreshableCredentials

        with _signing_in("s3://"):
            session = boto3.Session()
            endpoint = _configured_endpoint(session)
            found = session.get_credentials()
            # What expires would be dead before the night is over, so each worker gets its own. The
            # environment's credentials are the exception: a worker has no other way to find those.
            static = found and (found.method == "env" or not isinstance(found, RefreshableCredentials))
            captured = found.get_frozen_credentials() if found and static else None
        return cls(
            endpoint=endpoint,
            # boto3 itself does not look at AWS_REGION; every other AWS SDK does.
            region=session.region_name or os.environ.get("AWS_REGION"),
            profile=os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE"),
            access_key=captured.access_key if captured else None,
            secret_key=captured.secret_key if captured else None,
            session_token=captured.token if captured else None,
        )


@dataclass(frozen=True)
class LakeStorage:
    """Local files, S3, GCS and Azure by the scheme of each URI. Cheap to make, to pickle and to share.

    With default settings S3 is reached as boto3 would reach it from this machine.
    """

    settings: StorageSettings = field(default_factory=StorageSettings)
    _backends: dict[str, Storage] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def from_environment(cls, *uris: str) -> LakeStorage:
        """For the driver: settings captured for the workers, if any of these URIs is on S3."""
        remote = any(uri.startswith("s3://") for uri in uris)
        return cls(StorageSettings.from_environment() if remote else StorageSettings())

    def __reduce__(self) -> tuple[Any, ...]:
        # Connections stay behind: the copy opens its own.
        return LakeStorage, (self.settings,)

    def subfolders(self, folder: str) -> Names:
        return self._backend(folder).subfolders(folder)

    def read(self, uri: str) -> bytes:
        return self._backend(uri).read(uri)

    def create(self, uri: str, data: bytes) -> None:
        self._backend(uri).create(uri, data)

    def write(self, uri: str, data: Buffer) -> None:
        self._backend(uri).write(uri, data)

    def list(self, folder: str, after: str = "") -> Iterator[Entry]:
        return self._backend(folder).list(folder, after)

    def stat(self, uri: str) -> Entry:
        return self._backend(uri).stat(uri)

    def open(self, uri: str) -> pa.NativeFile:
        return self._backend(uri).open(uri)

    def delete(self, uris: Iterable[str]) -> None:
        rest = iter(uris)
        while batch := tuple(islice(rest, _BULK)):
            groups: dict[str, Names] = {}
            for uri in batch:
                groups.setdefault(_root(uri), []).append(uri)
            for group in groups.values():
                self._backend(group[0]).delete(group)

    def copy(self, source: str, target: str) -> None:
        if _root(source) != _root(target):
            raise StorageError(f"{source} cannot be copied to {target}: they are in different places")
        self._backend(source).copy(source, target)

    def leftovers(self, folder: str) -> dict[str, str]:
        return self._backend(folder).leftovers(folder)

    def _backend(self, uri: str) -> Storage:
        root = _root(uri)
        backend = self._backends.get(root)
        if backend is None:
            # Two threads may both build one; either serves.
            backend = self._backends.setdefault(root, self._connect(root))
        return backend

    def _connect(self, root: str) -> Storage:
        if not root:
            from nightjar.inference.storage.local import LocalStorage

            return LocalStorage()
        from nightjar.inference.storage.bucket import BucketStorage

        if not root.startswith("s3://"):
            return BucketStorage(root, self.settings)
        settings = self.settings
        if settings == StorageSettings(retry_s=settings.retry_s, timeout_s=settings.timeout_s):
            found = StorageSettings.from_environment()
            settings = replace(found, retry_s=settings.retry_s, timeout_s=settings.timeout_s)
        return BucketStorage(root, settings, Keys(settings, root))


def probe_conditional_writes(storage: Storage, folder: str) -> bool:
    """Whether create-if-absent is honoured there: of two creations of one name the second must fail."""
    uri = join(folder, f".nightjar-probe-{uuid.uuid4().hex}")
    with suppress(AlreadyExists):  # a request sent twice; nobody else knows the name
        storage.create(uri, b"first")
    try:
        storage.create(uri, b"second")
    except AlreadyExists:
        return storage.read(uri) == b"first"
    else:
        return False
    finally:
        storage.delete([uri])


def is_local(uri: str) -> bool:
    """Whether an absolute URI names a file of this machine (or a mounted file system)."""
    return uri.startswith("/")


def join(base: str, *names: str) -> str:
    """`names` under the folder `base`, which may end with a slash."""
    return "/".join((base.rstrip("/"), *names))


def _root(uri: str) -> str:
    """What one connection serves: `s3://bucket`, or "" for all local files."""
    if is_local(uri):
        return ""
    scheme, separator, rest = uri.partition("://")
    bucket = rest.partition("/")[0]
    if not separator or scheme not in {"s3", "gs", "az"} or not bucket:
        raise StorageError(f"{uri!r} is neither an absolute path nor s3://, gs:// or az:// with a bucket")
    return f"{scheme}://{bucket}"


def _configured_endpoint(session: boto3.Session) -> str | None:
    """The S3 endpoint that environment or profile name, else None: AWS's own needs no naming."""
    from botocore.config import Config

    stock = Config(ignore_configured_endpoint_urls=True)  # type: ignore[call-arg] # stubs lack it
    endpoint = session.client("s3").meta.endpoint_url
    return None if endpoint == session.client("s3", config=stock).meta.endpoint_url else endpoint


class Keys:
    """AWS keys for S3 requests, asked of boto3 again as often as they may have changed. For obstore.

    trouble: why there were none last time, which obstore does not tell apart. config: for obstore, too.
    """

    def __init__(self, settings: StorageSettings, root: str) -> None:
        self._root = root
        self.config: S3Config = {}
        self.trouble: NightjarError | None = None
        self._keep: S3Credential | None = None
        self._keep_until = 0.0
        with _signing_in(root):
            self._found = _session(settings).get_credentials()
        if self._found is None:
            raise Denied(f"{root}: no AWS credentials found; {_HOW_TO_SIGN_IN}")

    def __call__(self) -> S3Credential:
        if self._keep is None or time.monotonic() > self._keep_until:
            try:
                with _signing_in(self._root):
                    self._keep, self.trouble = self._ask(), None
            except NightjarError as error:
                self.trouble = error
                raise
        return self._keep

    def _ask(self) -> S3Credential:
        from botocore.credentials import RefreshableCredentials

        assert self._found is not None
        keys = self._found.get_frozen_credentials()
        assert keys.access_key is not None
        assert keys.secret_key is not None
        # Asking costs nothing but in the last 15 minutes of keys: then botocore fetches new ones each time, and
        # those given for 15 minutes or less are in their last ones all the time.
        if isinstance(self._found, RefreshableCredentials) and self._found.refresh_needed():
            self._keep_until = time.monotonic() + (1 if self._found.refresh_needed(60) else 30)
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            # obstore asks again, ten times a second at most, for what is good for no more than five minutes.
            "expires_at": datetime.now(UTC) + timedelta(minutes=5),
        }


def _session(settings: StorageSettings) -> boto3.Session:
    import boto3

    if not settings.access_key:
        return boto3.Session(profile_name=settings.profile, region_name=settings.region)
    return boto3.Session(
        aws_access_key_id=settings.access_key,
        aws_secret_access_key=settings.secret_key,
        aws_session_token=settings.session_token,
        region_name=settings.region,
    )


@contextmanager
def _signing_in(root: str) -> Iterator[None]:
    """Faults of finding credentials, as ours."""
    from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError

    # It logs a traceback of what it raises as well.
    logging.getLogger("botocore.credentials").setLevel(logging.ERROR)
    try:
        yield
    except (ConnectionError, HTTPClientError) as error:
        raise Transient(f"{root}: AWS credentials: {error}") from error
    # A plain RuntimeError is botocore's word for: looked for new ones, and these are over as well.
    except (BotoCoreError, ClientError, RuntimeError) as error:
        if isinstance(error, ClientError) and error.response["ResponseMetadata"]["HTTPStatusCode"] >= 500:
            raise Transient(f"{root}: AWS credentials: {error}") from error
        # On one line, whatever a program printed that was asked for them.
        said = " ".join(str(error).split())
        raise Denied(f"{root}: AWS credentials: {said}; {_HOW_TO_SIGN_IN}") from error
    except ValueError as error:
        raise StorageError(f"{root}: AWS settings: {error}") from error
