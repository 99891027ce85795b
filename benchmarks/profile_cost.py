"""What it costs to know whether a night is good: the same night with and without a profile of all columns, on Ray, in
turn.

    python benchmarks/profile_cost.py --rows 16_000_000 --repeat 3 --everything

The night is that of `run.py`: its features, its carried columns and its score are described. Ratios are taken within a
repeat. Below 1 the night with a profile is the slower one.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from statistics import median
from typing import Any

import peer
from nightjar_job import CHECKS, nightjar, write_job
from report import table
from run import HERE, generate, say


def night(asked: peer.Asked, more: dict[str, Any]) -> dict[str, Any]:
    """Run the job once, from nothing; returns the closing object of `--json`. more: keys of the job."""
    job = asked.out.with_name("job") / "job.yaml"
    write_job(job, asked, **more)
    shutil.rmtree(asked.out, ignore_errors=True)
    home = asked.out.with_name("prefect")
    home.mkdir(exist_ok=True)
    return nightjar(job, home)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--share", type=float, help="of the rows that is described; default: Nightjar's own choice")
    parser.add_argument(
        "--everything",
        action="store_true",
        help="checks on drift, rows and the metric of the label, too, beside a night without a label and checks",
    )
    given = parser.parse_args()
    place = HERE / "results" / "work"
    data = generate(place / f"data-{given.rows}-16", given.rows, 16)
    spec = json.loads((data / "data.json").read_text())
    asked = peer.Asked(data, place / "profile-cost" / "out", 2, 16384, spec)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    keys: dict[bool, dict[str, Any]] = {
        False: {},
        True: {"profile": {"columns": "all", "share": given.share} if given.share else "all"},
    }
    if given.everything:
        keys[False] = {"label": None, "checks": []}
        keys[True]["checks"] = [
            *CHECKS,
            {"metric": "auroc", "min": 0},
            {"drift": "all", "against": "last"},
            {"rows": {"against": "last", "change": 0.3}},
        ]
    rows, speeds, totals = [], [], []
    for repeat in range(given.repeat):
        runs = {}
        # The order changes from repeat to repeat, as the first of two may find a colder cache.
        for profile in ((False, True), (True, False))[repeat % 2]:
            runs[profile] = night(asked, keys[profile])
            say(f"repeat {repeat + 1}, {'with' if profile else 'without'}: {runs[profile]['account']['wall_s']:.1f} s")
        steady = {profile: each["engine"]["steady_s"] for profile, each in runs.items()}
        total = {profile: each["account"]["wall_s"] for profile, each in runs.items()}
        speeds.append(steady[False] / steady[True])
        totals.append(total[False] / total[True])
        columns = len(runs[True]["metrics"]["profile"])
        rows.append(
            [str(repeat + 1), f"{steady[False]:.1f}", f"{steady[True]:.1f}", f"{speeds[-1]:.2f}", f"{totals[-1]:.2f}"]
        )
    print(table(["repeat", "steady, without (s)", "with (s)", "ratio", "ratio of the whole command"], rows))
    print(f"{columns} columns; median {median(speeds):.2f} in steady state, {median(totals):.2f} for the whole command")
    size = sum(file.stat().st_size for file in Path(asked.out).rglob("*.profile"))
    print(f"profiles of all parts: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
