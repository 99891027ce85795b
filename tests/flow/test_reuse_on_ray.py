"""`nightjar run` of a job that reuses results: a cluster is started only if there is something to score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commands import UNUSED
from forked import Done, forked
from support import Lake, leaves_nothing

MONDAY, TUESDAY = "2026-11-16", "2026-11-17"


@pytest.fixture
def lake(tmp_path: Path, api_env: dict[str, str]) -> Lake:
    """Four files of two shards each, scored on Monday."""
    lake = Lake(tmp_path).ready(reuse="shards")
    run(lake, MONDAY, api_env, "--engine", "local")
    return lake


def run(lake: Lake, date: str, env: dict[str, str], *words: str) -> tuple[Done, dict[str, Any]]:
    """A night, and what it says with --json."""
    with leaves_nothing() as mark:
        done = forked("run", lake.job_path, "--date", date, "--json", *words, env={**env, **mark})
    assert done.returncode == 0, done.stderr
    return done, json.loads(done.stdout)


def complete(lake: Lake) -> None:
    """Readers see each row of Tuesday's input with its output."""
    rows = lake.published(TUESDAY)
    assert len(rows) == 8000 and rows["id"].is_unique and (rows["score"] == 2 * rows["id"]).all()


def test_an_unchanged_night_starts_no_ray(lake: Lake, api_env: dict[str, str]) -> None:
    """It takes over every shard, and this process audits them."""
    done, said = run(lake, TUESDAY, api_env)
    assert UNUSED.isdisjoint(done.imported)
    assert [each["shards"] for each in said["reused"]] == [8]
    complete(lake)


@pytest.mark.parametrize("harm", ["deleted", "damaged"])
def test_parts_that_cannot_be_taken_over_are_scored_here(lake: Lake, api_env: dict[str, str], harm: str) -> None:
    """A part that is gone is found while it is taken over, a damaged one by the audit: its shard is scored again."""
    part = min((lake.revision(1, MONDAY) / "data").iterdir())
    if harm == "deleted":
        part.unlink()
    else:
        damaged = bytearray(part.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        part.write_bytes(damaged)
    done, said = run(lake, TUESDAY, api_env)
    assert "ray._raylet" not in done.imported
    assert [each["shards"] for each in said["reused"]] == [7]
    complete(lake)
