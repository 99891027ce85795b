"""How to reach S3 and as whom: boto3's own chain of credentials, asked here and nowhere else.

boto3 is imported where it is first needed: a run over local files never loads it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

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
