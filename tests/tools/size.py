"""Counts the product: its files and lines, room by room. `make size` prints it.

Lines are all lines of the files; code lines are those that are neither blank, comment nor docstring. A sliver is a
module of fewer than 100 lines with exactly one importer, in the same folder. The way of a row is the table of
CONTRIBUTING.md: the modules to open to follow a row of a Parquet job from the command to the published part.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = "inference", "flows"
SLIVER = 100
"""A module with fewer lines belongs into its only importer."""

LONG = 450
"""A module with more lines says more than one thing."""

COUNTERS = {"rows_out", "rows_quarantined"}
"""A class with these fields spells the counters of rows itself."""


def code_lines(source: str) -> int:
    """The lines that hold a token of code, without docstrings."""
    prose: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    empty = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in empty:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - prose)


def slivers(files: list[Path]) -> set[Path]:
    """The modules that belong into their only importer."""
    named = {".".join(("nightjar", *path.relative_to(ROOT).with_suffix("").parts)): path for path in files}
    importers: dict[Path, set[Path]] = defaultdict(set)
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            modules = {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
            if isinstance(node, ast.ImportFrom):
                modules = {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
            for module in modules & named.keys():
                importers[named[module]].add(path)
    return {
        path
        for path, by in importers.items()
        if len(by) == 1 and {path.parent} == {each.parent for each in by} and path.read_text().count("\n") < SLIVER
    }


def way_of_a_row() -> list[Path]:
    """The modules in the numbered table of CONTRIBUTING.md."""
    rows = re.findall(r"^\| \d+ \| `([\w/]+\.py)`", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    return [ROOT / row for row in rows]


def spell_counters(source: str) -> list[str]:
    """The names of the classes that have the counters of rows as fields of their own."""
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        and {str(getattr(line.target, "id", "")) for line in node.body if isinstance(line, ast.AnnAssign)} >= COUNTERS
    ]


def main() -> None:
    """Print a line for each room, the sum, and what else tells how much there is to hold."""
    rooms: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    files = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    small = slivers(files)
    for path in files:
        source = path.read_text()
        lines = source.count("\n")
        counts = 1, lines, code_lines(source), int(path in small)
        for room in (str(path.parent.relative_to(ROOT)), "product"):
            rooms[room] = [have + more for have, more in zip(rooms[room], counts, strict=True)]
    print(f"{'':32}{'files':>8}{'lines':>8}{'code':>8}{'slivers':>10}")
    for room, (number, lines, code, few) in sorted(rooms.items()):
        print(f"{room:32}{number:8,}{lines:8,}{code:8,}{few:10,}")
    way = way_of_a_row()
    counters = [name for path in files for name in spell_counters(path.read_text())]
    long = [path for path in files if path.read_text().count("\n") > LONG]
    print(f"\nto follow a row: {len(way)} modules, {sum(path.read_text().count(chr(10)) for path in way):,} lines")
    print(f"records that spell the counters of rows: {len(counters)}: {', '.join(sorted(counters))}")
    print(f"modules of more than {LONG} lines: {', '.join(str(path.relative_to(ROOT)) for path in long) or 'none'}")
    print(f"docs/job-file.md: {(ROOT / 'docs/job-file.md').read_text().count(chr(10))} lines")


if __name__ == "__main__":
    main()
