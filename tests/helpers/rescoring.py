"""What the tests of `rescore.share` use: a predictor that notes who calls it, and a run with something done halfway."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import steps as run
from nightjar.inference.engine import LOCAL
from support import Lake

NOTES = '''
import os
from pathlib import Path

import numpy as np

def score(batch):
    """Twice x; notes the process and the rows. WHAT"""
    with (Path(__LIVE__) / "calls").open("a") as calls:
        calls.write(f"{os.getpid()} {int(batch['x'][0])} {len(batch['x'])}\\n")
    out = batch["x"] * 2
    HOW
    return {"score": out}
'''

FIRST_TIME = "first = not (Path(__LIVE__) / 'again').exists()\n    "
"""Whether a row is scored for the first time: the test says when that is over."""


def model(how: str = "pass") -> str:
    """The predictor's code, with these lines between the scores and their return."""
    return NOTES.replace("HOW", how)


def rescored(lake: Lake) -> dict[str, float]:
    """What the manifest says of the second time."""
    manifest = json.loads((lake.out / lake.snapshot().runs["2026-11-19"].manifest).read_text())
    found: dict[str, float] = manifest["audit"]["rescored"]
    return found


def in_two_steps(lake: Lake, between: Callable[[], object], then: str = LOCAL) -> run.Verdict:
    """Score in this process, do something, validate with this engine."""
    request = lake.request(engine=LOCAL)
    found = run.discover(request)
    scored = run.score(request, found)
    between()
    # Of one flow run the steps follow each other at once; another one would first watch whether this one lives.
    return run.validate(replace(request, engine=then), scored, found)
