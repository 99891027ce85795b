"""The one fleet of the tests of `--ray`: a cluster of several nodes (`world`), and a process that tells what is free.

The nodes have none of the settings that commands are given, and another working directory than a job's folder.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support import wait_until
from world import World, world

GPUS = 2
"""How many each of the two nodes says it has."""

_WATCH = """
import sys
import ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
from ray._common.usage import usage_constants, usage_lib
from ray._private import ray_constants, worker
import json
for line in sys.stdin:
    if line.strip():
        gcs = worker.global_worker.gcs_client
        about = usage_lib.get_cluster_metadata(gcs)
        print("it was:", about["ray_version"], flush=True)
        about["ray_version"] = line.strip()
        gcs.internal_kv_put(
            usage_constants.CLUSTER_METADATA_KEY, json.dumps(about).encode(), True, ray_constants.KV_NAMESPACE_CLUSTER
        )
    print("free GPUs:", ray.available_resources().get("GPU", 0.0), flush=True)
"""


@dataclass
class Fleet:
    """The cluster's processes, and a process connected to it, which is started when it is first needed."""

    world: World
    _watch: subprocess.Popen[str] | None = None

    def all_gpus_are_free(self) -> bool:
        """Whether nobody holds a GPU now, as the cluster sees it."""
        self._tell("")
        return float(self._hear("free GPUs:")) == GPUS * len(self.world.nodes)

    def claims_to_be(self, version: str) -> str:
        """The cluster's record of its Ray version is changed; returns what it was."""
        self._tell(version)
        before = self._hear("it was:")
        self._hear("free GPUs:")
        return before

    def lose_head(self) -> None:
        """The head is gone at once."""
        self.look_away()
        self.world.head.kill()

    def start_again(self) -> None:
        """A new cluster at the old address."""
        self.look_away()
        self.world.start_cluster()

    def look_away(self) -> None:
        """The watching process ends; the next question starts another."""
        if self._watch is not None:
            self._watch.kill()
            self._watch.wait()
            self._watch = None

    def _tell(self, words: str) -> None:
        if self._watch is None:
            command = [sys.executable, "-c", _WATCH, self.world.address]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self._watch = subprocess.Popen(command, env=self.world.head.env, text=True, **pipes)
        assert self._watch.stdin is not None
        self._watch.stdin.write(f"{words}\n")
        self._watch.stdin.flush()

    def _hear(self, what: str) -> str:
        assert self._watch is not None
        assert self._watch.stdout is not None
        while not (line := self._watch.stdout.readline()).startswith(what):
            assert line, "the watching process ended"
        return line.removeprefix(what).strip()


@contextmanager
def started_fleet(api: str, prefect_home: Path) -> Iterator[Fleet]:
    """The fleet for the length of the block.

    Raises:
        AssertionError: something of it outlives the block.
    """
    with world(api, prefect_home, GPUS) as made:
        fleet = Fleet(made)
        try:
            wait_until(fleet.all_gpus_are_free, 60, "the GPUs are there")
            yield fleet
        finally:
            fleet.look_away()
