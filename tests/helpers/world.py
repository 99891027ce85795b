"""A Ray cluster of three nodes, an S3 server and a Prefect API, all processes that can be killed and started again."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from ports import quiet_ports
from s3 import S3Process, s3_process
from support import Lake, answering, leaves_nothing, wait_until
from victim import Victim, running, tree

UP_S = 90
"""Within this time a started cluster has all its nodes."""

STALL_S = 60
"""`retry.stall_s` of the jobs here."""

RETRY_S = 3.0
"""How long the tests' own readers try one request again."""

_STRANGE = ("AWS_", "PREFECT_", "RAY_", "NIGHTJAR_")

_ALL_ALIVE = """
import sys, time, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="CRITICAL")
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]):
    time.sleep(0.1)
"""


@dataclass
class Node:
    """One `ray start --block`, with all that it started."""

    name: str
    words: list[str]
    env: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started: set[psutil.Process] = field(default_factory=set)

    @property
    def up(self) -> bool:
        """Whether `ray start` still runs; with `--block` it ends when a part of the node does."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start it, unless it runs; returns at once."""
        if self.up:
            return
        ray = str(Path(sys.executable).parent / "ray")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [ray, "start", "--block", *self.words], env=self.env, stdout=log, stderr=log, start_new_session=True
            )

    def look(self) -> list[psutil.Process]:
        """Its processes now; those seen before are remembered."""
        found = tree(self.process) if self.process is not None else []
        self.started.update(found)
        return found

    def actors(self) -> list[psutil.Process]:
        """The processes that score."""
        found = []
        for process in self.look():
            with contextlib.suppress(psutil.Error):
                if process.name().startswith("ray::MapWorker") or "ray::MapWorker" in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def node_id(self) -> str:
        """What Ray calls it, from its raylet's command line; empty while there is none."""
        for process in self.look():
            with contextlib.suppress(psutil.Error):
                for word in process.cmdline():
                    if word.startswith(("--node_id=", "--node-id=")) and process.name() == "raylet":
                        return word.partition("=")[2]
        return ""

    def kill(self) -> None:
        """SIGKILL to all of it, as if its machine lost power."""
        self.look()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        _kill(self.started)
        self.process = None


@dataclass
class World:
    """Everything a run of `nightjar` needs, and the command itself while there is one.

    address, client: the cluster's, for its nodes and for others. env: the settings of commands. down: what somebody
    took away and will bring back.
    """

    folder: Path
    store: S3Process
    head: Node
    nodes: list[Node]
    address: str
    client: str
    env: dict[str, str]
    down: set[str] = field(default_factory=set)
    command: Victim | None = None
    commands: list[Victim] = field(default_factory=list)
    _again: tuple[Lake, str] | None = None

    @property
    def everywhere(self) -> list[Node]:
        """The head and the nodes."""
        return [self.head, *self.nodes]

    @property
    def storage(self) -> LakeStorage:
        """The S3 server, for readers."""
        server = self.store.server
        keys = server.access_key, server.secret_key
        return LakeStorage(StorageSettings(server.endpoint, server.region, None, *keys, retry_s=RETRY_S))

    def lake(self, rows: int, model: str, **changes: object) -> tuple[Lake, str]:
        """A job over four files in a bucket of their own, and the URI of its output."""
        lake = Lake(self.folder / f"job-{uuid.uuid4().hex[:8]}")
        lake.write_files(files=4, rows=rows // 4)
        lake.write_model(model)
        bucket = self.store.server.create_bucket(f"lake-{uuid.uuid4().hex[:12]}")
        for path in sorted((lake.folder / "data").iterdir()):
            self.storage.write(f"{bucket}/in/{path.name}", path.read_bytes())
            path.unlink()
        # Nodes come and go; and a run that hangs must be ended by Nightjar before a test loses its patience.
        limits = {"resources": {"actors": {"min": 1, "max": 2}}, "retry__stall_s": STALL_S}
        lake.write_job(input__uri=f"{bucket}/in/", output__uri=f"{bucket}/out/", **{**limits, **changes})
        return lake, f"{bucket}/out"

    def tonight(self, lake: Lake, date: str) -> None:
        """What `repeat` starts."""
        self._again = lake, date

    def run(self, lake: Lake, date: str) -> Victim:
        """Start `nightjar run` for one night on this cluster."""
        self.tonight(lake, date)
        return self.repeat()

    def repeat(self, address: str = "") -> Victim:
        """Start the command again. address: of the cluster, if another way leads to it."""
        assert self._again is not None
        lake, date = self._again
        self.command = Victim.start(lake, self.folder, "--ray", address or self.address, date=date, **self.env)
        self.commands.append(self.command)
        return self.command

    def kill_command(self) -> None:
        """SIGKILL to the command and what it started on this machine; what it started in the cluster is left."""
        assert self.command is not None
        victims = tree(self.command.process)
        self.command.kill()
        _kill(victims)
        self.command = None

    def start_cluster(self) -> None:
        """Head first, then the nodes; returns when all are there. What is left of an earlier cluster is killed.

        Raises:
            AssertionError: it did not come up; with the logs.
        """
        for node in reversed(self.everywhere):
            node.kill()
        self.head.start()
        wait_until(lambda: not self.head.up or _listens(self.address), UP_S, "the head listens")
        for node in self.nodes:
            node.start()
        self._wait_for(self.everywhere)

    @contextlib.contextmanager
    def further(self, name: str, *words: str) -> Iterator[Node]:
        """One more node, for the length of the block. words: of its `ray start`, as `--num-cpus=2`."""
        node = _node(self.folder, name, [f"--address={self.address}", *words], self.head.env)
        node.start()
        try:
            self._wait_for([*self.everywhere, node])
            yield node
        finally:
            node.kill()

    def _wait_for(self, nodes: list[Node]) -> None:
        command = [sys.executable, "-c", _ALL_ALIVE, self.address, str(len(nodes))]
        try:
            subprocess.run(command, env=self.head.env, check=True, timeout=UP_S, capture_output=True)
        except subprocess.SubprocessError as error:
            logs = "\n".join(node.log.read_text(errors="replace")[-2000:] for node in nodes)
            raise AssertionError(f"the cluster did not come up: {error}\n{logs}") from error

    def supervise(self) -> list[str]:
        """Start nodes again that ended by themselves, as a service manager would; returns their names."""
        for node in self.everywhere:
            node.look()
        if self.command is not None:
            self.command.look()
        if self.head.name in self.down:
            return []
        if not self.head.up:
            self.start_cluster()
            return [node.name for node in self.everywhere]
        ended = [node for node in self.nodes if not node.up and node.name not in self.down]
        for node in ended:
            node.kill()
            node.start()
        return [node.name for node in ended]

    def close(self) -> None:
        """End everything.

        Raises:
            AssertionError: something of it still runs.
        """
        if self.command is not None:
            self.kill_command()
        for node in reversed(self.everywhere):
            node.kill()
        seen = set().union(*(node.started for node in self.everywhere), *(each.started for each in self.commands))
        wait_until(lambda: not running(seen), 60, f"all of the cluster and its commands has ended: {running(seen)}")


@contextlib.contextmanager
def prefect_api(home: Path) -> Iterator[str]:
    """The URL of a Prefect API in a process of its own, for the length of the block."""
    os.environ.pop("PREFECT_API_URL", None)
    os.environ["PREFECT_HOME"] = str(home)
    from nightjar.flows.prefect_api.server import start_api

    with answering(start_api()) as url:
        yield url


@contextlib.contextmanager
def world(api: str, prefect_home: Path, gpus: int = 0) -> Iterator[World]:
    """A head without CPUs and two nodes of one CPU each, an empty S3 server, and the given Prefect API.

    At the end nothing of it runs any more. gpus: how many each node says it has.

    Raises:
        AssertionError: something does.
    """
    # Short, since Ray's sockets lie below it and their paths must not exceed 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="njc-"))
    with leaves_nothing() as mark, s3_process() as store:
        # Every process needs the cluster's token. Of this machine's settings nothing else gets to the nodes.
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}
        # A node gives up a head that is gone sooner than after Ray's usual minute, which shows nothing more. A command
        # must not: Ray would end its process before it finds out and says so.
        nodes = {"RAY_gcs_rpc_server_reconnect_timeout_s": "10"}
        # So is a node given up: by default after five looks, one every three seconds.
        nodes |= {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "3"}
        # Nobody looks at the nodes' figures, nor waits for what their workers print: both take CPU all the time.
        nodes["REPORTER_UPDATE_INTERVAL_MS"] = "60000"
        clean = {name: value for name, value in os.environ.items() if not name.startswith(_STRANGE)}
        made = _world(folder, store, {**clean, **token, **nodes, **mark}, gpus)
        made.env = {**token, **mark, **_aws(store), "PREFECT_API_URL": api, "PREFECT_HOME": str(prefect_home)}
        try:
            made.start_cluster()
            yield made
        finally:
            made.close()
    shutil.rmtree(folder, ignore_errors=True)


def _world(folder: Path, store: S3Process, env: dict[str, str], gpus: int) -> World:
    port, client = quiet_ports(2)
    address = f"127.0.0.1:{port}"
    head = ["--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false", "--disable-usage-stats"]
    node = [f"--address={address}", "--num-cpus=1", f"--num-gpus={gpus}"]
    nodes = {"head": [*head, f"--ray-client-server-port={client}"], "node-a": node, "node-b": node}
    made = [_node(folder, name, words, env) for name, words in nodes.items()]
    return World(folder, store, made[0], made[1:], address, f"ray://127.0.0.1:{client}", env)


def _node(folder: Path, name: str, words: list[str], env: dict[str, str]) -> Node:
    # Ports of its own for everything: these nodes share a host.
    apart = ["--node-ip-address=127.0.0.1", "--dashboard-agent-listen-port=0", f"--temp-dir={folder / name}"]
    memory = ["--object-store-memory=100000000", "--include-log-monitor=false"]
    return Node(name, [*words, *apart, *memory], env, folder / f"{name}.log")


def _aws(store: S3Process) -> dict[str, str]:
    server = store.server
    return {
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_DEFAULT_REGION": server.region,
        "AWS_ENDPOINT_URL": server.endpoint,
    }


def _listens(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
