"""What all peers share: the command line, the note of when the model was ready, and the line of results.

Needs only the standard library and psutil, because some peers run in an environment of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

# The processes that a peer starts find this module, and run this Python.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
os.environ["PYSPARK_PYTHON"] = sys.executable


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line. data: the folder `data.py` filled; `spec` is its data.json. out: does not exist yet."""

    data: Path
    out: Path
    actors: int
    batch_size: int
    spec: dict[str, Any]

    @property
    def model(self) -> str:
        """The exported program."""
        return str(self.data / self.spec["model"])

    @property
    def columns(self) -> list[str]:
        """The input columns that a peer reads: carried columns, then features."""
        return [*self.spec["carry"], *self.spec["features"]]

    @property
    def ready(self) -> Path:
        """The folder where processes say that their model is loaded."""
        return self.out.with_name(self.out.name + ".ready")


def asked(about: str | None, home: bool = False) -> tuple[Asked, argparse.Namespace]:
    """Parse the command line. home: whether the option --home exists."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--actors", type=int, default=2, help="processes or actors")
    parser.add_argument("--batch-size", type=int, default=16384)
    if home:
        parser.add_argument("--home", type=Path, help="PREFECT_HOME, kept; default: prefect, two above OUT")
    given = parser.parse_args()
    data, out = given.data.absolute(), given.out.absolute()
    found = Asked(data, out, given.actors, given.batch_size, json.loads((data / "data.json").read_text()))
    found.ready.mkdir(parents=True)
    return found, given


def is_ready(folder: Path) -> None:
    """Note the time. A process calls this when it has loaded the model, because its parent cannot see that moment."""
    Path(folder, uuid.uuid4().hex).write_text(repr(time.time()))


def ready_times(folder: Path) -> list[float]:
    """When each process was ready, in seconds since the epoch, the first one first."""
    return sorted(float(file.read_text()) for file in folder.iterdir())


def tell(peer: str, job: Asked, ready_at: float, ended_at: float, **more: Any) -> None:
    """Print the line of results. ready_at, ended_at: when the first model was loaded and the last file was written, in
    seconds since the epoch."""
    began = psutil.Process().create_time()
    line = {
        "peer": peer,
        "total_s": time.time() - began,
        "startup_s": ready_at - began,
        "steady_s": ended_at - ready_at,
        "rows": job.spec["parameters"]["rows"],
        "parts": len(list(job.out.rglob("*.parquet"))),
        "data": str(job.out),
    }
    print(json.dumps(line | more))
