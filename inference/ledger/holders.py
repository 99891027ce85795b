"""Holders of epochs: a process as the ledger names it, and whether it is certainly dead."""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from nightjar.inference.jsonform import SELDOM
from nightjar.inference.ledger.endings import utc

RETIRE = "retire"
"""The task of a holder that only ends a revision, and leaves it for a new one."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of an epoch: enough to name it to people, and to check whether its process is alive."""

    task: str
    """The step of a run: score, validate or publish; or `retire`, `prune`, and `waits` of a run without a ledger."""

    flow_run: str
    """Prefect's id, or any id unique to the command; empty for `prune`."""

    host: str
    """Host name, boot and container, with slashes between; a process id is unique only within all three."""

    pid: int
    """The process id."""

    process_started: float
    """When the process started, in seconds since 1970."""

    nonce: str
    """A random text that is made with the holder; each segment that the holder writes has it."""

    at: str
    """When the holder was made, in UTC, as ISO 8601."""

    booted: float = 0.0
    """When the machine was booted, in seconds since 1970 by the clock at that moment; 0 if not known."""

    engine: str = field(default="", metadata=SELDOM)
    """Where the command scores, a name in `engine.ENGINES`; empty if the command does not score."""

    fresh: bool = field(default=False, metadata=SELDOM)
    """Whether the command was told to score everything again; only of `score`."""

    def __str__(self) -> str:
        run = f"flow run {self.flow_run}, " if self.flow_run else ""
        return f"{self.task} of {run}process {self.pid} on {self.host.split('/')[0]}, since {self.at}"


def this_holder(task: str, flow_run: str = "", engine: str = "", fresh: bool = False) -> Holder:
    """This process as a holder, with a new nonce."""
    return Holder(
        task=task,
        flow_run=flow_run,
        host=_host(),
        pid=os.getpid(),
        process_started=psutil.Process().create_time(),
        nonce=uuid.uuid4().hex[:16],
        at=utc(),
        booted=psutil.boot_time(),
        engine=engine,
        fresh=fresh,
    )


def _host() -> str:
    """Host name, boot and container, because a process id is unique only within all three."""
    boot, container = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    if not (boot.exists() and container.is_symlink()):
        return f"{socket.gethostname()}/{uuid.getnode()}"
    return f"{socket.gethostname()}/{boot.read_text()[:8]}/{container.readlink()}"


def can_be_asked(writer: Holder) -> bool:
    """Whether this process can check if the writer is alive: they have the same boot and container."""
    return writer.host == _host()


def is_dead(writer: Holder) -> bool:
    """Whether the writer is certainly dead. False for other hosts, whose writers can only be watched."""
    if not can_be_asked(writer):
        return False
    try:
        process = psutil.Process(writer.pid)
        # Both are wall times: setting the clock moves the process's start and the boot by the same amount.
        moved = psutil.boot_time() - writer.booted if writer.booted else 0.0
        return abs(process.create_time() - moved - writer.process_started) > 1 or (
            process.status() == psutil.STATUS_ZOMBIE
        )
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


def has_ended(process: psutil.Process) -> bool:
    """Whether a process has ended; a zombie, which nobody has waited for, counts as ended."""
    try:
        return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
