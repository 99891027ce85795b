"""The room on a local output's disk, on a real small file system."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightjar.inference.errors import RunFailed
from nightjar.inference.output.owner import check_room

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")

MIB = 1 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "small", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_is_all_but_full_stops_the_run(small: Path) -> None:
    check_room(str(small))
    (small / "filler").write_bytes(bytes(8 * MIB - 100_000))
    with pytest.raises(RunFailed, match=r"all but full \(0\.1 MiB left\).*repeat the command"):
        check_room(str(small / "out" / "runs"))


def test_object_stores_have_no_end() -> None:
    check_room("s3://bucket/out")
