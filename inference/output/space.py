"""Free space on the disk of a local output: checked before a run, and while it goes on.

Object stores do not become full. On a full disk the ledger could not be written, so a run stops while some space is
left.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.arrow_types import value_bytes
from nightjar.inference.errors import JobError, RunFailed
from nightjar.inference.input.discovery import Discovery
from nightjar.inference.job.model import Job
from nightjar.inference.storage.protocol import is_local

LOOK_S = 5.0
"""Seconds between two looks."""

_RESERVE = 256 << 20
_SHARE = 0.02


def check_space(job: Job, output: str, discovery: Discovery, left: int) -> None:
    """Refuse a run if there is certainly too little space for the parts of `left` rows.

    Raises:
        JobError: The disk has less than half of the least space that the outputs and carried columns need.
    """
    if not is_local(output):
        return
    disk = shutil.disk_usage(_existing(output))
    needed = left * _bytes_per_row(job, discovery)
    if disk.free < needed / 2 + _reserve(disk.total):
        raise JobError(
            f"output.uri: the disk of {output} has {_gib(disk.free)} free, and this run will write about "
            f"{_gib(needed)}. Free some space, or choose another output.uri"
        )


def check_room(output: str) -> None:
    """Check that a run may go on.

    Raises:
        RunFailed: The disk is almost full.
    """
    if not is_local(output):
        return
    disk = shutil.disk_usage(_existing(output))
    if disk.free < _reserve(disk.total):
        raise RunFailed(
            f"output.uri: the disk of {output} is all but full ({_gib(disk.free)} left), so the run stopped before it "
            "was. Free some and repeat the command: what is scored is kept"
        )


def _reserve(total: int) -> int:
    return min(_RESERVE, int(total * _SHARE))


def _bytes_per_row(job: Job, discovery: Discovery) -> float:
    """The least bytes per row of a part before compression; text and lists may be almost empty.

    For carried columns, the smaller of their types' size and their share of the input's size, which may be compressed
    well.
    """
    names = job.carried(discovery.schema.names)
    carried = sum(_at_least(discovery.schema.field(name).type) for name in names)
    readable = discovery.files.filter(pc.is_null(discovery.files["error"]))
    stored = (pc.sum(readable["size"]).as_py() or 0) / max(1, discovery.rows)
    if discovery.uncounted:
        stored = 0.0  # the number of rows behind these bytes is not known
    share = stored * len(names) / max(1, len(discovery.schema))
    return min(carried, share) + sum(map(_at_least, job.output_types().values()))


def _at_least(kind: pa.DataType) -> float:
    return value_bytes(kind, text=0, items=0)


def _existing(output: str) -> Path:
    """The folder, or the nearest folder above it that exists."""
    path = Path(output)
    while not path.exists():
        path = path.parent
    return path


def _gib(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:,.1f} MiB"
