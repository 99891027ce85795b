"""The example of docs/python.md, run as it stands there: as a notebook runs a cell, with an event loop under way."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from support import ROOT, Lake

PAGE = ROOT / "docs" / "python.md"

NOTEBOOK = """
import ast, asyncio, json, os, sys

before = {name: value for name, value in os.environ.items() if name.startswith("PREFECT_")}

cells, names, values = json.loads(sys.stdin.read()), {}, []


def run_cell(cell):
    '''As a notebook does: all of it, and the values of its expressions.'''
    for statement in ast.parse(cell).body:
        if isinstance(statement, ast.Expr):
            values.append(repr(eval(compile(ast.Expression(statement.value), "cell", "eval"), names)))
        else:
            exec(compile(ast.Module([statement], []), "cell", "exec"), names)


async def notebook():
    for cell in cells:
        run_cell(cell)


asyncio.run(notebook())
assert before == {name: value for name, value in os.environ.items() if name.startswith("PREFECT_")}, "it leaves some"
print(json.dumps(values))
"""

BREAK_THE_JOB = "import pathlib; job = pathlib.Path('job.yaml'); _ = job.write_text(job.read_text() + 'carri: []')"


def test_the_example_runs_as_it_stands(tmp_path: Path, api_env: dict[str, str]) -> None:
    """Run, look at the outcome, read the rows; then a job that is wrong. Nothing but the example's own is printed."""
    lake = Lake(tmp_path).ready(checks=[{"column": "score", "nulls": 0}])
    example, mistakes = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK],
        input=json.dumps([example, BREAK_THE_JOB, mistakes]),
        cwd=lake.folder,
        env={**os.environ, **api_env},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    refused, values = done.stdout.splitlines()
    assert "'carri'" in refused
    state, rows, outputs, seconds, standing, files, frame, count, mean = json.loads(values)
    assert (state, rows, standing) == ("('published', 1)", "(8000, 8000, 0)", "'published'")
    assert "score" in outputs
    assert float(seconds) > 0
    assert files.startswith("(8000, ('")
    assert frame.endswith("[8000 rows x 5 columns]")
    assert count == "8000"
    assert "7999.0" in mean
