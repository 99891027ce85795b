"""Print what the model sees on each of the published photos, and how sure it is."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from nightjar.flows import files

JOB = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "job.yaml")

KINDS = {
    281: "tabby cat",
    282: "tiger cat",
    285: "Egyptian cat",
    450: "bobsled",
    504: "coffee mug",
    657: "missile",
    665: "moped",
    670: "motor scooter",
    744: "projectile",
    812: "space shuttle",
    967: "espresso",
    968: "cup",
    971: "bubble",
}
"""Some of ImageNet's kinds, by their places in the model's output."""


def main() -> None:
    """Print a line for each photo."""
    table = files(JOB).dataset().to_table(columns=["path", "logits"])
    for path, logits in sorted(zip(table["path"].to_pylist(), table["logits"].to_pylist(), strict=True)):
        chances = np.exp(np.array(logits) - max(logits))
        chances /= chances.sum()
        best = int(chances.argmax())
        print(f"{Path(path).name:25} {chances[best]:4.0%} {KINDS.get(best, f'kind {best}')}")


if __name__ == "__main__":
    main()
