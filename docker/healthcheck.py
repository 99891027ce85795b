"""Whether this container does what it was started for. Exit code 0: it does; else a line says what is missing.

It looks at the container's own processes and asks each server among them: a Ray node must have its raylet and
reach its head, a Prefect server must answer, a Prefect worker must be there.
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
    problems = [*_ray(lines), *_prefect(lines)]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def _ray(lines: list[str]) -> list[str]:
    if not any("ray start" in line for line in lines):
        return []
    problems = [] if any("raylet/raylet" in line for line in lines) else ["the raylet is not running"]
    host, _, port = os.environ.get("RAY_HEAD", "127.0.0.1:6379").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        problems.append(f"the Ray head at {host}:{port} cannot be reached: {error}")
    return problems


def _prefect(lines: list[str]) -> list[str]:
    problems = []
    if any("prefect server start" in line for line in lines):
        try:
            urllib.request.urlopen("http://127.0.0.1:4200/api/health", timeout=5).close()
        except OSError as error:
            problems.append(f"the Prefect server does not answer: {error}")
    wants_worker = os.environ.get("NIGHTJAR_ROLE") == "worker"
    if wants_worker and not any("prefect worker start" in line for line in lines):
        problems.append("the Prefect worker is not running")
    return problems


if __name__ == "__main__":
    sys.exit(main())
