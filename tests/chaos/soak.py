"""A run a minute with a random fault each, by one `nightjar serve`: what lives long must not grow.

    python tests/chaos/soak.py --minutes 20 --seed 7

Memory and open files of the serving process, of its Prefect server and of the Ray head are taken after each run. Ends
with a table; exit 1 if one of them grew, a night was not published in the end, or its rows were not those of a quiet
night.
"""

from __future__ import annotations

import argparse
import datetime as dt
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import psutil
from actions import Action, NotNow, Wound, actor_killed, node_killed, storage_killed, storage_paused
from chaos import FIRST, MODEL
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelling
from readers import Rows, rows_of

from service import Service, client, deployments, service, start_run, state_of
from support import Lake, wait_until
from world import World, world

ROWS = 16_000
EACH_S = 60.0
RUN_S = 240.0
"""Within this time a run ends, whatever is done to it."""

TRIES = 5
LEAST = 8
WARM = 3
"""Runs whose figures are not compared: caches fill."""

GROWTH_MB, GROWTH_SHARE, GROWTH_FILES = 40.0, 0.15, 8
"""What the last third of a process's figures may be above the first."""


def run_killed(soak: Soak, dice: random.Random) -> Iterator[Wound]:
    """SIGKILL to the process of the run; the page may go on showing it, the next run of the night takes it up."""
    if not soak.processes():
        raise NotNow
    found = soak.processes()[0]
    for process in [*found.children(recursive=True), found]:
        process.kill()
    yield Wound(f"process {found.pid}", 0.0)


def run_cancelled(soak: Soak, dice: random.Random) -> Iterator[Wound]:
    """Cancelled through the API, as from the page."""
    if soak.run is None or state_of(soak.api, soak.run).is_final():
        raise NotNow
    with client(soak.api) as asked:
        asked.set_flow_run_state(soak.run.id, Cancelling(), force=True)
    yield Wound("", 0.0)


WORLDS: tuple[Action, ...] = (actor_killed, node_killed, storage_killed, storage_paused)
ITS_OWN: tuple[Callable[[Soak, random.Random], Iterator[Wound]], ...] = (run_killed, run_cancelled)


@dataclass
class Figures:
    """Of one process, after each run: megabytes and open files."""

    megabytes: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    def take(self, process: psutil.Process) -> None:
        self.megabytes.append(process.memory_info().rss / 1e6)
        self.files.append(process.num_fds())

    def growth(self) -> tuple[float, float, float, float]:
        """Medians of the first and the last third, without the first runs: megabytes, then files."""
        third = max(1, (len(self.megabytes) - WARM) // 3)
        low, high = slice(WARM, WARM + third), slice(-third, None)
        values = (self.megabytes[low], self.megabytes[high], self.files[low], self.files[high])
        a, b, c, d = (float(statistics.median(found)) for found in values)
        return a, b, c, d

    def grew(self) -> bool:
        a, b, c, d = self.growth()
        return b > a * (1 + GROWTH_SHARE) + GROWTH_MB or d > c + GROWTH_FILES


@dataclass
class Soak:
    """A served job, and what is taken of the processes that serve it."""

    world: World
    lake: Lake
    output: str
    serving: Service
    api: str
    dice: random.Random
    run: FlowRun | None = None
    _last: str = ""
    done: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    figures: dict[str, Figures] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def go_on(self, minutes: float) -> None:
        """A run a minute; the first is quiet."""
        began = time.monotonic()
        quiet = self.night(FIRST, fault=False)
        date = FIRST
        while time.monotonic() < began + minutes * 60:
            date, due = date + dt.timedelta(days=1), time.monotonic() + EACH_S
            self.wrong += [f"{date}: {each}" for each in self.night(date, fault=True).differences(quiet)]
            self.take()
            time.sleep(max(0.0, due - time.monotonic()))

    def night(self, date: dt.date, *, fault: bool) -> Rows:
        """One night, started again until it is published."""
        for attempt in range(TRIES):
            wait_until(lambda: deployments(self.api, "chaos"), 60, "the deployment is there")
            self.run = start_run(self.api, deployments(self.api, "chaos")["chaos"], date=str(date))
            mend = self.strike() if fault and attempt == 0 else iter(())
            deadline = time.monotonic() + RUN_S
            while not state_of(self.api, self.run).is_final() and self._lives() and time.monotonic() < deadline:
                self.world.supervise()
                next(mend, None)
                time.sleep(0.5)
            for _ in mend:
                pass
            state = state_of(self.api, self.run)
            self.ended[state.name] += 1
            print(f"{date}: {state.name}: {state.message}", flush=True)
            if state.is_completed():
                return rows_of(self.world.storage, self.output, str(date))
        raise AssertionError(f"{date} was not published in {TRIES} runs")

    def _lives(self) -> bool:
        """Whether the run's process may still say how it ends: one that was killed never does."""
        return not self.done or self._last != "run_killed" or bool(self.processes())

    def processes(self) -> list[psutil.Process]:
        """Of runs."""
        return [p for p in psutil.Process(self.serving.process.pid).children() if "flow_runs" in " ".join(p.cmdline())]

    def strike(self) -> Iterator[None]:
        """One fault at a random moment of the run, and its mending."""
        self._last = ""
        at = time.monotonic() + self.dice.uniform(5, 30)
        while time.monotonic() < at:
            yield
        faults = [*WORLDS, *ITS_OWN]
        self.dice.shuffle(faults)
        for fault in faults:
            steps = fault(self if fault in ITS_OWN else self.world, self.dice)  # type: ignore[arg-type]
            try:
                wound = next(steps)
            except NotNow:
                continue
            self._last = fault.__name__
            self.done[fault.__name__] += 1
            print(f"  {fault.__name__} {wound.what}", flush=True)
            mended = time.monotonic() + wound.mended_s
            while time.monotonic() < mended:
                yield
            next(steps, None)
            return

    def take(self) -> None:
        """The figures of what lives long."""
        serving = psutil.Process(self.serving.process.pid)
        (server,) = (p for p in serving.children() if "flows.server" in " ".join(p.cmdline()))
        ray = [(f"Ray {p.name()}", p) for p in self.world.head.look() if p.name() in {"gcs_server", "raylet"}]
        for name, process in [("nightjar serve", serving), ("Prefect server", server), *ray]:
            self.figures.setdefault(name, Figures()).take(process)

    def table(self, seed: int) -> str:
        lines = [
            f"seed {seed}; {sum(self.ended.values())} runs: {dict(self.ended)}; faults: {dict(self.done)}",
            "process            samples  MB first   MB last  files first  files last  grew",
        ]
        for name, found in self.figures.items():
            a, b, c, d = found.growth()
            grew = "yes" if found.grew() else "no"
            lines.append(f"{name:<18} {len(found.files):>7} {a:>9.1f} {b:>9.1f} {c:>12.0f} {d:>11.0f}  {grew}")
        lines.append(f"published rows equal: {'no' if self.wrong else 'yes'}")
        return "\n".join([*lines, *self.wrong])

    @property
    def good(self) -> bool:
        return not self.wrong and not any(found.grew() for found in self.figures.values())


def soak(minutes: float, seed: int) -> Soak:
    """So many minutes of runs from this seed."""
    with tempfile.TemporaryDirectory(prefix="nightjar-soak-") as folder, world("", Path(folder) / "prefect") as made:
        lake, output = made.lake(ROWS, MODEL, name="chaos", model__batch_size=250, retry__backoff_s=0.5)
        env = {**made.env, "NIGHTJAR_RAY": made.address}
        del env["PREFECT_API_URL"]
        with service(Path(folder), "serve", lake.folder, env=env) as serving:
            wait_until(lambda: serving.says("Ctrl-C ends"), 120, "it serves")
            pages = re.search(r"Pages: (\S+)/deployments", serving.log.read_text())
            assert pages is not None
            soaked = Soak(made, lake, output, serving, f"{pages[1]}/api", random.Random(seed))
            soaked.go_on(minutes)
    return soaked


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="A run a minute with a random fault each.")
    parser.add_argument("--minutes", type=float, default=20.0, help="how long")
    parser.add_argument("--seed", default="random", help="a number, or `random`")
    given = parser.parse_args()
    if given.minutes < LEAST:
        parser.error(f"--minutes: growth shows only over {LEAST} and more")
    seed = random.SystemRandom().randrange(1_000_000) if given.seed == "random" else int(given.seed)
    print(f"seed {seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # A shell's background job ignores it, and so would the `nightjar serve` that is ended by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    soaked = soak(given.minutes, seed)
    print(soaked.table(seed))
    sys.exit(0 if soaked.good else 1)


if __name__ == "__main__":
    main()
