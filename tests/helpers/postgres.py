"""A real Postgres server on a port of this machine, for one test session. Its programs are Debian's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ports import quiet_ports
from support import wait_until

PASSWORD = "hush-database"


@dataclass(frozen=True)
class PostgresServer:
    """Where it listens. programs: psql and its like."""

    port: int
    programs: Path

    @property
    def uri(self) -> str:
        """Of the database, without the password."""
        return f"postgresql://reader@127.0.0.1:{self.port}/postgres"

    def run(self, statements: str) -> str:
        """Run statements, as another program would; returns what they print."""
        words = [
            str(self.programs / "psql"),
            "--quiet",
            "--tuples-only",
            "--no-align",
            "--set=ON_ERROR_STOP=1",
            self.uri,
        ]
        done = subprocess.run(
            words,
            input=statements,
            env=os.environ | {"PGPASSWORD": PASSWORD},
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def programs() -> Path | None:
    """The folder of Postgres's programs; None if it is not installed, or cannot be run by this user."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found or (os.geteuid() == 0 and shutil.which("setpriv") is None):
        return None
    return found[-1].parent


@contextmanager
def running() -> Iterator[PostgresServer]:
    """A new server with an empty database. Postgres refuses to be root, so root runs it as its own user."""
    binaries = programs()
    assert binaries is not None
    as_own = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    (port,) = quiet_ports(1)
    with tempfile.TemporaryDirectory(
        prefix="nightjar-postgres-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as at:
        folder = Path(at)
        (folder / "password").write_text(PASSWORD)
        if as_own:
            shutil.chown(folder, "postgres", "postgres")
            shutil.chown(folder / "password", "postgres", "postgres")
        data = str(folder / "data")
        words = ["initdb", "--username=reader", f"--pwfile={folder / 'password'}", "--auth=scram-sha-256", "--no-sync"]
        subprocess.run([*as_own, str(binaries / words[0]), *words[1:], data], check=True, stdout=subprocess.DEVNULL)
        options = ["-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", str(folder), "-F"]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen([*as_own, str(binaries / "postgres"), *options], stdout=log, stderr=log)
        try:
            ready = [str(binaries / "pg_isready"), "--quiet", "--host=127.0.0.1", f"--port={port}"]
            wait_until(lambda: subprocess.run(ready, check=False).returncode == 0, 60, "Postgres is ready")
            yield PostgresServer(port, binaries)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)
