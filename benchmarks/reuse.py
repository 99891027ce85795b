"""What `reuse` saves, and what it costs. Each case runs whole nights by `nightjar run`, one after the other.

    python benchmarks/reuse.py changed --rows 1_000_000 --cost-us 1000 --actors 8
    python benchmarks/reuse.py same --rows 32_000_000
    python benchmarks/reuse.py new --rows 4_000_000 --cost-us 1

changed: between two nights 1 % of the rows of every file change, 0.5 % go and 0.5 % are new. The second night is
compared with a night that scores all of its rows, in time and in every value.

same: nothing changes between two nights, with `reuse: shards`; the second one is compared with a night that has nothing
to do, the same command once more.

new: every row of the second night is new to it; a night with `reuse: rows` is compared with one without, in turn.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import yaml
from data import FEATURES
from nightjar_job import nightjar
from report import table
from run import HERE, generate, say

MONDAY, TUESDAY = "2026-11-23", "2026-11-24"
PLACE = HERE / "results" / "work" / "reuse"

MODEL = '''
import time
import numpy as np

COST_S, SLEEPS = {cost_s!r}, {sleeps!r}
WORK = np.linspace(0, 1, 8192)

def score(batch):
    """The sum of the features. A row costs COST_S of a processor's time, or of sleep."""
    rows = len(batch["f00"])
    if SLEEPS:
        time.sleep(COST_S * rows)
    else:
        until = time.thread_time() + COST_S * rows
        while time.thread_time() < until:
            np.tanh(WORK)
    return {{"score": sum(batch.values())}}
'''


def write_job(name: str, data: Path, given: argparse.Namespace, *, sleeps: bool = False, **more: Any) -> Path:
    """A job folder with its model. more: keys beside those of every case."""
    folder = PLACE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(MODEL.format(cost_s=given.cost_us / 1e6, sleeps=sleeps))
    job = {
        "name": name,
        "input": {"uri": f"{data}/"},
        "model": {
            "uses": "model:score",
            "features": FEATURES,
            "outputs": {"score": "float32"},
            "batch_size": given.batch_size,
        },
        "carry": ["id", "ts"],
        "output": {"uri": f"{folder / 'out'}/"},
        "resources": {"actors": given.actors, "cpus": 1 if given.actors <= 2 else 2 / given.actors},
        "checks": [{"column": "score", "nulls": 0, "finite": True}],
        **more,
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job, sort_keys=False))
    return path


def night(job: Path, date: str, given: argparse.Namespace) -> dict[str, Any]:
    """Run one night; returns the closing object of `--json`."""
    home = PLACE / "prefect"
    home.mkdir(parents=True, exist_ok=True)
    done = nightjar(job, home, "--date", date, "--engine", given.engine)
    say(f"{job.parent.name} {date}: {done['account']['wall_s']:.1f} s, scoring {steady(done):.1f} s")
    return done


def steady(done: dict[str, Any]) -> float:
    """Seconds from the first shard's start to the last one's end; 0 if none was scored."""
    return float((done["engine"] or {}).get("steady_s", 0.0))


def wall(done: dict[str, Any]) -> float:
    """Seconds of the whole command."""
    return float(done["account"]["wall_s"])


def rows_of(done: dict[str, Any]) -> int:
    """Rows that were taken from an earlier night."""
    return sum(int(each["rows"]) for each in done["reused"])


def times(lines: list[tuple[str, dict[str, Any]]]) -> str:
    """A table of nights."""
    heads = ["", "whole command (s)", "scoring (s)"]
    return table(heads, [[name, f"{wall(done):.1f}", f"{steady(done):.1f}"] for name, done in lines])


def results(job: Path, date: str) -> pa.Table:
    """The published rows in the order of their ids, without the lineage columns."""
    parts = ds.dataset(job.parent / "out" / "runs" / date / "r1" / "data", format="parquet")
    return parts.to_table(columns=["id", "ts", "score"]).sort_by("id").combine_chunks()


def changed_lake(data: Path, folder: Path) -> tuple[int, int, int]:
    """Copy the rows with 1 % of them changed, 0.5 % of them gone, and 0.5 % more. Returns these numbers of rows."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rng, counts = np.random.default_rng(1), np.zeros(3, np.int64)
    for path in sorted(data.glob("*.parquet")):
        rows = pq.read_table(path)
        size = len(rows)
        order = rng.permutation(size)
        edited, dropped = order[: size // 100], order[size // 100 :][: size // 200]
        values = rows["f00"].to_numpy().copy()
        values[edited] += 1
        rows = rows.set_column(rows.schema.get_field_index("f00"), "f00", pa.array(values))
        new = rows.slice(0, size // 200)
        new = new.set_column(0, "id", pc.binary_join_element_wise("n", new["id"], ""))
        new = new.set_column(
            new.schema.get_field_index("f01"), "f01", pa.array(rng.standard_normal(len(new), dtype=np.float32) + 9)
        )
        kept = rows.filter(pa.array(~np.isin(np.arange(size), dropped)))
        pq.write_table(pa.concat_tables([kept, new]), folder / path.name, compression="zstd")
        counts += len(edited), len(dropped), len(new)
    change, gone, new = (int(each) for each in counts)
    return change, gone, new


def changed(given: argparse.Namespace) -> None:
    """The case `changed`."""
    data = generate(PLACE.parent / f"data-{given.rows}-{given.files}", given.rows, given.files) / "rows"
    lake = PLACE / "lake"
    shutil.rmtree(lake, ignore_errors=True)
    shutil.copytree(data, lake)
    job = write_job("changed", lake, given, sleeps=True, reuse="rows")
    full = night(job, MONDAY, given)
    change, gone, new = changed_lake(data, lake)
    done = night(job, TUESDAY, given)
    anew = write_job("changed-anew", lake, given, sleeps=True)
    rescored = night(anew, TUESDAY, given)
    scored = done["rows_in"] - rows_of(done)
    equal = results(job, TUESDAY).equals(results(anew, TUESDAY))
    print(
        f"{given.rows:,} rows of {given.cost_us:g} µs; {change:,} changed, {gone:,} gone, {new:,} new; {given.engine}"
    )
    print(f"scored {scored:,} rows; every value equals that of a full rescore: {equal}")
    lines = [("first night", full), ("second night", done), ("full rescore of it", rescored)]
    print(times(lines))
    print(
        f"second night/full rescore: scoring {steady(done) / steady(rescored):.3f}, command "
        f"{wall(done) / wall(rescored):.3f}"
    )
    if not equal or not change <= scored <= change + new:
        raise SystemExit("rows were scored that did not change, or values differ")


def same(given: argparse.Namespace) -> None:
    """The case `same`."""
    data = generate(PLACE.parent / f"data-{given.rows}-{given.files}", given.rows, given.files) / "rows"
    job = write_job("same", data, given, reuse="shards")
    lines = [
        ("first night", night(job, MONDAY, given)),
        ("second night", done := night(job, TUESDAY, given)),
        ("second night again", nothing := night(job, TUESDAY, given)),
    ]
    print(f"{given.rows:,} unchanged rows, {done['shards']} shards; reused {rows_of(done):,} rows; {given.engine}")
    print(times(lines))
    print(f"second night/night with nothing to do: {wall(done) / wall(nothing):.2f}")


def new(given: argparse.Namespace) -> None:
    """The case `new`."""
    data = generate(PLACE.parent / f"data-{given.rows}-{given.files}", given.rows, given.files) / "rows"
    lines, ratios = [], []
    for repeat in range(given.repeat):
        runs = {}
        for reuse in ((None, "rows"), ("rows", None))[repeat % 2]:
            lake = PLACE / "lake"
            shutil.rmtree(lake, ignore_errors=True)
            lake.mkdir(parents=True)
            few = pq.read_table(next(data.glob("*.parquet"))).slice(0, 1000)
            pq.write_table(few.set_column(2, "f00", pa.array(np.full(1000, 7, np.float32))), lake / "few.parquet")
            job = write_job("new", lake, given, reuse=reuse)
            night(job, MONDAY, given)
            shutil.rmtree(lake)
            shutil.copytree(data, lake)
            runs[reuse] = night(job, TUESDAY, given)
            assert not rows_of(runs[reuse])
        without, with_keys = ((steady(each), steady(each) + audited(each)) for each in (runs[None], runs["rows"]))
        ratios.append([one / other for one, other in zip(with_keys, without, strict=True)])
        lines.append([str(repeat + 1), *(f"{each:.2f}" for each in (*without, *with_keys, *ratios[-1]))])
    print(f"{given.rows:,} rows of {given.cost_us:g} µs, all of them new; {given.engine}")
    heads = [f"{part}{name}" for name in ("without", "with", "ratio") for part in ("scoring, ", "and audit, ")]
    print(table(["repeat", *heads], lines))
    print("median of the ratios: " + ", ".join(f"{median(each):.3f}" for each in zip(*ratios, strict=True)))


def audited(done: dict[str, Any]) -> float:
    """Seconds of what follows the scoring before the publication."""
    parts = done["account"]["parts"]
    return sum(float(parts.get(each, 0.0)) for each in ("audit", "gates", "manifest"))


CASES: dict[str, Callable[[argparse.Namespace], None]] = {"changed": changed, "same": same, "new": new}


def main() -> None:
    """Run a case, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--cost-us", type=float, default=1.0, help="microseconds of the model for a row")
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--engine", choices=["ray", "local"], default="ray")
    parser.add_argument("--repeat", type=int, default=3, help="of the case `new`")
    given = parser.parse_args()
    CASES[given.case](given)


if __name__ == "__main__":
    main()
