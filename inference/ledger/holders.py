"""Who writes: a process as the ledger names it, and whether it certainly lives no more."""

from __future__ import annotations

import datetime as dt
import os
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds an epoch: enough to tell a person, and to see whether the process still lives."""

    task: str
    flow_run: str
    host: str
    pid: int
    process_started: float
    nonce: str
    at: str
    booted: float = 0.0

    def __str__(self) -> str:
        run = f"flow run {self.flow_run}, " if self.flow_run else ""
        return f"{self.task} of {run}process {self.pid} on {self.host.split('/')[0]}, since {self.at}"


def this_holder(task: str, flow_run: str = "") -> Holder:
    """This process as a writer, with a nonce of its own."""
    return Holder(
        task=task,
        flow_run=flow_run,
        host=_host(),
        pid=os.getpid(),
        process_started=psutil.Process().create_time(),
        nonce=uuid.uuid4().hex[:16],
        at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        booted=psutil.boot_time(),
    )


def _host() -> str:
    """Host name, boot and container: a process id means something only within all three."""
    boot, container = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    if not (boot.exists() and container.is_symlink()):
        return f"{socket.gethostname()}/{uuid.getnode()}"
    return f"{socket.gethostname()}/{boot.read_text()[:8]}/{container.readlink()}"


def can_be_asked(writer: Holder) -> bool:
    """Whether this process can see for certain if the writer lives: it is of the same boot and container."""
    return writer.host == _host()


def is_dead(writer: Holder) -> bool:
    """Whether the writer certainly no longer runs. False for other hosts: they can only be watched."""
    if not can_be_asked(writer):
        return False
    try:
        process = psutil.Process(writer.pid)
        # Both are told by the wall clock: setting it moves a process's beginning and the boot alike.
        moved = psutil.boot_time() - writer.booted if writer.booted else 0.0
        return abs(process.create_time() - moved - writer.process_started) > 1 or (
            process.status() == psutil.STATUS_ZOMBIE
        )
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


def is_of_earlier_boot(writer: Holder) -> bool:
    """Whether it ran before this machine was started; or on another one of the same name, that cannot be told."""
    (name, boot, *_), (here, now, *_) = (f"{host}/".split("/") for host in (writer.host, _host()))
    return name == here and boot != now


def has_ended(process: psutil.Process) -> bool:
    """Whether a process is there no more, or only because nobody asked how it ended."""
    try:
        return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
