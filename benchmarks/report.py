"""Make the benchmark's table: read `run.py`'s latest.json, write Markdown beside it and to stdout."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = dict[str, Any]
Value = Callable[[Run], float]

ROWS: list[tuple[str, str, Value]] = [
    ("steady, s", "{:.2f}", lambda run: run["steady_s"]),
    ("steady, million rows/s", "{:.2f}", lambda run: run["line"]["rows"] / run["steady_s"] / 1e6),
    ("steady and audit, s", "{:.2f}", lambda run: run["steady_audit_s"]),
    ("start-up, s", "{:.1f}", lambda run: run["startup_s"]),
    ("of it the engine's, s", "{:.1f}", lambda run: run["line"].get("engine_s", 0.0)),
    ("total, s", "{:.1f}", lambda run: run["total_s"]),
    ("CPU time, s", "{:.1f}", lambda run: run["cpu_s"]),
    ("peak memory, MB", "{:,.0f}", lambda run: run["peak_mb"]),
    ("parts written", "{:,.0f}", lambda run: run["line"]["parts"]),
    ("load average before", "{:.1f}", lambda run: run["load_before"]),
]
SPEEDS: list[tuple[str, Value]] = [
    ("steady", lambda run: 1 / run["steady_s"]),
    ("steady and audit", lambda run: 1 / run["steady_audit_s"]),
    ("total", lambda run: 1 / run["total_s"]),
]
PAIRS = [("c", peer) for peer in "abdef"]

NOTES = """
*Steady* is the time from the first loaded model to the last written file (what b, e and f read before that is not
included). *Start-up* is the time from the start of the process to the first loaded model; the engine's part of it
begins when Ray is up and the job is handed over. *Total* is the whole wall time of the process, imports included. Only
Nightjar audits, and only Nightjar computes metrics of the label and lineage columns. *Memory* is the peak sum of
{memory} over the process tree, sampled every {sample_s} s, or less often where sampling would take more than
{sample_share:.0%} of a core; CPU time is sampled, too. Every run was checked: each row is there once, with unchanged
carried columns and the same score. Reads come from the page cache.
"""


def spread(values: list[float], form: str) -> str:
    """Median (least–most)."""
    low, middle, high = (form.format(each) for each in (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low}–{high})"


def table(head: list[str], body: list[list[str]]) -> str:
    """Format a Markdown table with numbers aligned to the right."""
    rule = ["---"] + ["--:"] * (len(head) - 1)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *body])


def times(peers: dict[str, str], runs: list[Run]) -> str:
    """One column per peer."""
    mine = {peer: [run for run in runs if run["peer"] == peer] for peer in peers}
    body = [[name, *(spread([value(run) for run in mine[peer]], form) for peer in peers)] for name, form, value in ROWS]
    return table(["median (min–max)", *(f"{peer}: {name}" for peer, name in peers.items())], body)


def ratios(peers: dict[str, str], runs: list[Run]) -> str:
    """One column per pair, each repeat divided by the same repeat; empty without a pair."""
    pairs = [pair for pair in PAIRS if set(pair) <= peers.keys()]
    if not pairs:
        return ""

    def cell(over: str, under: str, value: Value) -> str:
        by = {(run["peer"], run["repeat"]): value(run) for run in runs}
        return spread([by[over, at] / by[under, at] for peer, at in by if peer == over], "{:.2f}")

    body = [[name, *(cell(*pair, value) for pair in pairs)] for name, value in SPEEDS]
    return "\n" + table(["speed, ratio within a repeat", *map("/".join, pairs)], body) + "\n"


def stages(runs: list[Run]) -> str:
    """The times of Nightjar's stages, as it reports them; empty if Nightjar did not run."""
    accounts = [run["line"]["details"]["account"] for run in runs if run["peer"] == "c"]
    if not accounts:
        return ""
    parts = dict.fromkeys(key for each in accounts for key in each["parts"])
    medians = {key: statistics.median(each["parts"].get(key, 0.0) for each in accounts) for key in parts}
    return "\nNightjar's stages, median s: " + ", ".join(f"{k} {v:.2f}" for k, v in medians.items()) + ".\n"


def markdown(content: dict[str, Any]) -> str:
    """The whole report."""
    peers, runs = content["peers"], content["runs"]
    repeats = 1 + max(run["repeat"] for run in runs)
    facts = "\n".join(f"- {key}: {value}" for key, value in content["facts"].items())
    return (
        f"# {content['rows']:,} rows, {repeats} × each\n\n{times(peers, runs)}\n"
        f"{ratios(peers, runs)}{NOTES.format(**content)}{stages(runs)}\n{facts}\n"
    )


def main() -> None:
    """Write the report beside its numbers, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", type=Path, help="results/latest.json")
    numbers: Path = parser.parse_args().numbers
    text = markdown(json.loads(numbers.read_text()))
    numbers.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
