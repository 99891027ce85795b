"""Nightjar beside its peers: the same rows, the same program, interleaved in fresh processes.

    python benchmarks/run.py --rows 32_000_000 --repeat 3

A peer is a program beside this one that takes --data, --out, --actors and --batch-size, and prints one JSON line
(`peer.py`). Two times are compared: the wall time of the whole process, measured here, and the steady time, measured by
the peer. Ratios are taken within a repeat, so that slow minutes of the machine affect both sides.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime as dt
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

HERE = Path(__file__).parent
PEERS = {
    "a": ("bare loop", "bare_loop.py"),
    "b": ("Ray Data's documentation", "ray_data_docs.py"),
    "c": ("Nightjar", "nightjar_job.py"),
    "d": ("torch DataLoader", "torch_dataloader.py"),
    "e": ("Daft's documentation", "daft_docs.py"),
    "f": ("Spark's documentation", "spark_docs.py"),
}
APART = {"e", "f"}
"""Peers with an environment of their own (`peers.txt`), because Spark needs an older pandas than Nightjar."""

WARM_ROWS = 64_000
SAMPLE_S = 0.5
SAMPLE_SHARE = 0.02
"""The largest share of one core that sampling the memory may take, so that it does not slow the measured program."""

TIMEOUT_S = 1800
TOLERANCE = 1e-6
"""Largest relative difference between two peers' sums of scores; other batches change only the last bits."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The command line."""

    peers: list[str]
    rows: int
    files: int
    repeat: int
    work: Path
    batch_size: int
    actors: int
    apart: Path

    def python(self, peer: str) -> str:
        """The interpreter that runs a peer."""
        return str(self.apart / "bin" / "python") if peer in APART else sys.executable


@dataclass(frozen=True, slots=True)
class Written:
    """What a peer wrote, summed so that a lost, doubled or mispaired row shows."""

    rows: int
    id_sum: int
    wrong_times: int
    score_sum: float
    paired_sum: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of one peer. Memory is the peak of the process tree's sum, in MB; times in seconds.

    startup_s: to the first model loaded. steady_s: from there to the last file written.
    """

    peer: str
    repeat: int
    total_s: float
    startup_s: float
    steady_s: float
    steady_audit_s: float
    peak_mb: float
    cpu_s: float
    load_before: float
    sampler_cpu_s: float
    ended_late: int
    written: Written
    line: dict[str, Any]


# ---- processes ---------------------------------------------------------------------------------


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent died, so that the tree below stays whole."""
    pr_set_child_subreaper = 36
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def tree() -> list[psutil.Process]:
    """Every process this one started, directly or not."""
    return psutil.Process().children(recursive=True)


def end_tree(patience_s: float) -> int:
    """Wait for what is left below, then end it by id. Returns how many had to be ended."""
    _, late = psutil.wait_procs(tree(), timeout=patience_s)
    for process in late:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, stubborn = psutil.wait_procs(late, timeout=10)
    for process in stubborn:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(stubborn, timeout=10)
    return len(late)


def memory_kind() -> str:
    """Shared pages are counted once in PSS, not at all in USS, once per process in RSS."""
    names = psutil.Process().memory_full_info()._fields
    return next((kind for kind in ("pss", "uss") if kind in names), "rss")


class Sampler(threading.Thread):
    """Watches the tree: the highest sum of memory, and the CPU time of every process seen."""

    def __init__(self, kind: str) -> None:
        super().__init__(daemon=True)
        self.kind, self.peak_bytes, self.own_cpu_s = kind, 0, 0.0
        self._cpu: dict[tuple[int, float], float] = {}
        self._ended = threading.Event()

    def run(self) -> None:
        """Sample until `stop`."""
        due = time.monotonic()
        while not self._ended.wait(SAMPLE_S):
            processes = tree()
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    self._cpu[process.pid, process.create_time()] = times.user + times.system
            if time.monotonic() >= due:
                # The kernel walks every page for PSS, and a peer of many processes would pay most for it.
                before = time.thread_time()
                self.peak_bytes = max(self.peak_bytes, sum(map(self._memory, processes)))
                due = time.monotonic() + (time.thread_time() - before) / SAMPLE_SHARE
        self.own_cpu_s = time.thread_time()

    def _memory(self, process: psutil.Process) -> int:
        try:
            return int(getattr(process.memory_full_info(), self.kind))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return 0

    def stop(self) -> None:
        """End, and wait for the last sample."""
        self._ended.set()
        self.join()

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all processes, up to the last sample of each."""
        return sum(self._cpu.values())


@contextmanager
def watched(kind: str) -> Iterator[Sampler]:
    """A sampler for the time of a block."""
    sampler = Sampler(kind)
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stop()


# ---- one run -----------------------------------------------------------------------------------


def launch(peer: str, data: Path, out: Path, settings: Settings) -> tuple[float, dict[str, Any]]:
    """Run a peer in a fresh process. Returns its wall time and its line."""
    command = [settings.python(peer), str(HERE / PEERS[peer][1]), "--data", str(data), "--out", str(out)]
    command += ["--actors", str(settings.actors), "--batch-size", str(settings.batch_size)]
    logs = settings.work / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    printed, errors = logs / f"{peer}.out", logs / f"{peer}.err"
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    started = time.perf_counter()
    # Files, not pipes: a pipe stays open as long as any descendant holds it, a file waits for nobody.
    with printed.open("w") as stdout, errors.open("w") as stderr:
        done = subprocess.run(command, env=environment, stdout=stdout, stderr=stderr, timeout=TIMEOUT_S)
    total_s = time.perf_counter() - started
    lines = [line for line in printed.read_text().splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        tails = "\n".join(path.read_text()[-3000:] for path in (printed, errors))
        raise SystemExit(f"{shlex.join(command)}: exit code {done.returncode}\n{tails}")
    return total_s, json.loads(lines[-1])


def measure(peer: str, repeat: int, data: Path, settings: Settings, kind: str) -> Measured:
    """Time one run in an empty folder with idle disks; then, untimed, read back what it wrote."""
    place = settings.work / "run"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    os.sync()
    load_before = os.getloadavg()[0]
    try:
        with watched(kind) as sampler:
            total_s, line = launch(peer, data, place / "out", settings)
    finally:
        ended_late = end_tree(patience_s=15)
    written = read_back(Path(line["data"]), data)
    shutil.rmtree(place)
    return Measured(
        peer,
        repeat,
        total_s,
        line["startup_s"],
        line["steady_s"],
        line.get("steady_audit_s", line["steady_s"]),
        sampler.peak_bytes / 2**20,
        sampler.cpu_s,
        load_before,
        sampler.own_cpu_s,
        ended_late,
        written,
        line,
    )


def read_back(folder: Path, data: Path) -> Written:
    """Sums over every part in `folder`, one row group in memory at a time."""
    spec = json.loads((data / "data.json").read_text())
    rows = id_sum = wrong = 0
    score_sum = paired_sum = 0.0
    for path in sorted(path for path in folder.rglob("*.parquet") if not path.name.startswith((".", "_"))):
        with pq.ParquetFile(path) as reader:
            for group in range(reader.num_row_groups):
                table = reader.read_row_group(group, columns=["id", "ts", "score"])
                ids = pc.cast(table["id"], pa.int64()).to_numpy()
                times = table["ts"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()
                scores = table["score"].to_numpy().astype("float64")
                rows += table.num_rows
                id_sum += int(ids.sum())
                wrong += int((times != spec["epoch_us"] + ids * spec["step_us"]).sum())
                score_sum += float(scores.sum())
                # Weighted by the id, so that a score beside the wrong id changes the sum.
                paired_sum += float((scores * (ids % 1009)).sum())
    return Written(rows, id_sum, wrong, score_sum, paired_sum)


def check(runs: list[Measured], rows: int) -> None:
    """Stop unless every run wrote every row once, with its own time and the same score."""
    for run in runs:
        found, first = run.written, runs[0].written
        if (found.rows, found.id_sum, found.wrong_times) != (rows, rows * (rows - 1) // 2, 0):
            raise SystemExit(f"peer {run.peer} did not write {rows:,} rows once each: {found}")
        for mine, reference in (
            (found.score_sum, first.score_sum),
            (found.paired_sum, first.paired_sum),
        ):
            if abs(mine - reference) > TOLERANCE * abs(reference):
                raise SystemExit(f"peer {run.peer} scored otherwise than {runs[0].peer}: {found}, {first}")


# ---- the whole ---------------------------------------------------------------------------------


def generate(folder: Path, rows: int, files: int) -> Path:
    """The data, made by `data.py` unless it is there, and read once into the page cache."""
    command = [sys.executable, str(HERE / "data.py"), "--data", str(folder)]
    subprocess.run([*command, "--rows", str(rows), "--files", str(files)], check=True, stdout=sys.stderr)
    for path in sorted((folder / "rows").iterdir()):
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass
    return folder


def bench(settings: Settings, kind: str) -> list[Measured]:
    """Run every peer once on few rows, untimed; then run all of them in turn, `repeat` times."""
    warm = generate(settings.work / "warm", WARM_ROWS, files=4)
    data = generate(settings.work / f"data-{settings.rows}-{settings.files}", settings.rows, settings.files)
    say("warming up")
    # This brings the libraries into the page cache and makes Prefect's database, which does not happen every night.
    check([measure(peer, -1, warm, settings, kind) for peer in settings.peers], WARM_ROWS)
    runs: list[Measured] = []
    for repeat in range(settings.repeat):
        for peer in settings.peers:
            run = measure(peer, repeat, data, settings, kind)
            say(f"{repeat + 1}/{settings.repeat} {peer}: total {run.total_s:.1f} s, steady {run.steady_s:.1f} s")
            runs.append(run)
            check(runs, settings.rows)
    return runs


def say(text: str) -> None:
    """Progress, to stderr: stdout is the table."""
    print(text, file=sys.stderr, flush=True)


def machine(settings: Settings) -> dict[str, Any]:
    """Where and how this was measured."""
    return {
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "when": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "processor": processor(),
        "machine memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions(settings),
        "data": f"{settings.rows:,} rows in {settings.files} files",
        "actors": f"{settings.actors}, micro-batches of {settings.batch_size:,} rows",
    }


def processor() -> str:
    """The processor's name, where the system tells it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def versions(settings: Settings) -> str:
    """Versions of the packages that the peers use."""
    found = {name: installed(name) for name in ("nightjar-batch", "ray", "prefect", "pyarrow", "torch", "numpy")}
    if APART & set(settings.peers):
        code = "from importlib.metadata import version; print(version('daft'), version('pyspark'))"
        told = subprocess.run([settings.python("e"), "-c", code], capture_output=True, text=True, check=True).stdout
        found |= dict(zip(("daft", "pyspark"), told.split(), strict=True))
    return ", ".join(f"{name} {found[name]}" for name in found)


def installed(name: str) -> str:
    """A package's version."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def missing(settings: Settings) -> str:
    """What a requested peer lacks on this machine; empty if nothing is missing."""
    for peer in settings.peers:
        if not Path(settings.python(peer)).exists():
            return f"{PEERS[peer][0]} needs an environment of its own: make bench makes it"
    return "" if "f" not in settings.peers or shutil.which("java") else "Spark needs Java 17: install it"


def parse() -> Settings:
    """The settings from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--peers",
        default=",".join(PEERS),
        help="which, in order: " + ", ".join(f"{k} = {v[0]}" for k, v in PEERS.items()),
    )
    parser.add_argument("--rows", type=int, default=32_000_000)
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--work", type=Path, default=HERE / "results" / "work", help="data and scratch, kept")
    parser.add_argument("--batch-size", type=int, default=16384)
    parser.add_argument("--actors", type=int, default=2, help="processes or actors of each peer")
    parser.add_argument(
        "--apart", type=Path, default=HERE.parent / ".venv-peers", help="the environment of e and f (peers.txt)"
    )
    given = parser.parse_args()
    peers = given.peers.split(",")
    if unknown := sorted(set(peers) - PEERS.keys()):
        parser.error(f"--peers: {unknown[0]!r} is none of {', '.join(PEERS)}")
    settings = Settings(
        peers=peers,
        rows=given.rows,
        files=given.files,
        repeat=given.repeat,
        work=given.work.absolute(),
        batch_size=given.batch_size,
        actors=given.actors,
        apart=given.apart.absolute(),
    )
    if lacks := missing(settings):
        parser.error(f"{lacks}, or leave it out with --peers")
    return settings


def main() -> None:
    """Measure, write all numbers to a file, and print the table."""
    settings = parse()
    adopt_orphans()
    kind = memory_kind()
    runs = bench(settings, kind)
    latest = HERE / "results" / "latest.json"
    latest.parent.mkdir(exist_ok=True)
    content = {
        "rows": settings.rows,
        "peers": {peer: PEERS[peer][0] for peer in settings.peers},
        "memory": kind.upper(),
        "sample_s": SAMPLE_S,
        "sample_share": SAMPLE_SHARE,
        "facts": machine(settings),
        "runs": [asdict(run) for run in runs],
    }
    latest.write_text(json.dumps(content, indent=1))
    subprocess.run([sys.executable, str(HERE / "report.py"), str(latest)], check=True)


if __name__ == "__main__":
    main()
