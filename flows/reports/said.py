"""What a command says of its failure, and what a worker printed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a command failed. error: the class of the exception. job, run_id: empty until they are known.

    state: `failed`, `held` (another writer holds the run), `asks` (a person must say yes before it is published) or
    `interrupted`.
    """

    state: str
    error: str
    message: str
    job: str = ""
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that a worker printed. time: UTC. shard: what was being scored, empty before the first one.

    stream: `out`, `err`, or `note` where it is a remark of Nightjar's.
    """

    time: str
    worker: str
    shard: str
    attempt: int
    stream: str
    text: str
