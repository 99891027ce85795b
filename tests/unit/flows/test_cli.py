"""The command line before any command: its version, its help."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.main import get_group
from typer.testing import CliRunner

from nightjar.flows.cli.main import app


def test_the_version_is_the_packages() -> None:
    said = CliRunner().invoke(app, ["--version"])
    assert (said.exit_code, said.stdout) == (0, f"nightjar {version('nightjar-batch')}\n")


@pytest.mark.parametrize("words", [[], *([name] for name in get_group(app).commands)], ids=" ".join)
def test_h_is_help_everywhere(words: list[str]) -> None:
    short, long = (CliRunner().invoke(app, [*words, option]) for option in ("-h", "--help"))
    assert short.exit_code == 0
    assert short.stdout == long.stdout
    assert "-h, --help" in short.stdout


def test_a_run_is_named_in_one_way_everywhere() -> None:
    """What begins a run names it by `--run-id`; whatever looks at one, or goes on with it, takes RUN."""
    taking = {
        name: (type(found).__name__, found.required)
        for name, command in get_group(app).commands.items()
        for found in command.params
        if found.name == "run_id"
    }
    beginning = {"run", "plan"}
    assert beginning | {"status", "show", "logs", "retry", "replay", "files", "unpublish", "republish"} <= taking.keys()
    assert taking == {name: ("TyperOption" if name in beginning else "TyperArgument", False) for name in taking}


INTERRUPTED = """
import atexit, os, signal, time
from nightjar.flows.cli import main as cli
from nightjar.inference.errors import Interrupted
from typer import Abort


@cli.app.command()
def meddle() -> None:
    atexit.register(os.kill, os.getpid(), signal.SIGSEGV)  # as a thread does that Ray's own code has lost
    print("kept", end="")
    {}


cli.main()
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise KeyboardInterrupt", "nightjar: interrupted\n"),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", "nightjar: interrupted\n"),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", "nightjar: interrupted\n"),
        ("raise Interrupted('stopped by Ctrl-C')", "nightjar: stopped by Ctrl-C\n"),
        ("raise Abort", ""),
    ],
    ids=["Ctrl-C", "SIGINT", "SIGTERM", "a run that was stopped", "a question left unanswered"],
)
def test_an_interrupted_command_ends_without_taking_the_interpreter_apart(how: str, said: str) -> None:
    """Which could fault: with its exit code, and all that it has written."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(how), "meddle"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONFAULTHANDLER": ""},
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "kept", said)
