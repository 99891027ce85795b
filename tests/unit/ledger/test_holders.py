"""Who writes, as the ledger names it, and whether it certainly lives no more."""

from __future__ import annotations

import datetime as dt
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from nightjar.inference.ledger.holders import Holder, can_be_asked, has_ended, is_dead, this_holder
from support import wait_until


def test_a_writer_is_named_without_its_machine_s_inner_names() -> None:
    """People read host names, not boot ids."""
    writer = Holder("score", "f", "night-7/0af3/pid:[1]", 42, 0.0, "n", "2026-11-19T02:00:00+00:00")
    assert str(writer) == "score of flow run f, process 42 on night-7, since 2026-11-19T02:00:00+00:00"
    assert str(replace(writer, flow_run="")) == "score of process 42 on night-7, since 2026-11-19T02:00:00+00:00"


def test_this_process_is_a_writer_that_can_be_asked() -> None:
    before = dt.datetime.now(dt.UTC).replace(microsecond=0)
    me, other = this_holder("score", "f", "local", fresh=True), this_holder("validate")
    assert (me.task, me.flow_run, me.engine, me.fresh) == ("score", "f", "local", True)
    assert (other.task, other.flow_run, other.engine, other.fresh) == ("validate", "", "", False)
    assert (me.pid, me.process_started) == (os.getpid(), psutil.Process().create_time())
    assert (me.host, me.booted) == (other.host, psutil.boot_time())
    boot, container = Path("/proc/sys/kernel/random/boot_id").read_text(), Path("/proc/self/ns/pid").readlink()
    assert me.host == f"{socket.gethostname()}/{boot[:8]}/{container}"
    assert len(me.nonce) == len(other.nonce) == 16
    assert me.nonce != other.nonce
    at = dt.datetime.fromisoformat(me.at)
    assert (at.utcoffset(), at.microsecond) == (dt.timedelta(0), 0)
    assert before <= at <= dt.datetime.now(dt.UTC)
    assert can_be_asked(me)
    assert not can_be_asked(replace(me, host="elsewhere/0"))


@pytest.mark.parametrize(
    ("booted", "started", "dead"),
    [
        (0.0, 0.0, False),
        (0.0, 0.9, False),
        (0.0, -0.9, False),
        (0.0, 1.1, True),
        (60.0, 60.0, False),
        (60.0, 0.0, True),
    ],
)
def test_a_wall_clock_that_was_set_takes_no_writer_for_another(booted: float, started: float, dead: bool) -> None:
    """Setting it moves a process's beginning and the boot alike; a second is what reading them twice may differ by."""
    me = this_holder("score")
    moved = replace(me, booted=me.booted + booted, process_started=me.process_started + started)
    assert is_dead(moved) == dead
    older = replace(moved, booted=0.0)
    assert is_dead(older) == (abs(started) > 1), "an older release did not write when the machine was started"


def test_a_process_has_ended_once_it_only_waits_to_be_asked_how() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = psutil.Process(child.pid)
    assert not has_ended(process)
    child.kill()
    wait_until(lambda: has_ended(process), 10, "it is dead, not yet buried")
    child.communicate()
    assert has_ended(process)
