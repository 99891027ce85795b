"""How often a check on drift cries wolf, and what it catches: the flights example, judged by the job's own gates.

    python benchmarks/drift_alarms.py --repeat 200

A false alarm is one of two nights that differ by chance alone: the flights of January and February are shuffled, some
are one night, and others are the other night. Every column that enters, is carried or leaves is compared. The changes
are those of a night that went wrong: what is scored is changed, and everything else is as it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
import yaml
from report import table

from nightjar.inference.job.file import parse_job
from nightjar.inference.metrics.figures import Figures
from nightjar.inference.metrics.profile import Profile
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.validation.gates import Baseline, Evidence, Found, NightEvidence, evaluate
from nightjar.inference.validation.gates.rules import gates_of

FLIGHTS = Path(__file__).resolve().parent.parent / "examples" / "flights"
WINTER, SUMMER = (1, 2), (6, 7)
SIZES = (500, 5_000, 25_000)

CHECKS: Mapping[str, Mapping[str, Any]] = {
    "all, as it is by default": {"drift": "all", "against": "last"},
    "all, with tight limits": {"drift": "all", "against": "last", "psi": 0.01, "nulls": 0.001},
    "rows, by 0.3": {"rows": {"against": "last", "change": 0.3}},
}


def flights(months: tuple[int, ...]) -> pa.Table:
    """The flights of some months."""
    files = [FLIGHTS / "data" / f"flights-2013-{month:02}.parquet" for month in months]
    return pa.concat_tables([pq.read_table(file) for file in files])


class Nights:
    """Nights of the job, without its engine: what a night's gates are shown, from the rows that it scores."""

    def __init__(self) -> None:
        described = {
            "name": "flights",
            "input": {"uri": "data/"},
            "model": {"uses": "torch", "path": "models/delay.pt2", "trusted": True, "outputs": {"score": "float32"}},
            "output": {"uri": "out/"},
            "checks": list(CHECKS.values()),
        }
        self.gates = dict(
            zip(CHECKS, gates_of(parse_job(described, FLIGHTS / "job.yaml"))[-len(CHECKS) :], strict=True)
        )
        self._model = torch.export.load(FLIGHTS / "models" / "delay.pt2").module()
        self._features = yaml.safe_load((FLIGHTS / "job.yaml").read_text())["model"]["features"]

    def profile(self, rows: pa.Table) -> Profile:
        """The profile of a night that scores these rows."""
        batch = np.column_stack([rows[name].to_numpy().astype(np.float32) for name in self._features])
        with torch.no_grad():
            scores = self._model(torch.from_numpy(batch)).numpy()
        rows = rows.drop_columns(["late", "tailnum"]).append_column("score", pa.array(scores))
        profile = Profile.empty(rows.column_names)
        for name, column in profile.columns.items():
            column.update(rows[name])
        return profile

    def failed(self, before: Profile, now: Profile) -> dict[str, str]:
        """The checks that a night fails, with what each found."""
        last = NightEvidence(
            job="flights", run_id="last", date="2026-11-18", shards=1, rows_in=rows(before), metrics=Figures({})
        )
        evidence = Evidence(Found(2, rows(now), last=last), rows_in=rows(now), metrics=Metrics(profile=now))
        evidence = replace(evidence, baselines={"last": Baseline("last night", before)})
        results = evaluate(self.gates.values(), evidence)
        return {name: each.observed for name, each in zip(self.gates, results, strict=True) if not each.passed}


def rows(profile: Profile) -> int:
    """The rows of a night."""
    return next(iter(profile.columns.values())).rows


def put(rows: pa.Table, name: str, change: Callable[[Any], Any]) -> pa.Table:
    """Rows with a column changed."""
    place = rows.column_names.index(name)
    return rows.set_column(place, rows.schema.field(place), change(rows[name]).cast(rows.schema.field(place).type))


def changes(winter: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """What goes wrong in a night, and its rows."""
    yield "another season", flights(SUMMER)
    yield "a feature that is silently 0", put(winter, "departures", lambda column: pc.multiply(column, 0))
    yield "miles that became kilometres", put(winter, "distance", lambda column: pc.multiply(column, 1.609))
    yield "a carrier that was renamed", put(winter, "carrier", lambda column: pc.replace_substring(column, "DL", "D1"))
    yield "half of the rows", winter.slice(0, len(winter) // 2)


def main() -> None:
    """Count, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=200)
    given = parser.parse_args()
    nights, random, winter = Nights(), np.random.default_rng(2013), flights(WINTER)
    found = []
    for size in SIZES:
        alarms = dict.fromkeys(CHECKS, 0)
        for _ in range(given.repeat):
            mixed = random.permutation(len(winter))
            before, now = (nights.profile(winter.take(mixed[low : low + size])) for low in (0, size))
            for name in nights.failed(before, now):
                alarms[name] += 1
        print(f"{size:,} rows: {alarms}", file=sys.stderr)
        found.append([f"{size:,}", *(f"{count} of {given.repeat}" for count in alarms.values())])
    print("False alarms:\n")
    print(table(["rows of each night", *CHECKS], found))
    half = winter.take(random.permutation(len(winter)))
    before = nights.profile(half.slice(0, len(half) // 2))
    tonight = half.slice(len(half) // 2)
    caught = []
    for what, changed in changes(tonight):
        failed = nights.failed(before, nights.profile(changed))
        caught.append([what, *(failed.get(name, "passes") for name in CHECKS)])
    print("\nWhat is caught:\n")
    print(table(["what is wrong", *CHECKS], caught))


if __name__ == "__main__":
    main()
