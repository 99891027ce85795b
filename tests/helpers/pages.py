"""The commands that the README and the docs show."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

ON_RAY = "nightjar backfill job.yaml --from 2026-11-01 --to 2026-11-04"
"""A command of the pages that is run as it stands, on a Ray of its own (test_secrets.py)."""


@dataclass(frozen=True)
class Shown:
    """A command of a page. `words` are as a shell would see them."""

    page: str
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text, comments=True)

    @property
    def named(self) -> str:
        """Its program and what it is told to do."""
        return " ".join(word for word in self.words[:3] if re.fullmatch(r"[a-z]+", word))


def shown() -> list[Shown]:
    """Lines after a prompt, in blocks that say they are a console."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
            found += [Shown(page.name, line[2:]) for line in block.splitlines() if line.startswith("$ ")]
    return found
