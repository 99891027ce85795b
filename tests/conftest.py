"""Shared by all tests: one Ray cluster, one Prefect server and one S3 server a process, all real."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings

import forks  # noqa: F401
import installed  # noqa: F401
from fleet import Fleet, started_fleet
from s3 import S3Server, s3_server
from support import Lake, answering, leaves_nothing

MEMORY, ENOUGH = Path("/dev/shm"), 4 << 30
"""Where syncing costs nothing, and how many free bytes make it a place for the folders of tests, which sync a lot."""

if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ENOUGH:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# A shell's background job ignores it, and so would the commands that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes tells nothing on a machine that does other work, too.
settings.register_profile("untimed", settings.default, deadline=None)
settings.load_profile("untimed")


_LEAST_FREE = pytest.StashKey[int]()
_DEATHS: list[str] = []
"""How processes of `pytest -n` ended that died during a test."""

SYSTEMS = {"browser", "cases", "chaos", "cluster", "flow", "perf"}
"""Folders with tests of whole systems: Prefect, Ray, a browser, processes that are killed. They have the marker
`system`, which tests of other folders have singly.
"""

TOGETHER = {
    # One Ray cluster in the process.
    "cluster": "ray",
    "test_engines.py": "ray",
    "test_identity_loop.py": "ray",
    # One cluster of several nodes.
    "test_nodes.py": "fleet",
    "test_two_stages.py": "fleet",
    "test_remote.py": "fleet",
    # One Prefect server, and the same nights; but for the tests of served jobs, which are by themselves.
    "flow": "flow",
    "test_asking_pages.py": "asking",
    "test_automation.py": "automation",
    "test_service.py": "service",
    # Nothing of it: a cluster of its own, and commands alone.
    "test_hosts.py": "hosts",
    "test_memory.py": "memory",
    "test_local_ray.py": "local",
    # The libraries that they import, which the other processes then do without: see `lazily`.
    **dict.fromkeys(
        [
            *("test_adapters.py", "test_embeddings.py", "test_image_models.py", "test_model_folders.py"),
            *("test_shared_weights.py", "test_speech.py", "test_text_entities.py", "test_text_labels.py"),
            *("test_torch_modules.py", "test_torch_misfits.py", "test_torch_inputs.py", "test_torch_weights.py"),
            *("test_program_archives.py", "test_programs.py", "test_keras.py", "test_sklearn.py", "test_boosters.py"),
            *("test_images.py", "test_onnx.py", "test_out_of_memory.py", "test_endpoint.py", "test_ray_processor.py"),
            *("test_classes.py", "test_drift.py", "test_metrics.py", "test_ranking.py", "test_regression.py"),
            *("test_accepting_worker.py", "test_batches.py", "test_conversion.py"),
            *("test_output_types.py", "test_prepared_batches.py", "test_batch_copies.py", "test_ray_classes.py"),
            *("test_microbatches.py", "test_packing.py", "test_spoilt_worker.py"),
        ],
        "frameworks",
    ),
}
"""Folders and files whose tests stay in one process under `pytest -n`, because they share what takes long to start. A
file comes before its folder. The tests of another file stay together, too.
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of whole systems, before pytest chooses by markers."""
    for item in items:
        if item.path.relative_to(Path(__file__).parent).parts[0] in SYSTEMS:
            item.add_marker(pytest.mark.system)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file in one process under `pytest -n`, and those that `TOGETHER` joins.

    `--dist loadgroup` does not: pytest 9.2 ignores the names by which pytest-xdist 3.8 tells the groups apart.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return TOGETHER.get(Path(file).name, TOGETHER.get(Path(file).parts[1], file))

    config.option.loadscopereorder = False  # the long groups come first, although they have fewer tests than a file
    return Scheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: Any) -> None:
    """Say how a process of `pytest -n` ended: by a signal, which is negative here, or by its own code.

    What it wrote last is lost with the file into which pytest captures, so the number is all there is.
    """
    if error is not None:
        with suppress(AttributeError, subprocess.TimeoutExpired):  # its process is execnet's own
            code = node.gateway._io.popen.wait(timeout=30)
            _DEATHS.append(f"{node.gateway.id} ended with {code} during a test; memory: {psutil.virtual_memory()}")
            print(f"\n{_DEATHS[-1]}")


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    """Note the least memory that was free meanwhile: a machine that is short of it ends processes of tests."""
    least, over = psutil.virtual_memory().available, threading.Event()

    def watch() -> None:
        nonlocal least
        while not over.wait(1):
            with suppress(FileNotFoundError):  # a test tells psutil to look into a /proc of its own
                least = min(least, psutil.virtual_memory().available)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    # All that is there now stays until the end; Python need not look through it at each collection of garbage.
    gc.collect()
    gc.freeze()
    try:
        return (yield)
    finally:
        over.set()
        watching.join()
        session.config.stash[_LEAST_FREE] = least


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for death in _DEATHS:
        terminalreporter.write_line(death)
    if (least := config.stash.get(_LEAST_FREE, None)) is not None:
        memory, cores = psutil.virtual_memory().total / 2**30, os.cpu_count()
        terminalreporter.write_line(f"{cores} cores, {memory:.1f} GiB of memory, at least {least / 2**30:.1f} GiB free")


def start_ray(**resources: Any) -> None:
    """A Ray cluster in this process, for steps that are called directly. It ends with the process, and not sooner.

    After `ray.shutdown` whatever still asks Ray for something, a thread that goes on for a moment, say, ends the whole
    process without a word: under `pytest -n` the worker would be gone in its last test.
    """
    import ray

    from nightjar.flows.cluster.internals import nobody_else

    # Its own folder, which goes with it: in Ray's own one a session stays for ever. Sockets want a short path.
    folder = tempfile.mkdtemp(prefix="njt-", dir="/tmp")

    def end() -> None:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    with nobody_else(logs=False):
        ray.init(
            address="local",
            include_dashboard=False,
            logging_level="ERROR",
            log_to_driver=False,
            _temp_dir=folder,
            **resources,
        )


@pytest.fixture(scope="session")
def ray_local() -> None:
    """A Ray cluster with two GPUs in name: Ray counts them, and nobody computes on them."""
    resources = {"licence": 2, "accelerator_type:A100": 1}
    start_ray(num_cpus=2, num_gpus=2, resources=resources, labels={"zone": "eu"})


@pytest.fixture(scope="session")
def ray_gpu() -> None:
    """A Ray cluster with the CPUs and GPUs that Ray finds."""
    start_ray()


@pytest.fixture(scope="session")
def fleet(prefect_api: str, prefect_home: Path) -> Iterator[Fleet]:
    """A cluster of several nodes, started separately, for commands with `--ray`."""
    with started_fleet(prefect_api, prefect_home) as made:
        yield made


PROMPT = {
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL": "0.3",
    "PREFECT_SERVER_SERVICES_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS": "1",
    "PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": "1",
}
"""How long the tests' Prefect server lets events, new deployments and runs that wait for a slot lie, in seconds.

Prefect's defaults are 5, 5 and 30.
"""


@pytest.fixture(scope="session")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Prefect home of the tests' own."""
    return tmp_path_factory.mktemp("prefect")


@pytest.fixture(scope="session")
def prefect_api(prefect_home: Path) -> Iterator[str]:
    """The URL of a Prefect server shared by all command line tests."""
    from nightjar.flows.prefect_api import ownserver, server

    before = os.environ.copy()
    os.environ.update(PROMPT, PREFECT_HOME=str(prefect_home))
    os.environ.pop("PREFECT_API_URL", None)
    try:
        with pytest.MonkeyPatch.context() as here:
            # Of two processes that begin at once each would find the usual port free.
            here.setattr(ownserver, "USUAL_PORT", 0)
            api = server.start_api(complete=True)
    finally:
        os.environ.clear()
        os.environ.update(before)
    with answering(api) as url:
        with sqlite3.connect(prefect_home / "prefect.db") as made, sqlite3.connect(prefect_home / "empty.db") as empty:
            made.backup(empty)
        yield url
        server.drain()  # flows that ran in this process; Prefect would try for a minute when the server is gone


@pytest.fixture(scope="session")
def empty_database(prefect_api: str, prefect_home: Path) -> Path:
    """The database of a Prefect server that has had no work yet: a server takes long to make one."""
    return prefect_home / "empty.db"


@pytest.fixture
def own_home(tmp_path: Path, empty_database: Path) -> Path:
    """A Prefect home for a server of the test's own: its database is empty, but made."""
    home = tmp_path / "prefect"
    home.mkdir()
    shutil.copy(empty_database, home / "prefect.db")
    return home


@pytest.fixture(scope="session")
def server() -> Iterator[S3Server]:
    """A real S3 server."""
    with s3_server() as started:
        yield started


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A folder with a small lake, a job file and a predictor, to be written to."""
    return Lake(tmp_path)


@pytest.fixture(autouse=True)
def _process() -> Iterator[None]:
    """Restores this process's folder and Python's path, which a predictor's process changes for the job's code.

    With the folders of hundreds of jobs on its path, Python finds everything slowly.
    """
    folder, path = Path.cwd(), list(sys.path)
    yield
    os.chdir(folder)
    sys.path[:] = path


@pytest.fixture
def no_leftovers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails when a command that the test ran leaves a process behind."""
    with leaves_nothing() as mark:
        for name, value in mark.items():
            monkeypatch.setenv(name, value)
        yield


def pytest_sessionstart(session: pytest.Session) -> None:
    """The flights example is real data that many tests use: prepare it if `make` did not."""
    if os.environ.get("NIGHTJAR_SKIP_FLIGHTS"):
        return
    folder = Path(__file__).parent.parent / "examples" / "flights"
    if not (folder / "models" / "delay.pt2").exists():
        subprocess.run([sys.executable, str(folder / "prepare.py")], check=True)
        subprocess.run([sys.executable, str(folder / "train.py")], check=True)
