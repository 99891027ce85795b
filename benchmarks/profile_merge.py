"""What the profiles of a large night weigh, and what it takes to merge them: memory and time, without Ray.

    python benchmarks/profile_merge.py --columns 200 --shards 100_000

The columns are what a wide table has: of each ten, six are float32, two float64, one is an id and one has few values.
The parts' profiles are a few real ones, again and again: merging them takes as long as merging as many different ones.
They are merged as the audit does it: first those of a block of shards, which is a task of the engine, and then those of
the blocks, in the process of the run. Of the blocks, which all take the same, only some are made; their time is
multiplied.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
import pyarrow as pa

from nightjar.inference.engine.auditing import AUDIT_BLOCKS, AUDIT_SHARDS
from nightjar.inference.metrics.profile import Profile
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.validation.audit import Audited

ROWS = 100_000
"""The rows of a part whose profile is made. More rows fill more bins, up to a bound."""

DIFFERENT = 8
"""The parts that are made."""

SOME_BLOCKS = 8
"""The blocks that are merged."""


def part(columns: int, seed: int) -> pa.Table:
    """The rows of a part."""
    random, found = np.random.default_rng(seed), {}
    for at in range(columns):
        kind = at % 10
        if kind < 6:
            found[f"c{at}"] = pa.array(random.normal(at, 3, ROWS).astype(np.float32))
        elif kind < 8:
            found[f"c{at}"] = pa.array(random.lognormal(3, 1, ROWS))
        elif kind == 8:
            found[f"c{at}"] = pa.array([f"{at}-{each}" for each in random.integers(0, 10**9, ROWS).tolist()])
        else:
            found[f"c{at}"] = pa.array(random.choice(["AA", "B6", "DL", "UA", "WN"], ROWS))
    return pa.table(found)


def described(table: pa.Table) -> bytes:
    """A part's profile, as its worker writes it."""
    found = Profile.empty(table.column_names)
    found.update(table)
    return found.to_bytes()


def block(parts: list[bytes], first: int) -> bytes:
    """The profile of a block of shards, as a task of the audit makes it."""
    whole = Profile.from_bytes(parts[first % len(parts)])
    for at in range(first + 1, first + AUDIT_SHARDS):
        whole.merge(Profile.from_bytes(parts[at % len(parts)]))
    return whole.to_bytes()


def peak() -> float:
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--columns", type=int, default=200)
    parser.add_argument("--shards", type=int, default=100_000)
    given = parser.parse_args()
    parts = [described(part(given.columns, seed)) for seed in range(DIFFERENT)]
    size = sum(map(len, parts)) / len(parts)
    print(f"the profile of a part, {given.columns} columns, {ROWS:,} rows: {size / 1000:,.0f} KB")
    print(f"of all {given.shards:,} parts: {size * given.shards / 1e9:,.1f} GB")
    began = time.process_time()
    blocks = [block(parts, at * AUDIT_SHARDS) for at in range(SOME_BLOCKS)]
    each = (time.process_time() - began) / SOME_BLOCKS
    number = max(min(given.shards, AUDIT_BLOCKS), -(-given.shards // AUDIT_SHARDS))
    print(f"a block of {AUDIT_SHARDS} shards: {each:.2f} s of CPU; {number:,} blocks: {each * number:,.0f} s")
    before, began, whole = peak(), time.process_time(), Audited()
    for at in range(number):
        whole.merge(Audited(metrics=Metrics(profile=Profile.from_bytes(blocks[at % len(blocks)]))))
    assert whole.metrics.profile is not None
    night, took = whole.metrics.profile.to_bytes(), time.process_time() - began
    print(f"the blocks in the run's process: {took:,.1f} s of CPU, {peak() - before:,.0f} MB more memory at most")
    print(f"the profile of the night: {len(night) / 1000:,.0f} KB; the process had {peak():,.0f} MB at most")


if __name__ == "__main__":
    main()
