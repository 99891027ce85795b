"""The command line before any command: its version, its help."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from nightjar.flows.cli import app


def test_the_version_is_the_packages() -> None:
    said = CliRunner().invoke(app, ["--version"])
    assert (said.exit_code, said.stdout) == (0, f"nightjar {version('nightjar-batch')}\n")


@pytest.mark.parametrize("words", [[], *([name] for name in get_command(app).commands)], ids=" ".join)
def test_h_is_help_everywhere(words: list[str]) -> None:
    short, long = (CliRunner().invoke(app, [*words, option]) for option in ("-h", "--help"))
    assert short.exit_code == 0
    assert short.stdout == long.stdout
    assert "-h, --help" in short.stdout
