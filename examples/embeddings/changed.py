"""Embed glosses on three nights, change some between them, and print what each night cost.

`--rows` says how many glosses; `--compare` embeds all of the last night once more and compares the vectors.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nightjar.flows import files

HERE = Path(__file__).resolve().parent
JOB = HERE / "changed.yaml"
LAKE = HERE / "lake"
NIGHTS = ["2026-11-23", "2026-11-24", "2026-11-25"]


def night(date: str, *options: str) -> dict[str, Any]:
    """Run a night; returns the closing object of `--json`."""
    command = [str(Path(sys.executable).with_name("nightjar")), "run", str(JOB), "--date", date, "--json", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"the night {date} ended with {done.returncode}")
    lines = done.stdout.splitlines()
    begins = max(index for index, line in enumerate(lines) if line.startswith("{"))
    found: dict[str, Any] = json.loads("\n".join(lines[begins:]))
    return found


def changed(rows: pa.Table, more: pa.Table, rng: np.random.Generator) -> pa.Table:
    """The rows in another order, with 1 % of the glosses changed and 0.5 % of the rows gone, and `more`."""
    order = rng.permutation(len(rows))
    edited = set(order[: len(rows) // 100].tolist())
    gone = set(order[len(rows) // 100 :][: len(rows) // 200].tolist())
    glosses = [f"{text}; revised" if at in edited else text for at, text in enumerate(rows["gloss"].to_pylist())]
    rows = rows.set_column(rows.schema.get_field_index("gloss"), "gloss", pa.array(glosses))
    return pa.concat_tables([rows.take(pa.array([at for at in order.tolist() if at not in gone])), more])


def vectors() -> tuple[list[str], np.ndarray[Any, np.dtype[np.float32]]]:
    """The published ids of the last night, sorted, and the vector of each."""
    table = files(JOB, date=NIGHTS[-1]).dataset().to_table(columns=["id", "embedding"]).sort_by("id")
    flat = table["embedding"].combine_chunks().flatten().to_numpy()
    return table["id"].to_pylist(), np.asarray(flat, np.float32).reshape(len(table), -1)


def main() -> None:
    """Run three nights, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--compare", action="store_true")
    given = parser.parse_args()
    for old in (LAKE, HERE / "out-changed"):
        shutil.rmtree(old, ignore_errors=True)
    LAKE.mkdir(parents=True)

    rng = np.random.default_rng(1)
    glosses = pq.read_table(HERE / "data" / "glosses.parquet")
    glosses = glosses.take(rng.permutation(len(glosses)))
    new = given.rows // 200
    rows = glosses.slice(0, given.rows - new)
    print(f"{'night':12} {'glosses':>9} {'embedded':>9} {'reused':>9} {'seconds':>8}", flush=True)
    for date in NIGHTS:
        # The last night differs from the one before only in its order: nothing is embedded.
        if date == NIGHTS[1]:
            rows = changed(rows, glosses.slice(given.rows - new, new), rng)
        elif date == NIGHTS[2]:
            rows = rows.take(rng.permutation(len(rows)))
        pq.write_table(rows, LAKE / "glosses.parquet", row_group_size=500)
        done = night(date)
        reused = sum(each["rows"] for each in done["reused"])
        cost = done["account"]["wall_s"]
        print(f"{date:12} {done['rows_out']:9,} {done['rows_out'] - reused:9,} {reused:9,} {cost:8.1f}", flush=True)

    if given.compare:
        ids, before = vectors()
        print(f"all anew: {night(NIGHTS[-1], '--fresh')['account']['wall_s']:.1f} s")
        same, after = vectors()
        if ids != same or not np.allclose(before, after, atol=1e-5):
            raise SystemExit("the vectors differ")
        print(f"the largest difference of a number is {np.abs(before - after).max():.1g}")


if __name__ == "__main__":
    main()
