"""The owner of an output, and whether it can be written.

`job.json` names the job. It is created only if absent, and never rewritten.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nightjar.inference.errors import AlreadyExists, Denied, JobError, Missing, RunFailed, StorageError
from nightjar.inference.jsonform import of_bytes, to_bytes
from nightjar.inference.ledger.endings import utc
from nightjar.inference.storage.protocol import Storage, is_local, join


@dataclass(frozen=True, slots=True)
class Owner:
    """What `job.json` says: the job's name, and since when."""

    job: str
    since: str = ""


def claim_output(storage: Storage, output: str, name: str) -> None:
    """Claim the output for this job, or find that it belongs to this job already.

    Raises:
        JobError: it belongs to another job, or nothing can be written there; names `output.uri`.
    """
    try:
        with naming_output(output):
            storage.create(_uri(output), to_bytes(Owner(name, utc())))
    except AlreadyExists:
        check_owner(storage, output, name)


def check_owner(storage: Storage, output: str, name: str) -> str | None:
    """Check that the output is free or belongs to this job; changes nothing.

    Returns:
        The job to which it belongs, None if it is free.

    Raises:
        JobError: it belongs to another job.
    """
    uri = _uri(output)
    try:
        owner = of_bytes(Owner, storage.read(uri)).job
    except Missing:
        return None
    except (ValueError, TypeError, LookupError, AttributeError):
        raise JobError(f"output.uri: {uri} was not written by Nightjar; give {name!r} a place of its own") from None
    if owner != name:
        raise JobError(f"output.uri: {output} belongs to the job {owner!r}; give {name!r} a place of its own")
    return owner


@contextmanager
def naming_output(output: str) -> Iterator[None]:
    """For the first writes into an output.

    Raises:
        JobError: the storage takes nothing there: it refuses, is read-only, or there is no such bucket or folder and
            none can be made. Any other error of the storage says nothing about the job, and stays as it is.
    """
    try:
        yield
    except Missing as error:
        raise JobError(
            f"output.uri: {output} is not there and cannot be made ({error}); choose another place"
        ) from error
    except StorageError as error:
        cause = error.__cause__
        if isinstance(error, Denied) or (isinstance(cause, OSError) and cause.errno == errno.EROFS):
            raise JobError(f"output.uri: nothing can be written to {output}: {error}") from error
        raise


_RESERVE, _RESERVED_SHARE = 256 << 20, 0.02
"""The free space at which a run stops, in bytes or as a share of the disk: on a full disk no ledger can be written."""


def check_room(output: str) -> None:
    """Check that a run may go on. Object stores do not become full.

    Raises:
        RunFailed: The disk is almost full.
    """
    if not is_local(output):
        return
    disk = shutil.disk_usage(_existing(output))
    if disk.free < min(_RESERVE, disk.total * _RESERVED_SHARE):
        raise RunFailed(
            f"output.uri: the disk of {output} is all but full ({disk.free / 2**20:,.1f} MiB left), so the run stopped "
            "before it was. Free some and repeat the command: what is scored is kept"
        )


def _existing(output: str) -> Path:
    """The folder, or the nearest folder above it that exists."""
    folder = Path(output)
    while not os.path.exists(folder):  # noqa: PTH110 (`Path.exists` raises where it may not look into a folder)
        folder = folder.parent
    return folder


def _uri(output: str) -> str:
    return join(output, "job.json")
