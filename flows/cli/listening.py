"""Lists the ports on which this user's processes of Nightjar, Ray and Prefect listen, for `doctor`."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from nightjar.flows.cluster.local import is_of_local_run

_PROGRAMS = ("nightjar", "prefect", "gcs_server", "raylet", "ray::", "/ray/")
_PLACES = 4
"""The most addresses that are named for one process; those that other machines reach come first."""


@dataclass(frozen=True, slots=True)
class Listener:
    """One port on which a process listens. of_local_run: whether it belongs to a run with a Ray of its own."""

    pid: int
    name: str
    address: str
    port: int
    of_local_run: bool

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        address = ipaddress.ip_address(self.address)
        mapped = getattr(address, "ipv4_mapped", None)
        return (mapped or address).is_loopback

    @property
    def place(self) -> str:
        """Address and port, as a URL has them."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def listeners() -> Iterator[Listener]:
    """All ports on which this user's processes listen."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.uids().real == os.getuid() and _is_ours(process):
                yield from _listeners(process)


def told(found: Iterable[Listener]) -> list[str]:
    """One line for each listening process; those of local runs that other machines can reach come first."""
    by_process: dict[int, list[Listener]] = {}
    for each in sorted(found, key=_order):
        by_process.setdefault(each.pid, []).append(each)
    return [_line(each) for each in by_process.values()]


def _order(each: Listener) -> tuple[bool, bool, str, int, str, int]:
    return each.on_loopback, not each.of_local_run, each.name, each.pid, each.address, each.port


def _line(of_one: list[Listener]) -> str:
    first, more = of_one[0], len(of_one) - _PLACES
    places = ", ".join(each.place for each in of_one[:_PLACES])
    return f"{first.name} (process {first.pid}) at {places}{f' and {more} more' if more > 0 else ''}"


def _is_ours(process: psutil.Process) -> bool:
    words = process.cmdline()[:3]
    return any(program in word for program in _PROGRAMS for word in words) or is_of_local_run(process)


def _listeners(process: psutil.Process) -> Iterator[Listener]:
    local = is_of_local_run(process) or "nightjar.flows.prefect_api.ownserver" in process.cmdline()
    for each in process.net_connections("inet"):
        if each.status == psutil.CONN_LISTEN:
            yield Listener(process.pid, _name(process), each.laddr.ip.split("%")[0], each.laddr.port, local)


def _name(process: psutil.Process) -> str:
    """The name of the program; for Python, that of the script or module."""
    words = process.cmdline()[1:]
    script = next((word for word in words if not word.startswith("-")), "")
    named = script and "-c" not in words[: words.index(script)]
    return Path(script).name if named and process.name().startswith("python") else process.name()
