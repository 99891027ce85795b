"""Hosts of their own on one machine: network namespaces on a bridge, with names, and Ray's folder of their own.

Needs root and iproute2, as a container of a CI service usually has; `available` says whether it can be done here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

NETWORK = "10.213.77"


def available() -> str:
    """Why hosts cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip"):
        return "no `ip` command: apt-get install iproute2"
    probe = f"nj{os.getpid()}p"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True)
    return "" if made.returncode == 0 else f"network namespaces cannot be made here: {made.stderr.strip()}"


@dataclass
class Host:
    """One host: its name, its address, and what runs on it."""

    name: str
    address: str
    namespace: str
    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def log(self) -> Path:
        """What its programs printed."""
        return self.folder / f"{self.name}.log"

    def start(self, command: Sequence[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start a program on this host; it finds this environment's programs first."""
        inside = 'hostname "$0" && mkdir -p /tmp/ray && mount -t tmpfs ray /tmp/ray && exec "$@"'
        words = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", inside, self.name, *command]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "PREFECT_", "RAY_", "NIGHTJAR_"))}
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                words, env={**clean, "PATH": path, **env}, stdout=log, stderr=log, start_new_session=True
            )
        self.processes.append(process)
        return process

    def pids(self) -> list[int]:
        """Every process on this host."""
        found = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True).stdout
        return [int(word) for word in found.split()]

    def lose(self) -> int:
        """The host is gone at once, with all that runs on it. Returns how many processes that were."""
        lost = 0
        deadline = time.monotonic() + 20
        while pids := self.pids():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    lost += 1
            for process in self.processes:
                process.poll()
            assert time.monotonic() < deadline, f"{self.name} still runs {pids}"
            time.sleep(0.05)
        for process in self.processes:
            process.wait()
        return lost


@contextlib.contextmanager
def hosts(folder: Path, *names: str) -> Iterator[dict[str, Host]]:
    """Hosts that reach each other by name. Whatever runs on them ends with the block."""
    mark = f"nj{os.getpid() % 100_000}"
    bridge = f"{mark}br"
    made = {name: Host(name, f"{NETWORK}.{index + 10}", f"{mark}-{name}", folder) for index, name in enumerate(names)}
    table = "127.0.0.1 localhost\n" + "".join(f"{host.address} {host.name}\n" for host in made.values())
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{NETWORK}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for index, host in enumerate(made.values()):
            outside, inside = f"{mark}v{index}", f"{mark}w{index}"
            _ip("netns", "add", host.namespace)
            _ip("link", "add", outside, "type", "veth", "peer", "name", inside)
            _ip("link", "set", inside, "netns", host.namespace)
            _ip("link", "set", outside, "master", bridge, "up")
            for words in (
                ("link", "set", "lo", "up"),
                ("addr", "add", f"{host.address}/24", "dev", inside),
                ("link", "set", inside, "up"),
                # Leads nowhere; but only with a route does a program learn which address is its own.
                ("route", "add", "default", "via", f"{NETWORK}.1"),
            ):
                _ip("-n", host.namespace, *words)
            names_of = Path("/etc/netns") / host.namespace
            names_of.mkdir(parents=True)
            (names_of / "hosts").write_text(table)
        yield made
    finally:
        for host in made.values():
            host.lose()
            subprocess.run(["ip", "netns", "del", host.namespace], capture_output=True)
            shutil.rmtree(Path("/etc/netns") / host.namespace, ignore_errors=True)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
