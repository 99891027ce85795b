"""The endpoint, region and credentials for S3. Only this module asks boto3's chain of credentials.

boto3 is imported when it is first needed, so a run over local files never loads it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from nightjar.inference.errors import Denied, NightjarError, StorageError, Transient

if TYPE_CHECKING:
    import boto3
    from obstore.store import S3Config, S3Credential

_HOW_TO_SIGN_IN = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, where the run starts, "
    "or give the workers' machines a role"
)


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Endpoint, region and credentials for S3, sent from the driver to the workers.

    Without `access_key` a process finds credentials by boto3's own chain (environment, profile, role). GCS and Azure
    find their credentials in each machine's own environment.
    """

    endpoint: str | None = None
    """The URL of a server with S3's API that is not AWS's."""

    region: str | None = None
    """The region of the buckets."""

    profile: str | None = None
    """The name of the AWS profile, by which a process finds credentials if there is no `access_key`."""

    access_key: str | None = None
    """The ID of the access key; None if each process finds credentials of its own, as those that expire."""

    secret_key: str | None = field(default=None, repr=False)
    """The secret of `access_key`."""

    session_token: str | None = field(default=None, repr=False)
    """The session token of `access_key`; None for a key that needs none."""

    retry_s: float = 60.0
    """How long one request is retried, with longer and longer jittered waits, before its error is raised.

    An operation of one request ends after at most retry_s + timeout_s. A listing, a large upload and a read of an
    opened object are many requests, each with that limit.
    """

    timeout_s: float = 60.0
    """How long one try may take, with its answer."""

    anonymous: tuple[str, ...] = ()
    """The roots of buckets (`s3://bucket`) that are read without credentials."""

    web: tuple[str, ...] = ()
    """The places of web servers that the job names; no other server is asked."""

    @classmethod
    def from_environment(cls) -> StorageSettings:
        """The settings that boto3 finds on this machine, without credentials that expire: each worker finds its own.

        Raises:
            Denied: The environment or the profile is contradictory; the message says what to set.
        """
        import boto3
        import botocore.session
        from botocore.credentials import RefreshableCredentials
        from botocore.utils import validate_region_name

        with _signing_in("s3://"):
            below = botocore.session.get_session()
            session = boto3.Session(botocore_session=below)
            endpoint = _configured_endpoint(session) if _names_an_endpoint(below.full_config) else None
            # boto3 itself ignores AWS_REGION; every other AWS SDK reads it.
            region = session.region_name or os.environ.get("AWS_REGION")
            if region and endpoint is None:
                # It becomes part of the host's name, and the storage library ends the thread if that is none.
                validate_region_name(region)
            found = session.get_credentials()
            # Credentials that expire would not last the night, so each worker gets its own. The environment's
            # credentials are the exception: a worker has no other way to find them.
            static = found and (found.method == "env" or not isinstance(found, RefreshableCredentials))
            captured = found.get_frozen_credentials() if found and static else None
        return cls(
            endpoint=endpoint,
            region=region,
            profile=os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE"),
            access_key=captured.access_key if captured else None,
            secret_key=captured.secret_key if captured else None,
            session_token=captured.token if captured else None,
        )


def _names_an_endpoint(files: Mapping[str, Any]) -> bool:
    """Whether the environment or the profiles' files have an endpoint of any service. files: what botocore read."""
    return any(name.startswith("AWS_ENDPOINT_URL") for name in os.environ) or "endpoint_url" in str(files)


def _configured_endpoint(session: boto3.Session) -> str | None:
    """The endpoint of the environment or the profile; None for AWS's. Takes 0.25 s: botocore reads all about S3."""
    from botocore.config import Config

    stock = Config(ignore_configured_endpoint_urls=True)  # type: ignore[call-arg] # stubs lack it
    endpoint = session.client("s3").meta.endpoint_url
    return None if endpoint == session.client("s3", config=stock).meta.endpoint_url else endpoint


class Keys:
    """AWS keys for obstore's S3 requests; boto3 is asked again whenever the keys may have changed.

    trouble: why the last call gave no keys; obstore does not pass this on. config: part of obstore's configuration.
    """

    def __init__(self, settings: StorageSettings, root: str) -> None:
        self._root = root
        self.config: S3Config = {}
        self.trouble: NightjarError | None = None
        with _signing_in(root):
            self._found = _session(settings).get_credentials()
        if self._found is None:
            raise Denied(f"{root}: no AWS credentials found; {_HOW_TO_SIGN_IN}")

    def __call__(self) -> S3Credential:
        from botocore.credentials import RefreshableCredentials

        assert self._found is not None
        try:
            with _signing_in(self._root):
                keys = self._found.get_frozen_credentials()
        except NightjarError as error:
            self.trouble = error
            raise
        self.trouble = None  # not before: other threads read it meanwhile
        assert keys.access_key is not None
        assert keys.secret_key is not None
        expiring = isinstance(self._found, RefreshableCredentials) and self._found.refresh_needed(60)
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            # obstore asks again five minutes before this time. Asking is cheap until 15 minutes before the keys
            # expire: then botocore fetches new ones each time. Keys valid for 15 minutes or less are always in them.
            "expires_at": datetime.now(UTC) + timedelta(minutes=5, seconds=1 if expiring else 30),
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
    from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError

    # botocore also logs a traceback of each error that it raises.
    logging.getLogger("botocore.credentials").setLevel(logging.ERROR)
    try:
        yield
    except (ConnectionError, HTTPClientError) as error:
        raise Transient(f"{root}: AWS credentials: {error}") from error
    # botocore raises a plain RuntimeError if it fetched new keys and these have expired, too.
    except (BotoCoreError, ClientError, RuntimeError) as error:
        if isinstance(error, ClientError) and error.response["ResponseMetadata"]["HTTPStatusCode"] >= 500:
            raise Transient(f"{root}: AWS credentials: {error}") from error
        # On one line, because a credential process may have printed several.
        said = " ".join(str(error).split())
        raise Denied(f"{root}: AWS credentials: {said}; {_HOW_TO_SIGN_IN}") from error
    except ValueError as error:
        raise StorageError(f"{root}: AWS settings: {error}") from error
