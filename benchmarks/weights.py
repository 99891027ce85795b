"""What four actors of one node take of memory for a large model: whether they share its weights.

For each kind of file a model with random weights is made. Then one process, and after it four at once, do what an actor
does: they place the model, load it, read rows, score and write them (`ShardWorker`, with an actor's settings).
When all have scored, so that all weights were read, the kernel's figures of each are taken (`/proc/PID/smaps_rollup`):

- *RSS*: all pages in memory that the process uses, also those that it shares.
- *PSS*: the same, but a page that four processes use counts as a quarter for each. So the sum over processes is what
  they really take.
- *private*: pages that no other process uses.
- *of the file*: those of its pages that are the model's file, mapped into memory. Weights that are not among them are
  copies of the process's own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from report import table
from run import HERE, say
from weights_models import KINDS

ACTORS = 4
MODULES = {"lightgbm", "xgboost", "catboost"}
"""Kinds that need a library which not every machine has, and are named like it."""

HEAD = [
    "model",
    "file",
    "one: RSS",
    "PSS",
    "each of four: RSS",
    "PSS",
    "private",
    "of the file",
    "four together: PSS",
    "four ÷ one",
]


@dataclass(frozen=True, slots=True)
class Taken:
    """Megabytes of a process."""

    rss: float
    pss: float
    private: float
    file: float


def taken(pid: int, model: Path) -> Taken:
    """What the kernel says of a process. model: the folder of its model."""
    lines = (line.partition(":") for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    held = {name: megabytes(value) for name, _, value in lines}
    return Taken(held["Rss"], held["Pss"], held["Private_Clean"] + held["Private_Dirty"], mapped(pid, model))


def megabytes(field: str) -> float:
    """Of a text like ` 1234 kB`."""
    return int(field.split()[0]) * 1024 / 1e6


def mapped(pid: int, folder: Path) -> float:
    """The resident pages of files in a folder."""
    found, inside = 0.0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, _, value = line.partition(":")
        if not name.isalpha() and "-" in name.partition(" ")[0]:
            inside = str(folder) in line
        elif inside and name == "Rss":
            found += megabytes(value)
    return found


# ---- in the process of an actor -------------------------------------------------------------------------------


def act(job: Path, index: int) -> None:
    """Score one shard of the job, say so, and wait until the input ends."""
    from nightjar.inference.records import Receipt
    from nightjar.inference.run import resume, scoring
    from nightjar.inference.run.request import make_request, worker_spec
    from nightjar.inference.scoring import memory
    from nightjar.inference.scoring.assignment import Assignment
    from nightjar.inference.scoring.worker import ShardWorker

    memory.use_system()
    request = make_request(job)
    found = scoring.discover(request)
    shards = list(resume.plan(request, found).plan.shards())
    spec = worker_spec(request, found.schema, revision=f"{request.run_uri}/r1", rows=found.rows)
    worker = ShardWorker(spec)
    events = list(worker.process([Assignment(shards[index % len(shards)])]))
    if not isinstance(events[-1], Receipt):
        raise SystemExit(f"nothing was scored: {events[-1]}")
    print("scored", flush=True)
    sys.stdin.read()
    del worker  # until then the model is in memory, as in an actor


# ---- in this process ------------------------------------------------------------------------------------------


@contextmanager
def actors(job: Path, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """So many processes that have scored and wait."""
    from nightjar.inference.job.file import load_job
    from nightjar.inference.scoring import memory

    settings = {**os.environ, **memory.environment(load_job(job)), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "weights.py"), "--actor", str(job)]
    started = [
        subprocess.Popen([*command, str(place)], env=settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for place in range(count)
    ]
    try:
        for each in started:
            assert each.stdout is not None
            if "scored\n" not in iter(each.stdout.readline, ""):
                raise SystemExit(f"{job}: an actor ended with code {each.wait()}")
        yield started
    finally:
        for each in started:
            each.communicate()


def measured(job: Path, count: int) -> list[Taken]:
    """The memory of so many actors at one moment."""
    with actors(job, count) as processes:
        return [taken(each.pid, job.parent) for each in processes]


def measure(kind: str, work: Path, size: int) -> list[str]:
    """A line of the table."""
    command = [sys.executable, str(HERE / "weights_models.py"), kind, str(work), str(size)]
    made = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    file = int(made.stdout.splitlines()[-1]) / 1e6
    job = work / "job.yaml"
    (one,) = measured(job, 1)
    four = measured(job, ACTORS)
    say(f"{kind}: {file:.0f} MB, {one}, {four}")
    together = sum(each.pss for each in four)
    return [
        KINDS[kind][0],
        *(f"{value:,.0f}" for value in (file, one.rss, one.pss)),
        *(f"{median(values):,.0f}" for values in zip(*map(astuple, four), strict=True)),
        f"{together:,.0f}",
        f"{together / one.pss:.1f}",
    ]


def main() -> None:
    """Measure each kind, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--megabytes", type=int, default=500, help="of the weights")
    parser.add_argument("--work", type=Path, help="where the models are made; default: a temporary folder")
    parser.add_argument("--actor", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.actor:
        act(Path(given.actor[0]), int(given.actor[1]))
        return
    body = []
    with tempfile.TemporaryDirectory(dir=given.work) as root:
        os.environ["XDG_CACHE_HOME"] = str(Path(root) / "cache")
        for kind in given.kinds.split(","):
            if kind in MODULES and find_spec(kind) is None:
                say(f"{kind}: left out, because it is not installed")
                continue
            work = Path(root) / kind
            body.append(measure(kind, work, given.megabytes * 10**6))
            shutil.rmtree(work)
    print(table(HEAD, body))
    print("\nmegabytes; RSS and the others of each of four: the median of the four")


if __name__ == "__main__":
    main()
