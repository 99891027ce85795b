"""Promise 5 for real processes: two or three commands of one run, stopped, woken and killed at random moments."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

import stopped
from nightjar.inference.ledger.ledger import Ledger
from nightjar.inference.output import publications as publish
from nightjar.inference.records import Receipt
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import join

ENDS_S = 60
"""Whoever is awake ends within this time, on a busy machine, too."""

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(["stopped"])


@pytest.fixture(autouse=True)
def preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server that commands are forked from finds what it is to load before: Python 3.11 hands it no path."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


def begin(output: Path, name: str, seen_dying: bool) -> BaseProcess:
    """One command."""
    process = CONTEXT.Process(target=stopped.drive, args=(str(output), name, seen_dying))
    process.start()
    return process


def send(command: BaseProcess, what: signal.Signals) -> None:
    """To a command that may end at this moment: its parent is the server, which lets go of its number."""
    if command.is_alive() and command.pid:
        with suppress(ProcessLookupError):
            os.kill(command.pid, what)


def disturb(commands: list[BaseProcess], dice: random.Random) -> None:
    """Stop, wake and kill at random for a while; who is left stopped is woken at the end."""
    for _ in range(dice.randint(3, 12)):
        time.sleep(dice.uniform(0, 0.15))
        command = dice.choice(commands)
        what = dice.choices([signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL], [6, 4, 1])[0]
        send(command, what)
    for command in commands:
        send(command, signal.SIGCONT)


def play(output: Path, seed: int) -> None:
    """One round; then the command is repeated, as somebody would whose commands were all killed."""
    dice = random.Random(seed)
    commands = [begin(output, f"command-{n}", dice.random() < 0.5) for n in range(dice.choice([2, 3]))]
    try:
        disturb(commands, dice)
        commands.append(begin(output, "repeated", True))
        for command in commands:
            command.join(ENDS_S)
            assert not command.is_alive(), f"seed {seed}: {command} hangs"
        # It may have been told that another one had it, which was killed then.
        last = begin(output, "at last", True)
        commands.append(last)
        last.join(ENDS_S)
        assert last.exitcode == 0, f"seed {seed}"
    finally:
        for command in commands:
            command.kill()
            command.join()
    check(output, seed)


def check(output: Path, seed: int) -> None:
    """Published once, and each shard committed once."""
    storage = LakeStorage()
    assert publish.newest(storage, str(output)).number == 1, f"seed {seed}"
    segments = list(Ledger(storage, join(str(output), "runs", stopped.RUN, "r1")).segments())
    shards = Counter(r.shard for segment in segments for r in segment.lines if isinstance(r, Receipt))
    assert shards == dict.fromkeys(stopped.SHARDS, 1), f"seed {seed}"


def test_commands_stopped_woken_and_killed_end_and_publish_once(tmp_path: Path) -> None:
    for seed in range(6):
        play(tmp_path / str(seed), seed)


@pytest.mark.long
def test_five_hundred_rounds_of_stopped_woken_and_killed_commands(tmp_path: Path) -> None:
    for seed in range(1000, 1500):
        play(tmp_path / str(seed), seed)
