"""A worker that was cut off finishes its write after the publication: a second part of the same shard."""

import shutil
from pathlib import Path

(part,) = Path("out/runs/2026-11-19/r1/data").iterdir()
shutil.copy(part, part.with_name(part.stem[:-8] + "0badcafe.parquet"))
