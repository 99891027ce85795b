"""Check whether this container's processes run. The exit code is 0 if they do; else a line says what is missing.

NIGHTJAR_ROLE has one or several words: `ray` (a raylet that can reach its head), `prefect` (a server that answers),
`worker` (a Prefect worker). Without NIGHTJAR_ROLE nothing is checked.
"""

from __future__ import annotations

import os
import socket
import sys
import urllib.request

import psutil


def main() -> int:
    """Check each role once."""
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
    # The path is part of the match, because the command line of the shell that started it has the same words.
    return [] if any("/prefect worker start" in line for line in lines) else ["the Prefect worker is not running"]


LOOK = {"ray": _ray, "prefect": _prefect, "worker": _worker}

if __name__ == "__main__":
    sys.exit(main())
