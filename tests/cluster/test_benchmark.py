"""The benchmark runs, compares the outputs of its programs, and writes its report."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_benchmark_compares_nightjar_with_a_bare_loop_and_reports_both(tmp_path: Path) -> None:
    copy = shutil.copytree(BENCHMARKS, tmp_path / "benchmarks", ignore=shutil.ignore_patterns("results"))
    small = ["--rows", "64000", "--files", "4", "--repeat", "1", "--peers", "a,c"]
    subprocess.run([sys.executable, str(copy / "run.py"), *small], check=True)
    runs = json.loads((copy / "results/latest.json").read_text())["runs"]
    assert [run["peer"] for run in runs] == ["a", "c"]
    assert all(run["written"]["rows"] == 64_000 for run in runs)
    report = (copy / "results/latest.md").read_text()
    assert "| speed, ratio within a repeat | c/a |" in report
    assert "Nightjar's stages, median s: start " in report
