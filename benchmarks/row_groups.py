"""Measure what it costs one process to read a large row group in parts, as it does for shards of a part each.

The file is the benchmark's: 20 float32 features, a string id, a timestamp and a label, in one row group, and it lies in
the page cache.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from data import Parameters, write_file

from nightjar.inference.input.sources.reading import describe, read_piece
from nightjar.inference.job.file import parse_job
from nightjar.inference.records import Piece
from nightjar.inference.storage.lake import LakeStorage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_048_576, help="what pyarrow writes into a row group by default")
    parser.add_argument("--parts", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--repeat", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "one.parquet")
        write_file(path, Parameters(asked.rows, files=1, row_group_rows=asked.rows), 0)
        content = {"name": "t", "input": {"uri": folder}, "output": {"uri": "out"}}
        job = parse_job({**content, "model": {"uses": "m:f", "outputs": {"y": "float32"}}}, Path(folder, "job.yaml"))
        storage = LakeStorage()
        schema = describe(storage, job, storage.stat(str(path))).schema
        took: dict[int, list[float]] = {parts: [] for parts in asked.parts}
        for index in range(asked.repeat):
            for parts, times in took.items():
                # Another name each time, because a process keeps the row group that it read last.
                again = path.with_name(f"{index}-{parts}.parquet")
                again.hardlink_to(path)
                entry = storage.stat(str(again))
                began = time.process_time()
                for low, high in pairwise(asked.rows * edge // parts for edge in range(parts + 1)):
                    piece = Piece(entry.uri, entry.size, entry.version, low, high - low, (0, 1))
                    read_piece(storage, job, piece, schema)
                times.append(time.process_time() - began)
        whole = statistics.median(took[asked.parts[0]])
        for parts, times in took.items():
            middle, spread = statistics.median(times), f"{min(times):.2f}–{max(times):.2f}"
            print(f"{parts:3} parts: {middle:.2f} s of CPU ({spread}), {middle / whole:.1f} times")


if __name__ == "__main__":
    main()
