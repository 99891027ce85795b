"""Compare the published scores with the folders' names: how many photos are of the kind that the model says."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from prepare import KINDS

from nightjar.flows import files

JOB = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "job.yaml")


def main() -> None:
    """Print the share of photos that the model gets right, of all and of each kind."""
    table = files(JOB).dataset().to_table(columns=["label", "scores"])
    labels = np.array(table["label"].to_pylist())
    scores = table["scores"].combine_chunks().flatten().to_numpy().reshape(len(labels), len(KINDS))
    right = np.array(KINDS)[scores.argmax(1)] == labels
    print(f"{right.mean():.2%} of {len(right):,} photos")
    for kind in KINDS:
        print(f"{right[labels == kind].mean():7.1%} {kind}")


if __name__ == "__main__":
    main()
