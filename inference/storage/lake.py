"""The storage that chooses by a URI's scheme: local files (`local`); S3, GCS and Azure (`bucket`); web servers (`web`);
the Hugging Face Hub and MLflow (`registries`), which hold models alone and are only read.

An SDK is imported when it is first needed, so a run over local files never loads one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from nightjar.inference.errors import AlreadyExists, StorageError
from nightjar.inference.storage.credentials import Keys, StorageSettings
from nightjar.inference.storage.locations import is_registered, queries, remember, root_of
from nightjar.inference.storage.protocol import Forwarding, Storage, T, is_local, is_web, join


@dataclass(frozen=True)
class LakeStorage(Forwarding):
    """Local files, S3, GCS and Azure, by each URI's scheme; by default as boto3 would. Cheap to make, pickle, share."""

    settings: StorageSettings = field(default_factory=StorageSettings)
    _backends: dict[str, Storage] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def from_environment(cls, *uris: str, anonymous: Iterable[str] = (), web: Iterable[str] = ()) -> LakeStorage:
        """The driver's storage. If any of these URIs is on S3, it carries this machine's settings to the workers.

        anonymous: URIs in buckets read without credentials. web: places, of which the web servers may be asked.
        """
        remote = any(uri.startswith("s3://") for uri in uris)
        found = StorageSettings.from_environment() if remote else StorageSettings()
        roots = tuple(sorted({_root(uri) for uri in anonymous if not is_local(uri)}))
        return cls(replace(found, anonymous=roots, web=tuple(uri for uri in web if is_web(uri))))

    def __reduce__(self) -> tuple[Any, ...]:
        # The copy opens its own connections.
        return _restored, (self.settings, queries())

    def copy(self, source: str, target: str) -> None:
        if _root(source) != _root(target) and not (is_registered(source) and is_local(target)):
            raise StorageError(f"{source} cannot be copied to {target}: they are in different places")
        self._backend(source).copy(source, target)

    def _forward(self, operation: str, uri: str, call: Callable[[Storage], T]) -> T:
        return call(self._backend(uri))

    def _backend(self, uri: str) -> Storage:
        root = _root(uri)
        backend = self._backends.get(root)
        if backend is None:
            # If two threads both build one, both are good.
            backend = self._backends.setdefault(root, self._connect(root))
        return backend

    def _connect(self, root: str) -> Storage:
        if not root:
            from nightjar.inference.storage.local import LocalStorage

            return LocalStorage()
        if is_web(root):
            from nightjar.inference.storage.web import WebStorage

            return WebStorage(self.settings)
        if root.startswith("hf://"):
            from nightjar.inference.storage.registries import HubStorage

            return HubStorage(root)
        if is_registered(root):
            from nightjar.inference.storage.registries import ArtifactStorage

            return ArtifactStorage(root)
        from nightjar.inference.storage.bucket import BucketStorage

        settings = self.settings
        if not root.startswith("s3://"):
            return BucketStorage(root, settings)
        own = {name: getattr(settings, name) for name in ("retry_s", "timeout_s", "anonymous", "web")}
        if settings == StorageSettings(**own):
            settings = replace(StorageSettings.from_environment(), **own)
        if root in settings.anonymous:
            return BucketStorage(root, settings)
        return BucketStorage(root, settings, Keys(settings, root))


def _restored(settings: StorageSettings, queries: Mapping[str, str]) -> LakeStorage:
    remember(queries)
    return LakeStorage(settings)


def probe_conditional_writes(storage: Storage, folder: str) -> bool:
    """Whether the storage honours create-if-absent in this folder: the second creation of a name must fail."""
    uri = join(folder, f".nightjar-probe-{uuid.uuid4().hex}")
    with suppress(AlreadyExists):  # the request was sent twice: nobody else knows the name
        storage.create(uri, b"first")
    try:
        storage.create(uri, b"second")
    except AlreadyExists:
        return storage.read(uri) == b"first"
    else:
        return False
    finally:
        storage.delete([uri])


def _root(uri: str) -> str:
    """The root that one connection serves: `s3://bucket`, or "" for all local files."""
    if is_local(uri):
        return ""
    if is_registered(uri):
        return root_of(uri)
    scheme, separator, rest = uri.partition("://")
    bucket = rest.partition("/")[0]
    if not separator or scheme not in {"s3", "gs", "az", "http", "https"} or not bucket:
        raise StorageError(f"{uri!r} is neither an absolute path nor s3://, gs:// or az:// with a bucket")
    return f"{scheme}://{bucket}"
