"""Ports for the servers of tests."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path


def quiet_ports(count: int) -> list[int]:
    """Ports nobody listens on now, below those the system hands out for outgoing connections.

    Whoever is to be started again there must find them free: of the others, a connection may have taken one.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = range(max(1024, lowest - 12_000), lowest)
    found: list[int] = []
    for port in random.sample(candidates, len(candidates)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            break
    return found
