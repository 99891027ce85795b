"""A CPU stage before the model: Nightjar staged, Nightjar fused, and two stages of Ray Data, in turn.

Three cases. *Waits*, steps that only wait, shows how well a program keeps the model busy, whatever the machine.
*Images* decodes JPEG files with Pillow and scores them with a small convolutional net in torch, on one thread each.
*Resnet* decodes such files on 12 CPUs and scores them with ResNet-50 on a GPU; it needs both, and torchvision, so it is
run only if asked for. Every program runs in fresh processes, with the same steps (`stages_steps.py`), one actor of the
model, and micro-batches of the same size. Its output is checked: each row is there once, with the same score.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
from report import spread, table
from run import HERE, adopt_orphans, end_tree, installed, processor, say
from stages_case import CASES, IMAGES, WAITS, Case, make
from stages_steps import MODEL, PREPARE

STAGED, FUSED, SCRIPT = "Nightjar staged", "Nightjar fused", "Ray Data's script"
PEERS = {
    STAGED: ["stages_nightjar.py", "--placement", "staged"],
    FUSED: ["stages_nightjar.py", "--placement", "fused"],
    SCRIPT: ["stages_ray_data.py"],
}
LETTERS = dict(zip("abc", PEERS, strict=True))
TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of one program; times in seconds.

    steady_s: from the first call of the preprocess to the last written file. span_s: from the model's first call to the
    end of its last. busy_s: of that, in calls of the model. prepare_s: in calls of the preprocess, of all workers.
    workers: processes that prepared. loaded_s: from the first call of the preprocess to the model's first.
    """

    total_s: float
    steady_s: float
    loaded_s: float
    span_s: float
    busy_s: float
    prepare_s: float
    prepare_span_s: float
    workers: int
    load: float


def calls(notes: Path, step: str, since: float) -> dict[str, list[tuple[float, float]]]:
    """When the calls of a step began and ended, by process, without those before `since`."""
    found = {}
    for path in notes.glob(f"{step}-*"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        if after := [(began, ended) for _, began, ended in lines if began >= since - 0.01]:
            found[path.name] = after
    return found


def measure(name: str, peer: str, data: Path, work: Path) -> tuple[Ran, dict[Any, float]]:
    """Run a program once. Returns its times, and its scores by the carried column."""
    place = work / "run"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    os.sync()
    load = os.getloadavg()[0]
    program, *more = PEERS[peer]
    command = [sys.executable, str(HERE / program), "--case", name, "--data", str(data), "--out", str(place / "out")]
    printed, errors = place / "printed", place / "errors"
    began = time.perf_counter()
    with printed.open("w") as stdout, errors.open("w") as stderr:
        done = subprocess.run(
            [*command, *more],
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
            stdout=stdout,
            stderr=stderr,
            timeout=TIMEOUT_S,
        )
    total_s = time.perf_counter() - began
    end_tree(patience_s=15)
    lines = [line for line in printed.read_text().splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"{peer}: exit code {done.returncode}\n{errors.read_text()[-4000:]}")
    line = json.loads(lines[-1])
    notes = place / "out.notes"
    ran = of_calls(calls(notes, PREPARE, line["since"]), calls(notes, MODEL, line["since"]), total_s, line, load)
    return ran, scores(CASES[name], Path(line["data"]))


def of_calls(prepare: Any, model: Any, total_s: float, line: dict[str, Any], load: float) -> Ran:
    """The times that the notes show."""
    prepared = [call for each in prepare.values() for call in each]
    scored = [call for each in model.values() for call in each]
    first_prepared, first = min(prepared)[0], min(scored)[0]
    return Ran(
        total_s=total_s,
        steady_s=line["ended_at"] - first_prepared,
        loaded_s=first - first_prepared,
        span_s=max(ended for _, ended in scored) - first,
        busy_s=sum(ended - began for began, ended in scored),
        prepare_s=sum(ended - began for began, ended in prepared),
        prepare_span_s=max(ended for _, ended in prepared) - first_prepared,
        workers=len(prepare),
        load=load,
    )


def scores(case: Case, folder: Path) -> dict[Any, float]:
    """What was written, by the carried column."""
    files = [str(path) for path in folder.rglob("*.parquet")]
    found = ds.dataset(files).to_table(columns=[case.carry, "score"])
    keys = [key.rsplit("/", 1)[-1] if isinstance(key, str) else key for key in found[case.carry].to_pylist()]
    if len(keys) != case.rows or len(set(keys)) != case.rows:
        raise SystemExit(f"{folder}: {len(keys)} rows, {len(set(keys))} different ones, instead of {case.rows}")
    return dict(zip(keys, found["score"].to_pylist(), strict=True))


def check(case: Case, wanted: dict[Any, float], found: dict[Any, float], peer: str) -> None:
    """Stop unless every row has the same score."""
    keys = sorted(wanted)
    ours, theirs = ([each[key] for key in keys] for each in (found, wanted))
    absolute, relative = case.close
    np.testing.assert_allclose(ours, theirs, rtol=relative, atol=absolute, err_msg=peer)


def bench(name: str, peers: list[str], repeat: int, work: Path) -> dict[str, list[Ran]]:
    """Run each program in turn."""
    data = make(name, work / name)
    runs: dict[str, list[Ran]] = {peer: [] for peer in peers}
    wanted: dict[Any, float] | None = None
    for index in range(repeat):
        for peer, ran in runs.items():
            one, found = measure(name, peer, data, work)
            wanted = wanted or found
            check(CASES[name], wanted, found, peer)
            ran.append(one)
            say(f"{name} {index + 1}/{repeat} {peer}: {one}")
    return runs


def tell(name: str, runs: dict[str, list[Ran]]) -> None:
    """Print a case's table, and Nightjar's speed as a multiple within a repeat."""
    rows = CASES[name].rows
    lines: dict[str, tuple[str, Callable[[Ran], float]]] = {
        "rows/s": ("{:.0f}", lambda run: rows / run.steady_s),
        "first preprocess to last file, s": ("{:.1f}", lambda run: run.steady_s),
        "of it before the model's first call, s": ("{:.1f}", lambda run: run.loaded_s),
        "the model's first call to its last, s": ("{:.1f}", lambda run: run.span_s),
        "of it the model is busy": ("{:.0%}", lambda run: run.busy_s / run.span_s),
        "of it the model waits, s": ("{:.1f}", lambda run: run.span_s - run.busy_s),
        "a call of the model on average, ms": ("{:.0f}", lambda run: 1e3 * run.busy_s / (rows / CASES[name].batch)),
        "in the preprocess, s of all workers": ("{:.1f}", lambda run: run.prepare_s),
        "first preprocess to its last, s": ("{:.1f}", lambda run: run.prepare_span_s),
        "total, s": ("{:.1f}", lambda run: run.total_s),
        "load average before": ("{:.1f}", lambda run: run.load),
    }
    body = [
        [line, *(spread([value(run) for run in runs[peer]], form) for peer in runs)]
        for line, (form, value) in lines.items()
    ]
    print(f"\n## {name}: {rows:,} rows in {CASES[name].files:,} files\n")
    print(table(["median (min–max)", *runs], body) + "\n")
    for other in runs.keys() - {STAGED} if STAGED in runs else ():
        ratios = [theirs.steady_s / ours.steady_s for ours, theirs in zip(runs[STAGED], runs[other], strict=True)]
        print(f"- staged, as a multiple of the speed of {other}: {spread(ratios, '{:.2f}')}")
    print(flush=True)


def accelerator() -> str:
    """The GPU's name, if there is one."""
    import torch

    return f", {torch.cuda.get_device_name(0)}" if torch.cuda.is_available() else ""


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, nargs="+", default=[WAITS, IMAGES])
    parser.add_argument("--repeat", type=int, default=3, help="of images; waits are the same each time, and run once")
    parser.add_argument("--peers", default=",".join(LETTERS), help=f"which, in order: {LETTERS}")
    parser.add_argument("--work", type=Path, default=HERE / "results" / "work", help="data and scratch, kept")
    asked = parser.parse_args()
    adopt_orphans()
    for name in asked.case:
        tell(
            name,
            bench(
                name,
                [LETTERS[letter] for letter in asked.peers.split(",")],
                1 if name == WAITS else asked.repeat,
                asked.work.absolute(),
            ),
        )
    names = ("nightjar-batch", "ray", "torch", "pillow", "pyarrow")
    print(f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores of {processor()}{accelerator()}")
    print(", ".join(f"{name} {installed(name)}" for name in names))


if __name__ == "__main__":
    main()
