"""The chaos driver for a short time, from a fixed seed. `make chaos SECONDS=300` goes on for longer, from any seed."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos import chaos

pytestmark = pytest.mark.long

SECONDS, ROWS = 120.0, 20_000
SEED = 25779


def test_nights_under_fire_publish_what_a_quiet_night_does(prefect_api: str, prefect_home: Path) -> None:
    """Killed actors, nodes, drivers and storage change no published row, and no reader ever sees half a night."""
    tally = chaos(SECONDS, SEED, prefect_api, prefect_home, rows=ROWS)
    assert tally.good, tally.table()
    assert tally.runs >= 2
    assert tally.done.total() >= 2
    assert tally.looks > 0
