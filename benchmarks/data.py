"""The input every peer scores: seeded rows in zstd Parquet files, and an exported torch program.

`data.json` is written last. It marks the folder as complete, and tells the peers its columns. A folder with the same
parameters is used as it is; with other parameters it is made again.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

MARKER = "data.json"
FORMAT = 1
"""Increase this number when a change of this module changes the bytes for the same parameters."""

FEATURES = [f"f{index:02}" for index in range(20)]
EPOCH_US, STEP_US = 1_700_000_000_000_000, 1_000_000
"""Row n has the id n and the time EPOCH_US + n × STEP_US, so that outputs can be checked row by row."""

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("ts", pa.timestamp("us", tz="UTC")),
        *((name, pa.float32()) for name in FEATURES),
        ("late", pa.float32()),
    ]
)


@dataclass(frozen=True, slots=True)
class Parameters:
    """What decides the bytes: the number of rows and of files, the rows per row group, and the seed."""

    rows: int
    files: int = 64
    row_group_rows: int = 500_000
    seed: int = 7
    format: int = FORMAT


class Mlp(torch.nn.Module):
    """20 → 64 → 64 → 1, a sigmoid at the end: float32 [batch, 20] to float32 [batch]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(len(FEATURES), 64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, 64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, 1),
            torch.nn.Sigmoid(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One score per row."""
        scores: torch.Tensor = self.layers(x)
        return scores.squeeze(-1)


def write_model(path: Path, seed: int) -> None:
    """Export an untrained program with seeded weights; it takes as much time as a trained one."""
    torch.manual_seed(seed)
    program = torch.export.export(
        Mlp().eval(),
        # Two rows or more: an example of one row would fix the batch at 1.
        (torch.zeros(8, len(FEATURES)),),
        dynamic_shapes={"x": {0: torch.export.Dim("batch")}},
    )
    torch.export.save(program, path)


def row_group(rng: np.random.Generator, first: int, rows: int) -> pa.Table:
    """Rows [first, first + rows): the label follows the first features."""
    numbers = np.arange(first, first + rows, dtype=np.int64)
    features = [rng.standard_normal(rows, dtype=np.float32) for _ in FEATURES]
    chance = 1 / (1 + np.exp(-(features[0] + features[1] - features[2])))
    return pa.table(
        [
            pc.utf8_lpad(pc.cast(pa.array(numbers), pa.string()), 12, "0"),
            pa.array(EPOCH_US + numbers * STEP_US).cast(SCHEMA.field("ts").type),
            *(pa.array(column) for column in features),
            pa.array((rng.random(rows, dtype=np.float32) < chance).astype(np.float32)),
        ],
        schema=SCHEMA,
    )


def write_file(path: Path, parameters: Parameters, index: int) -> None:
    """File `index` of the data, one row group in memory at a time."""
    first = parameters.rows * index // parameters.files
    end = parameters.rows * (index + 1) // parameters.files
    rng = np.random.default_rng([parameters.seed, index])
    with pq.ParquetWriter(path, SCHEMA, compression="zstd", use_dictionary=False) as writer:
        for start in range(first, end, parameters.row_group_rows):
            rows = min(parameters.row_group_rows, end - start)
            writer.write_table(row_group(rng, start, rows), row_group_size=rows)


def generate(folder: Path, parameters: Parameters) -> dict[str, Any]:
    """Write the data into `folder` unless it is there already, and return the content of `data.json`."""
    marker = folder / MARKER
    if marker.exists():
        found: dict[str, Any] = json.loads(marker.read_text())
        if found["parameters"] == asdict(parameters):
            return found
    marker.unlink(missing_ok=True)
    shutil.rmtree(folder / "rows", ignore_errors=True)
    (folder / "rows").mkdir(parents=True)
    for index in range(parameters.files):
        write_file(folder / "rows" / f"{index:05}.parquet", parameters, index)
    write_model(folder / "model.pt2", parameters.seed)
    content = {
        "parameters": asdict(parameters),
        "files": [f"rows/{index:05}.parquet" for index in range(parameters.files)],
        "model": "model.pt2",
        "features": FEATURES,
        "carry": ["id", "ts"],
        "label": "late",
        "epoch_us": EPOCH_US,
        "step_us": STEP_US,
    }
    marker.write_text(json.dumps(content, indent=1))
    return content


def main() -> None:
    """Generate, and print the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder to fill")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--row-group-rows", type=int, default=500_000)
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    generate(
        arguments.data,
        Parameters(arguments.rows, arguments.files, arguments.row_group_rows, arguments.seed),
    )
    print(arguments.data)


if __name__ == "__main__":
    main()
