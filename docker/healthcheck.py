"""Whether this container does what it was started for. Exit code 0: it does; else a line says what is missing.

NIGHTJAR_ROLE says what that is, one word or several: `ray` (a raylet, and its head within reach), `prefect` (a server
that answers), `worker` (a Prefect worker). Without it there is nothing to look at.
"""

from __future__ import annotations

import os
import socket
import sys
import urllib.request

import psutil


def main() -> int:
    """Look once."""
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    roles = os.environ.get("NIGHTJAR_ROLE", "").split()
    problems = [problem for role in roles for problem in LOOK[role](lines)]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def _ray(lines: list[str]) -> list[str]:
    problems = [] if any("raylet/raylet" in line for line in lines) else ["the raylet is not running"]
    host, _, port = os.environ.get("RAY_HEAD", "127.0.0.1:6379").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        problems.append(f"the Ray head at {host}:{port} cannot be reached: {error}")
    return problems


def _prefect(_: list[str]) -> list[str]:
    try:
        urllib.request.urlopen("http://127.0.0.1:4200/api/health", timeout=5).close()
    except OSError as error:
        return [f"the Prefect server does not answer: {error}"]
    return []


def _worker(lines: list[str]) -> list[str]:
    # With its path: the shell that started it has the same words on its own command line.
    return [] if any("/prefect worker start" in line for line in lines) else ["the Prefect worker is not running"]


LOOK = {"ray": _ray, "prefect": _prefect, "worker": _worker}

if __name__ == "__main__":
    sys.exit(main())
