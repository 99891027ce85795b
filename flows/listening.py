"""Which processes of this user's Nightjar, Ray and Prefect listen where: what `doctor` says of a machine at work."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import psutil

from nightjar.flows.cluster.local import is_of_local_run

_PROGRAMS = ("nightjar", "prefect", "gcs_server", "raylet", "ray::", "/ray/")


@dataclass(frozen=True, slots=True)
class Listener:
    """One process that listens at one address. of_local_run: it belongs to a run that has a Ray of its own."""

    pid: int
    name: str
    address: str
    port: int
    of_local_run: bool

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        address = ipaddress.ip_address(self.address)
        mapped = getattr(address, "ipv4_mapped", None)
        return (mapped or address).is_loopback

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid}) at {self.address} port {self.port}"


def listeners() -> Iterator[Listener]:
    """Every one of this user's."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.uids().real == os.getuid() and _is_ours(process):
                yield from _listeners(process)


def _is_ours(process: psutil.Process) -> bool:
    words = process.cmdline()[:3]
    return any(program in word for program in _PROGRAMS for word in words) or is_of_local_run(process)


def _listeners(process: psutil.Process) -> Iterator[Listener]:
    local = is_of_local_run(process) or "nightjar.flows.server" in process.cmdline()
    for each in process.net_connections("inet"):
        if each.status == psutil.CONN_LISTEN:
            yield Listener(process.pid, process.name(), each.laddr.ip.split("%")[0], each.laddr.port, local)
