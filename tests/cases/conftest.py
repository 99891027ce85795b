"""The table of outcomes at the end of `make cases`."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

WORDS = {"passed": "right", "failed": "WRONG", "error": "WRONG"}


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line for each case that was run: how it ended on each engine, and the mistake that somebody met."""
    outcomes: dict[str, dict[str, str]] = defaultdict(dict)
    for status, word in WORDS.items():
        for report in terminalreporter.stats.get(status, []):
            _, _, name = report.nodeid.partition("test_the_right_result[")
            if name:
                case, _, engine = name.removesuffix("]").rpartition("-")
                outcomes[case][engine] = word
    for case, engines in sorted(outcomes.items()):
        right = yaml.safe_load((Path(__file__).parent / case / "right.yaml").read_text())
        local, ray = engines.get("local", "-"), engines.get("ray", "-")
        terminalreporter.write_line(f"{case:32}local {local:8}ray {ray:8}{right['report']}")
