"""Hosts of their own on one machine: network namespaces on a bridge, with names, and Ray's folder of their own.

Needs root and iproute2, as a container of a CI service usually has; `available` says whether it can be done here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from support import wait_until

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
    """One host: its name, its address, and what runs on it. Its first process is its power switch."""

    name: str
    address: str
    namespace: str
    folder: Path
    power: subprocess.Popen[bytes] | None = None
    first: int = 0

    @property
    def log(self) -> Path:
        """What its programs printed."""
        return self.folder / f"{self.name}.log"

    def boot(self) -> None:
        """Namespaces for processes, mounts and the name; Ray's folder is this host's own."""
        inside = 'hostname "$0" && mkdir -p /tmp/ray && mount -t tmpfs ray /tmp/ray && exec sleep infinity'
        apart = ["unshare", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        words = ["ip", "netns", "exec", self.namespace, *apart, "sh", "-c", inside, self.name]
        self.power = subprocess.Popen(words, start_new_session=True)
        above = psutil.Process(self.power.pid)
        wait_until(lambda: [c for c in above.children() if c.name() == "sleep"], 20, f"{self.name} is up")
        self.first = above.children()[0].pid

    def start(self, command: Sequence[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start a program on this host; it finds this environment's programs first."""
        words = ["nsenter", "--target", str(self.first), "--mount", "--uts", "--pid", "--net", "--", *command]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "PREFECT_", "RAY_", "NIGHTJAR_"))}
        # There is no name server here, only the table of names.
        clean |= {"PATH": path, "GRPC_DNS_RESOLVER": "native"}
        with self.log.open("ab") as log:
            return subprocess.Popen(words, env={**clean, **env}, stdout=log, stderr=log, start_new_session=True)

    def lose(self) -> int:
        """The host is gone at once, with all that runs on it. Returns how many processes that were."""
        if self.power is None:
            return 0
        found = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True).stdout.split()
        self.power.kill()
        self.power.wait()
        self.power = None
        wait_until(lambda: not any(_alive(int(pid)) for pid in found), 20, f"{self.name} is gone")
        return len(found)


def _alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


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
            host.boot()
        yield made
    finally:
        with contextlib.ExitStack() as undo:
            # Each is undone whatever becomes of the others: a bridge left behind would take the next one's packets.
            undo.callback(subprocess.run, ["ip", "link", "del", bridge], capture_output=True)
            for host in made.values():
                undo.callback(shutil.rmtree, Path("/etc/netns") / host.namespace, ignore_errors=True)
                undo.callback(subprocess.run, ["ip", "netns", "del", host.namespace], capture_output=True)
                undo.callback(host.lose)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
